"""What the benchmark measures of attribution is an attribution."""

from __future__ import annotations

from typing import Any

import torch

from normscope.cli import bench_attribution
from normscope.cli.bench_attribution import attribution_passes
from normscope.models.architectures import tiny_model


def test_the_yardstick_is_the_input_times_the_gradient() -> None:
    model = tiny_model("llama")
    ids = torch.arange(10, 18).reshape(2, 4)
    passes: dict[str, Any] = {
        name: call for name, call, _ in attribution_passes(model, {"input_ids": ids})
    }
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    value = model(inputs_embeds=embeddings)[0][:, -1, 0].sum()
    (gradient,) = torch.autograd.grad(value, embeddings)
    expected = (gradient * embeddings).sum(-1).detach()
    with torch.no_grad():
        found = passes["input × gradient"]()
        shares = passes["attribute"]()
        difference = passes["secant"]()
    torch.testing.assert_close(found, expected)
    assert all(parameter.requires_grad for parameter in model.parameters())
    states = model(ids)[0].detach()
    torch.testing.assert_close(torch.from_numpy(shares.value), states[:, -1, :1], rtol=1e-6, atol=0)
    assert shares.error.max() < 1e-6
    flipped = model(ids.flip(-1))[0].detach()
    change = (states - flipped)[:, -1, :1]
    torch.testing.assert_close(torch.from_numpy(difference.value), change, rtol=1e-5, atol=1e-6)


def test_long_differences_are_left_out() -> None:
    ids = torch.zeros(1, bench_attribution.LONGEST + 1, dtype=torch.long)
    *_, (name, call, note) = attribution_passes(tiny_model("llama"), {"input_ids": ids})
    assert (name, call) == ("secant", None)
    assert "8,192 tokens" in note
