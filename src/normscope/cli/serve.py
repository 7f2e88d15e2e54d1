"""`normscope serve`: the local web app."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from normscope.cli.options import CommandArguments, command, shared
from normscope.cli.status import status
from normscope.errors import MissingExtraError
from normscope.models.sources import check_source
from normscope.serve.settings import ServeSettings


@dataclass(frozen=True, kw_only=True)
class ServeArguments(CommandArguments):
    """The options of `normscope serve`."""

    models: list[str] = shared(ServeSettings, "models")
    port: int = shared(ServeSettings, "port")
    host: str = shared(ServeSettings, "host")
    allow_remote: bool = shared(ServeSettings, "allow_remote")
    allow_host: list[str] = shared(ServeSettings, "allow_host")
    token: str | None = shared(ServeSettings, "token")
    max_length: int = shared(ServeSettings, "max_length")
    time_limit: float = shared(ServeSettings, "time_limit")
    queue: int = shared(ServeSettings, "queue")
    device: str | None = shared(ServeSettings, "device")
    dtype: str | None = shared(ServeSettings, "dtype")

    def for_python(self) -> dict[str, Any]:
        """Return the fields of the server's settings."""
        return self.keywords(models=tuple(self.models), allow_host=tuple(self.allow_host))


@command
def serve(arguments: ServeArguments) -> None:
    """Start a local web app to ask questions about a text.

    The models are loaded once, in a separate process that runs one analysis at a time; an analysis
    that takes too long or is cancelled is stopped. Only this machine can reach the page, unless
    --host and --allow-remote are given; then every request needs the token.

    \b
    Examples:
      normscope serve
      normscope serve --model bert-base-uncased --model Helsinki-NLP/opus-mt-de-en
      normscope serve --host 0.0.0.0 --allow-remote --allow-host lab.example.org

    \b
    Exit status:
      0 stopped by Ctrl-C, SIGTERM or SIGHUP, 1 unexpected error, 2 usage error
    """  # noqa: D301
    settings = ServeSettings(**arguments.for_python())
    try:
        from normscope.serve.server import serve as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("starlette and uvicorn", "serve") from missing
    for model in arguments.models:
        check_source(model)
    run(settings, _loading)


@contextmanager
def _loading() -> Iterator[None]:
    """Say that the models are loaded: with a spinner on a terminal, else in one line."""
    if not sys.stderr.isatty():
        print("normscope: loading the models …", file=sys.stderr, flush=True)
    with status("loading the models"):
        yield
