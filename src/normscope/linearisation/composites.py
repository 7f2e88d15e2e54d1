"""Functions that are made of others, taken apart, and the arguments of norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from normscope.errors import UnsupportedModelError

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def of_first(func: Any, args: Arguments, kwargs: Keywords) -> Callable[[Tensor], Tensor]:
    """Return a function of the first argument alone, which does not keep it in memory."""
    rest = args[1:]

    def function(first: Tensor) -> Tensor:
        value: Tensor = func(first, *rest, **kwargs)
        return value

    return function


@dataclass(frozen=True)
class NormCall:
    """A call of one of torch's norms."""

    function: Callable[[Tensor], Tensor]
    scale: Tensor | None
    bias: Tensor | None
    grouped: Callable[[Tensor], Tensor]
    eps: float
    centred: bool

    @classmethod
    def of(cls, func: Any, args: Arguments, kwargs: Keywords) -> NormCall:
        name = func.__name__
        names = {
            "layer_norm": ("normalized_shape", "weight", "bias", "eps"),
            "rms_norm": ("normalized_shape", "weight", "eps"),
            "group_norm": ("num_groups", "weight", "bias", "eps"),
        }[name]
        given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        scale, bias, eps = given.get("weight"), given.get("bias"), given.get("eps")
        if name == "group_norm":
            groups, behind = given["num_groups"], args[0].dim() - 2
            scale = scale if scale is None else scale.view(-1, *[1] * behind)
            bias = bias if bias is None else bias.view(-1, *[1] * behind)

            def grouped(x: Tensor) -> Tensor:
                return x.reshape(x.shape[0], groups, -1)

        else:
            size = given["normalized_shape"]
            sizes = (size,) if isinstance(size, int) else tuple(size)

            def grouped(x: Tensor) -> Tensor:
                return x.reshape(*x.shape[: x.dim() - len(sizes)], -1)

        if eps is None:
            eps = torch.finfo(args[0].dtype).eps if name == "rms_norm" else 1e-5
        return cls(of_first(func, args, kwargs), scale, bias, grouped, eps, name != "rms_norm")


# ---- functions made of others, taken apart; they run in the mode


def _variance(x: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    correction = int(correction) if isinstance(correction, bool) else correction
    dims = tuple(range(x.dim())) if dim is None else dim
    sizes = [x.shape[d] for d in ((dims,) if isinstance(dims, int) else dims)]
    count = functools.reduce(lambda a, b: a * b, sizes, 1)
    centred = x - x.mean(dims, keepdim=True)
    return centred.square().sum(dims, keepdim=keepdim) / (count - correction)


def _vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    if ord not in (2, 2.0, "fro", None):
        raise UnsupportedModelError(f"a norm of order {ord} of states has no rule")
    dims = tuple(range(x.dim())) if dim is None else dim
    return x.square().sum(dims, keepdim=keepdim).sqrt()


def _distances(x: Tensor, y: Tensor, p: Any = 2.0, *_: Any, **__: Any) -> Tensor:
    return _vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


COMPOSITE_SCALES: dict[str, Callable[..., Any]] = {
    "var": _variance,
    "std": lambda *args, **kwargs: _variance(*args, **kwargs).sqrt(),
    "norm": lambda x, p=2, dim=None, keepdim=False, **_: _vector_norm(x, p, dim, keepdim),
    "linalg_vector_norm": _vector_norm,
    "vector_norm": _vector_norm,
    "cdist": _distances,
}


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Tensor:
    return x / x.norm(p, dim, True).clamp_min(eps)


def _cosine(a: Tensor, b: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    product = (a * b).sum(dim)
    return product / (a.norm(2, dim).clamp_min(eps) * b.norm(2, dim).clamp_min(eps))


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _log_softmax(
    x: Tensor, dim: int, *_: Any, dtype: torch.dtype | None = None, **__: Any
) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    return x - torch.logsumexp(x, dim, keepdim=True)


def _squared_error(
    first: Tensor, second: Tensor, *_: Any, reduction: str = "mean", **__: Any
) -> Tensor:
    squares = (first - second).square()
    if reduction == "none":
        return squares
    return squares.mean() if reduction == "mean" else squares.sum()


# The arguments of nn.MultiheadAttention's function after its output projection, in their order.
_SEPARATE = (
    *("training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight"),
    *("q_proj_weight", "k_proj_weight", "v_proj_weight"),
)


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    size: int,
    heads: int,
    weight: Tensor | None,
    bias: Tensor | None,
    *rest: Any,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute nn.MultiheadAttention, whose inputs are (position, row, hidden)."""
    bias_k, bias_v, add_zero, _, out_weight, out_bias = rest[:6]
    if bias_k is not None or bias_v is not None or add_zero:
        raise UnsupportedModelError("nn.MultiheadAttention with extra keys has no rule")
    for name, given in zip(_SEPARATE, rest[6:], strict=False):
        options.setdefault(name, given)
    if options.get("use_separate_proj_weight"):
        weights = [options[f"{name}_proj_weight"] for name in "qkv"]
    elif weight is None:
        raise UnsupportedModelError("nn.MultiheadAttention without weights has no rule")
    else:
        weights = [*weight.chunk(3)]
    projected = [
        functional.linear(x, w, b)
        for x, w, b in zip(
            (query, key, value),
            weights,
            (None,) * 3 if bias is None else bias.chunk(3),
            strict=True,
        )
    ]
    batch = query.shape[1]
    q, k, v = (x.reshape(x.shape[0], batch, heads, -1).permute(1, 2, 0, 3) for x in projected)
    mask = options.get("attn_mask")
    if mask is not None and mask.dim() == 3:  # for each head of each row
        mask = mask.reshape(batch, heads, *mask.shape[1:])
    padding = options.get("key_padding_mask")
    if padding is not None:
        hidden = padding[:, None, None, :]
        if hidden.dtype == torch.bool:
            hidden = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -torch.inf)
        mask = hidden if mask is None else hidden + mask
    elif mask is not None and mask.dtype == torch.bool:
        mask = ~mask
    context = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    context = context.permute(2, 0, 1, 3).reshape(query.shape[0], batch, size)
    return functional.linear(context, out_weight, out_bias), None


# The names of the bounds of a clamp, in their order.
CLAMPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("clamp", "clip"), ("min", "max")),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
}


def clamped(name: str, x: Tensor, *bounds: Any, **named: Any) -> Tensor:
    """Return a clamp whose bounds are tensors, by the rule for the sign of a difference."""
    given = {**dict(zip(CLAMPS[name], bounds, strict=False)), **named}
    if given.get("min") is not None:
        x = given["min"] + functional.relu(x - given["min"])
    if given.get("max") is not None:
        x = given["max"] - functional.relu(given["max"] - x)
    return x


COMPOSITES: dict[str, Callable[..., Any]] = {
    "normalize": _normalize,
    "cosine_similarity": _cosine,
    "glu": _glu,
    "log_softmax": _log_softmax,
    "mse_loss": _squared_error,
    "multi_head_attention_forward": _multi_head,
}
