"""The text of a command: an argument, an option or standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.foundation.texts import shortened
from normscope.text.checks import check_text

STDIN = "-"


def read_text(
    argument: str | None, option: str | None, command: str, *, needed: bool = True
) -> str | None:
    """Return the text that was given, as an argument, with --text, or on standard input.

    Args:
        argument: The positional argument; "-" stands for standard input.
        option: The value of --text.
        command: The name of the command, for the error message.
        needed: False if there is something else to read, such as an image.

    Raises:
        InputError: No text was given although it is needed, or two.
    """
    if argument is not None and option is not None:
        raise InputError("the text was given twice, as an argument and with --text; give it once")
    if argument is not None and argument != STDIN:
        return argument
    if option is not None or (argument is None and not needed):
        return option
    if argument is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError(
            f'no text was given; write it after the command, as in normscope {command} "The cat '
            f'sat.", or pipe it in, as in echo "The cat sat." | normscope {command} -'
        )
    return _read_stdin(command, asked=argument == STDIN)


def _read_stdin(command: str, *, asked: bool) -> str:
    """Read standard input, less the end of its last line."""
    stream = getattr(sys.stdin, "buffer", sys.stdin)
    data = stream.read()
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text and not asked:
        raise InputError(
            f'no text was given; write it after the command, as in normscope {command} "The cat '
            'sat."'
        )
    return str(text)


def check_media(images: Sequence[Path] | None, audio: Path | None) -> None:
    """Raise InputError for a file of an image or a recording that is not there."""
    for path in (*(images or ()), *([] if audio is None else [audio])):
        if not path.is_file():
            raise InputError(f"there is no file {shortened(str(path), 300)}")


def check_images(images: Sequence[Path] | None, text: str | None) -> None:
    """Raise InputError for several images without the text that they belong to."""
    if text is None and len(images or ()) > 1:
        raise InputError(
            f"there are {len(images or ())} images and no text: several images belong to one text, "
            "in which each has its place. Without a text, give one image at a time"
        )


def images_given(paths: Sequence[Path] | None) -> Any:
    """Return one image as itself, and several as a list; None without."""
    if not paths:
        return None
    return paths[0] if len(paths) == 1 else list(paths)


def check_texts(texts: Mapping[str, str | None]) -> None:
    """Raise InputError for an empty text; None is a text that was not given."""
    for name, text in texts.items():
        if text is not None:
            check_text(name, text)
