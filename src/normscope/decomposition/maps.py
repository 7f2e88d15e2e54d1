"""One attention call, or one layer, turned into the maps asked for, each with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.capture.layers import layers_of
from normscope.decomposition.attention import (
    BOUNDS,
    TF32,
    TINY,
    AttentionDecomposition,
    Cells,
    Positions,
    ratio,
)
from normscope.decomposition.block import Factored, Known, Parts
from normscope.decomposition.layer import LayerDecomposition, scopes_of
from normscope.decomposition.rows import Reduce, Rows
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.models.layouts import Experts, layer_of

# Every map there is, in the order in which a layer makes them. No layer has all.
NAMES = (
    *("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln"),
    *("atb_ff", "atb_ff_res", "atb_ff_res_ln", "atb_ln_ff", "atb_ln_ff_res"),
)


@dataclass(frozen=True, eq=False)
class Map:
    """One map of one attention call, with what goes with it."""

    values: Float[Tensor, "batch *head query key"] | None  # None where it was reduced
    gap: Float[Tensor, "batch query"]  # to the model's own state, relative to the parts
    spot: Float[Tensor, " batch"] | None  # to the definition, at random cells of some layers
    mixing_ratio: Float[Tensor, "batch query"] | None = None
    bias_share: Float[Tensor, "batch query"] | None = None
    reduced: Mapping[str, Tensor] = field(default_factory=dict)


def each_head(
    taken: AttentionDecomposition, wanted: Sequence[str], positions: Positions
) -> dict[str, Map]:
    """``attn_w`` and ``attn_n`` of every head."""
    cells = _cells(taken, positions)
    weighted = taken.each("attn_n")
    gap = taken.gap(weighted.sum(dim=(1, 3)))
    made = {name: weighted if name == "attn_n" else taken.each(name) for name in wanted}
    return {
        name: Map(
            values, gap, None if cells is None else taken.spot_check(name, cells.of(values), cells)
        )
        for name, values in made.items()
    }


def attention_maps(
    taken: AttentionDecomposition,
    wanted: Sequence[str],
    positions: Positions,
    reduce: Reduce | None = None,
) -> dict[str, Map]:
    """The maps of attention alone, heads summed: ``attn_w`` and ``attn_n``."""
    known = Known.of(parts := Parts.of_attention(taken), taken.captured.output)
    scope = Factored(taken, 0, known, False, parts.cells)
    return _factored_maps(taken, {"attn_n": scope}, wanted, positions, reduce)


def layer_maps(
    taken: LayerDecomposition,
    wanted: Sequence[str],
    positions: Positions,
    reduce: Reduce | None = None,
) -> dict[str, Map]:
    """All maps of one attention and of what follows it in its layer."""
    scopes = taken.factored(wanted)
    made = _factored_maps(taken.alone, scopes, wanted, positions, reduce)
    beyond = taken.beyond(wanted)
    cells = _cells(taken.alone, positions) if beyond else None
    for name, one in beyond.items():
        bias = _length(one.bias, one.others)
        gap = _gap(one.whole(), taken.real(name), one.norms.sum(dim=-1) + bias)
        spot = None
        if cells is not None:
            mean = one.norms.mean(dim=-1)
            spot = _spot(cells.of(one.norms), one.cells(cells), mean, cells)
        made[name] = Map(one.norms, gap, spot, ratio(one.others, one.own), bias)
    return {name: made[name] for name in wanted if name in made}


def _factored_maps(
    taken: AttentionDecomposition,
    scopes: Mapping[str, Factored],
    wanted: Sequence[str],
    positions: Positions,
    reduce: Reduce | None,
) -> dict[str, Map]:
    """Maps that come from Gram matrices or from the weights, in one pass over the queries."""
    batch, _, queries, keys = taken.captured.shape
    separate = taken.own is None
    counts = {name: scope.keys for name, scope in scopes.items()}
    counts |= {"attn_w": keys} if {"attn_w", "attn_res_w"} & set(wanted) else {}
    counts |= {"attn_res_w": keys + separate} if "attn_res_w" in wanted else {}
    drawn = positions.cells(taken.captured.layer)
    made = {
        name: Rows(
            (batch, queries, count), positions.keys, reduce if name in wanted else NOTHING, drawn
        )
        for name, count in counts.items()
    }
    diagonal = None  # of the mean weights
    for here, alpha, norms in taken.rows("attn_w" in made):
        for name, scope in scopes.items():
            made[name].add(here, scope.rows(here, norms))
        if "attn_w" in made:
            assert alpha is not None
            weights = alpha.mean(dim=1, dtype=torch.promote_types(alpha.dtype, torch.float32))
            made["attn_w"].add(here, weights)
            if not separate:
                own = weights.diagonal(offset=here.start, dim1=-2, dim2=-1)
                diagonal = own if diagonal is None else torch.cat([diagonal, own], dim=1)
        if "attn_res_w" in made:
            made["attn_res_w"].add(here, _residual_weights(weights, here, separate=separate))
    cells = _cells(taken, positions)
    sums = {name: rows.sums for name, rows in made.items() if rows.sums is not None}
    gaps = {
        name: scope.known.difference / (sums[name] + scope.known.bias).clamp_min(TINY)
        for name, scope in scopes.items()
    }
    maps: dict[str, Map] = {}
    for name, rows in made.items():
        if name not in wanted:
            continue
        if name in ("attn_w", "attn_res_w"):
            factor = 1 if name == "attn_w" else 2
            whole = sums["attn_w"]
            mixing = (whole if diagonal is None else whole - diagonal) / factor
            checked = None
            if cells is not None:
                seen = made["attn_w"].at
                assert seen is not None
                checked = taken.spot_check("attn_w", seen, cells)
            maps[name] = Map(rows.values, gaps["attn_n"], checked, mixing, None, rows.reduced)
            continue
        scope, checked = scopes[name], None
        if cells is not None:
            seen = rows.at
            assert seen is not None
            if name == "attn_n":
                checked = taken.spot_check(name, seen, cells)
            else:
                mean = sums[name] / counts[name]
                checked = _spot(seen, scope.cells(cells), mean, cells)
        maps[name] = Map(
            rows.values, gaps[name], checked, scope.mixing_ratio(), scope.known.bias, rows.reduced
        )
    return {name: maps[name] for name in wanted if name in maps}


def _cells(taken: AttentionDecomposition, positions: Positions) -> Cells | None:
    """The cells that this layer is judged by; None where it is not its turn."""
    drawn = positions.cells(taken.captured.layer)
    return None if drawn is None else taken.at(*drawn)


NOTHING = Reduce()  # keeps a map's row sums alone


def _length(bias: Tensor | None, like: Tensor) -> Float[Tensor, "batch query"]:
    """‖bias‖ for every query."""
    none = torch.zeros(like.shape[:2], dtype=torch.float64, device=like.device)
    return none if bias is None else bias.norm(dim=-1) + none


def _residual_weights(
    weights: Float[Tensor, "batch rows key"], here: slice, *, separate: bool
) -> Float[Tensor, "batch rows keys"]:
    """½ᾱ + ½I, the 2021 paper's way to count the residual among weights."""
    values = weights / 2
    if separate:
        return torch.cat([values, torch.full_like(values[..., :1], 0.5)], dim=-1)
    values.diagonal(offset=here.start, dim1=-2, dim2=-1).add_(0.5)
    return values


