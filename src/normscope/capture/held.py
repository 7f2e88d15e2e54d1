"""Attention whose heads' output passes held factors before its projection, as weights and values.

What a :class:`~normscope.capture.follow.Trail` says about the input of the output projection is
brought into the form of plain attention:

    y_i = Σ_h Σ_j s_ih α_ij^h (v_j^h ⊙ g_ih) W_O'^h + b_O'

s is a scale for each query and head (a gate of a head, 1/σ of a norm), g an elementwise gate, which
few models have. What is the same for all queries is in W_O' and b_O': γ and centring of a norm, λ.
The difference of two softmaxes over the same values is one head with a signed α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.capture.follow import NotFollowed, Trail
from normscope.capture.scores import Scores
from normscope.foundation.shapes import Float, Int
from normscope.foundation.torch_settings import without_grad

if TYPE_CHECKING:
    from normscope.capture.recorder import Pending


@dataclass(frozen=True, eq=False)
class Held:
    """What multiplies the output of the heads, held at its values."""

    scale: Float[Tensor, "batch head query"] | None  # s, multiplies α
    gate: Float[Tensor, "batch query head head_size"] | None  # g, makes f depend on the query
    difference: bool  # whether α is a difference of softmaxes
    dtypes: frozenset[torch.dtype]  # in which the model computed it

    @property
    def conventions(self) -> tuple[str, ...]:
        """Name what is held, for the signature of a result."""
        named = {
            "alpha=difference": self.difference,
            "scale-held": self.scale is not None,
            "gate-held": self.gate is not None,
        }
        return tuple(name for name, true in named.items() if true)

    def clone(self) -> Held:
        """Return a copy with memory of its own."""
        scale = None if self.scale is None else self.scale.clone()
        gate = None if self.gate is None else self.gate.clone()
        return Held(scale, gate, self.difference, self.dtypes)


@dataclass(frozen=True, eq=False)
class HeldHeads:
    """An attention call in the form of plain attention, with what is held."""

    weights: Float[Tensor, "batch head query key"] | Scores
    value: Float[Tensor, "batch kv_head key head_size"]
    merged: Float[Tensor, "batch query features"]  # Σ_j αv times what is held
    weight: Float[Tensor, "head head_size out"]
    bias: Float[Tensor, " out"] | None
    held: Held
    batch_first: bool


@dataclass(frozen=True, eq=False)
class _Summand:
    """One term of a trail: the head and the component behind each number the projection reads."""

    unit: Int[Tensor, " features"]  # heads of all calls, counted through
    component: Int[Tensor, " features"]
    factors: dict[int, Tensor | float]  # held: (batch, query, features), or the same for all


@without_grad
def scale_of(
    alpha: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch kv_head key head_size"],
    mixed: Float[Tensor, "batch query head head_size"],
) -> Float[Tensor, "batch head query"] | None:
    """Return by what the output of each head differs from Σ_j αv; None if it does not.

    An attention function may scale its output, and return weights without the scale: a sink that is
    computed apart from the softmax. The output is read, so that the scale is that of the model.
    """
    wide = torch.promote_types(mixed.dtype, torch.float32)
    value = value.to(wide).repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
    expected, real = alpha.to(wide) @ value, mixed.to(wide).transpose(1, 2)
    rounding = torch.finfo(mixed.dtype).eps ** 0.75 * (alpha.abs().to(wide) @ value.abs())
    if bool(((real - expected).abs() <= rounding).all()) or not bool(real.isfinite().all()):
        return None
    squares = torch.linalg.vecdot(expected, expected)
    scale = torch.linalg.vecdot(real, expected) / squares.clamp_min(torch.finfo(wide).tiny)
    gap = (real - scale.unsqueeze(-1) * expected).abs()
    return scale if bool((gap <= rounding * (1 + scale.abs().unsqueeze(-1))).all()) else None


def hold(
    trail: Trail,
    calls: Sequence[Pending],
    read: Tensor,
    weight: Float[Tensor, "features out"],
    bias: Float[Tensor, " out"] | None,
) -> HeldHeads:
    """Return an attention in plain form, from the trail of what its output projection read.

    Raises:
        NotFollowed: it has no such form.
    """
    if any(call.scale is not None for call in calls):
        raise NotFollowed  # two scales, one of which is in the heads' output already
    wide = torch.promote_types(weight.dtype, torch.float32)
    weight = weight.to(wide)
    if trail.constant is not None:
        constant = trail.constant.reshape(-1, len(weight))[0].to(wide) @ weight
        bias = constant if bias is None else bias.to(wide) + constant
    if trail.centred is not None:
        return hold(trail.centred, calls, read, _before_centring(trail, weight), bias)
    heads = _Heads(trail, calls, read)
    return heads.attention(weight, bias, trail.dtypes)


def _before_centring(
    trail: Trail, weight: Float[Tensor, "features out"]
) -> Float[Tensor, "features out"]:
    """Return the map from what a layer norm centred, so that W (γ ⊙ (v − mean v)) is one map."""
    assert trail.centred is not None
    (term,) = trail.terms
    source = term.source.reshape(-1, len(weight))
    size = trail.centred.terms[0].source.numel() // len(source)
    if not torch.equal(source - source[:1], _rows(source) * size):
        raise NotFollowed
    for key in term.factors:
        factor = trail.factors[key]
        if not factor.fixed:
            raise NotFollowed  # a gate behind a norm that centres
        value = factor.value
        if isinstance(value, Tensor):
            value = value.reshape(-1, len(weight))[0].unsqueeze(1).to(weight)
        weight = weight * value
    moved = weight.new_zeros((size, weight.shape[1])).index_add(0, source[0], weight)
    groups = moved.unflatten(0, (-1, trail.centred.shape[-1]))
    return (groups - groups.mean(dim=1, keepdim=True)).flatten(0, 1)


def _rows(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device).unsqueeze(1).expand_as(like)


class _Heads:
    """The heads of some attention calls, and how the projection's input is made of them."""

    def __init__(self, trail: Trail, calls: Sequence[Pending], read: Tensor) -> None:
        self.calls = calls
        for batch, batch_first in _layouts(calls[0], read):
            self.batch, self.batch_first = batch, batch_first
            self.shape = _by_head(calls[0], calls[0].mixed, batch).shape  # batch query head e
            if any(_by_head(call, call.mixed, batch).shape != self.shape for call in calls):
                continue
            summands = self._summands(trail)
            if summands is not None:
                self.summands = summands
                return
        raise NotFollowed

    def _summands(self, trail: Trail) -> list[_Summand] | None:
        """Return the terms by head and component; None if positions are mixed, or another way."""
        batch, queries, heads, size = self.shape
        places = torch.cat(
            [_by_head(c, torch.arange(c.mixed.numel()).view(c.mixed.shape), batch).reshape(-1)
             for c in self.calls]
        )  # fmt: skip
        device = trail.terms[0].source.device
        number = torch.arange(places.numel()).view(len(self.calls), batch, queries, heads, size)
        where = torch.empty_like(places)  # from the place in memory to that by query and head
        offset = torch.arange(len(self.calls)).repeat_interleave(self.shape.numel())
        where[places + offset * self.shape.numel()] = number.reshape(-1)
        where = where.to(device)
        summands = []
        for term in trail.terms:
            source = where[self._by_query(term.source)]  # batch query features
            row = source // (heads * size) % (batch * queries)
            if not torch.equal(row, self._own_rows(row)):
                return None
            call, within = source // self.shape.numel(), source % (heads * size)
            unit, component = call * heads + within // size, within % size
            if not (_is_same(unit) and _is_same(component)):
                return None
            factors = {
                key: self._factor(trail.factors[key].value, trail.factors[key].fixed)
                for key in term.factors
            }
            summands.append(_Summand(unit[0, 0], component[0, 0], factors))
        return summands

    def _own_rows(self, like: Tensor) -> Tensor:
        batch, queries = like.shape[:2]
        rows = torch.arange(batch * queries, device=like.device).view(batch, queries, 1)
        return rows.expand_as(like)

    def _by_query(self, states: Tensor) -> Tensor:
        """Return numbers of any kind as (batch, query, features)."""
        batch, queries = self.shape[:2]
        if self.batch_first:
            return states.reshape(batch, queries, -1)
        return states.reshape(queries, batch, -1).transpose(0, 1)

    def _factor(self, value: Tensor | float, fixed: bool) -> Tensor | float:
        if not isinstance(value, Tensor):
            return value
        by_query = self._by_query(value)
        return by_query[0, 0] if fixed else by_query

    # ---- the plain form

    def attention(
        self,
        weight: Float[Tensor, "features out"],
        bias: Float[Tensor, " out"] | None,
        dtypes: frozenset[torch.dtype],
    ) -> HeldHeads:
        """Return the call in plain form, with the map from the projection's input to its output."""
        members = self._members()  # head, head_size
        shared = set.intersection(*(set(s.factors) for s in self.summands))
        batch, wide = self.batch, weight.dtype
        signs = self._signs(members, shared) if len(self.summands) > 1 else None
        plain = len(self.calls) == len(self.summands) == 1 and self._is_whole(members)
        mixed, terms = self._mixed().to(torch.promote_types(self._mixed().dtype, wide)), []
        weights: Tensor | Scores
        if signs is not None:
            weights = sum(
                (sign.to(wide) * self._alpha(s.unit[members[:, 0]])
                 for s, sign in zip(self.summands, signs, strict=True)),
                start=torch.zeros((), dtype=wide, device=weight.device),
            )  # fmt: skip
            value = self._value(self.summands[0], members)
            mixed = sum(
                (sign.squeeze(-1).transpose(1, 2).unsqueeze(-1).to(wide)
                 * mixed[:, :, s.unit[members], s.component[members]]
                 for s, sign in zip(self.summands, signs, strict=True)),
                start=torch.zeros((), dtype=wide, device=weight.device),
            )  # fmt: skip
            terms = [{key: self.summands[0].factors[key] for key in shared}]
        else:
            terms = [s.factors for s in self.summands]
            each = [mixed[:, :, s.unit[members], s.component[members]] for s in self.summands]
            mixed = torch.cat(each, dim=2)
            if plain:
                weights, value = self.calls[0].weights, self.calls[0].value
                if isinstance(weights, Tensor):  # watched products may have one axis of both
                    weights = self._weights_of(0)
                    value = value.reshape(batch, -1, *value.shape[-2:])
            else:
                units = [s.unit[members[:, 0]] for s in self.summands]
                weights = torch.cat([self._alpha(unit) for unit in units], dim=1)
                value = torch.cat([self._value(s, members) for s in self.summands], dim=1)
        parts = [_product(factors, members, weight[members], wide) for factors in terms]
        scale = _beside([p[1] for p in parts], mixed.shape[:2], members.shape[:1], dim=2)
        gate = _beside([p[2] for p in parts], mixed.shape[:2], members.shape, dim=2)
        for factor in (None if scale is None else scale.unsqueeze(-1), gate):
            mixed = mixed if factor is None else mixed * factor
        scale = None if scale is None else scale.transpose(1, 2)
        held = Held(scale, gate, signs is not None, dtypes)
        projected = torch.cat([p[0] for p in parts], dim=0)
        return HeldHeads(weights, value, mixed.flatten(2), projected, bias, held, self.batch_first)

    def _is_whole(self, members: Tensor) -> bool:
        """Whether the projection reads the heads as they are, in their order."""
        heads, size = self.shape[2:]
        (summand,) = self.summands
        order = torch.arange(heads * size, device=members.device)
        read = summand.unit * size + summand.component
        return torch.equal(read, order) and torch.equal(members.flatten(), order)

    def _members(self) -> Int[Tensor, "head head_size"]:
        """The numbers of the projection's input that come from the same head or heads."""
        units = torch.stack([self._canonical[s.unit] for s in self.summands])
        _, group = torch.unique(units, dim=1, return_inverse=True)
        sizes = torch.bincount(group)
        if not bool((sizes == sizes[0]).all()):
            raise NotFollowed
        members = group.argsort(stable=True).view(len(sizes), -1)
        return members[members[:, 0].argsort()]

    @property
    def _canonical(self) -> Int[Tensor, " unit"]:
        """The first of the heads with the same weights, of several calls."""
        heads = self.shape[2]
        units = torch.arange(len(self.calls) * heads, device=self.calls[0].mixed.device)
        if len(self.calls) > 1:
            first = self._weights_of(0)
            for number in range(1, len(self.calls)):
                if torch.equal(self._weights_of(number), first):
                    units[number * heads : (number + 1) * heads] = units[:heads]
        return units

    def _weights_of(self, number: int) -> Float[Tensor, "batch head query key"]:
        weights = self.calls[number].weights
        if isinstance(weights, Scores):
            weights = weights.rows(slice(0, weights.shape[2]))
        batch, queries, heads, _ = self.shape
        return weights.detach().reshape(batch, heads, queries, -1)

    def _alpha(self, units: Int[Tensor, " head"]) -> Float[Tensor, "batch head query key"]:
        heads = self.shape[2]
        by_head = [self._weights_of(int(u) // heads)[:, int(u) % heads] for u in units]
        return torch.stack(by_head, dim=1)

    def _value(
        self, summand: _Summand, members: Int[Tensor, "head head_size"]
    ) -> Float[Tensor, "batch head key head_size"]:
        batch, _, heads, size = self.shape
        values = []
        for call in self.calls:
            value = call.value.detach().reshape(batch, -1, *call.value.shape[-2:])
            values.append(value.repeat_interleave(heads // value.shape[1], dim=1))
        whole = torch.stack(values, dim=1).flatten(1, 2).permute(1, 3, 0, 2)  # unit e batch key
        assert whole.shape[1] == size
        return whole[summand.unit[members], summand.component[members]].permute(2, 0, 3, 1)

    def _mixed(self) -> Float[Tensor, "batch query unit head_size"]:
        by_head = [_by_head(call, call.mixed.detach(), self.batch) for call in self.calls]
        return torch.cat(by_head, dim=2)

    def _signs(
        self, members: Int[Tensor, "head head_size"], shared: set[int]
    ) -> list[Float[Tensor, "batch head query 1"]] | None:
        """Return the factor of each softmax in a difference of several over the same values.

        None if the values differ, or if the factors of one head are not the same throughout.
        """
        first = self._value(self.summands[0], members)
        if any(not torch.equal(self._value(s, members), first) for s in self.summands[1:]):
            return None
        signs = []
        batch, queries = self.shape[:2]
        for summand in self.summands:
            sign = torch.ones(
                (batch, queries, *members.shape), dtype=torch.float64, device=members.device
            )
            for key, factor in summand.factors.items():
                if key not in shared:
                    sign = sign * (factor[..., members] if isinstance(factor, Tensor) else factor)
            if not torch.equal(sign, sign[..., :1].expand_as(sign)):
                return None
            signs.append(sign[..., 0].transpose(1, 2).unsqueeze(-1))
        return signs


def _product(
    factors: dict[int, Tensor | float],
    members: Int[Tensor, "head head_size"],
    weight: Float[Tensor, "head head_size out"],
    wide: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return W_O with what is the same for all queries, the scale of heads, and the gate."""
    scale: Tensor | None = None
    gate: Tensor | None = None
    for factor in factors.values():
        if not isinstance(factor, Tensor):
            weight = weight * factor
            continue
        by_head = factor[..., members].to(wide)
        if factor.dim() == 1:
            weight = weight * by_head.unsqueeze(-1)
        elif torch.equal(by_head, by_head[..., :1].expand_as(by_head)):
            scale = by_head[..., 0] if scale is None else scale * by_head[..., 0]
        else:
            gate = by_head if gate is None else gate * by_head
    return weight, scale, gate


def _beside(
    parts: Sequence[Tensor | None], rows: torch.Size, size: torch.Size, dim: int
) -> Tensor | None:
    """Put the factors of several groups of heads side by side; 1 where a group has none."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    return torch.cat(
        [known.new_ones((*rows, *size)) if part is None else part for part in parts], dim=dim
    )


def _is_same(numbers: Int[Tensor, "batch query features"]) -> bool:
    """Whether all queries have the same numbers."""
    return torch.equal(numbers, numbers[:1, :1].expand_as(numbers))


def _by_head(call: Pending, states: Tensor, batch: int) -> Tensor:
    """Return the output of the heads, or numbers in its shape: (batch, query, head, e)."""
    if call.path == "watched":
        by_head = states.reshape(batch, -1, *states.shape[-2:])
        return by_head.transpose(1, 2)
    return states


def _layouts(call: Pending, read: Tensor) -> list[tuple[int, bool]]:
    """List what the size of the batch may be, and whether its axis is the first of the input."""
    if call.path != "watched" or call.mixed.dim() == 4:
        return [(call.mixed.shape[0], True), (call.mixed.shape[0], False)]
    if read.dim() > 3:  # the positions of an image are a table
        read = read.flatten(1, -2)
    if read.dim() != 3:
        return []
    queries = call.mixed.shape[-2]
    layouts = [(read.shape[0], True, read.shape[1]), (read.shape[1], False, read.shape[0])]
    fits = [(b, first) for b, first, q in layouts if q == queries and len(call.mixed) % b == 0]
    return fits
