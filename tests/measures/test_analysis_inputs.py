"""analyze_inputs(): what is analysed is the pass that the model itself makes of the same inputs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
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


# ---- rows of a batch


MAPS = ("attn_w", "attn_n", "attn_res_ln_n")


def padded(*masks: str) -> dict[str, torch.Tensor]:
    """Rows of ids with these masks, such as "1110"."""
    mask = torch.tensor([[int(mark) for mark in row] for row in masks])
    return {"input_ids": ids(*mask.shape), "attention_mask": mask}


@pytest.mark.filterwarnings("ignore:.*padded on the left")
def test_rows_are_views_of_one_tensor_and_padding_is_cut_without_a_copy() -> None:
    inputs = padded("111111", "111100", "001111", "110011")
    whole, right, left, gap = normscope.analyze_inputs(bert(), inputs, maps=MAPS)
    for name, array in whole._arrays().items():
        storage = array.tensor.untyped_storage().data_ptr()
        for row in (right, left):
            part = row._arrays()[name]
            assert part.tensor.untyped_storage().data_ptr() == storage, name
            assert np.shares_memory(part.values, part.tensor.numpy())
            assert not np.shares_memory(part.values, array.values)
        assert gap._arrays()[name].tensor.untyped_storage().data_ptr() != storage
    assert right["attn_n"].shape == left["attn_n"].shape == gap["attn_n"].shape == (2, 4, 4)
    assert whole["attn_n"].to_numpy().flags.writeable


@pytest.mark.filterwarnings("ignore:.*padded on the left")
def test_rows_have_the_numbers_of_their_real_positions() -> None:
    model, inputs = bert(), padded("111111", "111100", "001111", "110011")
    rows = normscope.analyze_inputs(model, inputs, maps=MAPS)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        own = torch.stack(model(**inputs, output_attentions=True).attentions)
    for row, result in enumerate(rows):
        real = inputs["attention_mask"][row].bool()
        expected = own[:, row].mean(dim=1)[:, real][:, :, real]
        assert_allclose(result["attn_w"].values, expected.numpy(), rtol=1e-12, atol=0)
        assert result.tokens.ids == tuple(inputs["input_ids"][row][real].tolist())
        for array in result._arrays().values():
            assert array.shape[array.axes.index("key" if "key" in array.axes else "query")] == (
                int(real.sum())
            )


def test_a_later_call_leaves_earlier_results_as_they_are() -> None:
    model, inputs = bert(), padded("111111", "111100")
    rows = normscope.analyze_inputs(model, inputs, maps=MAPS)
    copies = [{n: a.to_numpy() for n, a in row._arrays().items()} for row in rows]
    other = {**inputs, "input_ids": inputs["input_ids"].flip(1)}
    normscope.analyze_inputs(model, other, maps=MAPS)
    for row, copied in zip(rows, copies, strict=True):
        for name, array in row._arrays().items():
            assert_array_equal(array.values, copied[name])


@pytest.mark.filterwarnings("ignore:.*padded on the left")
def test_views_are_saved_and_pickled_with_their_own_numbers(tmp_path: Path) -> None:
    _, row = normscope.analyze_inputs(bert(), padded("111111", "011110"), maps=MAPS)
    assert not row["attn_n"].values.flags.c_contiguous
    row.save(tmp_path / "row.safetensors")
    loaded = normscope.load(tmp_path / "row.safetensors")
    assert loaded == row == pickle.loads(pickle.dumps(row))
    assert_array_equal(loaded["attn_n"].values, row["attn_n"].to_numpy())
    assert row.to_dict() == loaded.to_dict()
    assert row.to_pandas().equals(loaded.to_pandas())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_have_the_precision_of_the_model(dtype: torch.dtype) -> None:
    (row,) = normscope.analyze_inputs(bert().to(dtype), padded("111111"), maps=MAPS)
    assert {array.tensor.dtype for array in row._arrays().values()} == {dtype}


@pytest.mark.parametrize("mask", ["111110", "011111", "110111", "111111"])
@pytest.mark.filterwarnings("ignore:.*padded on the left")
def test_the_residual_follows_the_real_keys(mask: str) -> None:
    """In cross-attention it is the column after all keys, padding included."""
    model: Any = tiny_model("bart")
    inputs = {**tiny_inputs("bart", batch=1), **padded(mask)}
    inputs["input_ids"] = inputs["input_ids"] % model.config.vocab_size
    (result,) = normscope.analyze_inputs(model, inputs, maps=["attn_n", "attn_res_n"])
    array = result.cross["attn_res_n"]
    assert array.tokens["key"].strings[-1] == "residual"
    assert array.shape[-1] == mask.count("1") + 1
    real = [at for at, mark in enumerate(mask) if mark == "1"]
    assert_array_equal(array.values[..., :-1], result.cross["attn_n"].values)
    assert result.cross.key_tokens.ids == tuple(inputs["input_ids"][0, real].tolist())
    assert (array.values[..., -1] > 0).all()


def test_a_stack_that_runs_twice_has_no_single_map() -> None:
    class Twice(BertModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            super().forward(*args, **kwargs)
            return super().forward(*args, **kwargs)

    model = bert(Twice)
    with pytest.raises(UnsupportedModelError, match="ran more than once in one forward pass"):
        normscope.analyze_inputs(model, {"input_ids": ids(1, 5)})
