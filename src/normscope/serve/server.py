"""Run the server: its socket, its signals, its start and its shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normscope.errors import InputError
from normscope.serve.app import create_app
from normscope.serve.jobs import JobQueue
from normscope.serve.settings import ServeSettings

PATIENCE = 10.0  # seconds, or up to twice as many, that a connection waits for its client
BUFFER = 2**17  # bytes that the system keeps for a client
GRACE = 2  # seconds for open responses to finish when the server stops


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


class WatchedConnection(H11Protocol):
    """A connection that is closed when its client keeps it waiting.

    uvicorn waits without a limit for a first request, for the rest of a request's head, and for a
    client that does not read. Such connections would use up the permitted number.
    """

    def __init__(self, *, most: int, **options: Any) -> None:
        super().__init__(**options)
        self._most = most  # connections from one address
        self._taken = 0  # how often the client has read what was waiting for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(PATIENCE, self._watch, None)
        # The system would buffer megabytes, and report late that a slow client reads.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        others = (getattr(other, "client", None) or [None] for other in self.connections)
        if sum(client[0] == (self.client or [""])[0] for client in others) > self._most:
            transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken += 1

    def _watch(self, before: object) -> None:
        """Close the connection if its client owes the same as before."""
        unread = self.flow.write_paused or self.transport.is_closing()
        idle = self.cycle is None or self.cycle.response_complete
        progress = (self.cycle, self._taken, self.transport.get_write_buffer_size())
        owed = progress if unread or idle else None
        if owed is not None and owed == before:
            if unread:
                self.transport.abort()  # without the rest
                return
            self.transport.close()
        self.loop.call_later(PATIENCE, self._watch, owed)


class _Server(uvicorn.Server):
    """A server that ends its jobs before it waits for open responses."""

    def __init__(self, config: uvicorn.Config, jobs: JobQueue) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._jobs.close()
        asyncio.get_running_loop().call_later(GRACE, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        """Close the connections whose clients keep the server waiting."""
        for connection in list(self.server_state.connections):
            cast(Any, connection).transport.abort()


def create_server(settings: ServeSettings, jobs: JobQueue) -> uvicorn.Server:
    """Return a server for the web app; the caller starts `jobs`."""
    most = settings.share(2 * settings.connections)
    config = uvicorn.Config(
        create_app(settings, jobs),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a header must not change a client's address
        http=cast(Any, partial(WatchedConnection, most=most)),
        ws="none",
        lifespan="off",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2 * GRACE,  # all connections are closed before
        limit_concurrency=settings.connections,  # above it, a plain 503
    )
    return _Server(config, jobs)


async def _serve(
    settings: ServeSettings,
    listening: socket.socket,
    loading: Callable[[], AbstractContextManager[None]],
) -> None:
    jobs = JobQueue(settings)
    try:
        with loading():
            await jobs.start()
        print(_welcome(settings, list(jobs.models)), file=sys.stderr, flush=True)
        await create_server(settings, jobs).serve(sockets=[listening])
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
