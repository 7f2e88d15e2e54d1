"""Which attention is plain: softmax(scaling · q kᵀ + mask) v, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture.plain import is_causal, is_plain, is_plain_call, scores_of
from normscope.models.inventory import attention_of
from tests.helpers.captures import model_of


def plain(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
) -> Any:
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling + mask
    weights = nn.functional.softmax(weights, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def without_mask(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
) -> Any:
    weights = nn.functional.softmax(torch.matmul(query, key.transpose(2, 3)) * scaling, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def capped(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
) -> Any:
    weights = torch.tanh(torch.matmul(query, key.transpose(2, 3)) * scaling) + mask
    weights = nn.functional.softmax(weights, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def failing(_: Any, query: Any, *__: Any, **___: Any) -> Any:
    return torch.matmul(query, query)


def test_functions_are_judged_by_their_names_and_by_what_they_compute() -> None:
    assert is_plain(plain)
    assert not is_plain(capped)  # it mentions tanh
    assert not is_plain(without_mask)  # no name tells
    assert not is_plain(failing)
    assert not is_plain(len)  # without code that could be read


@pytest.mark.parametrize(("name", "expected"), [("bert", True), ("llama", True), ("gemma2", False)])
def test_functions_of_transformers(name: str, expected: bool) -> None:
    model = model_of(name)
    module = next(m for m in model.modules() if type(m).__name__.endswith("Attention"))
    if name == "bert":
        module = module.self
    assert is_plain(attention_of(module)[1]) == expected


def query_and_key(queries: int = 4, keys: int = 4) -> tuple[Tensor, Tensor]:
    return torch.rand(1, 2, queries, 3), torch.rand(1, 2, keys, 3)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, True),
        ({"scaling": 0.5, "position_ids": torch.ones(1), "dropout": 0.0}, True),
        ({"dropout": 0.1}, False),
        ({"position_bias": None, "output_attentions": False}, True),
        ({"position_bias": torch.ones(1)}, False),
        ({"output_attentions": True}, False),
    ],
)
def test_arguments_that_change_the_formula(kwargs: dict[str, Any], expected: bool) -> None:
    assert is_plain_call(nn.Identity(), *query_and_key(), kwargs) == expected


def test_a_causal_call_needs_as_many_queries_as_keys_or_one() -> None:
    module = nn.Identity()
    assert is_plain_call(module, *query_and_key(1, 4), {"is_causal": True})
    assert not is_plain_call(module, *query_and_key(2, 4), {"is_causal": True})
    assert is_plain_call(module, *query_and_key(2, 4), {"is_causal": False})


def test_causal_by_argument_or_by_module() -> None:
    module: Any = nn.Identity()
    assert is_causal(module, None)  # as sdpa has it
    module.is_causal = False
    assert not is_causal(module, None)
    assert is_causal(module, True)


def test_what_a_call_is_computed_from() -> None:
    query, key = query_and_key()
    module: Any = nn.Identity()
    scores = scores_of(module, query, key, None, query.transpose(1, 2), {})
    assert scores.causal
    assert scores.scaling == 3**-0.5
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    scores = scores_of(module, query, key, mask, query.transpose(1, 2), {"scaling": 2})
    assert not scores.causal
    assert scores.scaling == 2.0
    assert scores.mask is not None
    assert scores.mask.shape == (1, 1, 4, 4)
