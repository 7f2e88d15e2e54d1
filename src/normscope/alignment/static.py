"""Small static HTML of alignments, which notebooks show for the last line of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normscope.alignment.summary import compare, headline
from normscope.show import html
from normscope.show.palette import CATEGORIES
from normscope.show.plots.style import brief, letters

if TYPE_CHECKING:
    from normscope.alignment.result import Alignment

SHOWN = 5  # pairs
LETTER, GAP, HEIGHT = 8.2, 18, 104  # pixels
COLOURS = {
    "": (CATEGORIES[0], ""),
    "sure": (CATEGORIES[0], ""),
    "possible": (CATEGORIES[5], ""),
    "wrong": (CATEGORIES[1], ""),
    "missing": ("currentColor", "2 5"),
}

# Notebooks remove stylesheets from a cell's output, so the style is in the elements.
_PAIRS = """\
<div><b>{{ headline }}</b>
{% for pair in pairs %}
<div style="overflow-x:auto">
<svg width="{{ pair.width }}" height="{{ height }}" role="img" aria-label="{{ pair.headline }}"
 style="max-width:none">
{% for curve in pair.curves %}
<path d="{{ curve.path }}" fill="none" stroke="{{ curve.colour }}" stroke-width="{{ curve.width }}"
 stroke-opacity="{{ curve.opacity }}" stroke-linecap="round"
{%- if curve.dashes %} stroke-dasharray="{{ curve.dashes }}"{% endif %}>
<title>{{ curve.title }}</title></path>
{% endfor %}
{% for word in pair.words %}
<text x="{{ word.x }}" y="{{ word.y }}" text-anchor="middle" font-size="14" fill="currentColor"
 fill-opacity="{{ word.opacity }}">{{ word.text }}</text>
{% endfor %}
</svg></div>
{% endfor %}
{% if more %}
<div>… and {{ more }} more pairs</div>
{% endif %}
<div><code>.show()</code> shows more, <code>.to_html(path)</code> writes the interactive page.</div>
</div>
"""


def alignments_html(pairs: Sequence[Alignment]) -> str:
    """Return the first pairs as small pictures, below one sentence about all of them."""
    shown = [pair for pair in pairs if pair.source and pair.target][:SHOWN]
    filled = html.render(
        _PAIRS,
        headline=headline(pairs),
        pairs=[_picture(pair) for pair in shown],
        more=len(pairs) - len(shown),
        height=HEIGHT,
    )
    return str(filled)


def _picture(pair: Alignment) -> dict[str, Any]:
    names = [[brief(word) for word in words] for words in (pair.source or (), pair.target)]
    wide = max(map(_width, names))
    middles = [_middles(words, wide) for words in names]
    marks = dict.fromkeys(pair.links, "")
    if pair.gold is not None:
        marks = compare(pair.links, pair.gold)
    top, bottom = 24, HEIGHT - 22
    curves = []
    for source, target in marks:
        colour, dashes = COLOURS[marks[source, target]]
        score = pair.links.scores.get((source, target), 1.0)
        first, last, half = middles[0][source], middles[1][target], (top + bottom) / 2
        strength = 0.2 if dashes else score
        path = f"M{first:.1f} {top}C{first:.1f} {half} {last:.1f} {half} {last:.1f} {bottom}"
        curves.append(
            {
                "path": path,
                "colour": colour,
                "dashes": dashes,
                "width": f"{1 + 4 * strength:.1f}",
                "opacity": f"{0.9 if dashes else 0.3 + 0.7 * strength:.2f}",
                "title": f"{names[0][source]} – {names[1][target]}: {score:.0%}",
            }
        )
    linked = [{link[side] for link in pair.links} for side in (0, 1)]
    words = [
        {
            "text": word,
            "x": f"{middles[side][at]:.1f}",
            "y": 16 if side == 0 else HEIGHT - 6,
            "opacity": "1" if at in linked[side] else "0.6",
        }
        for side in (0, 1)
        for at, word in enumerate(names[side])
    ]
    return {"width": round(wide), "curves": curves, "words": words, "headline": pair.headline}


def _width(words: Sequence[str]) -> float:
    return sum(LETTER * letters(word) for word in words) + GAP * (len(words) + 1)


def _middles(words: Sequence[str], wide: float) -> list[float]:
    at, middles = (wide - _width(words)) / 2 + GAP, []
    for word in words:
        width = LETTER * letters(word)
        middles.append(at + width / 2)
        at += width + GAP
    return middles
