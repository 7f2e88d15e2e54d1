"""Check texts before anything is loaded; imports neither torch nor transformers."""

from __future__ import annotations

from normscope.errors import InputError


def check_text(name: str, text: object) -> None:
    """Raise InputError for a text that no tokenizer can encode: `name` says which text it is."""
    if not isinstance(text, str):
        raise InputError(f"{name} must be a string, not {type(text).__name__}: {text!r:.80}")
    if not text:
        raise InputError(f"{name} is empty: give at least one word")
    if not text.strip():
        raise InputError(f"{name} is only whitespace ({text!r:.40}): give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not valid Unicode: character {error.start} is half of a surrogate pair; "
            "decode the text with its real encoding first"
        ) from None
