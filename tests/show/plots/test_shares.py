"""Plots of attributions: their artists, not their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normscope import InputError, plots
from tests.helpers.attributions import LAYERS, attribution, tokens_of, words
from tests.helpers.figures import figure_of, names, saved

STEPS = tokens_of(["and", "$x_1$", "."])


def heights(ax: Any) -> list[float]:
    return [bar.get_width() for bar in ax.patches]


def cells(ax: Any) -> Any:
    (image,) = ax.get_images()
    return image.get_array()


def test_bars_are_the_shares_in_order_with_the_bias_last() -> None:
    result = attribution()
    ax = plots.attribution(result)
    assert np.allclose(heights(ax), [*result.scores.values, result.bias])
    assert names(ax.get_yticklabels()) == [*result.tokens.texts, "bias"]
    colours = [bar.get_facecolor() for bar in ax.patches]
    positive = colours[int(np.argmax(result.scores.values))]
    for share, colour in zip(result.scores.values, colours, strict=False):
        assert (colour == positive) == (share > 0)
    assert colours[-1] not in colours[:-1]
    assert ax.get_title(loc="left") == result.question
    assert any("shares 6.76 + bias 0.41 = 7.17" in text.get_text() for text in ax.texts)
    assert ax.yaxis_inverted()
    assert saved(ax)


def test_a_long_text_has_its_largest_shares_and_the_rest_in_one_bar() -> None:
    result = attribution(words(100))
    ax = plots.attribution(result)
    widths = heights(ax)
    assert len(widths) == 42
    assert sum(widths) == pytest.approx(result.value)
    largest = np.sort(np.argsort(-np.abs(result.scores.values))[:40])
    assert np.allclose(widths[:40], result.scores.values[largest])
    assert names(ax.get_yticklabels())[-2:] == ["60 more", "bias"]


def test_without_a_bias_there_is_no_bar_for_it() -> None:
    value = attribution().scores.sum()
    ax = plots.attribution(attribution(value=value, bias=0.0, settings={"baseline": "zero"}))
    assert names(ax.get_yticklabels())[-1] == "inet"


def test_several_answers_are_a_heat_map_around_white() -> None:
    result = attribution(words(30), STEPS)
    ax = plots.attribution(result)
    drawn = cells(ax)
    assert np.allclose(drawn[:, :30], result.scores.values)
    assert drawn.mask[:, 30].all()  # the bias stands apart
    assert np.allclose(drawn[:, 31], result.bias)
    (image,) = ax.get_images()
    low, high = image.get_clim()
    assert low == -high
    assert high == max(np.abs(result.scores.values).max(), np.abs(result.bias).max())
    assert np.allclose(image.cmap(0.5)[:3], 1, atol=0.01)
    blue, orange = image.cmap(1.0), image.cmap(0.0)
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]
    assert names(ax.get_yticklabels()) == ["and", "$x_1$", "."]
    assert names(ax.get_xticklabels())[-1] == "bias"
    assert figure_of(ax).axes[1].get_ylabel() == "share (logit)"
    assert saved(ax)
    one = plots.attribution(result, step=1)
    assert sum(heights(one)) == pytest.approx(result.value[1])


def test_a_trace_has_the_input_every_cut_and_the_bias() -> None:
    result = attribution(trace=True)
    ax = plots.trace(result)
    drawn = cells(ax)
    assert np.allclose(drawn[0, :6], result.scores.values)
    assert np.allclose(drawn[1:, :6], result.layers.values)
    assert np.allclose(drawn[:, 7], [result.bias, *result.layer_bias.values])
    assert names(ax.get_yticklabels()) == [
        "input", *(f"before {layer}" for layer in range(LAYERS)), f"after {LAYERS - 1}"
    ]  # fmt: skip
    rows = attribution(words(300), STEPS, trace=True)
    assert np.allclose(cells(plots.trace(rows, step=2))[1:, :300], rows.layers.values[2])
    assert np.allclose(cells(plots.trace(rows))[0, :300], rows.scores.values.sum(axis=0))
    assert saved(plots.trace(rows))
    with pytest.raises(InputError, match="trace=True"):
        plots.trace(attribution())


def test_they_draw_into_axes_that_are_given() -> None:
    from matplotlib.figure import Figure

    first, second, third = Figure(figsize=(12, 4)).subplots(1, 3)
    assert plots.attribution(attribution(), first) is first
    assert plots.attribution(attribution(words(30), STEPS), second) is second
    assert plots.trace(attribution(trace=True), third) is third


def test_tokens_are_not_formulas() -> None:
    tokens = tokens_of(["$x^$", "\x1b[31m", "a\nb", "_{"])
    ax = plots.attribution(attribution(tokens, answer="$y_"))
    assert saved(ax)
    assert names(ax.get_yticklabels())[:3] == ["$x^$", "\\x1b[31m", "a\\nb"]
