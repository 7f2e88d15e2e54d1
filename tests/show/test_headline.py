"""Sentences about results, against numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from normscope import Contributions, InputError, LabelledArray
from normscope.show.headline import (
    Opening,
    headline,
    most_different,
    percent,
    shares_headline,
    telling_part,
    token_name,
    whole,
)
from tests.helpers import pages
from tests.helpers.attributions import attribution, tokens_of
from tests.helpers.patched import mapped, patches

WORDS = pages.tokens_of(["[CLS]", "cat", "sat"])


def result_of(
    weights: NDArray[np.float64] | None, norms: NDArray[np.float64] | None
) -> Contributions:
    """A result of maps (layer, query, key), or (layer, head, query, key)."""
    maps = {}
    for name, values in (("attn_w", weights), ("attn_n", norms)):
        if values is not None:
            axes = ("layer", *(["head"] if values.ndim == 4 else []), "query", "key")
            both = {"query": WORDS, "key": WORDS}
            maps[name] = LabelledArray(values.astype(np.float32), axes, both, name=name)
    return Contributions(maps, None, WORDS)


# Two layers; in the second the first token gets most weight and adds little.
WEIGHTS = np.array([[[0.4, 0.3, 0.3]] * 3, [[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.7, 0.1, 0.2]]])
NORMS = np.array([[[4.0, 3.0, 3.0]] * 3, [[2.0, 1.0, 1.0], [1.0, 8.0, 1.0], [0.2, 1.0, 0.8]]])


def test_the_layer_and_the_token_that_differ_most() -> None:
    result = result_of(WEIGHTS, NORMS)
    assert most_different(result) == Opening("", 1, None)
    shares = NORMS[1] / NORMS[1].sum(axis=-1, keepdims=True)
    weight, norm = WEIGHTS[1].mean(axis=0)[0], shares.mean(axis=0)[0]
    said = f'In layer 1, "[CLS]" gets {100 * weight:.0f}% of the attention weight but '
    assert headline(result) == said + f"{100 * norm:.0f}% of what is added."
    assert headline(result, 0) == (
        "In layer 0, the shares of the attention weight and of what is added agree to within 1 "
        "point."
    )


def test_a_sentence_about_one_token() -> None:
    result = result_of(WEIGHTS, NORMS)
    assert headline(result, 1, query=2) == (
        'In layer 1, "sat" gives 70% of its attention weight to "[CLS]", but only 10% of what is '
        "added to it comes from there."
    )
    assert headline(result, 1, query=1) == (
        'In layer 1, "cat" gives 60% of its attention weight to "[CLS]", but only 10% of what is '
        "added to it comes from there."
    )
    assert "gives 80% of its attention weight to itself, but only 50%" in headline(
        result, 1, query=0
    )
    more = result_of(NORMS[:, ::-1] / NORMS[:, ::-1].sum(axis=-1, keepdims=True), WEIGHTS)
    assert "but 80% of what is added to it comes from itself." in headline(more, 1, query=0)


def test_single_heads_open_on_the_head_that_differs_most() -> None:
    weights = np.stack([WEIGHTS[0], WEIGHTS[1]])[None]
    norms = np.stack([NORMS[0], NORMS[1]])[None]
    result = result_of(weights, norms)
    assert most_different(result) == Opening("", 0, 1)
    assert headline(result).startswith('In layer 0, head 1, "[CLS]" gets 70% of')
    assert headline(result, head=0).startswith("In layer 0, head 0, the shares")
    # The mean of the weights follows from the heads; norms of summed heads have to be there.
    both = [result_of(weights, None), result_of(None, NORMS[1:])]
    assert most_different(both) == Opening("", 0, None)


def test_one_map_alone_names_the_largest_contributor() -> None:
    norms, weights = result_of(None, NORMS), result_of(WEIGHTS, None)
    assert headline(norms) == 'In layer 1, "cat" contributes the most: 52% of what is added.'
    assert headline(weights) == 'In layer 1, "[CLS]" gets the most: 70% of the attention weight.'
    assert headline(norms, query=1) == (
        'In layer 1, the largest contributor to "cat" is itself: 80% of what is added.'
    )
    assert headline(weights, query=2) == (
        'In layer 1, "sat" gives the most attention weight to "[CLS]": 70%.'
    )


def test_parts_names_and_numbers() -> None:
    assert headline(pages.translation()).startswith("In layer 0 of the cross-attention, ")
    sentence = pages.sentence()
    assert token_name(sentence, 0) == "[CLS]"  # special, so without quotation marks
    assert token_name(sentence, 2) == '"cat"'
    repeated = pages.tokens_of(["a", "b", "a", "x" * 40])
    assert token_name(repeated, 2) == '"a" at position 2'
    assert token_name(repeated, 3) == f'"{"x" * 24}…"'
    assert [percent(share) for share in (0.0, 0.0004, 0.0041, 0.0096, 0.534, 1.0)] == [
        *("0%", "0%", "0.4%", "1%", "53%", "100%")
    ]
    assert whole("my_map") == "the sum of my_map"


def test_what_does_not_exist_is_refused() -> None:
    result = result_of(WEIGHTS, NORMS)
    for call, message in (
        (lambda: headline(result, 7), "there is no layer 7"),
        (lambda: headline(result, query=3), "there is no token 3"),
        (lambda: headline([]), "no result"),
        (lambda: headline(pages.results()[:1], head=9), "there is no head 9"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_which_tokens_support_an_answer_or_count_against_it() -> None:
    tokens = tokens_of(["a", "b", "c"])

    def said(*shares: float) -> str:
        parts = [list(shares), [0.0] * 3]
        return shares_headline(attribution(tokens, parts=parts, bias=0.0, value=sum(shares)))

    assert said(1.0, -0.5, 2.0) == (
        '"c" (+2.00) supports it most, and "b" (−0.50) counts most against it.'
    )
    assert said(1.0, 0.5, 0.0) == ('"a" (+1.00) supports it most; no token counts against it.')
    assert said(-1.0, -0.5, 0.0) == ('"a" (−1.00) counts most against it; no token supports it.')
    assert said(0.0, 0.0, 0.0) == "No token supports it or counts against it."
    several = attribution(tokens, tokens_of(["x", "y"]))
    assert shares_headline(several, 0) != shares_headline(several, 1)


def test_the_part_that_a_result_is_shown_by() -> None:
    text, image = mapped(tokens_of(["a", "b"])), mapped(patches())
    assert telling_part({"vision": image, "text": text}) == "vision"
    assert telling_part({"vision": image, "language": mapped(patches()), "x": text}) == "language"
    assert telling_part({"one": text, "other": text}) == "other"
    assert telling_part({"encoder": image, "decoder": text, "cross": text}) == "cross"
