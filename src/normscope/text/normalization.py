"""Changes that a model expects in its text beyond those that its tokenizer makes."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class Normalization:
    """Changes that a model expects in its text beyond its tokenizer: Unicode form, case, spelling.

    Calling it with a text returns the text as the model expects it.
    """

    unicode: str | None = None
    lowercase: bool = False
    replace: tuple[tuple[str, str], ...] = ()

    def __call__(self, text: str) -> str:
        text = unicodedata.normalize(self.unicode, text) if self.unicode else text  # type: ignore[arg-type]
        text = text.lower() if self.lowercase else text
        for old, new in self.replace:
            text = text.replace(old, new)
        return text

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Normalization:
        """Return the normalization that the fields of a ``normscope.json`` describe.

        Raises:
            ValueError: The Unicode form is unknown.
        """
        form = data.get("unicode")
        if form is not None and form not in UNICODE_FORMS:
            raise ValueError(f"unknown Unicode form {form!r}; valid: {', '.join(UNICODE_FORMS)}")
        return cls(
            form,
            bool(data.get("lowercase", False)),
            tuple((str(old), str(new)) for old, new in data.get("replace", ())),
        )
