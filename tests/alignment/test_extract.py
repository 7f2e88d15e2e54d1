"""Soft alignments: batched and factored, against loops over single pairs and vectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import normscope
from normscope import InputError, UnsupportedModelError, align
from normscope.alignment.aligner import candidates
from normscope.alignment.batches import PairBatch, SentencePair, batches
from normscope.alignment.extract import Choice, Extractor, Head, cross_shape
from normscope.alignment.options import AlignOptions
from normscope.alignment.translator import translator
from normscope.alignment.words import Side
from normscope.decomposition.available import available
from normscope.models.architectures import tiny_model
from tests.helpers import alignment_reference as slow
from tests.helpers.captures import state
from tests.helpers.tiny import tokenizer

FAMILIES = [
    *("marian", "bart", "mbart", "m2m_100", "nllb-moe", "pegasus", "t5", "mt5", "fsmt"),
]
SOURCE = ["the cats sat .", "a dog", "raining in the garden , never"]
TARGET = ["cats looked at it", "the dogs jumped over it .", "rain"]
LAYERS, HEADS = 3, 4
EXACT: Any = {"rtol": 1e-9, "atol": 1e-12}
SINGLE: Any = {"rtol": 1e-4, "atol": 1e-6}


def model_of(name: str) -> Any:
    """In float64; FSMT's own causal mask overflows there."""
    return tiny_model(name, dtype=torch.float32 if name == "fsmt" else torch.float64)


def extracted(
    model: Any, pairs: list[SentencePair], map: str, heads: list[Head], budget: int = 10**6
) -> dict[tuple[int, Choice], np.ndarray]:
    """Every word matrix of every pair, cut to its words."""
    made = {}

    def consume(batch: PairBatch, layer: int, heads: tuple[Head, ...], values: Tensor) -> None:
        for r, reading in enumerate(("awi", "awo")):
            for h, head in enumerate(heads):
                for b, row in enumerate(batch.rows):
                    one = values[r, b, h].numpy()
                    words = [*range(batch.sources[b]), one.shape[1] - 1]
                    made[row, Choice(layer, head, reading)] = one[: batch.targets[b]][:, words]

    wanted = dict.fromkeys(range(LAYERS), heads)
    Extractor(model, map, padding=1, budget=budget).run(pairs, wanted, ("awi", "awo"), consume)
    return made


def pairs_of(model: Any, source: list[str] = SOURCE, target: list[str] = TARGET) -> list[Any]:
    made = translator(AlignOptions(model, tokenizer(pair=False)))
    return made.pairs([one.split() for one in source], [one.split() for one in target])


