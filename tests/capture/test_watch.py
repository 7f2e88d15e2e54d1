"""Attention by hand, recognised as a product of a softmax with values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import captured, gap, model_of, same_captures


def by_matmul(alpha: Tensor, value: Tensor) -> Tensor:
    return torch.matmul(alpha, value)


def by_operator(alpha: Tensor, value: Tensor) -> Tensor:
    return alpha @ value


def by_bmm(alpha: Tensor, value: Tensor) -> Tensor:
    return torch.bmm(alpha.flatten(0, 1), value.flatten(0, 1)).unflatten(0, alpha.shape[:2])


def after_dropout(alpha: Tensor, value: Tensor) -> Tensor:
    return nn.functional.dropout(alpha, 0.0) @ value


def after_a_cast(alpha: Tensor, value: Tensor) -> Tensor:
    return alpha.to(torch.float64).to(value.dtype) @ value


class ByHand(nn.Module):
    """The attention of a tiny BERT, without transformers' interface."""

    def __init__(self, own: Any, product: Any) -> None:
        super().__init__()
        self.query, self.key, self.value, self.product = own.query, own.key, own.value, product

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        def heads(states: Tensor) -> Tensor:
            return states.unflatten(-1, (4, -1)).transpose(1, 2)

        query, key, value = (heads(m(hidden_states)) for m in (self.query, self.key, self.value))
        alpha = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        return self.product(alpha, value).transpose(1, 2).flatten(2), None


class SelfAttention(ByHand):
    """A name by which it is known for an attention."""


@pytest.mark.parametrize("product", [by_matmul, by_operator, by_bmm, after_dropout, after_a_cast])
def test_forms_of_the_product(product: Any) -> None:
    model = model_of("bert")
    for layer in model.encoder.layer:
        layer.attention.self = SelfAttention(layer.attention.self, product)
    captures = captured(model, {"input_ids": tiny_inputs("bert")["input_ids"]})
    assert [c.path for c in captures] == ["watched"] * 3
    assert max(gap(c) for c in captures) < 1e-14
    for c in captures:
        torch.testing.assert_close(c.alpha.sum(dim=-1), torch.ones(c.shape[:3]).double())


def test_only_products_inside_attention_modules_count() -> None:
    model, inputs = model_of("bloom"), tiny_inputs("bloom")
    expected = captured(model, inputs)
    with torch.no_grad(), capture(model) as captures:
        torch.rand(2, 3, 3).softmax(-1) @ torch.rand(2, 3, 4)
        model(**inputs)
    assert same_captures(captures, expected)


def test_there_is_no_watch_where_nothing_is_by_hand() -> None:
    """Once a pass has shown that nothing acts on the heads before they are projected."""
    before = torch._C._len_torch_function_stack()
    model = model_of("llama")
    for known in (False, True):
        with capture(model):
            assert torch._C._len_torch_function_stack() == before + (not known)
            with torch.no_grad():
                model(**tiny_inputs("llama"))
    with capture(model_of("bloom")):
        assert torch._C._len_torch_function_stack() == before + 1
    assert torch._C._len_torch_function_stack() == before


def test_what_is_computed_from_a_record_is_not_the_models() -> None:
    seen = []

    def read(record: Capture) -> None:
        weights = torch.rand(2, 4, 3, 3).softmax(-1)
        seen.append(weights @ torch.rand(2, 4, 3, 8))

    model = model_of("bert")
    with torch.no_grad(), capture(model, read, attention="fused"):
        model(**tiny_inputs("bert"))
    assert len(seen) == 3
