"""Which scopes a model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from normscope.capture import AttentionKind
from normscope.capture.layers import layer_around, layers_of
from normscope.decomposition.chain import scopes_of
from normscope.decomposition.scopes import HEAD_MAPS, NAMES, need_whole_layers
from normscope.errors import InputError, UnsupportedModelError
from normscope.models.inventory import Inventory
from normscope.models.layouts import Layout, Opaque


def available(model: nn.Module) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the scopes that each (stack, kind of attention) of a model has in all its layers."""
    return _scopes({path: layout for path, (_, layout) in layers_of(model).items()})


def _scopes(layouts: Mapping[str, Layout]) -> dict[tuple[str, str], tuple[str, ...]]:
    scopes: dict[tuple[str, str], list[str]] = {}
    kinds: tuple[AttentionKind, ...] = ("self", "cross")
    for path, layout in layouts.items():
        stack = path.rpartition(".")[0]
        for kind in kinds:
            if kind == "cross" and layout.cross is None:
                continue
            names = scopes_of(layout, kind)
            known = scopes.setdefault((stack, kind), list(names))
            scopes[stack, kind] = [name for name in known if name in names]
    return {stack_kind: tuple(names) for stack_kind, names in scopes.items()}


def check_available(
    model: nn.Module, wanted: Sequence[str], inputs: Mapping[str, Any] | None = None
) -> None:
    """Raise InputError for scopes that no part of the model has, naming the ones it has.

    ``inputs`` are used if parts of the model do not run on random inputs.
    """
    if not need_whole_layers(wanted):
        return
    layers = layers_of(model, inputs)
    if not layers:
        _refuse_unknown_layers(model)
    by_part = _scopes({path: layout for path, (_, layout) in layers.items()})
    existing = {name for names in by_part.values() for name in names}
    missing = [name for name in wanted if name not in existing]
    if missing:
        opaque = [
            f"{path}.{layout.ff.module}" if layout.ff.module else f"what follows in {path}"
            for path, (_, layout) in layers.items()
            if isinstance(layout.ff, Opaque)
        ]
        why = f" ({opaque[0]} is no plain or gated feed-forward)" if opaque else ""
        raise InputError(
            f"{type(model).__name__} has no map {', '.join(map(repr, missing))}{why}; its layers "
            f"are laid out so that it has: {', '.join(n for n in NAMES if n in existing)}"
        )


def _refuse_unknown_layers(model: nn.Module) -> None:
    for module in Inventory(model).attention:
        path = next(name for name, m in model.named_modules() if m is module)
        layer_around(model, path)  # raises, and says how to describe a layer
    raise UnsupportedModelError(
        f"{type(model).__name__} has no layer whose wiring is known; available for it are only: "
        f"{', '.join(HEAD_MAPS)}"
    )
