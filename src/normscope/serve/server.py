"""The server as a program: its socket, its signals, its start and its end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normscope.errors import InputError
from normscope.serve.app import create_app
from normscope.serve.jobs import Jobs
from normscope.serve.settings import Settings

HEAD_SECONDS = 10.0  # in which the head of a request has to come
GRACE = 3  # seconds that answers in progress get when the server stops


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    listening = _listen(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        # uvicorn stops in order at either signal, then raises it once more for who else listens.
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(settings, listening))
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
    print("normscope: stopped", file=sys.stderr)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _listen(settings: Settings) -> socket.socket:
    """A listening socket; taken before the models are loaded, so that a mistake shows at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as problem:
        raise InputError(
            f"cannot listen on {settings.host} port {settings.port}: "
            f"{problem.strerror or problem}; choose another --port, or end what uses it"
        ) from None


class Impatient(H11Protocol):
    """A connection that is closed if no request comes: silent ones would keep others out."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._watch, None)

    def _watch(self, last: Any) -> None:
        """Close it if it is idle and has been since the `last` request was seen."""
        if self.transport.is_closing():
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is last:
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._watch, self.cycle)


class _Server(uvicorn.Server):
    """One that ends its jobs first, so that nobody is left waiting for an answer."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._jobs.close()
        await super().shutdown(sockets)


async def _serve(settings: Settings, listening: socket.socket) -> None:
    jobs = Jobs(settings)
    print("normscope: loading the models …", file=sys.stderr, flush=True)
    try:
        await jobs.start()
        config = uvicorn.Config(
            create_app(settings, jobs),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is who connects, whatever a header says
            http=Impatient,
            ws="none",
            lifespan="off",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=GRACE,
            limit_concurrency=8 * settings.in_flight,  # connections; beyond, a bare 503
        )
        print(_welcome(settings, list(jobs.models)), file=sys.stderr, flush=True)
        await _Server(config, jobs).serve(sockets=[listening])
    finally:
        await jobs.close()


def _welcome(settings: Settings, models: list[str]) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    # After the #, where no server and no log gets to see it.
    token = f"#token={settings.token}" if settings.token is not None else ""
    return (
        f"normscope: serving {', '.join(models)} at http://{host}:{settings.port}/{token}\n"
        "normscope: Ctrl-C stops"
    )
