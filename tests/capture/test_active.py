"""Backward passes during a capture: layers that run again are not recorded, and do the same."""

from __future__ import annotations

import pytest
from torch import Tensor

from normscope.capture import capture, eager
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import checkpoint, drop, identical, model_of, unpadded


@pytest.mark.parametrize("name", ["bert", "llama", "bloom", "t5"])
@pytest.mark.parametrize("checkpointing", ["off", "reentrant", "non-reentrant"])
def test_a_backward_pass_inside_the_context(name: str, checkpointing: str) -> None:
    """Recomputed layers are not recorded again, and gradients are those of eager attention."""
    model, inputs = model_of(name), {**tiny_inputs(name), "use_cache": False}
    drop(model, 0.0)
    if checkpointing != "off":
        checkpoint(model, reentrant=checkpointing == "reentrant")

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        sum(t.pow(2).sum() for t in model(**inputs).values() if t.requires_grad).backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    with eager(model):
        expected = gradients()
    with capture(model) as captures:
        found = gradients()
    assert len(captures) == {"t5": 8}.get(name, 3)
    assert {c.step for c in captures} == {0}
    assert len(found) > 20
    assert identical(found, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_of_what_was_not_captured(reentrant: bool) -> None:
    """Its layers run again inside the context, with the function and the mask of the first time."""
    model, inputs = model_of("llama"), {**unpadded("llama"), "use_cache": False}
    model.train()
    checkpoint(model, reentrant=reentrant)

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients(model(**inputs).logits.pow(2).sum())
    loss = model(**inputs).logits.pow(2).sum()
    with capture(model) as captures:
        assert identical(gradients(loss), expected)
    assert captures == []
