"""Write HTML: whole documents, tables and figures, with all text escaped.

    render(template, **values)     a piece of HTML from a Jinja2 template
    table(columns)                 a table from columns by name
    figure(png, alt, caption)      a picture that is part of the document
    document(title, body)          a whole document, which fetches nothing

Pieces of HTML are `Markup`, a `str` that is known to be HTML. Everything else that is put into a
template, a table or a document is text and is escaped. In templates `table` and `figure` are
available as functions, and `{{ data | tojson }}` is safe inside a script element::

    BODY = "<h1>{{ title }}</h1>{% for name, png in pictures.items() %}{{ figure(png, name) }}…"
    page = html.document(title, html.render(BODY, title=title, pictures=pictures))

The stylesheet of reports, report.css, has these classes: `soft` for secondary text, `warning` for a
paragraph in a coloured box, `facts` and `tiles` for a `dl` as a two-column list or as boxes with
large values, and those that `table` takes.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from normscope.show.palette import css_variables

__all__ = ["Markup", "cell_text", "document", "figure", "render", "report_style", "table"]

_TABLE = """\
<div class="scroll {{ classes }}"><table>
<thead><tr>
{%- for name in columns %}<th class="{{ kinds[name] }}">{{ name }}</th>{% endfor -%}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{%- for kind, text in row %}<td class="{{ kind }}">{{ text }}</td>{% endfor -%}
</tr>
{% endfor %}
</tbody>
</table></div>
"""

_FIGURE = """\
<figure><img alt="{{ alt }}" src="data:image/png;base64,{{ data }}">
{%- if caption %}<figcaption>{{ caption }}</figcaption>{% endif -%}
</figure>
"""

_DOCUMENT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
{{ body }}
{% if script %}
<script>{{ script }}</script>
{% endif %}
</body>
</html>
"""


def render(template: str, /, **values: Any) -> Markup:
    """Fill a Jinja2 template; values are escaped unless they are Markup."""
    return Markup(_compiled(template).render(values))


def document(title: str, body: str, *, style: str | None = None, script: str = "") -> str:
    """Return a whole document that needs no other file and no network.

    Args:
        title: The text of the title element.
        body: The content of the body element, as Markup; other text is escaped.
        style: The stylesheet; that of reports by default.
        script: JavaScript that runs at the end of the body. The document's policy allows this
            script and this stylesheet alone, so inline `style` and `on…` attributes have no effect.
    """
    style = report_style() if style is None else style
    return _compiled(_DOCUMENT).render(
        title=title,
        body=body,
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
    )


def cell_text(value: Any) -> str:
    """Format a value for a table: "–" if missing, "yes" or "no", floats with five digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def table(
    columns: Mapping[str, Sequence[Any]],
    *,
    rows: int | None = None,
    text: Callable[[Any], str] = cell_text,
    classes: str = "",
) -> Markup:
    """Return a table that scrolls sideways where it is too wide; numbers are right-aligned.

    Args:
        columns: The values of each column by its name; all columns are equally long.
        rows: How many rows to show, from the first; all by default.
        text: Formats a value.
        classes: "limited" limits the height, "verdicts" colours cells of booleans, "wide" makes
            the table as wide as the page.
    """
    kinds = {name: _kind(values) for name, values in columns.items()}
    cells = [
        [(_cell_kind(value, kinds[name]), text(value)) for value in values[:rows]]
        for name, values in columns.items()
    ]
    return render(
        _TABLE, columns=columns, kinds=kinds, rows=zip(*cells, strict=True), classes=classes
    )


def figure(png: bytes, alt: str, caption: str = "") -> Markup:
    """Return a picture whose bytes are part of the document, with a text for screen readers."""
    return render(_FIGURE, data=base64.b64encode(png).decode(), alt=alt, caption=caption)


@lru_cache
def report_style() -> str:
    """Return the stylesheet of reports, with the colours of the palette."""
    light, dark = css_variables("light"), css_variables("dark")
    colours = f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    return colours + (files("normscope.show") / "report.css").read_text(encoding="utf-8")


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(figure=figure, table=table)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


@lru_cache
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


def _kind(values: Sequence[Any]) -> str:
    """The class of a column: "number" if it has nothing else but missing values."""
    present = [value for value in values if value is not None]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in present)
    return "number" if numeric else "text"


def _cell_kind(value: Any, column: str) -> str:
    return cell_text(value) if isinstance(value, bool) else column


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which this style and this script run, and nothing else."""
    rules = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
