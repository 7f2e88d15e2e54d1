"""One attention call, or one layer, turned into the maps asked for, each with its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.capture.layers import layers_of
from normscope.decomposition.attention import (
    BOUNDS,
    MAPS,
    TINY,
    AttentionDecomposition,
    Cells,
    Heads,
    Positions,
    ratio,
)
from normscope.decomposition.feedforward import Measured
from normscope.decomposition.layer import LayerDecomposition, scopes_of
from normscope.errors import InputError, UnsupportedModelError
from normscope.layouts import Experts, layer_of
from normscope.shapes import Float

# Every map there is, in the order in which a layer makes them. No layer has all.
NAMES = (
    *("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln"),
    *("atb_ff", "atb_ff_res", "atb_ff_res_ln", "atb_ln_ff", "atb_ln_ff_res"),
)


@dataclass(frozen=True, eq=False)
class Map:
    """One map of one attention call, with what goes with it."""

    values: Float[Tensor, "batch *head query key"]
    gap: Float[Tensor, "batch query"]  # to the model's own state, relative to the parts
    spot: Float[Tensor, " batch"]  # to the definition, at random cells
    mixing_ratio: Float[Tensor, "batch query"] | None = None
    bias_share: Float[Tensor, "batch query"] | None = None


def attention_maps(
    taken: AttentionDecomposition, wanted: Sequence[str], heads: Heads, cells: Cells
) -> dict[str, Map]:
    """The maps of attention alone, ``attn_w`` and ``attn_n``; ratios for summed heads only."""
    made = {name: taken.map(name, heads) for name in wanted if name in MAPS}
    spots, gap = taken.spot_check(made, heads, cells), taken.gap
    if heads == "each":
        return {name: Map(values, gap, spots[name]) for name, values in made.items()}
    shares = {"attn_w": None, "attn_n": taken.bias_share()}
    return {
        name: Map(values, gap, spots[name], taken.mixing_ratio(name), shares[name])
        for name, values in made.items()
    }


def layer_maps(
    taken: LayerDecomposition, wanted: Sequence[str], positions: Positions
) -> dict[str, Map]:
    """All maps of one attention and of what follows it in its layer."""
    measured = taken.measure([name for name in wanted if name in taken.scopes])
    alone = [*wanted, "attn_w"] if "attn_res_w" in wanted else wanted
    cells = taken.alone.at(*positions.cells(taken.captured.layer))
    made = attention_maps(taken.alone, alone, "sum", cells)
    if "attn_res_w" in wanted:
        separate = taken.kind == "cross"
        made["attn_res_w"] = _residual_weights(made["attn_w"], separate=separate)
    for name, one in measured.items():
        if name not in MAPS:
            bias = torch.zeros_like(one.others[..., 0])
            bias = bias if one.bias is None else bias + one.bias.norm(dim=-1)
            gap = _gap(one, taken.real(name), bias)
            made[name] = Map(one.norms, gap, _spot(one, cells), ratio(one.others, one.own), bias)
    return {name: made[name] for name in wanted if name in made}


def _residual_weights(weights: Map, *, separate: bool) -> Map:
    """½ᾱ + ½I, the 2021 paper's way to count the residual among weights."""
    assert weights.mixing_ratio is not None
    values = weights.values / 2
    if separate:
        values = torch.cat([values, torch.full_like(values[..., :1], 0.5)], dim=-1)
    else:
        values.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return Map(values, weights.gap, weights.spot, weights.mixing_ratio / 2)


def _gap(one: Measured, real: Tensor, bias: Tensor) -> Float[Tensor, "batch query"]:
    """Parts and bias against the model's own state, relative to their lengths."""
    size = one.norms.sum(dim=-1) + bias
    return (one.whole() - real).norm(dim=-1) / size.clamp_min(TINY)


def _spot(one: Measured, cells: Cells) -> Float[Tensor, " batch"]:
    """Some cells against the same vectors made whole, relative to them and the row's mean."""
    dense = one.cells(cells).norm(dim=-1)
    size = dense + one.norms[cells.row, cells.i].mean(dim=-1)
    return ((cells.of(one.norms) - dense).abs() / size.clamp_min(TINY)).amax(dim=-1)


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
    from normscope.capture.layout import Layout

    for module in Layout(model).attention:
        path = next(name for name, m in model.named_modules() if m is module)
        layer_of(model, path)  # raises, and says how to describe a layer
    raise UnsupportedModelError(
        f"{type(model).__name__} has no layer whose wiring is known; only attn_w and attn_n can "
        "be had of it"
    )


def bound_of(dtypes: set[torch.dtype]) -> float:
    """The largest gap that is rounding where numbers of these dtypes take part."""
    return max(BOUNDS.get(dtype, BOUNDS[torch.float32]) for dtype in dtypes)
