"""Recognise plain attention, softmax(scaling · q kᵀ + mask) v, whose weights can be recomputed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture.scores import Scores

# Every name that a plain eager attention function mentions.
_PLAIN = {
    *("repeat_kv", "num_key_value_groups", "torch", "matmul", "transpose", "size", "shape", "nn"),
    *("functional", "softmax", "float32", "to", "dtype", "dropout", "training", "contiguous"),
    "type",
}
# Arguments of a call, beside queries, keys, values and mask, that do not change the formula.
_HARMLESS = {
    *("scaling", "dropout", "is_causal", "sliding_window", "position_ids", "cache_position"),
    "use_cache",
}


def is_plain(function: Callable[..., Any]) -> bool:
    """Return whether an eager attention function is plain, judged by its code and by a trial."""
    code = getattr(function, "__code__", None)
    return code is not None and set(code.co_names) <= _PLAIN and _computes_plainly(function)


@functools.cache
def _computes_plainly(function: Callable[..., Any]) -> bool:
    """Try a function on random numbers, and compare with the formula."""

    class Trial(nn.Module):
        num_key_value_groups = 2

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query, mask = random(2, 4, 5, 8), random(2, 1, 5, 7)
    # A function that does not repeat value heads is only called with a value head for each head.
    for groups in (4, 2) if "repeat_kv" in function.__code__.co_names else (4,):
        key, value = random(2, groups, 7, 8), random(2, groups, 7, 8)
        module = Trial().eval()
        module.num_key_value_groups = 4 // groups
        try:
            output, _ = function(module, query, key, value, mask, scaling=0.3, dropout=0.0)
        except Exception:  # it needs something that plain attention does not
            return False
        alpha = Scores(query, key, mask, 0.3, False, output).rows(slice(0, 5))
        expected = (alpha @ value.repeat_interleave(4 // groups, dim=1)).transpose(1, 2)
        if output.shape != expected.shape or (output - expected).abs().max() > 1e-6:
            return False
    return True


def is_causal(module: nn.Module, argument: bool | None) -> bool:
    """Return whether a call is causal, by its ``is_causal`` argument or else by its module."""
    return bool(getattr(module, "is_causal", True) if argument is None else argument)


def is_plain_call(module: nn.Module, query: Tensor, key: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of a plain function has no argument that changes the formula."""
    if kwargs.get("dropout") or query.dim() != 4:
        return False
    if is_causal(module, kwargs.get("is_causal")) and 1 < query.shape[2] != key.shape[2]:
        return False  # what a causal mask means for these shapes depends on the function
    return all(v is None or v is False or k in _HARMLESS for k, v in kwargs.items())


def scores_of(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    context: Tensor,
    kwargs: Mapping[str, Any],
) -> Scores:
    """Describe a plain call of transformers' sdpa attention, whose result was ``context``."""
    scaling = kwargs.get("scaling")
    causal = is_causal(module, kwargs.get("is_causal")) and mask is None and query.shape[2] > 1
    if mask is not None:  # one row may stand for all queries
        mask = mask.expand(-1, -1, query.shape[2], -1)
    return Scores(
        query.detach(),
        key.detach(),
        mask,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal,
        context.detach(),
    )
