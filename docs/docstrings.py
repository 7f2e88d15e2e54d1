"""Extension of griffe, which mkdocstrings uses to read the source for the API pages.

The source describes fields in comments on the same line, and lists names in columns. The extension
turns such comments into docstrings and such columns into lists.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import Any

import griffe

COLUMNS = re.compile(r"^(\w[\w, ]*?) {2,}(\S.*)$")


class Docstrings(griffe.Extension):
    """Turn comments beside fields into docstrings, and columns into lists."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Use the comment on a field's line if the field has no docstring."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = _comment(attr)
            if comment:
                attr.docstring = griffe.Docstring(comment, parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn columns in a docstring into a list."""
        if obj.docstring is not None:
            obj.docstring.value = _listed(obj.docstring.value)


def _comment(attr: griffe.Attribute) -> str:
    """Return the comment at the end of the field's own lines."""
    file = attr.filepath
    if not isinstance(file, Path) or attr.lineno is None:
        return ""
    lines = attr.lines_collection[file][attr.lineno - 1 : attr.endlineno]
    source = "\n".join(line.strip() for line in lines) + "\n"
    comments = [
        token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    kept = [comment for comment in comments if not comment.startswith(("type:", "noqa", "fmt:"))]
    return f"{kept[-1][:1].upper()}{kept[-1][1:]}." if kept else ""


def _listed(text: str) -> str:
    """Turn lines of a name, two or more spaces and a description into list items."""
    converted: list[str] = []
    within = False  # whether the next line may continue a row
    for line in text.splitlines():
        row = COLUMNS.match(line)
        if row and not line.startswith(">>>"):
            converted += [] if within or not converted or not converted[-1] else [""]
            names = ", ".join(f"`{name.strip()}`" for name in row[1].split(","))
            converted.append(f"- {names}: {row[2]}")
            within = True
        elif within and line.startswith("  "):
            converted.append(f"  {line.strip()}")
        else:
            within = False
            converted.append(line)
    return "\n".join(converted)
