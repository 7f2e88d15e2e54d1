"""Run the server: its socket, its signals, its start and its shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normscope.errors import InputError
from normscope.serve.app import create_app
from normscope.serve.jobs import JobQueue
from normscope.serve.settings import ServeSettings

HEAD_SECONDS = 10.0  # time for the head of a request to arrive
GRACE = 3  # seconds for open responses to finish when the server stops


def serve(
    settings: ServeSettings, loading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Run the web app until SIGINT, SIGTERM or SIGHUP.

    Args:
        settings: The settings of the server.
        loading: Returns a context in which the models are loaded, such as a status line.
    """
    listening = _listen(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt)}
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN:  # as `nohup` sets it
        previous[hang_up] = signal.signal(hang_up, _terminate)
    try:
        # After its own shutdown uvicorn raises the signal again, for other handlers.
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(settings, listening, loading))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        listening.close()
    print("normscope: stopped", file=sys.stderr)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _terminate(*_: Any) -> None:
    """Do what SIGTERM does now: while it serves, uvicorn handles that signal."""
    signal.raise_signal(signal.SIGTERM)


def _listen(settings: ServeSettings) -> socket.socket:
    """Open the socket before the models are loaded, so that an error is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        raise InputError(
            f"cannot listen on {settings.host} port {settings.port}: "
            f"{error.strerror or error}; choose another --port, or stop the program that uses it"
        ) from None


class IdleTimeoutProtocol(H11Protocol):
    """A connection that is closed if no request arrives.

    uvicorn waits for the first request without a limit, and silent connections would use up the
    permitted number.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._watch, None)

    def _watch(self, last_cycle: Any) -> None:
        """Close the connection if it is idle and had no request since `last_cycle`."""
        if self.transport.is_closing():
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is last_cycle:
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._watch, self.cycle)


class _Server(uvicorn.Server):
    """A server that ends its jobs before it waits for open responses."""

    def __init__(self, config: uvicorn.Config, jobs: JobQueue) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._jobs.close()
        await super().shutdown(sockets)


async def _serve(
    settings: ServeSettings,
    listening: socket.socket,
    loading: Callable[[], AbstractContextManager[None]],
) -> None:
    jobs = JobQueue(settings)
    try:
        with loading():
            await jobs.start()
        config = uvicorn.Config(
            create_app(settings, jobs),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a header must not change a client's address
            http=IdleTimeoutProtocol,
            ws="none",
            lifespan="off",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=GRACE,
            limit_concurrency=8 * settings.in_flight,  # of connections; above it, a plain 503
        )
        print(_welcome(settings, list(jobs.models)), file=sys.stderr, flush=True)
        await _Server(config, jobs).serve(sockets=[listening])
    finally:
        await jobs.close()


def _welcome(settings: ServeSettings, models: list[str]) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    # Browsers do not send the part after #, so the token appears in no log.
    token = f"#token={settings.token}" if settings.token is not None else ""
    return (
        f"normscope: serving {', '.join(models)} at http://{host}:{settings.port}/{token}\n"
        "normscope: press Ctrl-C to stop"
    )