def _gap(whole: Tensor, real: Tensor, size: Tensor) -> Float[Tensor, "batch query"]:
    """Parts and bias against the model's own state, relative to their lengths."""
    return (whole - real).norm(dim=-1) / size.clamp_min(TINY)


def _spot(seen: Tensor, vectors: Tensor, mean: Tensor, cells: Cells) -> Float[Tensor, " batch"]:
    """Some cells against the same vectors made whole, relative to them and the row's mean."""
    dense = vectors.norm(dim=-1)
    size = dense + mean[cells.row, cells.i]
    return cells.worst_of(((seen - dense).abs() / size.clamp_min(TINY)).amax(dim=-1))


# ------------------------------------------------------------------------- which maps there are


def available(model: nn.Module) -> dict[tuple[str, str], tuple[str, ...]]:
    """The maps that each (stack, kind of attention) of a model has in all its layers."""
    found: dict[tuple[str, str], list[str]] = {}
    for path, (_, layout) in layers_of(model).items():
        stack = path.rpartition(".")[0]
        for kind in ("self", "cross"):
            if kind == "cross" and layout.cross is None:
                continue
            scopes = scopes_of(layout, kind)
            names = found.setdefault((stack, kind), list(scopes))
            found[stack, kind] = [name for name in names if name in scopes]
    return {part: tuple(names) for part, names in found.items()}


def check_maps_of(model: nn.Module, wanted: Sequence[str]) -> None:
    """Refuse a map that no part of the model has, naming the ones it has."""
    layers = layers_of(model)
    if not layers:
        _refuse_unknown_layers(model)
    has = {name for names in available(model).values() for name in names}
    missing = [name for name in wanted if name not in has]
    if missing:
        experts = [
            f"{p}.{x.ff.module}" for p, (_, x) in layers.items() if isinstance(x.ff, Experts)
        ]
        why = (
            f" ({experts[0]} is a mixture of experts, which is not taken apart)" if experts else ""
        )
        raise InputError(
            f"{type(model).__name__} has no map {', '.join(map(repr, missing))}{why}; its layers "
            f"are laid out so that it has: {', '.join(name for name in NAMES if name in has)}"
        )


def _refuse_unknown_layers(model: nn.Module) -> None:
    from normscope.capture.inventory import Inventory

    for module in Inventory(model).attention:
        path = next(name for name, m in model.named_modules() if m is module)
        layer_of(model, path)  # raises, and says how to describe a layer
    raise UnsupportedModelError(
        f"{type(model).__name__} has no layer whose wiring is known; only attn_w and attn_n can "
        "be had of it"
    )


def bound_of(dtypes: set[torch.dtype]) -> float:
    """The largest gap that is rounding where numbers of these dtypes take part."""
    bound = max(BOUNDS.get(dtype, BOUNDS[torch.float32]) for dtype in dtypes)
    # TF32 keeps ten bits of what is multiplied; who allowed it has it in the model itself.
    return max(bound, TF32) if torch.backends.cuda.matmul.allow_tf32 else bound
