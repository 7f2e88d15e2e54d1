"""Helpers for what commands print and write."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError
from normscope.foundation.interrupts import shielded
from normscope.foundation.texts import printable

if TYPE_CHECKING:
    from rich.console import Console

PICTURES = (".png", ".svg", ".pdf")


@shielded
def quiet() -> Iterator[None]:
    """Silence transformers' logging and its progress bar for loading weights.

    The progress bars of downloads stay.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    download_bars = not are_progress_bars_disabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        if download_bars:  # disable_progress_bar() turned these off as well
            enable_progress_bars()
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def hint_on_interrupt(output: Path | None, restart: bool) -> Iterator[None]:
    """On an interrupt, print whether the run that writes to `output` can be continued."""
    from normscope.corpus.checkpoint import FILE

    try:
        yield
    except KeyboardInterrupt:
        if output is None:
            note("nothing was saved; a run with --output DIR can be resumed")
        elif (output / FILE).is_file() or any(output.glob("*.jsonl")):
            same = "the same command without --restart" if restart else "the same command"
            note(f"progress is saved in {output}; {same} resumes from there")
        else:
            note("nothing has been measured yet; the same command starts from the beginning")
        raise


def say(message: str) -> None:
    """Print a message to standard error in one line, with control characters escaped."""
    print(printable(message), file=sys.stderr)


def note(message: str) -> None:
    """Print a message of the program to standard error."""
    say(f"normscope: {message}")


def plain_console(**options: Any) -> Console:
    """Make a console that prints text as it is, without markup, emoji codes or highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def is_picture(output: str | None) -> bool:
    """Tell whether a file name is that of a picture."""
    return output is not None and Path(output).suffix.lower() in PICTURES


def check_page(output: str | None) -> None:
    """Raise InputError if --open was given with a file that is no page."""
    if output is not None and Path(output).suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"--open shows a page, but --output is {output!r}; give a name that ends in .html, or "
            "leave out --output"
        )


def temporary_page() -> str:
    """Return the name of a page in a new temporary folder."""
    return str(Path(tempfile.mkdtemp(prefix="normscope-")) / "page.html")


def open_in_browser(page: str | Path) -> None:
    """Open a page in the browser; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(Path(page).resolve().as_uri()):
        note(f"there is no browser on this machine; the page is {page}")


def print_written(output: str | Path, signature: str, *, whole: bool = False) -> None:
    """Print which file was written, and the signature, to standard error."""
    say(f"wrote {output}")
    print_signature(signature, "--signature", whole=whole)


def print_signature(signature: str, hint: str, *, whole: bool = False) -> None:
    """Print a signature to standard error: in one line of a terminal, unless it is asked for whole.

    `hint` says how to see it whole.
    """
    from normscope.show.wording import short_signature

    label = "signature  "
    short = short_signature(signature, hint, 80 - len(label))
    say(label + (signature if whole else short))


def save_figure(figure: Any, path: str | Path, dpi: int) -> None:
    """Write a matplotlib figure in the format that the file name ends in."""
    from normscope.foundation.files import whole_file

    with warnings.catch_warnings(record=True) as caught, whole_file(path) as file:
        warnings.simplefilter("always")
        figure.savefig(file, format=Path(path).suffix.lower().removeprefix("."), dpi=dpi)
    missing = ""  # characters that no font has: matplotlib warns about each, several times
    for warning in caught:
        if glyph := re.match(r"Glyph (\d+) .* missing from", str(warning.message)):
            missing += chr(int(glyph[1])) * (chr(int(glyph[1])) not in missing)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        shown = printable(missing[:20]) + "…" * (len(missing) > 20)
        note(f"no known font has {shown}: the picture shows boxes; install one (Noto Sans)")
