"""What `normscope bench` measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import InputError
from normscope.capture import capture
from normscope.cli import bench_works
from normscope.cli.bench_works import BenchSettings
from normscope.decomposition.scopes import HEAD_MAPS
from normscope.models.architectures import tiny_model
from tests.helpers.benchmarks import measure, shrink


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.mark.slow
def test_groups_ask_for_the_maps_that_there_are(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = bench_works.analysis

    def noting(model: Any, inputs: Any, maps: Any, *, reduce: bool) -> Any:
        asked.append((*maps, *(["reduced"] if reduce else [])))
        assert list(inputs) == ["input_ids"]
        assert torch.backends.cuda.matmul.allow_tf32 == tf32
        return original(model, inputs, maps, reduce=reduce)

    monkeypatch.setattr(bench_works, "analysis", noting)
    tf32 = True
    measure(bert, tf32=True)
    assert not torch.backends.cuda.matmul.allow_tf32
    through = ("atb_ff", "atb_ff_res", "atb_ff_res_ln")
    reduced = (*bench_works.GROUPS["reduce"], "reduced")
    first = [bench_works.GROUPS[group] for group in ("2020", "four", "2021")]
    assert asked == [*first, through, reduced]
    tf32 = False
    monkeypatch.setattr(bench_works, "FF_LENGTH", 7)
    rows = measure(bert, dense=False)
    assert [*rows] == ["forward", "eager", *MAPS, *ATTRIBUTION]
    assert rows["secant"]["to_pairs"] == rows["secant"]["ms"] / rows["pairs"]["ms"]
    assert rows["2024"]["ms"] is None
    assert "--maps 2024" in rows["2024"]["note"]
    rows = measure(bert, dense=False, groups=["2024"])  # asked for by name
    assert [*rows] == ["forward", "eager", "matmul", "2024"]
    # Three layers, 8 × 8 pairs; hidden 32, four heads; multiply and add.
    inner = tiny_model("bert").config.intermediate_size
    operations = 2 * 3 * 64 * (inner * 32 + 4 * inner + 4 * 32)
    assert rows["2024"]["gflops"] == pytest.approx(operations / rows["2024"]["ms"] / 1e6)
    speed = 2 * 16**3 / rows["matmul"]["ms"] / 1e6
    assert rows["2024"]["of_matmul"] == pytest.approx(rows["2024"]["gflops"] / speed)


MAPS = ["2020", "four", "2021", "2024", "reduce"]
ATTRIBUTION = ["attribute", "input × gradient", "pairs", "secant"]


def test_what_a_model_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {("model.layers", "self"): [*HEAD_MAPS, "attn_res_n", "atb"]}
    monkeypatch.setattr(bench_works, "available", lambda _: known)
    settings = BenchSettings(dense=False)
    works = {work.name: work for work in bench_works.plan(settings, tiny_model("mixtral"), 8)}
    assert [*works] == ["forward", "eager", *MAPS, *ATTRIBUTION]
    assert works["2024"].call is None  # of layers with nothing behind their attention
    assert works["2024"].note == "the model has none of these maps"
    assert works["forward"].attention == works["2020"].attention == "sdpa"
    assert next(bench_works.plan(settings, tiny_model("deberta-v2"), 8)).attention == "eager"


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_dense_form_gives_the_same(family: str) -> None:
    model = tiny_model(family)  # llama: value heads are shared
    inputs = bench_works.inputs_of(model, 2, 8)
    with torch.no_grad(), capture(model) as calls:
        model(**inputs)
    maps = [bench_works.dense(call, torch.float64) for call in calls]
    assert max(float(layer["gap"].max()) for layer in maps) < 1e-12
    for row, result in enumerate(normscope.analyze_inputs(model, inputs)):
        assert result.transformed_norm is not None
        for name, array in {
            "attn_w": result["attn_w"],
            "attn_n": result["attn_n"],
            "transformed_norm": result.transformed_norm,
            "mixing_ratio": result.mixing_ratio["attn_n"],
        }.items():
            dense = np.stack([layer[name][row] for layer in maps])
            np.testing.assert_allclose(dense, array.values, rtol=1e-12, atol=1e-14)


def test_a_large_dense_form_is_one_layer_or_none(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = 4 * 8 * 8 * 32
    monkeypatch.setattr(bench_works, "ONE_LAYER", 8 * cells - 1)
    monkeypatch.setattr(bench_works, "DENSE_BYTES", 8 * cells - 1)
    rows = measure(bert, groups=["2020"])
    assert rows["dense float64"]["ms"] is None
    assert "GB" in rows["dense float64"]["note"]
    assert rows["dense float32"]["ms"] > 0
    assert rows["dense float32"]["note"].startswith("one layer, times 3; ")


def test_shapes_have_random_weights_and_need_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    monkeypatch.setitem(
        bench_works.SHAPES, "bert-base", ("Bert", {**tiny, "intermediate_size": 48})
    )
    assert measure("bert-base", dtype="bfloat16")["2024"]["ms"] > 0
    first, second = (
        bench_works.model_of(BenchSettings("bert-base")).state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="unknown dtype: 'half'; valid here: float64"):
        BenchSettings(dtype="half")
    with pytest.raises(InputError, match="unknown group of maps: '2022'; valid here: 2020"):
        BenchSettings(groups=["2020", "2022"])


def test_groups_are_those_of_the_papers() -> None:
    assert bench_works.GROUPS == {
        "2020": ("attn_w", "attn_n"),
        "four": ("attn_w", "attn_n", "attn_res_n", "attn_res_ln_n"),
        "2021": ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"),
        "2024": ("atb_ff", "atb_ff_res", "atb_ff_res_ln", "atb_ln_ff", "atb_ln_ff_res"),
        "reduce": ("attn_n", "attn_res_n", "attn_res_ln_n"),
        "attribute": (),
        "texts": ("attn_w", "attn_n", "attn_res_n", "attn_res_ln_n"),
    }


def test_a_group_is_the_public_call_with_every_array_read(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = normscope.analyze_inputs

    def noting(*arguments: Any, **keywords: Any) -> Any:
        calls.append(keywords)
        return original(*arguments, **keywords)

    monkeypatch.setattr(normscope, "analyze_inputs", noting)
    model = bench_works.model_of(BenchSettings(bert))
    inputs = bench_works.inputs_of(model, 2, 8)
    four = bench_works.GROUPS["four"]
    arrays = bench_works.analysis(model, inputs, four, reduce=False)()
    assert calls == [{"maps": four, "attention": "auto", "reduce": ()}]
    # For each row: four maps, four mixing ratios, the bias of three maps with norms, ‖f‖.
    assert len(arrays) == 2 * (4 + 4 + 3 + 1)
    assert all(isinstance(array, np.ndarray) for array in arrays)
    reduced = bench_works.analysis(model, inputs, ("attn_n",), reduce=True)()
    assert calls[-1]["reduce"] == ("mixing_ratio", "top16")
    assert len(reduced) >= 2 * 3


def test_the_encoders_and_decoders_of_a_result_are_read() -> None:
    model = tiny_model("marian")
    inputs = bench_works.inputs_of(model, 1, 8)
    arrays = bench_works.analysis(model, inputs, ("attn_w", "attn_n"), reduce=False)()
    assert len(arrays) == 3 * (2 + 2 + 1 + 1)


def test_on_a_gpu_there_are_works_on_the_card_and_in_hand(bert: str) -> None:
    # Nothing is run on the device here: the plan alone is read, for a model on the CPU.
    settings = BenchSettings(bert, groups=["four", "reduce"], dense=False)
    model = bench_works.model_of(settings)
    object.__setattr__(settings, "device", "cuda")
    with torch.no_grad():
        works = {work.name: work for work in bench_works.plan(settings, model, 8)}
        names = ["four", "four in hand", "reduce", "reduce in hand"]
        assert [*works] == ["forward", "forward, graph", "eager", *names]
        assert [works[name].in_hand for name in names] == [False, True, False, True]
        assert works["four"].note == "maps on the card"
        call = works["four"].call
        assert call is not None
        assert call().parts  # a pass that was not fetched
        assert works["four"].accuracy is not None
        assert works["four"].accuracy is works["four in hand"].accuracy