def inputs_of(pair: SentencePair) -> dict[str, Any]:
    assert isinstance(pair.source, Side)
    return {
        "input_ids": torch.tensor([pair.source.ids]),
        "decoder_input_ids": torch.tensor([pair.read]),
        # FSMT takes its decoder's mask for granted unless a cache is asked for.
        "use_cache": False,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_equal_single_pairs_in_loops(family: str) -> None:
    model = model_of(family)
    pairs = pairs_of(model)
    loops = [slow.piece_maps(model, inputs_of(pair)) for pair in pairs]
    before = state(model)
    expected = {}
    for row, (pair, layers) in enumerate(zip(pairs, loops, strict=True)):
        assert len(layers) == LAYERS
        of = pair.source.word_of, pair.target.word_of, (pair.source.words, pair.target.words)
        for layer, maps in enumerate(layers):
            for (map, head), pieces in maps.items():
                for reading in ("awi", "awo"):
                    choice = Choice(layer, head, reading)
                    expected[map, row, choice] = slow.words(pieces, *of, reading)
    for map in ("attn_w", "attn_n"):
        made = extracted(model, pairs, map, [None, *range(HEADS)])
        assert len(made) == 3 * LAYERS * (HEADS + 1) * 2
        for (row, choice), found in made.items():
            near = SINGLE if family == "fsmt" else EXACT
            np.testing.assert_allclose(found, expected[map, row, choice], **near)

    result = align(SOURCE, TARGET, model, tokenizer(pair=False), soft=True, combine=1)
    (choice,) = result.choices
    assert len(result.ranking) == LAYERS * (HEADS + 1) * 2
    assert 0 < result.error < (1e-5 if family == "fsmt" else 1e-11)
    for row, one in enumerate(result):
        matrix = expected["attn_n", row, choice]
        assert one.soft is not None
        np.testing.assert_allclose(one.soft.astype(float), matrix, **SINGLE)
        assert set(one.links) == slow.links(matrix)
        shares = matrix / matrix.sum(axis=1, keepdims=True)
        for (s, t), score in one.links.scores.items():
            assert score == pytest.approx(shares[t, s], rel=1e-4)
    assert state(model) == before


def test_the_budget_of_tokens_changes_nothing() -> None:
    model = model_of("marian")
    source, target = SOURCE * 5, TARGET[::-1] * 5
    pairs = pairs_of(model, source, target)
    whole = extracted(model, pairs, "attn_n", [None])
    sizes = []
    for budget in (1, 40, 100):
        cuts = list(batches(model, pairs, ("awi",), padding=1, budget=budget))
        assert sorted(row for batch in cuts for row in batch.rows) == list(range(15))
        for batch in cuts:
            tokens = batch.queries.numel() + batch.inputs["input_ids"].numel()
            assert tokens <= budget or len(batch.rows) == 1
        sizes.append(len(cuts))
        cut = extracted(model, pairs, "attn_n", [None], budget)
        for key, values in whole.items():
            np.testing.assert_allclose(cut[key], values, **EXACT)
    assert sizes[0] == 15
    assert sizes[0] > sizes[1] > sizes[2] > 1


@pytest.mark.parametrize("family", ["marian", "mbart", "t5"])
def test_alti_plus_equals_the_rollout_of_single_pairs(family: str) -> None:
    """Batched and in one pass, against the joint rollout of each pair's own maps."""
    model = model_of(family)
    pairs = pairs_of(model)
    made = extracted(model, pairs, "alti_plus", [None])
    alone = extracted(model, pairs, "alti_encoder", [None])
    assert len(made) == len(alone) == len(pairs) * LAYERS * 2
    for row, pair in enumerate(pairs):
        of = pair.source.word_of, pair.target.word_of, (pair.source.words, pair.target.words)
        result = normscope.analyze_inputs(model, inputs_of(pair), maps=["alti"])[0]
        shares = normscope.rollout(result).cross["rollout_alti"].values
        encoder = np.linalg.multi_dot(result.encoder["alti"].values[::-1])
        for layer in range(LAYERS):
            gained = result.cross["alti"].values[layer][:, :-1] @ encoder
            for reading in ("awi", "awo"):
                for found, pieces in ((made, shares[layer]), (alone, gained)):
                    expected = slow.words(pieces, *of, reading)
                    np.testing.assert_allclose(
                        found[row, Choice(layer, None, reading)], expected, rtol=1e-6, atol=1e-9
                    )
    aligned = align(SOURCE, TARGET, model, tokenizer(pair=False), map="alti_plus", combine=1)
    assert aligned.choices[0].head is None
    with pytest.raises(InputError, match="alti_plus has no single heads"):
        align(SOURCE, TARGET, model, tokenizer(pair=False), map="alti_plus", head=1)


@pytest.mark.parametrize("family", ["marian", "bart", "fsmt"])
def test_the_map_through_the_norm(family: str) -> None:
    model = model_of(family)
    pairs = pairs_of(model)
    made = extracted(model, pairs, "attn_res_ln_n", [None])
    for row, pair in enumerate(pairs):
        for layer, pieces in enumerate(slow.normed_maps(model, inputs_of(pair))):
            for reading in ("awi", "awo"):
                sizes = pair.source.words, pair.target.words
                of = pair.source.word_of, pair.target.word_of
                expected = slow.words(pieces, *of, sizes, reading)
                found = made[row, Choice(layer, None, reading)]
                near = SINGLE if family == "fsmt" else EXACT
                np.testing.assert_allclose(found, expected, **near)


@pytest.mark.parametrize(
    ("family", "map"),
    [("t5", "attn_res_n"), ("mbart", "atb_ln_ff_res"), ("marian", "atb_ff_res_ln")],
)
def test_further_maps_are_aligned(family: str, map: str) -> None:
    found = align(SOURCE, TARGET, model_of(family), tokenizer(pair=False), map=map, soft=True)
    assert found.choices[0].head is None
    assert len(found.ranking) == LAYERS * 2
    for one, source, target in zip(found, SOURCE, TARGET, strict=True):
        assert one.soft is not None
        assert one.soft.shape == (len(target.split()), len(source.split()) + 1)  # no residual


def test_whisper_aligns_words_with_frames() -> None:
    model = model_of("whisper")
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(3, 6, 16, generator=draw, dtype=torch.float64)
    found = align(features, TARGET, model, tokenizer(pair=False), soft=True, combine=1)
    (choice,) = found.choices
    made = translator(AlignOptions(model, tokenizer(pair=False)))
    for row, pair in enumerate(made.pairs(features, [one.split() for one in TARGET])):
        assert pair is not None
        inputs = {
            "input_features": features[row : row + 1],
            "decoder_input_ids": torch.tensor([pair.read]),
        }
        pieces = slow.piece_maps(model, inputs)[choice.layer]["attn_n", choice.head]
        expected = slow.words(
            pieces, range(8), pair.target.word_of, (8, pair.target.words), choice.reading
        )[:, :8]
        soft = found[row].soft
        assert soft is not None
        np.testing.assert_allclose(soft, expected, rtol=1e-6)
        frames = expected.argmax(axis=1)
        assert set(found[row].links) == {(frame, word) for word, frame in enumerate(frames)}
        assert found[row].times == [pytest.approx(frame * 0.02) for frame in frames]
    orders = [one.features["order"] for one in found.ranking]
    assert orders == sorted(orders, reverse=True)
    with pytest.raises(InputError, match=r"only audio has times"):
        _ = align(SOURCE, TARGET, model_of("bart"), tokenizer(pair=False))[0].times
    with pytest.raises(InputError, match=r"features are \(batch, mel, frame\), not \(16,\)"):
        align(features[0, 0], TARGET, model, tokenizer(pair=False))
    with pytest.raises(InputError, match=r"WhisperForConditionalGeneration reads audio features"):
        align(SOURCE, TARGET, model, tokenizer(pair=False))
    with pytest.raises(InputError, match=r"BartForConditionalGeneration reads text"):
        align(features, TARGET, model_of("bart"), tokenizer(pair=False))


def test_layers_above_the_last_one_wanted_do_not_run() -> None:
    model = model_of("marian")
    available(model)  # the layouts of layers are read from one whole pass
    ran = []
    for layer in model.model.decoder.layers:
        layer.register_forward_hook(lambda *_: ran.append(1))
    align(SOURCE, TARGET, model, tokenizer(pair=False), layer=0, head="sum", reading="awi")
    assert ran == []  # not even the first to its end
    align(SOURCE, TARGET, model, tokenizer(pair=False), layer=2, head="sum", reading="awi")
    assert len(ran) == 2


def test_no_logits_are_made() -> None:
    for family in ("marian", "t5"):
        model = model_of(family)
        available(model)
        model.lm_head.register_forward_hook(lambda *_: pytest.fail("the output layer ran"))
        align(SOURCE, TARGET, model, tokenizer(pair=False), layer=1)


def test_choices_that_are_left() -> None:
    made = translator(AlignOptions(model_of("marian"), tokenizer(pair=False)))

    def count(**settings: Any) -> int:
        return len(candidates(made, AlignOptions(**settings)))

    assert count() == 3 * 5 * 2
    assert count(layer=1) == count(layer="1") == 5 * 2
    assert count(head="sum") == 3 * 2
    assert count(head=3) == 3 * 2
    assert count(reading="awo") == 15
    assert count(layer=0, head=0, reading="awi") == 1
    assert count(map="attn_res_ln_n") == 6
    for wrong in ({"layer": 3}, {"layer": -1}, {"layer": "last"}, {"head": 4}, {"head": "mean"}):
        with pytest.raises(InputError, match=r"there is no (layer|head) .*; valid: auto"):
            count(**wrong)
    with pytest.raises(InputError, match=r"unknown reading 'awe'; valid: auto, awi, awo"):
        count(reading="awe")
    with pytest.raises(InputError, match=r"attn_res_ln_n has no single heads"):
        count(map="attn_res_ln_n", head=1)


def test_maps_and_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown map 'attn'; the maps are: attn_w, attn_n"):
        align(SOURCE, TARGET, model_of("t5"), tokenizer(pair=False), map="attn")
    with pytest.raises(InputError, match=r"no map 'attn_res_ln_n'; it has: attn_w, attn_n"):
        align(SOURCE, TARGET, model_of("t5"), tokenizer(pair=False), map="attn_res_ln_n")
    with pytest.raises(InputError, match=r"BertModel is not an encoder-decoder model"):
        align(SOURCE, TARGET, model_of("bert"), tokenizer(pair=False))
    with pytest.raises(InputError, match=r"token budget must be at least 1"):
        align(SOURCE, TARGET, model_of("t5"), tokenizer(pair=False), budget=0)


@pytest.mark.parametrize("missing", ["decoder_layers", "num_heads", "is_encoder_decoder"])
def test_a_configuration_that_does_not_say_is_refused(missing: str) -> None:
    told = {"decoder_layers": 2, "num_heads": 3, "is_encoder_decoder": True}
    model: Any = torch.nn.Module()
    model.config = SimpleNamespace(**told)
    assert cross_shape(model) == (2, 3)
    del told[missing]
    model.config = SimpleNamespace(**told)
    with pytest.raises(InputError, match="is not an encoder-decoder model"):
        cross_shape(model)


def test_a_wrong_decomposition_is_refused() -> None:
    from normscope import ExactnessError

    model = model_of("marian")
    attention = model.model.decoder.layers[1].encoder_attn
    attention.out_proj.register_forward_hook(lambda _, __, made: made * 1.001)
    with pytest.raises((ExactnessError, UnsupportedModelError), match=r"layer 1|layers\.1"):
        align(SOURCE, TARGET, model, tokenizer(pair=False))
