"""`normscope view`: show saved results as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normscope.cli.options import OUTPUT, CommandArguments, argument, command, option
from normscope.cli.output import open_in_browser, say, temporary_page
from normscope.cli.status import status
from normscope.errors import InputError
from normscope.foundation.files import check_file, check_name
from normscope.foundation.progress import stage
from normscope.foundation.texts import printable, quoted


@dataclass(frozen=True, kw_only=True)
class ViewArguments(CommandArguments):
    """The options of `normscope view`."""

    files: list[str] = argument(
        help="A .safetensors file that analyze or attribute wrote (--output). Several results of "
        "the same text are shown on one page.",
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
      normscope analyze "The cat sat." --output cat.safetensors
      normscope view cat.safetensors
      normscope view cat.safetensors --output cat.html
    """  # noqa: D301
    if arguments.output is not None:
        check_file(arguments.output, (".html", ".htm"))
    for file in arguments.files:
        _check_readable(file)
    output = temporary_page() if arguments.output is None else arguments.output
    with status(f"reading {Path(arguments.files[0]).name}"):
        import normscope
        from normscope.show import page

        results = [normscope.load(file) for file in arguments.files]
        stage("writing the page")
        page.write(results, output)
    if arguments.output is not None:
        say(f"wrote {output}")
        return
    print(printable(output))
    open_in_browser(output)


def _check_readable(file: str) -> None:
    """Raise InputError for a file that does not exist or lacks data that the page needs."""
    path = check_name(file)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InputError(f"there is no file {quoted(file)}")
    if suffix in (".html", ".htm"):
        raise InputError(f"{file!r} is already a page: open it in a browser")
    if suffix in (".json", ".jsonl", ".csv", ".parquet", ".png", ".svg", ".pdf"):
        again = f"write it again with --output {path.stem or 'result'}.safetensors"
        raise InputError(
            f"{file!r} does not contain the whole result; view reads .safetensors files, which "
            f"analyze and attribute write: {again}, or open the page directly with --open. To look "
            "at an alignment, write a page: normscope align … --output links.html"
        )
