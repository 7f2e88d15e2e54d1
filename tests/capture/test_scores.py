"""Weights computed from queries and keys, block by block, against a softmax of all scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from normscope.capture import scores as scores_module
from normscope.capture.scores import Scores, lowest

BATCH, HEADS, GROUPS, SIZE, SCALING = 2, 4, 2, 3, 0.4


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def build(queries: int, keys: int, *, causal: bool = False, masked: str = "") -> Scores:
    mask = None
    if masked == "boolean":
        mask = numbers(BATCH, 1, queries, keys, seed=5) > -0.5
        mask[..., 0] = True
    elif masked == "added":
        mask = numbers(BATCH, HEADS, queries, keys, seed=6)
    query, key = (
        numbers(BATCH, HEADS, queries, SIZE, seed=0),
        numbers(BATCH, GROUPS, keys, SIZE, seed=1),
    )
    context = numbers(BATCH, queries, HEADS, SIZE, seed=2)
    return Scores(query, key, mask, SCALING, causal, context)


def dense(scores: Scores) -> Tensor:
    """All weights at once."""
    key = scores.key.repeat_interleave(HEADS // GROUPS, dim=1)
    products = scores.query @ key.mT * SCALING
    if scores.mask is not None and scores.mask.dtype == torch.bool:
        products = products.masked_fill(~scores.mask, -torch.inf)
    elif scores.mask is not None:
        products = products + scores.mask
    if scores.causal:
        queries, keys = products.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        products = products.masked_fill(~seen, -torch.inf)
    return products.softmax(dim=-1)


@pytest.fixture(params=[10**6, 50, 1], autouse=True)
def block(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in a block: all, those of some queries, those of one."""
    monkeypatch.setitem(scores_module.BLOCK, "cpu", request.param)


CASES = [
    (5, 5, False, ""), (5, 5, True, ""), (5, 5, False, "boolean"), (5, 7, False, "added"),
    (1, 6, False, ""), (3, 6, True, ""),
]  # fmt: skip


@pytest.mark.parametrize(("queries", "keys", "causal", "masked"), CASES)
def test_rows_are_those_of_one_softmax(queries: int, keys: int, causal: bool, masked: str) -> None:
    scores = build(queries, keys, causal=causal, masked=masked)
    alpha = dense(scores)
    spans = list(scores.blocks())
    assert [i for span in spans for i in range(queries)[span]] == list(range(queries))
    for span in spans:
        assert_close(scores.rows(span), alpha[:, :, span])
    assert scores.shape == alpha.shape
    context = scores.survey(numbers(BATCH, GROUPS, keys, SIZE, seed=3))
    value = numbers(BATCH, GROUPS, keys, SIZE, seed=3).repeat_interleave(2, dim=1)
    assert_close(context.mixed, (alpha @ value).transpose(1, 2))
    assert context.size is not None
    assert_close(context.size, (alpha @ value.norm(dim=-1, keepdim=True))[..., 0].transpose(1, 2))
    if queries == keys:
        assert context.own is not None
        assert_close(context.own, alpha.diagonal(dim1=2, dim2=3))
    else:
        assert context.own is None


@pytest.mark.parametrize("masked", ["", "boolean", "added"])
def test_the_diagonal_alone(masked: str) -> None:
    scores = build(5, 5, masked=masked)
    assert_close(scores._diagonal(), dense(scores).diagonal(dim1=2, dim2=3))


@pytest.mark.parametrize(("causal", "masked"), [(False, "boolean"), (True, ""), (False, "added")])
def test_chosen_queries(causal: bool, masked: str) -> None:
    scores = build(5, 5, causal=causal, masked=masked)
    chosen = torch.tensor([[4, 0, 2], [1, 1, 3]])
    alpha = dense(scores)
    expected = torch.stack([alpha[row][:, chosen[row]] for row in range(BATCH)])
    assert_close(scores.some(chosen), expected)


def test_a_row_that_sees_nothing_is_even() -> None:
    scores = build(3, 4, masked="boolean")
    assert scores.mask is not None
    scores.mask[0, :, 1] = False
    assert_close(scores.rows(slice(1, 2))[0], torch.full((HEADS, 1, 4), 0.25).double())


def test_copies_have_memory_of_their_own() -> None:
    scores = build(3, 4, masked="boolean")
    copied, alpha = scores.clone(), dense(scores)
    for tensor in (scores.query, scores.key, scores.context):
        tensor.zero_()
    assert_close(dense(copied), alpha)


def test_the_lowest_number_of_a_mask() -> None:
    assert lowest(torch.float16) == torch.finfo(torch.float16).min
    assert lowest(torch.float64) == lowest(torch.float32) == torch.finfo(torch.float32).min
