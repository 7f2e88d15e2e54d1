"""The data of a page against the results it was made from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import normscope
from normscope import Contributions, InputError, LabelledArray
from normscope.models.architectures import tiny_model
from normscope.show.page import payload
from tests.helpers import pages
from tests.helpers.pages import decoded, maps_of
from tests.helpers.tiny import tokenizer


def test_every_map_comes_back_to_the_grid_it_was_rounded_to() -> None:
    made = pages.results()
    data = json.loads(json.dumps(payload(made)))
    found = maps_of(data)
    assert set(found) == {
        *(("attn_w", "each"), ("attn_n", "each")),
        *(("attn_w", "sum"), ("attn_n", "sum"), ("attn_res_ln_n", "sum")),
    }
    for (name, kind), values in found.items():
        true = made[kind == "sum"][name].values
        # Of the largest of a layer or head; a mean over heads has that of its heads.
        largest = made[0][name].values.max() if name == "attn_w" else true.max()
        assert np.abs(values - true).max() <= largest * (1.01 / 65535 + 1e-6)
    # α‖f‖ and the mean of the weights are not stored a second time.
    assert sum("data" in slab for slab in data["slabs"]) == 1 + 2 + 1  # and the mixing ratio
    ratio = decoded(data, data["parts"][0]["mixing"]["attn_n"])
    np.testing.assert_allclose(ratio, made[1].mixing_ratio["attn_n"].values, atol=2e-5)
    assert data["parts"][0]["maps"][0]["each"]["error"] == 3e-8


def test_norms_that_are_not_weight_times_length_are_stored() -> None:
    each = pages.results()[0]
    other = LabelledArray(
        each["attn_n"].values * np.float32(1.01), each["attn_n"].axes, each["attn_n"].tokens
    )
    changed = Contributions(
        {"attn_w": each["attn_w"], "attn_n": other}, each.transformed_norm, each.tokens
    )
    found = maps_of(payload(changed))["attn_n", "each"]
    np.testing.assert_allclose(found, other.values, atol=1e-4)


def test_parts_words_and_special_tokens() -> None:
    data = payload(pages.results())
    tokens = data["tokens"][data["parts"][0]["tokens"]]
    assert tokens["pieces"] == list(pages.SENTENCE)
    assert tokens["texts"] == list(pages.TEXTS)
    assert tokens["word"] == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    assert tokens["words"] == list(pages.WORDS)
    assert tokens["special"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    data = payload(pages.translation())
    assert [part["name"] for part in data["parts"]] == ["encoder", "decoder", "cross"]
    cross = data["parts"][2]
    block = next(entry for entry in cross["maps"] if entry["name"] == "attn_res_ln_n")
    assert data["tokens"][block["sum"]["keys"]]["pieces"][-1] == "residual"
    assert data["tokens"][cross["keys"]]["pieces"][-1] == "</s>"


def test_a_mixing_ratio_that_is_one_everywhere_is_left_out() -> None:
    model: Any = tiny_model("bart")
    result = normscope.analyze(
        model, tokenizer(pair=False), "the cats sat", target="the cats ran",
        maps=["attn_w", "attn_n", "attn_res_n"],
    )  # fmt: skip
    encoder, _, cross = payload(result)["parts"]
    assert list(cross["mixing"]) == ["attn_res_n"]
    assert list(encoder["mixing"]) == ["attn_w", "attn_n", "attn_res_n"]


def test_what_cannot_be_shown_is_refused() -> None:
    results, others = pages.results(), pages.results(pages.tokens_of(["a", "b"]))
    with pytest.raises(InputError, match="different texts"):
        payload([results[0], others[1]])
    with pytest.raises(InputError, match="different parts"):
        payload([pages.translation()[0], results[0]])
    with pytest.raises(InputError, match="but was given nothing"):
        payload([])
    with pytest.raises(InputError, match="different layers"):
        payload([results[0], pages.results(layers=2)[1]])
    array = results[0]["attn_w"]
    for bad in (-0.1, np.nan):
        values = array.to_numpy()
        values[0, 0, 0, 0] = bad
        spoilt = LabelledArray(values, array.axes, array.tokens, name="attn_w")
        with pytest.raises(InputError, match="negative or not finite"):
            payload(Contributions({"attn_w": spoilt}, None, results[0].tokens))
