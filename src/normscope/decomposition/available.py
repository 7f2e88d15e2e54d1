"""Which scopes a model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from normscope.capture import AttentionKind
from normscope.capture.layers import layer_around, layers_of, unlisted_layers
from normscope.decomposition.chain import by_replay, scopes_of
from normscope.decomposition.scopes import NAMES, PER_HEAD, need_whole_layers
from normscope.errors import InputError, UnsupportedModelError
from normscope.models.inventory import Inventory
from normscope.models.layouts import Layout


def available(model: nn.Module) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the scopes that each (stack, kind of attention) of a model has in all its layers."""
    return _scopes(_layouts(model))


def _layouts(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> dict[str, Layout | None]:
    """Return the layouts of all layers that attend, by path; None where it is not known."""
    known = {path: layout for path, (_, layout) in layers_of(model, inputs).items()}
    return {**known, **dict.fromkeys(unlisted_layers(model))}


def _scopes(layouts: Mapping[str, Layout | None]) -> dict[tuple[str, str], tuple[str, ...]]:
    scopes: dict[tuple[str, str], list[str]] = {}
    kinds: tuple[AttentionKind, ...] = ("self", "cross")
    for path, layout in layouts.items():
        stack = path.rpartition(".")[0]
        for kind in kinds:
            if kind == "cross" and (layout is None or layout.cross is None):
                continue
            names = scopes_of(layout, kind)
            known = scopes.setdefault((stack, kind), list(names))
            scopes[stack, kind] = [name for name in known if name in names]
    return {stack_kind: tuple(names) for stack_kind, names in scopes.items()}


def check_available(
    model: nn.Module,
    wanted: Sequence[str],
    inputs: Mapping[str, Any] | None = None,
    *,
    ff_bias: str = "path",
) -> None:
    """Raise InputError for scopes that no part of the model has, naming the ones it has.

    ``inputs`` are used if parts of the model do not run on random inputs.
    """
    if not need_whole_layers(wanted):
        return
    layouts = _layouts(model, inputs)
    existing = {name for names in _scopes(layouts).values() for name in names}
    missing = [name for name in wanted if name not in existing]
    if missing and not any(layouts.values()):
        _refuse_unknown_layers(model)
    if missing:
        raise InputError(
            f"{type(model).__name__} has no map {', '.join(map(repr, missing))}; its layers "
            f"are laid out so that it has: {', '.join(n for n in NAMES if n in existing)}"
        )
    replayed = [n for n in wanted if any(_replays(layout, n) for layout in layouts.values())]
    if replayed and ff_bias != "path":
        raise InputError(
            f"{', '.join(replayed)} of {type(model).__name__} come from replay (a mixture of "
            "experts, or layers of unknown wiring), which gives the feed-forward's bias a share of "
            'its own: use ff_bias="path"'
        )


def check_has_layers(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> None:
    """Raise UnsupportedModelError if a model has no layers, of known wiring or not."""
    if not _layouts(model, inputs):
        _refuse_unknown_layers(model)


def _replays(layout: Layout | None, name: str) -> bool:
    return name in scopes_of(layout, "self") and by_replay(layout, name)


def _refuse_unknown_layers(model: nn.Module) -> None:
    for module in Inventory(model).attention:
        path = next(name for name, m in model.named_modules() if m is module)
        layer_around(model, path)  # raises, and says how to describe a layer
    raise UnsupportedModelError(
        f"{type(model).__name__} has no layer whose wiring is known; available for it are only: "
        f"{', '.join(PER_HEAD)}"
    )
