"""Follow what a model does with the output of its heads up to their output projection.

A gate, a scale, a norm or a difference of heads may act in between. Every number on that way is a
sum of outputs of heads of the same query, each times factors that are held at their values:

    u_iF = Σ_t  m_i[source_t(F)] · Π factors_t(i, F)  +  constant(F)

A :class:`HeadFollower` sees the torch operations one by one. Operations that only move numbers are
applied to the places of the numbers; products and quotients with other tensors become factors; the
divisor of a norm is a factor too. Whatever else is computed from the heads' output (a variance, a
sigmoid) is data, held if it is multiplied. If a tensor on the way is not of this form, it is no
longer followed, and the model is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from normscope.foundation.torch_settings import without_grad

# Operations that only move numbers, by the name of the torch function.
_MOVES = {
    *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("movedim", "moveaxis", "swapaxes", "swapdims", "__getitem__", "narrow", "select", "chunk"),
    *("split", "unbind", "tensor_split", "expand", "view_as", "reshape_as", "expand_as", "t"),
    *("index_select", "split_with_sizes", "__get__", "adjoint", "broadcast_to", "repeat", "flip"),
}
_SAME = {
    *("contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "type"),
    *("type_as", "cpu", "cuda", "dropout", "alias"),
}
_TIMES = {"mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"}
_OVER = {"div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"}
_PLUS = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_MINUS = {"sub", "__sub__", "subtract", "sub_", "__isub__"}
_JOINS = {"cat", "concat", "concatenate", "stack"}
_KEYS = count()  # names of factors: terms of a sum share the factors that came after it


@dataclass(frozen=True)
class HeadTerm:
    """One summand: where each number comes from, and the names of the factors that it has."""

    source: Tensor  # places among the outputs of all heads, in the shape of the tensor
    factors: tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """A held factor, in the shape of the tensor that it multiplies, or a single number."""

    value: Tensor | float
    fixed: bool  # the same for all queries: a parameter or a constant of the module


@dataclass(frozen=True)
class Trail:
    """A tensor as a sum of the heads' outputs times held factors."""

    terms: tuple[HeadTerm, ...]
    factors: Mapping[int, Factor]
    constant: Tensor | None  # fixed, added to the sum; in the shape of the tensor
    centred: Trail | None = None  # what was centred over its last axis, of which this consists
    dtypes: frozenset[torch.dtype] = frozenset()

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.terms[0].source.shape

    def times(self, other: Tensor | float, shape: torch.Size) -> Trail:
        """Return the trail with a further factor."""
        fixed = not isinstance(other, Tensor) or other.dim() <= 1 or isinstance(other, nn.Parameter)
        value = other.detach().expand(shape) if isinstance(other, Tensor) else other
        key = next(_KEYS)
        terms = tuple(
            HeadTerm(term.source.expand(shape), (*term.factors, key)) for term in self.terms
        )
        constant = self.constant
        if constant is not None:
            if not fixed:
                raise NotFollowed
            constant = constant * other
        factors = {**self.factors, key: Factor(value, fixed)}
        return replace(self, terms=terms, factors=factors, constant=constant)

    def plus(self, other: Tensor | float, sign: float, shape: torch.Size) -> Trail:
        """Return the trail with a fixed constant added."""
        if isinstance(other, Tensor) and other.dim() > 1 and not isinstance(other, nn.Parameter):
            raise NotFollowed  # it belongs to no head, and differs from query to query
        like = next((f.value for f in self.factors.values() if isinstance(f.value, Tensor)), None)
        dtype = torch.float64 if like is None else torch.promote_types(like.dtype, torch.float32)
        added = torch.as_tensor(other, device=self.terms[0].source.device).detach()
        added = (sign * added.to(dtype)).expand(shape)
        constant = added if self.constant is None else self.constant + added
        return replace(self, constant=constant)

    def added(self, other: Trail, sign: float) -> Trail:
        """Return the sum or the difference of two trails."""
        if self.centred is not None or other.centred is not None:
            raise NotFollowed
        second = other if sign == 1 else other.times(sign, other.shape)
        shape = torch.broadcast_shapes(self.shape, second.shape)
        if not shape == self.shape == second.shape:
            raise NotFollowed
        constants = [c for c in (self.constant, second.constant) if c is not None]
        return Trail(
            (*self.terms, *second.terms),
            {**self.factors, **second.factors},
            reduce(operator.add, constants) if constants else None,
            None,
            self.dtypes | other.dtypes,
        )

    def moved(self, move: Callable[[Tensor], Any]) -> list[Trail]:
        """Return the trails of the results of an operation that only moves numbers."""
        moved = _listed(move(self.terms[0].source))
        sources = [moved, *(_listed(move(term.source)) for term in self.terms[1:])]
        factors = {
            key: _listed(move(factor.value))
            for key, factor in self.factors.items()
            if isinstance(factor.value, Tensor)
        }
        constants = None if self.constant is None else _listed(move(self.constant))
        return [
            replace(
                self,
                terms=tuple(
                    HeadTerm(by_term[number], term.factors)
                    for by_term, term in zip(sources, self.terms, strict=True)
                ),
                factors={
                    key: replace(f, value=factors[key][number]) if key in factors else f
                    for key, f in self.factors.items()
                },
                constant=None if constants is None else constants[number],
            )
            for number in range(len(moved))
        ]


