"""The files that a result can be written to; imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.foundation.files import check_file

STDOUT = "-"
SUFFIXES = (".json", ".csv", ".safetensors", ".html")


def check_output(output: str, more: Sequence[str] = ()) -> None:
    """Raise InputError for a file name that has none of `SUFFIXES` or the suffixes in `more`."""
    if output != STDOUT:
        check_file(output, (*SUFFIXES, *more), also=", or be - for JSON on standard output")
