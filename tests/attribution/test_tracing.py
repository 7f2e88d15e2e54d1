"""The trace of each input: padding removed, stacks put in the order of the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscope
from normscope import InputError
from tests.attribution.test_api import PROMPT, TOK
from tests.helpers.heads import classifier, language_model, tiny_head, translator


def cuts_add_up(result: Any) -> None:
    """At every cut, shares and biases add up to the value."""
    totals = result.layers.values.sum(axis=-1) + result.layer_bias.values
    value = np.asarray(result.value)[..., None]
    np.testing.assert_allclose(totals, np.broadcast_to(value, totals.shape), rtol=1e-9)
    assert result.layer_error.values.max() < 1e-10


def edges_of(result: Any, layer: int, **keywords: Any) -> Any:
    return result.edges(layer, **keywords)


def test_a_language_model() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=" mat", foil=" house", trace=True)
    assert result.layers.shape == (4, 6)
    assert result.heads.shape == (3, 4)
    assert result.feed_forward.shape == (3, 6)
    cuts_add_up(result)
    assert np.flatnonzero(result.layers.values[-1]).tolist() == [5]
    for layer in range(3):
        edges = edges_of(result, layer)
        assert edges.shape == (4, 6, 6)
        np.testing.assert_allclose(edges.values.sum(axis=(1, 2)), result.heads.values[layer])
        top = edges_of(result, layer, top=3)
        assert top == result_of(edges, 3)


def result_of(edges: Any, count: int) -> list[tuple[Any, ...]]:
    """The largest cells of an array of edges."""
    order = np.argsort(-np.abs(edges.values), axis=None)[:count]
    places = [tuple(map(int, np.unravel_index(at, edges.shape))) for at in order]
    return [(*place, pytest.approx(edges.values[place])) for place in places]


def test_a_batch_equals_one_at_a_time() -> None:
    model = classifier()
    texts = [PROMPT, "a dog"]
    results = normscope.attribute(model, TOK, texts, answer=1, trace=True)
    for text, result in zip(texts, results, strict=True):
        alone = normscope.attribute(model, TOK, text, answer=1, trace=True)
        cuts_add_up(result)
        for name in ("layers", "layer_bias", "heads", "feed_forward"):
            np.testing.assert_allclose(
                getattr(result, name).values, getattr(alone, name).values, atol=1e-11
            )
        np.testing.assert_allclose(
            edges_of(result, 1).values, edges_of(alone, 1).values, atol=1e-11
        )
        for ours, theirs in zip(edges_of(result, 1, top=4), edges_of(alone, 1, top=4), strict=True):
            assert ours == pytest.approx(theirs)


def test_steps_of_a_continuation() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, continuation=" mat and", trace=True)
    assert result.layers.shape == (2, 4, 8)
    cuts_add_up(result)
    alone = normscope.attribute(lm, TOK, f"{PROMPT} mat", answer=" and", trace=True)
    np.testing.assert_allclose(result.layers.values[1, :, :7], alone.layers.values, atol=1e-11)
    edges = edges_of(result, 2, step=1)
    np.testing.assert_allclose(edges.values[:, :7, :7], edges_of(alone, 2).values, atol=1e-11)
    with pytest.raises(InputError, match="step is None"):
        edges_of(result, 2)


def test_encoder_and_decoder() -> None:
    model = translator()
    result = normscope.attribute(model, TOK, "the cat sat", target="a dog", trace=True)
    source, target = result.sides.count("source"), result.sides.count("target")
    assert result.layers.shape == (4, 3 + 4, source + target)  # cuts of two and three layers
    cuts_add_up(result)
    # Above the first cut of the decoder, the source acts through the encoder's states alone.
    assert not result.layers.values[0, -1, :source].any()
    decoder = edges_of(result, 4, step=3)  # the last layer: self-attention, then cross-attention
    assert decoder.shape == (8, source + target, source + target)
    assert not decoder.values[:4, :, :source].any()
    assert not decoder.values[4:, :, source:].any()
    assert decoder.values[4:, source:, :source].any()
    np.testing.assert_allclose(decoder.values.sum(axis=(1, 2)), result.heads.values[3, 4])
    encoder = edges_of(result, 0, step=3)
    assert encoder.values[:, :source, :source].any()
    assert not encoder.values[:, source:].any()


def test_baselines_are_averaged() -> None:
    lm = language_model()
    names = ["<unk>", "a dog ran in a"]
    keywords: dict[str, Any] = {"answer": 7, "trace": True}
    several = normscope.attribute(lm, TOK, PROMPT, baseline=names, **keywords)
    each = [normscope.attribute(lm, TOK, PROMPT, baseline=name, **keywords) for name in names]
    cuts_add_up(several)
    for name in ("layers", "heads", "feed_forward"):
        mean = np.mean([getattr(result, name).values for result in each], axis=0)
        np.testing.assert_allclose(getattr(several, name).values, mean, atol=1e-12)
    mean = np.mean([edges_of(result, 1).values for result in each], axis=0)
    edges = edges_of(several, 1)
    np.testing.assert_allclose(edges.values, mean, atol=1e-12)
    assert edges_of(several, 1, top=2) == result_of(edges, 2)


def test_choices() -> None:
    model = tiny_head("bert", "BertForMultipleChoice")
    result = normscope.attribute(
        model, TOK, "the cat", text_pair=["sat on it", "ran"], answer=1, foil=0, trace=True
    )
    cuts_add_up(result)
    edges = edges_of(result, 0)
    assert not edges.values[:, :8, 8:].any()  # choices do not see each other
    np.testing.assert_allclose(edges.values.sum(axis=(1, 2)), result.heads.values[0])
