"""The accuracy that `normscope bench` reports is that of the lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.cli import bench_accuracy, bench_works
from normscope.cli.bench_accuracy import accuracy
from normscope.decomposition.available import available
from normscope.measures.maps import Maps
from normscope.models.architectures import tiny_model
from tests.helpers.benchmarks import measure, shrink


def of_family(family: str, dtype: torch.dtype, attention: Any = "auto") -> float | None:
    """The accuracy of the maps of 2021 that a family has."""
    model: Any = tiny_model(family)
    model.to(dtype)
    names = {name for names in available(model).values() for name in names}
    maps = [name for name in bench_works.GROUPS["2021"] if name in names]
    inputs = bench_works.inputs_of(model, 2, 12)
    return accuracy(model, inputs, maps, bench_works.shape_of(model)["layers"], attention)


# A norm after the residual; shared value heads; a norm on the branch; cross-attention.
@pytest.mark.parametrize("family", ["bert", "llama", "gemma2", "marian"])
def test_in_float64_the_lengths_are_the_dense_ones(family: str) -> None:
    error = of_family(family, torch.float64)
    assert error is not None
    assert 0 < error < 1e-14


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_fused_weights_are_compared_with_a_softmax_in_float64(family: str) -> None:
    exact, rounded = (of_family(family, d, "fused") for d in (torch.float64, torch.float32))
    assert exact is not None
    assert rounded is not None
    assert 0 < exact < 1e-14 < rounded < 2e-6


def test_keys_in_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_family("bert", torch.float32)
    monkeypatch.setattr(bench_accuracy, "BLOCK", 3 * (4 + 8) * 32)
    assert of_family("bert", torch.float32) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("name", ["attn_n", "attn_res_n", "attn_res_ln_n"])
def test_a_wrong_length_is_reported(bert: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    original = Maps.observe

    def wrong(self: Maps, view: Any) -> dict[str, torch.Tensor]:
        noted = original(self, view)
        if view.captured.layer == 2 and f"map/{name}" in noted:  # the last of three layers
            noted[f"map/{name}"] = noted[f"map/{name}"] * 1.001
        return noted

    monkeypatch.setattr(Maps, "observe", wrong)
    rows = measure(bert, groups=["2020", "four"], dense=False)
    assert 2e-6 < rows["four"]["accuracy"] <= 1.01e-3
    assert (rows["2020"]["accuracy"] > 2e-6) == (name == "attn_n")


def test_a_length_where_nothing_is_summed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Maps.observe

    def wrong(self: Maps, view: Any) -> dict[str, torch.Tensor]:
        noted = original(self, view)
        noted["map/attn_n"] = noted["map/attn_n"] + 1e-9  # above the diagonal of a decoder, too
        return noted

    monkeypatch.setattr(Maps, "observe", wrong)
    assert of_family("llama", torch.float64) == torch.inf


def test_maps_without_lengths_have_no_accuracy() -> None:
    model = tiny_model("bert")
    inputs = bench_works.inputs_of(model, 1, 4)
    assert accuracy(model, inputs, ["attn_w"], 3) is None
    assert accuracy(model, inputs, ["atb_ff"], 3) is None


def test_an_error_of_the_comparison_is_a_note(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)

    def full(*_: Any) -> float:
        raise torch.OutOfMemoryError("no room. More")

    monkeypatch.setattr(bench_works, "accuracy", full)
    row = measure(bert, groups=["2020"], dense=False)["2020"]
    assert row["ms"] > 0
    assert row["accuracy"] is None
    assert row["note"] == "no accuracy: OutOfMemoryError: no room"
