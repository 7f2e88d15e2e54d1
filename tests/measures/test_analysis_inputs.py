"""analyze_inputs(): what is analysed is the pass that the model itself makes of the same inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertModel,
    DynamicCache,
    GPT2Config,
    GPT2Model,
)

import normscope
from normscope import InputError, UnsupportedModelError
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import randomize_

SMALL: Any = {"vocab_size": 50, "hidden_size": 24, "num_attention_heads": 3}
SMALL |= {"num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 32}


def bert(kind: Any = BertModel, **more: Any) -> Any:
    model = kind(BertConfig(**SMALL, **more)).double().eval()
    randomize_(model)
    return model


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 50, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reduce", [(), ("mixing_ratio", "argmax")])
def test_a_cache_of_earlier_tokens_is_refused(reduce: tuple[str, ...]) -> None:
    """Which key is the query itself is not known then; the numbers would be silently wrong."""
    model: Any = tiny_model("llama")
    given, cache = ids(1, 7), DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=given[:, :3], past_key_values=cache, use_cache=True)
    inputs = {"input_ids": given[:, 3:], "past_key_values": cache, "use_cache": True}
    with pytest.raises(InputError, match=r"from 4 positions to 7: .*past_key_values.*whole text"):
        normscope.analyze_inputs(model, inputs, maps=["attn_n", "attn_res_n"], reduce=reduce)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("positions", [[0, 1, 2, 10, 11, 12], [0, 1, 2, 0, 1, 2]])
def test_positions_with_a_jump_are_read_as_the_model_reads_them(
    name: str, positions: list[int]
) -> None:
    model: Any = tiny_model(name)
    inputs = {"input_ids": ids(1, 6), "position_ids": torch.tensor([positions])}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(**inputs, output_attentions=True).attentions
    (result,) = normscope.analyze_inputs(model, inputs, maps=["attn_w"], heads="each")
    assert_allclose(result["attn_w"].values, torch.cat(own).numpy(), atol=1e-12)


def test_towers_with_different_numbers_of_rows_are_refused() -> None:
    model: Any = tiny_model("clip")
    inputs = tiny_inputs("clip")
    texts = {k: v for k, v in inputs.items() if k != "pixel_values"}
    assert len(normscope.analyze_inputs(model, inputs)) == len(inputs["pixel_values"])
    for rows in (1, 2):
        pixels = inputs["pixel_values"][:1].expand(rows, -1, -1, -1)
        assert rows != len(texts["input_ids"])
        with pytest.raises(
            InputError, match=rf"{rows} of vision.*same number of rows for every part"
        ):
            normscope.analyze_inputs(model, {**texts, "pixel_values": pixels})


def test_choices_are_rows() -> None:
    model, given = bert(BertForMultipleChoice), ids(2, 3, 7)
    mask = torch.ones_like(given)
    mask[1, 2, 4:] = 0
    results = normscope.analyze_inputs(model, {"input_ids": given, "attention_mask": mask})
    assert [len(one.tokens) for one in results] == [7] * 5 + [4]
    assert results[4].tokens.ids == tuple(given[1, 1].tolist())
    alone = {"input_ids": given[1, 2:, :4], "attention_mask": mask[1, 2:, :4]}
    (single,) = normscope.analyze_inputs(model.bert, alone)
    assert_allclose(results[5]["attn_n"].values, single["attn_n"].values, rtol=1e-10)


def test_names_for_another_number_of_rows_are_refused() -> None:
    with pytest.raises(InputError, match="positions of 1 rows, but there are 2"):
        normscope.analyze_inputs(bert(), {"input_ids": ids(2, 3)}, tokens=[["a", "b", "c"]])


@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_under_autocast_the_gap_is_measured_in_full_precision(attention: str) -> None:
    model, mask = bert().float(), torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    inputs = {"input_ids": ids(2, 7), "attention_mask": mask}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = normscope.analyze_inputs(model, inputs, maps=["attn_n"], attention=attention)
    assert [one["attn_n"].shape for one in results] == [(2, 7, 7), (2, 4, 4)]
    for one in results:  # the model's own rounding, not none
        assert 1e-4 < one.error["attn_n"] < 2e-2


def test_padding_of_the_states_that_a_decoder_is_given_is_cut() -> None:
    config = GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_positions=32)
    config.add_cross_attention = True
    model: Any = GPT2Model(config).double().eval()
    randomize_(model)
    states = torch.randn(2, 7, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {
        "input_ids": ids(2, 7),
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
        "encoder_hidden_states": states,
        "encoder_attention_mask": torch.tensor([[1] * 3 + [0] * 4, [1] * 7]),
    }
    first, second = normscope.analyze_inputs(model, inputs, maps=["attn_n", "attn_res_n"])
    assert first.cross["attn_n"].shape == (2, 7, 3)
    assert first.cross["attn_res_n"].shape == (2, 7, 4)  # and the residual
    assert second.cross["attn_n"].shape == (2, 4, 7)
    # The source has no ids of its own, even where it is as long as the text.
    assert second.cross.key_tokens.strings == tuple(f"position {i}" for i in range(7))
    assert_array_equal(second.cross.tokens.ids or (), inputs["input_ids"][1, :4])


def test_a_feed_forward_in_pieces_is_refused_by_name() -> None:
    model = bert(chunk_size_feed_forward=2)
    inputs = {"input_ids": ids(1, 8)}
    (result,) = normscope.analyze_inputs(model, inputs, maps=["attn_res_ln_n"])
    assert result.error["attn_res_ln_n"] < 1e-11
    with pytest.raises(UnsupportedModelError, match=r"layer\.0 .* 2 at a time.*chunk_size"):
        normscope.analyze_inputs(model, inputs, maps=["atb_ff_res_ln"])
