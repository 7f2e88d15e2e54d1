"""Record whole layers: their attention calls, norms, feed-forward and output.

Built on :func:`normscope.capture.capture` and the table of layouts, which says where in a layer
each of these stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.errors import UnsupportedModelError
from normscope.models.layouts import LAYOUTS, Experts, Layout, layer_of, layout_of
from normscope.models.walk import modules

# Layouts by model, for as long as it has the same modules: reading them off takes a while.
_FOUND: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, Layout]]] = WeakKeyDictionary()


@dataclass(eq=False)
class LayerCapture:
    """What one layer did, in one run. Its norms and linear maps are named by their path in it."""

    name: str
    module: nn.Module
    layout: Layout
    attention: Capture | None = None
    cross: Capture | None = None
    ran: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # path -> (given, made)
    made: Tensor | None = None  # the layer's output, as the model lays it out

    @property
    def last(self) -> Capture:
        """The attention that the feed-forward follows."""
        last = self.attention if self.cross is None else self.cross
        assert last is not None
        return last

    def given(self, path: str) -> Tensor:
        """What went into a named module, (batch, query, …)."""
        return self._by_query(self.ran[path][0])

    def output_of(self, path: str) -> Tensor:
        """What came out of a named module, (batch, query, …)."""
        return self._by_query(self.ran[path][1])

    @property
    def output(self) -> Tensor:
        """The layer's output, (batch, query, hidden)."""
        assert self.made is not None
        return self._by_query(self.made)

    def _by_query(self, states: Tensor) -> Tensor:
        batch, _, queries, _ = self.last.shape
        states = states.detach()
        if (seen := states.numel() // max(1, states.shape[-1])) != batch * queries:
            raise UnsupportedModelError(
                f"{self.name} is given {batch * queries} positions, but a module in it ran on "
                f"{seen} at a time. If the model's configuration has chunk_size_feed_forward, load "
                "it with 0"
            )
        if not self.last.batch_first:
            return states.transpose(0, 1)
        return states.reshape(batch, queries, -1)


@contextmanager
def capture_layers(
    model: nn.Module,
    callback: Callable[[LayerCapture], None],
    *,
    attention: Literal["auto", "eager", "fused"] = "eager",
) -> Iterator[None]:
    """Hand every layer that this thread runs inside the context to ``callback``, then drop it."""
    layers = layers_of(model)
    running: dict[str, LayerCapture] = {}
    mine = threading.get_ident()

    def here() -> bool:
        return threading.get_ident() == mine and torch._C._current_graph_task_id() == -1

    def attended(captured: Capture) -> None:
        inside = [name for name in running if captured.name.startswith(f"{name}.")]
        if not inside:
            name, layer = layer_of(model, captured.name)  # says what is wrong, if anything is
            raise UnsupportedModelError(f"{name} ({type(layer).__name__}) was not seen to begin")
        whole = running[max(inside, key=len)]
        if captured.kind == "cross":
            whole.cross = captured
        else:
            whole.attention = captured

    hooks: list[Any] = []

    def watch(name: str, layer: nn.Module, layout: Layout) -> None:
        def begin(*_: Any) -> None:
            if here():
                running[name] = LayerCapture(name, layer, layout)

        def end(_: nn.Module, args: Any, made: Any) -> None:
            if here() and name in running:
                whole = running.pop(name)
                whole.made = made if isinstance(made, Tensor) else made[0]
                if whole.cross is None:  # a decoder that ran without an encoder
                    whole.layout = replace(whole.layout, cross=None)
                if whole.attention is not None or whole.cross is not None:
                    callback(whole)

        hooks.append(layer.register_forward_pre_hook(begin))
        hooks.append(layer.register_forward_hook(end))
        for path in paths_of(layout):
            hooks.append(layer.get_submodule(path).register_forward_hook(note(name, path, layout)))

    def note(name: str, path: str, layout: Layout) -> Callable[..., None]:
        parallel, second = layout.parallel, getattr(layout.ff, "second", None)

        def hook(_: nn.Module, args: Any, made: Any) -> None:
            if here() and name in running and args:
                # Some parallel layers add the attention's output into the feed-forward's.
                kept = made.clone() if parallel and path == second else made
                running[name].ran[path] = args[0], kept

        return hook

    try:
        for name, (layer, layout) in layers.items():
            watch(name, layer, layout)
        with capture(model, attended, attention=attention):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def layers_of(model: nn.Module) -> dict[str, tuple[nn.Module, Layout]]:
    """The layers of a model whose layout is known, by path: elements of its layer lists."""
    structure = tuple(map(id, modules(model))), id(LAYOUTS), len(LAYOUTS)
    known = _FOUND.get(model)
    if known is None or known[0] != structure:
        known = _FOUND[model] = (
            structure,
            {name: layout for name, (_, layout) in _find_layers(model).items()},
        )
    return {name: (model.get_submodule(name), layout) for name, layout in known[1].items()}


def _find_layers(model: nn.Module) -> dict[str, tuple[nn.Module, Layout]]:
    found: dict[str, tuple[nn.Module, Layout]] = {}
    for name, listed in model.named_modules():
        if not isinstance(listed, nn.ModuleList) or any(name.startswith(f"{n}.") for n in found):
            continue
        for index, layer in listed.named_children():
            try:
                found[f"{name}.{index}"] = layer, layout_of(layer, getattr(model, "config", None))
            except UnsupportedModelError:
                continue  # experts, convolutions, lists of lists; an attention in one is refused
    return found


def paths_of(layout: Layout) -> list[str]:
    """The modules of a layer whose input or output a decomposition needs."""
    blocks = [layout.attention, layout.ff, *([layout.cross] if layout.cross else [])]
    paths = [path for b in blocks for path in (b.before, b.branch, b.after)]
    if isinstance(layout.ff, Experts):
        paths.append(layout.ff.module)
    else:
        paths += [layout.ff.first, layout.ff.gate, layout.ff.second]
    return list(dict.fromkeys(path for path in paths if path is not None))
