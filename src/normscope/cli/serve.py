"""`normscope serve`: the local web app."""

from __future__ import annotations

from typing import Annotated

import typer

from normscope.cli.options import Debug, Device, Dtype
from normscope.errors import MissingExtraError


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A folder or hub name that may be chosen on the page. May be given several "
            "times. Without it, the default model. No other model is ever loaded.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", help="0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Let other machines in; they need the token."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further name under which browsers call this server. May be given several "
            "times.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="NORMSCOPE_TOKEN",
            help="Who asks must know it. With --allow-remote one is made if none is given.",
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(metavar="N", help="The most tokens a text may have.")
    ] = 256,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="After which an analysis is stopped.")
    ] = 60.0,
    queue: Annotated[int, typer.Option(metavar="N", help="Analyses that may wait.")] = 16,
    rate: Annotated[
        int, typer.Option(metavar="N", help="Analyses a minute that one client may ask for.")
    ] = 120,
    device: Device = None,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Serve a page: type a sentence, see its maps.

    The models are loaded once, into a process of their own, which does one analysis after the
    other; an analysis that takes too long or is cancelled is stopped. Only this machine can reach
    the page, unless --host and --allow-remote say otherwise; then whoever asks needs the token.

    \b
    Examples:
      normscope serve
      normscope serve --model bert-base-uncased --model Helsinki-NLP/opus-mt-de-en
      normscope serve --host 0.0.0.0 --allow-remote --allow-host lab.example.org

    \b
    Exit status:
      0 stopped by Ctrl-C or SIGTERM, 1 unexpected error, 2 mistake in what was given
    """  # noqa: D301
    from normscope.serve.settings import ServeSettings

    settings = ServeSettings(
        models=tuple(model or ()),
        device=device,
        dtype=dtype,
        host=host,
        port=port,
        token=token,
        allow_remote=allow_remote,
        allow_host=tuple(allow_host or ()),
        max_length=max_length,
        time_limit=time_limit,
        queue=queue,
        rate=rate,
    )
    try:
        from normscope.serve.server import serve as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("starlette and uvicorn", "serve") from missing
    run(settings)
