"""analyze() with residual, norm and feed-forward: labels, ratios, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import normscope
from normscope.errors import InputError, UnsupportedModelError
from normscope.models import load as load_model
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.helpers.tiny import tokenizer

FIVE = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"]


@pytest.fixture(scope="module")
def minilm() -> tuple[Any, Any]:
    return load_model(None)


def test_minilm_mixes_less_the_more_of_the_block_is_seen(minilm: tuple[Any, Any]) -> None:
    """The paper's order for BERT: Attn-W > Attn-N > AttnRes-N > AttnResLn-N on average."""
    pair = "Anna baked a cake, and Tom ate most of it.", "She was not angry."
    result = normscope.analyze(*minilm, *pair, maps=FIVE)
    mean = {name: float(ratio.values.mean()) for name, ratio in result.mixing_ratio.items()}
    assert mean["attn_w"] > mean["attn_n"] > mean["attn_res_n"] > mean["attn_res_ln_n"]
    assert mean["attn_res_w"] == pytest.approx(mean["attn_w"] / 2)
    assert max(result.error.values()) < 1e-6
    assert result.mixing_ratio["attn_n"].axes == ("layer", "query")
    assert set(result.bias_share) == {"attn_n", "attn_res_n", "attn_res_ln_n"}  # weights have none


def test_minilm_whole_layer_within_float32(minilm: tuple[Any, Any]) -> None:
    maps = ["atb", "atb_ff", "atb_ff_res", "atb_ff_res_ln"]
    result = normscope.analyze(*minilm, "The cat sat on the mat.", maps=maps)
    assert list(result) == maps
    assert max(result.error.values()) < 5e-6
    assert "ff_bias:path" in result.signature
    fixed = normscope.analyze(*minilm, "The cat sat on the mat.", maps=maps, ff_bias="fixed")
    assert "ff_bias:fixed" in fixed.signature
    assert_allclose(fixed["atb"].values, result["atb"].values)  # before the feed-forward: the same
    assert np.abs(fixed["atb_ff"].values - result["atb_ff"].values).max() > 1e-3


def test_cross_attention_has_a_column_for_the_residual(tmp_path: Path) -> None:
    model, reads = tiny_model("marian"), tokenizer(pair=False)
    maps = ["attn_n", "attn_res_w", "attn_res_n", "atb_ff_res_ln"]
    result = normscope.analyze(model, reads, "the cats sat on a mat", target="a dog ran", maps=maps)
    source = list(result.encoder.tokens.strings)
    assert list(result.cross["attn_n"].tokens["key"].strings) == source
    for name in maps[1:]:
        assert list(result.cross[name].tokens["key"].strings) == [*source, "residual"]
    assert_allclose(result.cross["attn_res_w"].values[..., -1], 0.5)
    assert_allclose(result.cross.mixing_ratio["attn_res_w"].values, 0.5)
    # The decoder's self-attention is followed by another attention, not by the feed-forward.
    assert list(result.decoder) == maps[:3]
    assert list(result.encoder) == list(result.cross) == maps
    merged = result.cross["attn_res_n"].words()
    assert merged.tokens["key"].strings[-1] == "residual"
    result.save(tmp_path / "all.safetensors")
    assert normscope.load(tmp_path / "all.safetensors") == result


def test_a_part_without_any_of_the_maps_is_left_out() -> None:
    model, reads = tiny_model("mbart"), tokenizer(pair=False)
    result = normscope.analyze(model, reads, "the cat", target="a dog", maps=["atb_ln_ff"])
    assert set(result.parts) == {"encoder", "cross"}


def test_a_list_equals_one_at_a_time() -> None:
    model, reads = tiny_model("gpt2"), tokenizer(pair=False)
    texts = ["the cat sat", "it was asleep in the garden .", "a dog ran"]
    maps = ["attn_res_n", "atb_ln_ff_res"]
    together = normscope.analyze(model, reads, texts, maps=maps)
    for text, result in zip(texts, together, strict=True):
        alone = normscope.analyze(model, reads, text, maps=maps)
        for name in maps:
            assert_allclose(result[name].values, alone[name].values, rtol=1e-10, atol=1e-13)
            assert_allclose(
                result.mixing_ratio[name].values, alone.mixing_ratio[name].values, rtol=1e-10
            )
            assert_allclose(
                result.bias_share[name].values, alone.bias_share[name].values, rtol=1e-10
            )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert", {"maps": ["attn_res_n"], "heads": "each"}, "no single head.*attn_w, attn_n"),
        ("bert", {"maps": ["atb_ln"]}, "BertModel has no map 'atb_ln'.*atb_ff_res_ln"),
        ("gpt2", {"maps": ["attn_res_ln_n"]}, "has no map 'attn_res_ln_n'.*it has.*atb_ln_ff_res"),
        ("olmo2", {"maps": ["atb_ln_ff"]}, "has: attn_w.*atb_ff, atb_ff_res"),
        ("mixtral", {"maps": ["atb_ff"]}, "MixtralForCausalLM has no map 'atb_ff'.*atb_ln_ff"),
        ("bert", {"maps": ["attn_n"], "ff_bias": "none"}, "one of path, fixed.*none"),
        ("bert", {"maps": ["attn_n"], "memory": "lots"}, "2GB.*lots"),
        ("bert", {"maps": ["attn_n"], "memory": 0}, "2GB.*0"),
        ("bert", {"maps": ["atb_nothing"]}, "unknown map: 'atb_nothing'.*atb_ln_ff_res"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        normscope.analyze_inputs(tiny_model(name), tiny_inputs(name), **options)


def test_layers_of_unknown_wiring_are_refused() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    for layer in model.encoder.layer:
        output = layer.attention.output
        output.register_forward_pre_hook(lambda m, args: (args[0], args[1] ** 2))
    with pytest.raises(UnsupportedModelError, match=r"BertLayer.* makes .*register_layout"):
        normscope.analyze_inputs(model, inputs, maps=["attn_res_n"])
    assert len(normscope.analyze_inputs(model, inputs)) == 3  # attention alone needs no layout


def test_experts_keep_the_maps_of_their_attention_block() -> None:
    result = normscope.analyze_inputs(
        tiny_model("mixtral"), tiny_inputs("mixtral"), maps=["attn_res_n", "atb"]
    )[0]
    assert_allclose(result["atb"].values, result["attn_res_n"].values)


def test_wrong_layers_are_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual that is off by a hundredth raises instead of giving a map."""
    from normscope.decomposition.block import Parts
    from normscope.errors import ExactnessError

    right = Parts.residual
    monkeypatch.setattr(Parts, "residual", lambda self, states: right(self, states * 1.01))
    with pytest.raises(ExactnessError, match=r"attn_res_n of encoder\.layer\.0"):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=["attn_res_n"])
