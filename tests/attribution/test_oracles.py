"""Equality with other libraries, whose results on the same small models are stored.

`tests/deep/oracles.py` computes them in an environment of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from normscope import Attribution, attribute_inputs
from tests.deep.oracles import ANSWER, BASELINE, IDS, STEPS, small_model

pytestmark = pytest.mark.usefixtures("unchecked_types")

FOLDER = Path(__file__).parent / "oracles"
TOLERANCE = 1e-6


def stored(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def result(name: str, method: str, **more: Any) -> Attribution:
    inputs = {"input_ids": torch.tensor([IDS])}
    (found,) = attribute_inputs(small_model(name), inputs, answer=ANSWER, method=method, **more)
    return found


def words(found: Attribution) -> np.ndarray:
    """Return the shares of word embeddings alone: the others leave out positions."""
    return np.asarray(found.parts.sel(part="word").values)


def check(found: np.ndarray, expected: np.ndarray) -> None:
    size = np.abs(expected).sum()
    assert size > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * size)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_captum(name: str) -> None:
    expected = stored(f"captum_{name}")
    check(words(result(name, "input_x_gradient")), expected["input_x_gradient"])
    check(result(name, "gradient_norm").scores.values, expected["gradient_norm"])
    method = f"integrated_gradients:{STEPS}"
    other = {"input_ids": torch.tensor([BASELINE])}
    integrated = result(name, method, baseline=other)
    check(integrated.scores.values, expected["integrated_gradients"])
    zero = result(name, method, baseline="zero")
    check(zero.scores.values, expected["integrated_gradients_zero"])


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])
def test_lxt(method: str) -> None:
    found = result("llama", method)
    check(found.scores.values, stored(f"lxt_{method}")[method])
    others = {"attn_lrp", "cp_lrp", "frozen"} - {method}
    for other in others:  # no two of them agree
        with pytest.raises(AssertionError):
            check(result("llama", other).scores.values, stored(f"lxt_{method}")[method])


def test_inseq() -> None:
    expected = stored("inseq_gpt2")
    check(words(result("gpt2", "input_x_gradient")), expected["inseq_input_x_gradient"])
    # Its baseline is the unknown token at every position, the first included.
    integrated = result("gpt2", f"integrated_gradients:{STEPS}", baseline=0)
    check(integrated.scores.values, expected["inseq_integrated_gradients"])
