"""`normscope serve`: the local web app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normscope.cli.options import CommandArguments, CommonOptions, command, option, shared
from normscope.errors import MissingExtraError


@dataclass(frozen=True, kw_only=True)
class ServeArguments(CommandArguments):
    """The options of `normscope serve`."""

    model: list[str] | None = option(
        None,
        help="A folder or hub name that users of the page may choose. May be given several "
        "times. No other model is ever loaded. Default: the default model.",
        metavar="NAME",
    )
    port: int = option(8765, help="The port to listen on; 0: any free port.", metavar="N")
    host: str = option("127.0.0.1", help="The address to listen on.", metavar="ADDRESS")
    allow_remote: bool = option(False, help="Allow requests from other machines with the token.")
    allow_host: list[str] | None = option(
        None,
        help="Another host name under which browsers may reach this server. May be given "
        "several times.",
        metavar="NAME",
    )
    token: str | None = option(
        None,
        help="A secret that every request must contain. Default: none, or a random one with "
        "--allow-remote.",
        metavar="TOKEN",
        envvar="NORMSCOPE_TOKEN",
    )
    max_length: int = option(256, help="The largest number of tokens in a text.", metavar="N")
    time_limit: float = option(
        60.0, help="Stop an analysis after so many seconds.", metavar="SECONDS"
    )
    queue: int = option(16, help="The largest number of waiting analyses.", metavar="N")
    rate: int = option(
        120, help="The largest number of analyses per minute and client.", metavar="N"
    )
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")

    def for_python(self) -> dict[str, Any]:
        """Return the fields of the server's settings."""
        return self.keywords(
            *("model", "allow_host"),
            models=tuple(self.model or (None,)),
            names=tuple(self.allow_host or ()),
        )


@command
def serve(arguments: ServeArguments) -> None:
    """Serve a page: type a sentence, see its maps.

    The models are loaded once, into a process of their own, which runs one analysis after the
    other; an analysis that takes too long or is cancelled is stopped. Only this machine can reach
    the page, unless --host and --allow-remote are given; then every request needs the token.

    \b
    Examples:
      normscope serve
      normscope serve --model bert-base-uncased --model Helsinki-NLP/opus-mt-de-en
      normscope serve --host 0.0.0.0 --allow-remote --allow-host lab.example.org

    \b
    Exit status:
      0 stopped by Ctrl-C or SIGTERM, 1 unexpected error, 2 usage error
    """  # noqa: D301
    from normscope.serve.settings import Settings

    settings = Settings(**arguments.for_python())
    try:
        from normscope.serve.server import serve as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("starlette and uvicorn", "serve") from missing
    run(settings)
