"""What the server was told at its start, checked before anything is loaded."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from math import inf

from normscope.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True)
class Settings:
    """Every limit of the server."""

    models: tuple[str | None, ...] = (None,)  # None is the default model
    device: str | None = None
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    allow_remote: bool = False
    names: tuple[str, ...] = ()  # further names under which the server may be called
    max_length: int = 256  # tokens of a text
    max_cells: int = 4_000_000  # numbers in all maps of one result
    time_limit: float | int = 60.0  # seconds of one analysis
    queue: int = 16  # analyses that wait
    rate: int = 120  # analyses a minute and client
    requests: int = 50  # of any kind, a second and client
    in_flight: int = 128  # requests at once
    body: int = 64 * 1024  # bytes of a request
    kept: int = 32  # finished jobs
    kept_bytes: int = 128 * 2**20
    kept_seconds: float | int = 30 * 60.0

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("no model to serve; leave --model out for the default model")
        for name in ("max_length", "time_limit", "queue", "rate", "kept"):
            if not 0 < getattr(self, name) < inf:
                option = name.replace("_", "-")
                raise InputError(f"--{option} must be a number above 0, not {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise InputError(f"a port is a number up to 65535, not {self.port}; 0 takes a free one")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise InputError(
                f"the token is too short to be safe: give at least {SHORTEST_TOKEN} characters, "
                "or leave it out and one is made"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InputError("the token has characters that no HTTP header carries: use ASCII")
        if not self.local and not self.allow_remote:
            raise InputError(
                f"--host {self.host} lets other machines reach the server; if that is wanted, say "
                "so with --allow-remote, and whoever asks will need the token"
            )
        if self.allow_remote and self.token is None:
            object.__setattr__(self, "token", secrets.token_urlsafe(24))

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host in LOOPBACK:
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback

    def answers_to(self, host: str) -> bool:
        """Whether a request's Host (without port, lower case) is a name of this server.

        A page from elsewhere that makes its own name point to this machine (DNS rebinding) comes
        with that name. An address it cannot fake, so a server for other machines takes any.
        """
        if host in LOOPBACK or host in {self.host.lower(), *map(str.lower, self.names)}:
            return True
        return not self.local and _address(host) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
