"""`normscope view`: show saved results as a page."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from normscope.cli.options import OUTPUT, CommandArguments, argument, command, option


@dataclass(frozen=True, kw_only=True)
class ViewArguments(CommandArguments):
    """The options of `normscope view`."""

    files: list[str] = argument(
        help="A .safetensors file that analyze --output wrote. Several results of the same "
        "text are shown as one.",
        metavar="FILE",
    )
    output: str | None = option(
        None,
        names=OUTPUT,
        help="Write the page to FILE (.html). Default: open it in the browser.",
        metavar="FILE",
    )


@command
def view(arguments: ViewArguments) -> None:
    """Show a saved result as an interactive page.

    The page is one HTML file that needs no network: every map, layer and head, two maps side by
    side with their difference, the largest contributors, the mixing ratio.

    \b
    Examples:
      normscope analyze --text "The cat sat." --output cat.safetensors
      normscope view cat.safetensors
      normscope view cat.safetensors --output cat.html
    """  # noqa: D301
    import normscope
    from normscope.foundation.files import check_file
    from normscope.show import page
    from normscope.show.page.show import show

    if arguments.output is not None:
        check_file(arguments.output, (".html", ".htm"))
    results = [normscope.load(file) for file in arguments.files]
    if arguments.output is None:
        show(results)
        return
    page.write(results, arguments.output)
    print(f"wrote {arguments.output}", file=sys.stderr)
