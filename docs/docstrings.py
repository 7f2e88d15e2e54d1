"""How the API pages read the source: an extension of griffe, which mkdocstrings uses.

The code says what a field is in a comment beside it, and lists fields in columns. The pages get the
first as the field's docstring and the second as a list.
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
    """Comments beside fields become docstrings; columns become lists."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A field that has a comment on its line and no docstring."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = _comment(attr)
            if comment:
                attr.docstring = griffe.Docstring(comment, parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Lines of a name, two spaces or more, and what it is."""
        if obj.docstring is not None:
            obj.docstring.value = _listed(obj.docstring.value)


def _comment(attr: griffe.Attribute) -> str:
    """The comment at the end of the field's own lines."""
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
    made: list[str] = []
    within = False  # a row that goes on
    for line in text.splitlines():
        row = COLUMNS.match(line)
        if row and not line.startswith(">>>"):
            made += [] if within or not made or not made[-1] else [""]
            names = ", ".join(f"`{name.strip()}`" for name in row[1].split(","))
            made.append(f"- {names}: {row[2]}")
            within = True
        elif within and line.startswith("  "):
            made.append(f"  {line.strip()}")
        else:
            within = False
            made.append(line)
    return "\n".join(made)
