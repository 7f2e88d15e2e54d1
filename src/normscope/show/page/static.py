"""Results and arrays as small, static HTML, for the last line of a notebook's cell."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from normscope.results.arrays import LabelledArray, printable
from normscope.results.contributions import Contributions
from normscope.show.page.formulas import about
from normscope.text.tokens import Tokens

SHOWN = 24  # tokens of an axis
LETTERS = 24  # of a token
_CELL = "padding:1px 5px;text-align:right;font-variant-numeric:tabular-nums;font-size:11px"
_NAME = "padding:1px 6px;text-align:right;font-weight:400;font-size:11px;white-space:nowrap"


def text(string: str) -> str:
    """A token as HTML: hidden characters written out, cut, escaped."""
    shown = printable(string)
    shown = shown if len(shown) <= LETTERS else shown[: LETTERS - 1] + "…"
    return f"<bdi>{html.escape(shown)}</bdi>"


def result_html(result: Contributions) -> str:
    """What a result has: tokens, maps, errors; and how to see it."""
    rows = []
    for name, part in (result.parts or {"": result}).items():
        if name:
            heading = f"<b>{html.escape(name)}</b> {_tokens(part.tokens)}"
            rows.append(f'<tr><td colspan="4" style="text-align:left">{heading}</td></tr>')
        for map_name in part:
            array = part[map_name]
            shape = " × ".join(
                f"{size} {axis}" for axis, size in zip(array.axes, array.shape, strict=True)
            )
            error = part.error.get(map_name)
            title = about(map_name, each="head" in array.axes).title
            rows.append(
                f'<tr><th style="text-align:left"><code>{html.escape(map_name)}</code></th>'
                f'<td style="text-align:left">{html.escape(title)}</td><td>{shape}</td>'
                f"<td>{'' if error is None else f'{error:.1e}'}</td></tr>"
            )
    tokens = "" if result.parts else f"<div>{_tokens(result.tokens)}</div>"
    return (
        f"<div><b>Contributions</b>{tokens}<table><thead><tr>"
        '<th style="text-align:left">map</th><th style="text-align:left">what it is</th>'
        f"<th>shape</th><th>error</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "<div><code>.show()</code> opens the interactive page, <code>.to_html(path)</code> writes "
        "it.</div></div>"
    )


def _tokens(tokens: Tokens) -> str:
    more = f" … ({len(tokens)})" if len(tokens) > SHOWN else ""
    return " ".join(text(one) for one in tokens.strings[:SHOWN]) + more


def array_html(array: LabelledArray) -> str:
    """The numbers as a shaded table; of a large array its first corner, and a line that says so."""
    values: Any = array.values
    axes, labels = list(array.axes), dict(array.labels)
    fixed = []
    while values.ndim > 2:  # the first layer, then the first head
        axis = axes.pop(0)
        fixed.append(f"{axis} {labels[axis][0]} of {len(labels[axis])}")
        values = values[0]
    sizes = ", ".join(f"{axis}={n}" for axis, n in zip(array.axes, array.shape, strict=True))
    name = html.escape(printable(array.name))
    heading = f"<div><b>{name or 'LabelledArray'}</b> ({sizes}) {array.dtype}</div>"
    if values.ndim == 0:
        return f"<div>{heading}<div>{float(values):.6g}</div></div>"
    columns = axes[-1]
    table = values.reshape(-1, values.shape[-1])[:SHOWN, :SHOWN].astype(np.float64)
    if any(size > SHOWN for size in values.shape):
        fixed.append(f"the first {' × '.join(map(str, table.shape))} cells")
    rows_axis = axes[0] if values.ndim == 2 else None

    def label(axis: str, at: int) -> str:
        if axis in array.tokens:
            return text(array.tokens[axis].strings[at])
        return f"{axis} {array.labels[axis][at]}"

    largest = float(np.nanmax(table, initial=0.0))
    head = "".join(f'<th style="{_NAME}">{label(columns, at)}</th>' for at in range(table.shape[1]))
    body = "".join(
        f'<tr><th style="{_NAME}">{label(rows_axis, row) if rows_axis else ""}</th>'
        + "".join(
            f'<td style="{_CELL};background:rgba(33,87,196,{_shade(value, largest):.2f})">'
            f"{value:.3g}</td>"
            for value in cells
        )
        + "</tr>"
        for row, cells in enumerate(table)
    )
    note = f"<div>{'; '.join(fixed)}; <code>.sel(…)</code> chooses</div>" if fixed else ""
    return (
        f'<div>{heading}<div style="overflow-x:auto"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}</div>"
    )


def _shade(value: float, largest: float) -> float:
    """How opaque a cell is: dark text stays legible on the strongest."""
    return 0.55 * max(0.0, min(1.0, value / largest)) if largest > 0 and value == value else 0.0