class NotFollowed(Exception):
    """A tensor is not a sum of heads' outputs with held factors."""


def _listed(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@dataclass(eq=False)
class HeadFollower:
    """The trails of the tensors that were made of the output of some attention calls' heads."""

    trails: dict[int, tuple[Tensor, Trail]] = field(default_factory=dict)  # by the tensor's id
    sizes: list[int] = field(default_factory=list)  # numbers in the heads' output, by call

    def begin(self, mixed: Tensor) -> None:
        """Follow the output of the heads of one more attention call."""
        first = sum(self.sizes)
        source = torch.arange(first, first + mixed.numel(), device=mixed.device)
        self.sizes.append(mixed.numel())
        self._keep(mixed, Trail((HeadTerm(source.view(mixed.shape), ()),), {}, None))

    def trail(self, tensor: Tensor) -> Trail | None:
        """Return the trail of a tensor; None if it is not followed."""
        known = self.trails.get(id(tensor))
        return None if known is None else known[1]

    def _keep(self, tensor: Tensor, trail: Trail) -> None:
        trail = replace(trail, dtypes=trail.dtypes | {tensor.dtype})
        self.trails[id(tensor)] = tensor, trail  # holding the tensor keeps its id from reuse

    @without_grad
    def ran(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Note the result of a torch function if it was applied to a tensor that is followed."""
        first = args[0] if args else kwargs.get("input")
        outputs = [output] if isinstance(output, Tensor) else output
        if not isinstance(outputs, list | tuple) or not outputs:
            return
        if not all(isinstance(tensor, Tensor) for tensor in outputs):
            return  # a shape
        operands = first if isinstance(first, list | tuple) else args[:2] or (first,)
        if not any(isinstance(x, Tensor) and id(x) in self.trails for x in operands):
            return
        name = getattr(func, "__name__", "")
        try:
            results = self._results(func, name, (first, *args[1:]), kwargs, output)
        except (NotFollowed, RuntimeError, TypeError, ValueError, IndexError):
            results = []
        if len(results) != len(outputs):
            for tensor in outputs:  # written in place by an operation that is not followed
                self.trails.pop(id(tensor), None)
            return
        for tensor, trail in zip(outputs, results, strict=True):
            if trail.shape == tensor.shape:
                self._keep(tensor, trail)

    def _results(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ) -> list[Trail]:
        """Return the trails of a function's results."""
        if name in _JOINS:
            return [self._joined(func, args, kwargs)]
        a = self.trail(args[0]) if isinstance(args[0], Tensor) else None
        b = self.trail(args[1]) if len(args) > 1 and isinstance(args[1], Tensor) else None
        if name in _PLUS | _MINUS and not kwargs:
            sign = 1.0 if name in _PLUS else -1.0
            if a is not None and b is not None:
                return [a.added(b, sign)]
            if a is not None:
                return [a.plus(args[1], sign, output.shape)]
            assert b is not None
            return [b.times(sign, output.shape).plus(args[0], 1.0, output.shape)]
        if name in _TIMES and (a is None or b is None):
            trail, other = (a, args[1]) if a is not None else (b, args[0])
            assert trail is not None
            return [trail.times(other, output.shape)]
        if a is None or b is not None:
            raise NotFollowed
        if name in _OVER and len(args) == 2 and not kwargs:
            other = args[1]
            inverse = 1 / (other.detach() if isinstance(other, Tensor) else other)
            return [a.times(inverse, output.shape)]
        if name == "neg":
            return [a.times(-1.0, output.shape)]
        if name == "dropout" and not torch.equal(output, args[0]):
            raise NotFollowed
        if name in _SAME:
            return [a]
        if name == "view":  # of a copy, where the tensor itself was made contiguous
            return a.moved(lambda tensor: tensor.reshape(*args[1:]))
        if name in _MOVES:
            return a.moved(lambda tensor: func(tensor, *args[1:], **kwargs))
        if name in ("rms_norm", "layer_norm"):
            return [_normed(name, a, args, kwargs)]
        raise NotFollowed

    def _joined(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trail:
        """Return the trail of tensors that are put side by side."""
        known = [self.trail(tensor) for tensor in args[0]]
        trails = [trail for trail in known if trail is not None]
        if len(trails) < len(known) or len({len(trail.terms) for trail in trails}) > 1:
            raise NotFollowed
        if any(trail.constant is not None or trail.centred is not None for trail in trails):
            raise NotFollowed

        def joined(parts: Sequence[Tensor]) -> Tensor:
            result: Tensor = func(list(parts), *args[1:], **kwargs)
            return result

        factors: dict[int, Factor] = {}
        for key in dict.fromkeys(key for trail in trails for key in trail.factors):
            having = [trail.factors.get(key) for trail in trails]
            values = [
                _filled(1.0 if factor is None else factor.value, trail)
                for factor, trail in zip(having, trails, strict=True)
            ]
            dtype = reduce(torch.promote_types, [v.dtype for v in values])
            fixed = all(factor is None or factor.fixed for factor in having)
            factors[key] = Factor(joined([value.to(dtype) for value in values]), fixed)
        terms = []
        for number in range(len(trails[0].terms)):
            parts = [trail.terms[number] for trail in trails]
            keys = dict.fromkeys(key for part in parts for key in part.factors)
            terms.append(HeadTerm(joined([part.source for part in parts]), tuple(keys)))
        dtypes = reduce(operator.or_, [trail.dtypes for trail in trails])
        return Trail(tuple(terms), factors, None, None, dtypes)


def _filled(value: Tensor | float, trail: Trail) -> Tensor:
    if isinstance(value, Tensor):
        return value
    device = trail.terms[0].source.device
    return torch.full((), value, dtype=torch.float64, device=device).expand(trail.shape)


def _normed(name: str, trail: Trail, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trail:
    """Return the trail behind torch's own rms_norm or layer_norm, whose σ is held."""
    biased = ("bias",) if name == "layer_norm" else ()
    names = ("input", "normalized_shape", "weight", *biased, "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    states: Tensor = given["input"].detach()
    wide = states.to(torch.promote_types(states.dtype, torch.float32))
    if tuple(given["normalized_shape"]) != states.shape[-1:]:
        raise NotFollowed
    eps = given.get("eps", 1e-5 if name == "layer_norm" else None)
    eps = torch.finfo(states.dtype).eps if eps is None else eps
    if name == "layer_norm":
        if trail.constant is not None or trail.centred is not None:
            raise NotFollowed
        wide = wide - wide.mean(dim=-1, keepdim=True)
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    normed = trail.times(scale, trail.shape)
    if name == "layer_norm":
        source = torch.arange(states.numel(), device=states.device).view(states.shape)
        normed = Trail((HeadTerm(source, ()),), {}, None, normed, normed.dtypes)
    if (weight := given.get("weight")) is not None:
        normed = normed.times(weight, normed.shape)
    if (bias := given.get("bias")) is not None:
        normed = normed.plus(bias, 1.0, normed.shape)
    return normed
