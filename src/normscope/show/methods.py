"""The page of a comparison of methods: tables, and texts coloured by each method's scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscope.faithfulness.agreement import Agreement, ScoredText
from normscope.foundation.texts import printable
from normscope.results.passages import piece_texts
from normscope.show import html
from normscope.show.palette import diverging_levels, text_on

LEVELS = 8  # shades for each sign
MOST_TOKENS = 400  # of a text on the page

_BODY = """\
<h1>Methods on the same texts</h1>
<p class="soft">{{ texts }} texts. Rank correlations are means over texts.</p>
<h2>Agreement</h2>
<div class="scroll"><table class="agreement">
<thead><tr><th>Spearman's ρ</th>
{%- for name in names %}<th class="number">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for name, cells in matrix %}
<tr><th>{{ name }}</th>
{%- for shade, text in cells %}<td class="number {{ shade }}">{{ text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{{ table(pairs) }}
<h2>Cost and completeness</h2>
{{ table(costs) }}
<p class="soft">Seconds for each text, explained in batches. Peak memory beyond that held before.
The completeness error is the largest gap between the output and the sum of shares and bias.</p>
<h2>Scores</h2>
<p class="soft">Each row is scaled by its own largest score. Blue supports the answer, orange counts
against it.</p>
{% for rows in examples %}
<section class="scored">
{% for name, tokens in rows %}
<p><span class="method">{{ name }}</span>
{%- for space, text, shade, score in tokens %}{{ space -}}
<span class="{{ shade }}" title="{{ score }}">{{ text }}</span>
{%- endfor %}</p>
{% endfor %}
</section>
{% endfor %}
<h2>Conventions</h2>
<pre>{{ conventions }}</pre>
<p class="soft"><code>{{ signature }}</code></p>
"""

_STYLE = """\
.scored { border-bottom: 1px solid var(--line); padding: .4rem 0; }
.scored p { max-width: none; margin: .15rem 0; line-height: 1.9; }
.scored .method {
  display: inline-block; min-width: 12rem; margin-right: .8rem; color: var(--muted);
}
.scored span { border-radius: 3px; padding: .05rem .1rem; }
"""


def page(result: Agreement) -> str:
    """Return the HTML of the page; it needs no network."""
    names = [printable(name) for name in result.methods]
    matrix = [
        (name, [(_shade(value, 1.0), _rho(value)) for value in row])
        for name, row in zip(names, result.means.tolist(), strict=True)
    ]
    body = html.render(
        _BODY,
        texts=len(result),
        names=names,
        matrix=matrix,
        pairs=_columns(result.pairs()),
        costs=_columns(result.costs()),
        examples=[_rows(example) for example in result.examples()],
        conventions=result.conventions(),
        signature=printable(result.signature),
    )
    return html.document(
        "Methods · normscope", body, style=html.report_style() + _STYLE + _shades()
    )


def _columns(rows: list[dict[str, object]]) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _rows(example: ScoredText) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Return for each method its tokens: the space before, the text, the shade, the score."""
    pieces = piece_texts(example.tokens)[:MOST_TOKENS]
    rows = []
    for name, scores in example.scores.items():
        largest = _largest(scores, example)
        tokens = [
            (space, printable(text), _shade(score, largest), f"{score:+.4g}")
            for (space, text), score in zip(pieces, scores.tolist(), strict=False)
        ]
        rows.append((printable(name), tokens))
    return rows


def _largest(scores: NDArray[np.float64], example: ScoredText) -> float:
    """Return the largest score of a token that is not special, or of any."""
    plain = np.abs(scores[~np.array(example.tokens.special, dtype=bool)])
    return float(plain.max(initial=0.0) or np.abs(scores).max(initial=0.0))


def _shade(value: float, largest: float) -> str:
    """Return the class of a colour: p1 to p8 for positive values, n1 to n8 for negative ones."""
    if np.isnan(value) or not largest:
        return "p0"
    level = min(LEVELS, round(abs(value) / largest * LEVELS))
    return f"{'n' if value < 0 else 'p'}{level}"


def _shades() -> str:
    """Return the rules of the colours."""
    rules = []
    for sign, colours in zip("np", diverging_levels(LEVELS), strict=True):
        for level, colour in enumerate(colours, start=1):
            rules.append(f".{sign}{level} {{ background: {colour}; color: {text_on(colour)}; }}")
    return "\n".join(rules) + "\n"


def _rho(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"
