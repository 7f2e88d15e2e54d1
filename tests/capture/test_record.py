"""A record of an attention call: what follows from its parts alone."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from normscope.capture import Capture, capture
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import captured, model_of


def of(name: str, attention: str = "eager") -> list[Capture]:
    model, inputs = model_of(name), tiny_inputs(name)
    if attention == "eager":
        return captured(model, inputs)
    with torch.no_grad(), capture(model, attention="fused") as captures:
        model(**inputs)
    return captures


@pytest.mark.parametrize("attention", ["eager", "fused"])
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_sums_and_own_parts_follow_from_the_weights(name: str, attention: str) -> None:
    for a in of(name, attention):
        value = a.value.repeat_interleave(a.shape[1] // a.value.shape[1], dim=1)
        f = torch.einsum("bhke,heo->bhko", value, a.projection.weight)
        whole = torch.einsum("bhqk,bhko->bqo", a.alpha, f)
        bias = 0.0 if a.projection.bias is None else a.projection.bias
        assert_close(a.reconstruct(), whole + bias)
        assert_close(a.reconstruct(), a.output)
        assert torch.equal(torch.cat([a.rows(span) for span in a.blocks()], dim=2), a.alpha)
        own, vectors = a.own_weight(), a.own_vectors()
        if a.kind == "cross":
            assert own is None
            assert vectors is None
        else:
            assert own is not None
            assert vectors is not None
            assert_close(own, a.alpha.diagonal(dim1=2, dim2=3))
            assert_close(vectors, torch.einsum("bhq,bhqo->bqo", own, f))
        assert (a.surveyed is None) == (attention == "eager")


def test_copies_have_memory_of_their_own() -> None:
    first = of("bert")[0]
    copied, output = first.clone(), first.output.clone()
    for tensor in (first.weights, first.value, first.output, first.residual):
        assert isinstance(tensor, torch.Tensor)
        tensor.zero_()
    assert torch.equal(copied.output, output)
    assert_close(copied.reconstruct(), output)


def test_queries_that_the_mask_lets_see_nothing() -> None:
    model = model_of("llama")
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    (first, *_) = captured(
        model, {"input_ids": torch.arange(8).view(2, 4) + 4, "attention_mask": mask}
    )
    blocked = first.blocked()
    assert blocked is not None
    assert blocked.tolist() == [[True, True, False, False], [False] * 4]
    assert of("bloom")[0].blocked() is None
