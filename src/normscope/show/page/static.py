"""Small static HTML of results and arrays, which notebooks show for the last line of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from normscope.results.arrays import LabelledArray, printable
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.results.passages import piece_texts
from normscope.show import html
from normscope.show.wording import decimals_for, describe, proof, signed
from normscope.text.tokens import Tokens

SHOWN = 24  # tokens of an axis
LETTERS = 24  # characters of a token
SHARES_SHOWN = 400  # tokens of an attribution
BLUE, ORANGE = "33,87,196", "216,110,20"

_CELL = "padding:1px 5px;text-align:right;font-variant-numeric:tabular-nums;font-size:11px"
_NAME = "padding:1px 6px;text-align:right;font-weight:400;font-size:11px;white-space:nowrap"

# Notebooks remove stylesheets from a cell's output, so the style is in the elements.
_RESULT = """\
<div><b>Contributions</b>
{%- if tokens %}<div>{{ tokens }}</div>{% endif -%}
<table><thead><tr>
<th style="text-align:left">map</th><th style="text-align:left">what it is</th>
<th>shape</th><th>error</th>
</tr></thead><tbody>
{% for part in parts %}
{% if part.name %}
<tr><td colspan="4" style="text-align:left"><b>{{ part.name }}</b> {{ part.tokens }}</td></tr>
{% endif %}
{% for map in part.maps %}
<tr><th style="text-align:left"><code>{{ map.name }}</code></th>
<td style="text-align:left">{{ map.title }}</td>
<td>{{ map.shape }}</td><td>{{ map.error }}</td></tr>
{% endfor %}
{% endfor %}
</tbody></table>
<div><code>.show()</code> opens the interactive page, <code>.to_html(path)</code> writes it.</div>
</div>
"""

_ARRAY = """\
<div><div><b>{{ title }}</b> {{ about }}</div>
{% if value is not none %}
<div>{{ value }}</div>
{% else %}
<div style="overflow-x:auto"><table>
<thead><tr><th></th>
{%- for label in columns %}<th style="{{ name_style }}">{{ label }}</th>{% endfor -%}
</tr></thead>
<tbody>
{% for label, cells in rows %}
<tr><th style="{{ name_style }}">{{ label }}</th>
{%- for text, shade in cells -%}
<td style="{{ cell_style }};background:rgba(33,87,196,{{ shade }})">{{ text }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody></table></div>
{% if choices %}
<div>{{ choices }}; <code>.sel(…)</code> chooses</div>
{% endif %}
{% endif %}
</div>
"""


_SHARES = """\
<div><b>{{ question }}</b>
<div dir="auto" style="line-height:1.9;max-width:60em">
{%- for space, text, share, colour in tokens -%}
{{ space }}<span title="{{ share }}" style="{{ colour }}">{{ text }}</span>
{%- endfor -%}
{{ more }}</div>
<div>{{ proof }}</div>
<div><code>.show()</code> shows more, <code>.to_html(path)</code> writes the interactive page.</div>
</div>
"""


def attribution_html(result: Attribution) -> str:
    """Return the text of an attribution with each token coloured by its share, and the proof."""
    shares = np.atleast_2d(result.scores.values).sum(axis=0)
    largest = float(np.abs(shares).max(initial=0.0))
    decimals = decimals_for(largest)
    tokens = [
        (
            space,
            printable(text) or "·",
            signed(float(share), decimals),
            _background(float(share), largest),
        )
        for (space, text), share in zip(piece_texts(result.tokens), shares, strict=True)
    ]
    shown = tokens[:SHARES_SHOWN]
    more = f" … ({len(tokens)})" if len(tokens) > len(shown) else ""
    question = printable(result.question)
    filled = html.render(_SHARES, question=question, tokens=shown, more=more, proof=proof(result))
    return str(filled)


def _background(share: float, largest: float) -> str:
    """Return the style of a token: blue for, orange against, nothing at zero."""
    shade = 0.6 * abs(share) / largest if largest > 0 else 0.0
    return f"border-radius:3px;background:rgba({BLUE if share > 0 else ORANGE},{shade:.2f})"


def result_html(result: Contributions) -> str:
    """Return a table of a result's maps, with its tokens and errors."""
    parts = [
        {
            "name": name,
            "tokens": _token_list(part.tokens),
            "maps": [_map_row(part, map_name) for map_name in part],
        }
        for name, part in (result.parts or {"": result}).items()
    ]
    tokens = None if result.parts else _token_list(result.tokens)
    return str(html.render(_RESULT, parts=parts, tokens=tokens))


def _map_row(part: Contributions, name: str) -> dict[str, str]:
    array, error = part[name], part.error.get(name)
    sizes = [f"{size} {axis}" for axis, size in zip(array.axes, array.shape, strict=True)]
    return {
        "name": name,
        "title": describe(name, per_head="head" in array.axes).title,
        "shape": " × ".join(sizes),
        "error": "" if error is None else f"{error:.1e}",
    }


def array_html(array: LabelledArray) -> str:
    """Return the numbers as a shaded table; of a large array, the first corner of it."""
    values: Any = array.values
    axes = list(array.axes)
    choices = []
    while values.ndim > 2:  # show the first layer, then the first head
        axis = axes.pop(0)
        choices.append(f"{axis} {array.labels[axis][0]} of {len(array.labels[axis])}")
        values = values[0]
    sizes = ", ".join(f"{axis}={size}" for axis, size in zip(array.axes, array.shape, strict=True))
    about = {"title": printable(array.name) or "LabelledArray", "about": f"({sizes}) {array.dtype}"}
    if values.ndim == 0:
        return str(html.render(_ARRAY, value=f"{float(values):.6g}", **about))
    table = values.reshape(-1, values.shape[-1])[:SHOWN, :SHOWN].astype(np.float64)
    if any(size > SHOWN for size in values.shape):
        choices.append(f"the first {' × '.join(map(str, table.shape))} cells")
    largest = float(np.nanmax(table, initial=0.0))
    rows = [
        (
            _label(array, axes[0], row) if values.ndim == 2 else "",
            [(f"{cell:.3g}", f"{_shade(cell, largest):.2f}") for cell in cells],
        )
        for row, cells in enumerate(table)
    ]
    columns = [_label(array, axes[-1], column) for column in range(table.shape[1])]
    filled = html.render(
        _ARRAY,
        value=None,
        columns=columns,
        rows=rows,
        choices="; ".join(choices),
        name_style=_NAME,
        cell_style=_CELL,
        **about,
    )
    return str(filled)


def _label(array: LabelledArray, axis: str, position: int) -> str:
    if axis in array.tokens:
        return _token(array.tokens[axis].strings[position])
    return f"{axis} {array.labels[axis][position]}"


def _token_list(tokens: Tokens) -> html.Markup:
    more = f" … ({len(tokens)})" if len(tokens) > SHOWN else ""
    return html.Markup(" ").join(map(_token, tokens.strings[:SHOWN])) + more


def _token(string: str) -> html.Markup:
    """Return a token as HTML: hidden characters written out, shortened, escaped."""
    text = printable(string)
    text = text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
    return html.render("<bdi>{{ text }}</bdi>", text=text)


def _shade(value: float, largest: float) -> float:
    """Return the opacity of a cell's colour, at which dark text stays legible."""
    return 0.55 * max(0.0, min(1.0, value / largest)) if largest > 0 and value == value else 0.0
