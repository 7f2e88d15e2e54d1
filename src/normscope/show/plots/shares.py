"""Plots of an attribution: bars or a heat map of signed shares, and its trace through layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.texts import printable
from normscope.results.attribution import Attribution
from normscope.show.plots.style import (
    brief,
    colour_bar,
    diverging,
    figure,
    ink,
    letters,
    plain,
    styled,
    tidy,
    wrap,
)
from normscope.show.wording import decimals_for, proof, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 40  # tokens with bars of their own; of a longer text, the largest
ROW = 0.21  # inches
COLUMN = 0.2
WIDEST = 24.0
READABLE = 0.11  # inches: the smallest width of a column with a label


@styled
def attribution(result: Attribution, ax: Axes | None = None, *, step: int | None = None) -> Axes:
    """Draw the share of every token: signed bars for one answer, a heat map for several.

    Bars stand in the order of the text, with the bias's share below them. Of a text of more than
    40 tokens, the largest shares have bars, and the others one bar together. The heat map has a
    row for each answer and a column for each token, and a column for the bias.

    Args:
        result: An attribution.
        ax: Axes to draw into; by default those of a new figure.
        step: Draw the bars of one of several answers.
    """
    if result.steps is not None and step is None:
        return _steps(result, ax)
    if step is not None:
        result = result.span(step, step + 1)
    return _bars(result, ax)


@styled
def trace(result: Attribution, ax: Axes | None = None, *, step: int | None = None) -> Axes:
    """Draw shares through the layers: a row for each cut, a column for each token and the bias.

    The first row is the input, the others are the states that enter each layer and leave the last.

    Args:
        result: An attribution with a trace.
        ax: Axes to draw into; by default those of a new figure.
        step: Which of several answers; by default, their sum.
    """
    layers = result.layers
    if result.steps is not None:
        first, end = (0, len(result.steps)) if step is None else (step, step + 1)
        result = result.span(first, end)
        layers = result.layers
    values = np.vstack([result.scores.values, layers.values])
    bias = np.append(float(result.bias), result.layer_bias.values)
    cuts = list(map(str, layers.labels["layer"]))
    names = ["input", *(f"before {cut}" for cut in cuts[:-1]), f"after {cuts[-2]}"]
    ax = _heatmap(result, values, bias, names if len(cuts) > 1 else ["input", "before 0"], ax)
    ax.set_ylabel("layer")
    return ax


def _bars(result: Attribution, ax: Axes | None) -> Axes:
    names, shares = _rows(result)
    if ax is None:
        width = 6.5 + 0.08 * max(map(letters, names))
        ax = figure(width, 1.5 + ROW * len(names)).subplots()
    places = np.arange(len(names))
    plain_rows = _others(result)
    # Orange against, blue for; the same colours as on the page.
    signs = np.where(shares < 0, ink("minus"), ink("plus")).tolist()
    signs[len(names) - len(plain_rows) :] = [ink("muted")] * len(plain_rows)
    bars = ax.barh(places, shares, color=signs, height=0.72)
    decimals = decimals_for(*shares.tolist())
    texts = [f" {signed(share, decimals)} " for share in shares.tolist()]
    ax.bar_label(bars, texts, fontsize=8, color=ink("ink"))
    ax.axvline(0, color=ink("muted"), linewidth=0.8)
    ax.set_yticks(places, names)
    for label in ax.get_yticklabels():
        label.set_parse_math(False)
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_ylim(len(names) - 0.4, -0.6)
    tidy(ax)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"share ({result.units})")
    _headline(ax, result)
    return ax


def _others(result: Attribution) -> list[str]:
    """Return the names of the rows that are no single token, which come last."""
    extra = len(result.tokens) - BARS
    names = [f"{extra} more"] if extra > 0 else []
    has_bias = result.complete and (result.bias or "baseline" not in result.settings)
    return [*names, "bias"] if has_bias else names


def _rows(result: Attribution) -> tuple[list[str], NDArray[np.float64]]:
    """Return names and shares of the bars: tokens in the order of the text, the rest, the bias."""
    scores = result.scores.values
    largest = np.sort(np.argsort(-np.abs(scores), kind="stable")[:BARS])
    names = [brief(result.tokens.texts[at]) for at in largest.tolist()]
    shares = scores[largest].tolist()
    for name in _others(result):
        names.append(name)
        rest = float(scores.sum() - scores[largest].sum())
        shares.append(float(result.bias) if name == "bias" else rest)
    return names, np.array(shares)


def _steps(result: Attribution, ax: Axes | None) -> Axes:
    assert result.steps is not None
    names = [brief(text, 16) for text in result.steps.texts]
    ax = _heatmap(result, result.scores.values, np.asarray(result.bias), names, ax)
    ax.set_ylabel("answer")
    return ax


def _heatmap(
    result: Attribution,
    values: NDArray[np.float64],
    bias: NDArray[np.float64],
    names: list[str],
    ax: Axes | None,
) -> Axes:
    """Draw rows of shares with a column for the bias, apart from the tokens."""
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    gap = max(1, round(columns / 40))
    if ax is None:
        width = min(WIDEST, max(5.5, 2.4 + COLUMN * (columns + 2)))
        ax = figure(width, 2.0 + max(0.9, ROW * rows)).subplots()
    cells = np.ma.masked_all((rows, columns + 2 * gap))
    cells[:, :columns] = values
    cells[:, columns + gap :] = bias[:, None]
    largest = float(max(np.abs(values).max(initial=0.0), np.abs(bias).max(initial=0.0))) or 1.0
    # The gap before the bias is as if nothing were drawn.
    style: Any = {
        "cmap": diverging().with_extremes(bad=(0, 0, 0, 0)),
        "vmin": -largest,
        "vmax": largest,
    }
    image = ax.imshow(cells, **style, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(rows), names, fontsize=8)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    room = ax.get_window_extent().width / ax.figure.dpi / (columns + 2 * gap)
    every = max(1, int(np.ceil(READABLE / room)))
    shown = list(range(0, columns, every))
    labels = [brief(result.tokens.texts[at], 14) for at in shown]
    places = [*shown, columns + gap + (gap - 1) / 2]
    ax.set_xticks(places, [*labels, "bias"], rotation=90, fontsize=8 if room > 0.14 else 6)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)
    ax.tick_params(length=0, labelcolor=ink("ink"))
    for start, width in ((0, columns), (columns + gap, gap)):
        box = ax.add_patch(Rectangle((start - 0.5, -0.5), width, rows, clip_on=False))
        box.set(fill=False, edgecolor=ink("line"), linewidth=0.8)
    colour_bar(image, ax, f"share ({result.units})", aspect=24, shrink=1.0)
    _headline(ax, result)
    return ax


def _headline(ax: Axes, result: Attribution) -> None:
    """Set the question as the title, and the proof below it."""
    wide = ax.get_window_extent().width / ax.figure.dpi
    text = ax.annotate(
        "", (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=8
    )
    text.update({**plain(proof(result)), "color": ink("muted")})
    wrap(text, wide)
    lines = 1 + text.get_text().count("\n")
    style: Any = {"fontsize": 11, "fontweight": "bold"}
    title = ax.set_title("", **style, loc="left", pad=10 + 11 * lines)
    title.update(plain(printable(result.question)))
    wrap(title, wide)
