"""Gradient baselines, compared with finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from normscope import InputError, align
from normscope.alignment import gradients
from normscope.models.architectures import tiny_model
from tests.helpers.alignment_pairs import SOURCE, TARGET
from tests.helpers.tiny import tokenizer


def slopes(model: Any, source: str, target: str, probability: bool) -> tuple[Any, Any]:
    """Gradients (step, key, hidden) of what is written, by finite differences; embeddings."""
    mine = tokenizer(pair=False)
    ids = mine(source, return_tensors="pt")["input_ids"]
    labels = mine(target)["input_ids"]
    start = model.config.decoder_start_token_id
    read = torch.tensor([[start, *labels[:-1]]])
    table = model.get_encoder().get_input_embeddings()
    shift = torch.zeros(ids.shape[1], model.config.d_model, dtype=torch.float64)

    def chances() -> torch.Tensor:
        hook = table.register_forward_hook(lambda _, __, output: _once(output, shift, calls))
        calls.clear()
        with torch.no_grad():
            logits = model(input_ids=ids, decoder_input_ids=read).logits[0]
        hook.remove()
        logs = logits.log_softmax(-1)[range(len(labels)), labels]
        return logs.exp() if probability else logs

    calls: list[int] = []
    differences = torch.zeros(len(labels), *shift.shape, dtype=torch.float64)
    for key in range(shift.shape[0]):
        for at in range(shift.shape[1]):
            shift[key, at] = 1e-5
            ahead = chances()
            shift[key, at] = -1e-5
            differences[:, key, at] = (ahead - chances()) / 2e-5
            shift[key, at] = 0
    with torch.no_grad():
        return differences, table(ids)[0]


def _once(embeddings: torch.Tensor, shift: torch.Tensor, calls: list[int]) -> torch.Tensor:
    calls.append(1)
    return embeddings + shift if len(calls) == 1 else embeddings


@pytest.mark.parametrize("method", ["saliency", "smoothgrad"])
def test_gradients_equal_finite_differences(method: str) -> None:
    model = tiny_model("marian")
    source, target = "the dog", "cat sat"
    smooth = method == "smoothgrad"
    slope, points = slopes(model, source, target, smooth)
    pieces = (slope * points).sum(-1).abs() if smooth else slope.abs().mean(-1)
    # <s> the dog </s> → cat sat: the label <s> is written first.
    expected = torch.stack(
        [torch.stack([row[1], row[2], row[0] + row[3]]) for row in (pieces[1], pieces[2])]
    )
    how: Any = {"method": method, "copies": 1, "noise": 0.0, "soft": True}
    alignments = align([source, "a cat sat"], [target, "the"], model, tokenizer(pair=False), **how)
    assert alignments[0].soft is not None
    np.testing.assert_allclose(alignments[0].soft, expected.numpy(), rtol=1e-4)
    assert alignments.choices == ()


def test_noise_is_a_share_of_the_range_of_a_sentence() -> None:
    draw = torch.Generator().manual_seed(5)
    points = 3 * torch.randn(2, 4, 6, generator=draw, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    points[1, 2:] *= 100  # padding has no say in it
    noise = gradients._noise(points, mask, 0.2, torch.Generator().manual_seed(9))
    again = torch.Generator().manual_seed(9)
    plain = torch.randn(2, 4, 6, generator=again, dtype=torch.float64)
    for row, real in enumerate((points[0], points[1, :2])):
        expected = plain[row] * 0.2 * (real.max() - real.min())
        torch.testing.assert_close(noise[row], expected, rtol=1e-12, atol=0)


def test_smoothgrad_averages_noisy_copies() -> None:
    model = tiny_model("marian")
    mine = tokenizer(pair=False)

    def soft(**how: Any) -> Any:
        return align(SOURCE, TARGET, model, mine, method="smoothgrad", soft=True, **how)[0].soft

    exact, noisy = soft(copies=1, noise=0.0), soft(copies=8, noise=0.05)
    assert not np.allclose(exact, noisy)
    np.testing.assert_array_equal(noisy, soft(copies=8, noise=0.05))
    assert not np.allclose(noisy, soft(copies=8, noise=0.05, seed=1))
    near, far = (np.abs(soft(copies=8, noise=noise) - exact).max() for noise in (1e-4, 0.1))
    assert near < far / 20
    np.testing.assert_allclose(soft(copies=3, noise=0.0), exact, rtol=1e-5)
    with pytest.raises(InputError, match=r"copies must be at least 1"):
        soft(copies=0)
