"""Small static HTML of results and arrays, which notebooks show for the last line of a cell.

Notebooks remove stylesheets from a cell's output, so the style is in the elements. Colours lie over
the background of the notebook, light or dark, and stay pale enough for its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.foundation.texts import printable
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.results.passages import piece_texts
from normscope.show import html
from normscope.show.headline import headline, most_different, percent, shares_headline, whole
from normscope.show.palette import CATEGORIES, DIVERGING
from normscope.show.wording import decimals_for, describe, proof, signed
from normscope.text.tokens import Tokens

SHOWN = 24  # tokens of an axis
LETTERS = 24  # characters of a token
BARS_SHOWN = 60  # tokens with bars
BAR_HEIGHT = 44  # pixels
SHARES_SHOWN = 400  # tokens of an attribution
DARKEST = 0.6  # opacity of a colour under text


def _rgb(colour: str) -> str:
    """Return the red, green and blue of a colour for rgba(): "42,102,207"."""
    return ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


ORANGE, BLUE = _rgb(DIVERGING["light"][1]), _rgb(DIVERGING["light"][-2])

_TOKEN = "display:inline-block;text-align:center;margin:0 4px 6px 0"
_BARS = (
    f"display:flex;align-items:flex-end;justify-content:center;gap:1px;height:{BAR_HEIGHT}px;"
    "border-bottom:1px solid rgba(128,128,128,.5)"
)
_CELL = "padding:1px 5px;text-align:right;font-variant-numeric:tabular-nums;font-size:11px"
_NAME = "padding:1px 6px;text-align:right;font-weight:400;font-size:11px;white-space:nowrap"

_RESULT = """\
<div>
{% if headline %}
<div style="font-size:1.1em"><b>{{ headline }}</b></div>
<div style="margin:4px 0">
{%- for label, colour in legend %}
<span style="color:{{ colour }}">■</span> {{ label }}&ensp;
{%- endfor -%}
</div>
<div dir="auto" style="max-width:60em">
{%- for text, title, heights in bars -%}
<span title="{{ title }}" style="{{ token_style }}"><span style="{{ bars_style }}">
{%- for colour, height in heights -%}
<span style="width:9px;height:{{ height }}px;background:{{ colour }}"></span>
{%- endfor -%}
</span>{{ text }}</span>
{%- endfor -%}
{{ more }}</div>
<div style="opacity:.8">{{ scale }}</div>
{% endif %}
<details style="margin-top:4px"{% if not headline %} open{% endif %}>
<summary>{{ summary }}</summary>
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
</tbody></table></details>
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
<td style="{{ cell_style }};background:rgba({{ blue }},{{ shade }})">{{ text }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody></table></div>
{% if choices %}
<div>{{ choices }}. Select others with <code>.sel(…)</code>.</div>
{% endif %}
{% endif %}
</div>
"""


_SHARES = """\
<div><b>{{ question }}</b>
<div>{{ headline }}</div>
<div dir="auto" style="line-height:1.9;max-width:60em">
{%- for space, text, share, colour in tokens -%}
{{ space }}<span title="{{ share }}" style="{{ colour }}">{{ text }}</span>
{%- endfor -%}
{{ more }}</div>
<div>{{ proof }}</div>
<div><code>.show()</code> opens the interactive page, <code>.to_html(path)</code> writes it.</div>
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
    filled = html.render(
        _SHARES,
        question=question,
        headline=shares_headline(result),
        tokens=shown,
        more=more,
        proof=proof(result),
    )
    return str(filled)


def _background(share: float, largest: float) -> str:
    """Return the style of a token: blue for, orange against, nothing at zero."""
    shade = DARKEST * abs(share) / largest if largest > 0 else 0.0
    return f"border-radius:3px;background:rgba({BLUE if share > 0 else ORANGE},{shade:.2f})"


def result_html(result: Contributions) -> str:
    """Return what the weights of a result hide, in a sentence and a picture, and its maps.

    The picture has two bars above each token: its share of the attention weight, and of what is
    added, in the layer where the two differ most.
    """
    owners = result.parts or {"": result}
    parts = [
        {
            "name": name,
            "tokens": _token_list(part.tokens),
            "maps": [_map_row(part, map_name) for map_name in part],
        }
        for name, part in owners.items()
    ]
    picture: dict[str, Any] = {"headline": None}
    if any(len(list(part)) for part in owners.values()):  # reduced results have no maps
        place = most_different(result)
        picture = _picture(owners[place.part], place.layer, place.head)
        picture["headline"] = headline(result, place.layer, head=place.head)
    tokens = None if result.parts else _token_list(result.tokens)
    summary = _summary(owners)
    return str(html.render(_RESULT, parts=parts, tokens=tokens, summary=summary, **picture))


def _summary(owners: Mapping[str, Contributions]) -> str:
    maps = sum(len(list(part)) for part in owners.values())
    errors = [error for part in owners.values() for error in part.error.values()]
    words = f"{maps} map{'' if maps == 1 else 's'} of a Contributions result"
    return f"{words}, largest error {_error(max(errors))}" if errors else words


def _picture(part: Contributions, layer: int, head: int | None) -> dict[str, Any]:
    """Return bars for the shares of each key in weights and norms, or in the first map."""
    names = [name for name in (WEIGHTS, NORMS) if name in part] or list(part)[:1]
    colours = dict(zip((WEIGHTS, NORMS), CATEGORIES, strict=False))
    shares = {name: _key_shares(part[name], layer, head) for name in names}
    largest = max(float(values.max(initial=0.0)) for values in shares.values())
    tokens = part[names[0]].tokens["key"]
    bars = []
    for at, text in enumerate(tokens.texts[:BARS_SHOWN]):
        own = {name: float(values[at]) for name, values in shares.items()}
        title = ", ".join(f"{share:.1%} of {whole(name)}" for name, share in own.items())
        heights = [
            (colours.get(name, CATEGORIES[0]), _height(share, largest))
            for name, share in own.items()
        ]
        bars.append((_token(text or tokens.strings[at]), title, heights))
    return {
        "bars": bars,
        "more": f" … ({len(tokens)})" if len(tokens) > len(bars) else "",
        "legend": [(f"share of {whole(name)}", colours.get(name, CATEGORIES[0])) for name in names],
        "scale": f"Mean over rows, layer {layer}. The tallest bar is {percent(largest)}.",
        "token_style": _TOKEN,
        "bars_style": _BARS,
    }


def _height(share: float, largest: float) -> str:
    """Return the height of a bar in pixels; a share that is not zero stays visible."""
    pixels = BAR_HEIGHT * share / largest if largest > 0 else 0.0
    return f"{max(pixels, 1.0) if share > 0 else 0.0:.1f}"


def _key_shares(array: LabelledArray, layer: int, head: int | None) -> NDArray[np.float64]:
    """Return each key's share of a row, averaged over the rows of one layer."""
    rows = array.values[array.labels["layer"].index(layer)].astype(np.float64)
    if "head" in array.axes:
        rows = rows[array.labels["head"].index(head)]
    total = rows.sum(axis=-1, keepdims=True)
    shares = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    return np.asarray(shares.mean(axis=0))


def _error(error: float) -> str:
    return f"{error:.1e}" if error else "0"


def _map_row(part: Contributions, name: str) -> dict[str, str]:
    array, error = part[name], part.error.get(name)
    sizes = [f"{size} {axis}" for axis, size in zip(array.axes, array.shape, strict=True)]
    return {
        "name": name,
        "title": describe(name, per_head="head" in array.axes).title,
        "shape": " × ".join(sizes),
        "error": "" if error is None else _error(error),
    }


def array_html(array: LabelledArray) -> str:
    """Return the numbers as a shaded table; of a large array, the first corner of it."""
    values: Any = array.values
    axes = list(array.axes)
    choices = []
    while values.ndim > 2:  # show the first layer, then the first head
        axis = axes.pop(0)
        labels = array.labels[axis]
        choices.append(f"{axis} {labels[0]} ({labels[0]}–{labels[-1]})")
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
        choices=", ".join(choices),
        blue=BLUE,
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
