"""`normscope view`: a saved result as a page."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from normscope.cli.options import Debug


def view(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="What analyze --output wrote: .safetensors. Several results of the same text "
            "are shown as one.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the page to FILE (.html). Without it, the page opens in the browser.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show a saved result as an interactive page.

    The page is one HTML file that needs no network: every map, layer and head, two maps side by
    side with their difference, the largest contributors, the mixing ratio.

    \b
    Examples:
      normscope analyze --text "The cat sat." --output cat.safetensors
      normscope view cat.safetensors
      normscope view cat.safetensors --output cat.html
    """  # noqa: D301
    from normscope.results.contributions import load
    from normscope.results.files import check_file
    from normscope.show import page as viewer
    from normscope.show.page.show import show

    if output is not None:
        check_file(output, (".html", ".htm"))
    results = [load(file) for file in files]
    if output is None:
        show(results)
        return
    viewer.write(results, output)
    print(f"wrote {output}", file=sys.stderr)
