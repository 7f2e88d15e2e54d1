"""Options and limits of the server, checked before a model is loaded."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from math import inf

from normscope.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True)
class ServeSettings:
    """Options and limits of the server.

    Fields whose metadata have a "help" text are options of `normscope serve`. Where "option" is
    present it is the option's name; otherwise the option is named after the field. "envvar" is an
    environment variable that the option is read from.
    """

    models: tuple[str, ...] = field(
        default=(),
        metadata={
            "option": "--model",
            "metavar": "NAME",
            "help": "A model that can be selected on the page: a folder, or a name on the Hugging "
            "Face hub. Repeat the option for several models. Without it, the default model is "
            "served. No other model is ever loaded.",
        },
    )
    port: int = field(
        default=8765,
        metadata={"metavar": "N", "help": "Port to listen on; 0 selects a free port."},
    )
    host: str = field(
        default="127.0.0.1", metadata={"metavar": "ADDRESS", "help": "Address to listen on."}
    )
    allow_remote: bool = field(
        default=False,
        metadata={"help": "Accept requests from other machines. They need the token."},
    )
    allow_host: tuple[str, ...] = field(
        default=(),
        metadata={
            "metavar": "NAME",
            "help": "Another host name under which browsers reach this server. Repeat the option "
            "for several names.",
        },
    )
    token: str | None = field(
        default=None,
        metadata={
            "metavar": "TOKEN",
            "envvar": "NORMSCOPE_TOKEN",
            "help": "A secret that every client must send. With --allow-remote, a token is "
            "generated if none is given.",
        },
    )
    max_length: int = field(
        default=256, metadata={"metavar": "N", "help": "Maximum number of tokens in a text."}
    )
    time_limit: float | int = field(
        default=60.0,
        metadata={"metavar": "SECONDS", "help": "Time after which an analysis is stopped."},
    )
    queue: int = field(
        default=16, metadata={"metavar": "N", "help": "Maximum number of waiting analyses."}
    )
    device: str | None = field(
        default=None,
        metadata={"metavar": "DEVICE", "help": "cpu, cuda, cuda:1, mps. Default: cpu."},
    )
    dtype: str | None = field(
        default=None,
        metadata={
            "metavar": "DTYPE",
            "help": "float64, float32, bfloat16, float16. Default: the dtype of the stored "
            "weights.",
        },
    )

    # Limits that the command line does not change.
    max_cells: int = 4_000_000  # numbers in all maps of one result
    connections: int = 256  # open connections
    body: int = 64 * 1024  # bytes in a request body
    kept: int = 32  # jobs without a result: failed or cancelled
    kept_bytes: int = 128 * 2**20  # total size of results
    kept_seconds: float | int = 30 * 60.0  # age of a finished job

    def __post_init__(self) -> None:
        for name in ("max_length", "time_limit", "queue"):
            value = getattr(self, name)
            if not 0 < value < inf:
                option = name.replace("_", "-")
                raise InputError(f"--{option} must be a number above 0, not {value}")
        if not 0 <= self.port <= 65535:
            raise InputError(
                f"--port must be a number up to 65535, not {self.port}; 0 selects a free port"
            )
        self._check_token()
        if not self.local and not self.allow_remote:
            raise InputError(
                f"--host {self.host} makes the server reachable from other machines; if this is "
                "intended, add --allow-remote; clients will then need the token"
            )
        if self.allow_remote and self.token is None:
            object.__setattr__(self, "token", secrets.token_urlsafe(24))

    def _check_token(self) -> None:
        if self.token is None:
            return
        if len(self.token) < SHORTEST_TOKEN:
            raise InputError(
                f"the token has {len(self.token)} characters, which is too short to be safe; give "
                f"at least {SHORTEST_TOKEN} characters"
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise InputError(
                "the token contains characters that are not allowed in an HTTP header; use "
                "printable ASCII characters"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host in LOOPBACK:
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback

    def share(self, limit: int) -> int:
        """Return how much of a limit one client may use: a quarter if other machines are let in."""
        return max(1, limit // 4) if self.allow_remote else limit

    def answers_to(self, host: str) -> bool:
        """Return whether a Host header (without port, in lower case) names this server.

        In a DNS rebinding attack a foreign page points its own host name to this machine, and its
        requests carry that name. It cannot do so with an IP address, so a server that is open to
        other machines accepts any address.
        """
        if host in LOOPBACK or host in {self.host.lower(), *map(str.lower, self.allow_host)}:
            return True
        return not self.local and _address(host) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
