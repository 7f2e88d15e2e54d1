"""Tables and results made of random numbers, and what a plot has drawn of them."""

from __future__ import annotations

import io
from itertools import combinations, product
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from normscope import Contributions, LabelledArray
from normscope.text.tokens import Tokens

DRAWN = np.random.default_rng(0)
GROUPS = ("[CLS]", "$x_1$", "others")
LAYERS, HEADS = 4, 3


def long(**axes: Any) -> dict[str, Any]:
    """Label columns for every combination."""
    rows = list(product(*axes.values()))
    return {name: np.array([row[at] for row in rows]) for at, name in enumerate(axes)}


def by_layer() -> dict[str, Any]:
    table = long(category=GROUPS, layer=range(LAYERS))
    for name in ("alpha", "weighted_norm", "transformed_norm"):
        values = DRAWN.random(len(table["layer"])) + 1
        table |= {name: values, f"{name}_low": values - 0.2, f"{name}_high": values + 0.3}
    return table


def by_head() -> dict[str, Any]:
    table = long(category=GROUPS, layer=range(LAYERS), head=range(HEADS))
    names = ("alpha", "transformed_norm", "weighted_norm")
    return table | {name: DRAWN.random(len(table["layer"])) for name in names}


def tokens(count: int) -> Tokens:
    strings = ("[CLS]", "$x_1$", *(f"piece{i}" for i in range(count - 2)))
    return Tokens(strings, None, (False,) * count, strings)


def result(count: int = 5, maps: tuple[str, ...] = ("attn_w", "attn_n", "atb")) -> Contributions:
    both = {"query": tokens(count), "key": tokens(count)}
    labels = {"layer": (2, 5)}
    made = {
        name: LabelledArray(
            DRAWN.random((2, count, count)), ("layer", "query", "key"), both, labels, name
        )
        for name in maps
    }
    ratios = {
        name: LabelledArray(
            DRAWN.random((2, count)), ("layer", "query"), {"query": tokens(count)}, labels, name
        )
        for name in maps
    }
    return Contributions(made, None, tokens(count), extras={"mixing_ratio": ratios})


def figure_of(axes: Any) -> Figure:
    figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    assert isinstance(figure, Figure)
    return figure


def lines(ax: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in ax.get_lines()}


def entries(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def names(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def saved(axes: Any, kind: str = "png") -> bytes:
    file = io.BytesIO()
    figure_of(axes).savefig(file, format=kind)
    return file.getvalue()


def texts_of(figure: Figure) -> list[Text]:
    """List the words around the panels of a figure: headline, titles, labels of axes."""
    found = list(figure.texts)
    for label in (figure.get_supxlabel(), figure.get_supylabel()):
        found += [text for text in figure.findobj(Text) if label and text.get_text() == label]
    for ax in figure.axes:
        found += [ax.title, ax.xaxis.label, ax.yaxis.label]
    return [text for text in dict.fromkeys(found) if text.get_text() and text.get_visible()]


def assert_fit_for_print(figure: Figure) -> None:
    """Check that a figure has a headline, names for what it shows, and no words on others."""
    figure.draw_without_rendering()
    assert figure.get_suptitle()
    assert figure.get_figwidth() <= 9
    shown = [text.get_text() for text in figure.findobj(Text)]
    assert not {"comma_period", "others", "normal"} & set(shown)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    for (one, first), (other, second) in combinations(boxes, 2):
        apart = first.x1 <= second.x0 or second.x1 <= first.x0
        assert apart or first.y1 <= second.y0 or second.y1 <= first.y0, (one, other)
    for text, box in boxes:
        assert -1 <= box.x0 < box.x1 <= figure.bbox.width + 1, text
        assert -1 <= box.y0 < box.y1 <= figure.bbox.height + 1, text
    bars = [image.colorbar for ax in figure.axes for image in ax.get_images()]
    assert not bars or any(bar and bar.ax.get_ylabel() for bar in bars)
