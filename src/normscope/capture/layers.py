"""Record whole layers: their attention calls, norms, feed-forward and output.

Built on :func:`normscope.capture.capture` and the table of layouts, which says where in a layer
each of these is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from normscope.capture import AttentionMode, Capture, capture
from normscope.capture.active import recomputing
from normscope.errors import UnsupportedModelError
from normscope.foundation.caching import ModuleCache
from normscope.foundation.interrupts import shielded
from normscope.models import layouts
from normscope.models.inventory import Inventory
from normscope.models.layouts import Experts, Layout, layer_of, layout_of
from normscope.models.walk import ModuleTree

# The places and layouts of a model's layers, by path: reading them takes a while.
_LAYOUTS: ModuleCache[dict[str, tuple[int, Layout]]] = ModuleCache()


@dataclass(eq=False)
class LayerCapture:
    """What one layer did in one run. Its norms and linear maps are named by their path in it."""

    name: str
    module: nn.Module
    layout: Layout | None  # None: only the layer's ends are known
    attention: Capture | None = None
    cross: Capture | None = None
    ran: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # path -> (input, output)
    raw_output: Tensor | None = None  # the layer's output, as the model lays it out

    @property
    def last(self) -> Capture:
        """The attention that the feed-forward follows."""
        last = self.attention if self.cross is None else self.cross
        assert last is not None
        return last

    def given(self, path: str) -> Tensor:
        """Return the input of a named module, (batch, query, …)."""
        return self._by_query(self.ran[path][0])

    def output_of(self, path: str) -> Tensor:
        """Return the output of a named module, (batch, query, …)."""
        return self._by_query(self.ran[path][1])

    @property
    def output(self) -> Tensor:
        """The layer's output, (batch, query, hidden)."""
        assert self.raw_output is not None
        return self._by_query(self.raw_output)

    def _by_query(self, states: Tensor) -> Tensor:
        batch, _, queries, _ = self.last.shape
        states = states.detach()
        if (positions := states.numel() // max(1, states.shape[-1])) != batch * queries:
            raise UnsupportedModelError(
                f"{self.name} has {batch * queries} positions, but a module in it ran on "
                f"{positions} at a time. If the model's configuration has chunk_size_feed_forward, "
                "load it with 0"
            )
        if not self.last.batch_first:
            return states.transpose(0, 1)
        return states.reshape(batch, queries, -1)


@shielded
def capture_layers(
    model: nn.Module,
    callback: Callable[[LayerCapture], None],
    *,
    attention: AttentionMode = "eager",
    unlisted: bool = False,
) -> Iterator[None]:
    """Call ``callback`` with every layer that this thread runs inside the context.

    A layer is dropped after the call, so that memory holds one at a time. ``attention`` is as for
    :func:`~normscope.capture.capture`. With ``unlisted``, layers whose layout is not known are
    recorded too, without what is in them.
    """
    watcher = _LayerWatcher(model, callback)
    watcher.unlisted = unlisted_layers(model) if unlisted else {}
    try:
        watcher.add_hooks()
        with capture(model, watcher.attended, attention=attention):
            yield
    finally:
        watcher.remove_hooks()


class _LayerWatcher:
    """Collects what the hooks on a model's layers and the attention captures report."""

    def __init__(self, model: nn.Module, callback: Callable[[LayerCapture], None]) -> None:
        self.model, self.callback = model, callback
        self.thread = threading.get_ident()
        self.running: dict[str, LayerCapture] = {}
        self.unlisted: dict[str, nn.Module] = {}
        self.hooks: list[Any] = []

    def add_hooks(self) -> None:
        """Watch every layer, and the modules in it that a decomposition needs."""
        for name, layer in self.unlisted.items():
            self._watch_layer(name, layer, None)
        for name, (layer, layout) in layers_of(self.model).items():
            self._watch_layer(name, layer, layout)
            for path in paths_of(layout):
                self._watch_module(name, path, layer.get_submodule(path), layout)

    def remove_hooks(self) -> None:
        """Remove all hooks."""
        for hook in self.hooks:
            hook.remove()

    def attended(self, captured: Capture) -> None:
        """Assign an attention call to the innermost running layer around it."""
        around = [name for name in self.running if captured.name.startswith(f"{name}.")]
        if not around:
            name, layer = layer_of(self.model, captured.name)  # raises if the layer is not known
            raise UnsupportedModelError(
                f"{name} ({type(layer).__name__}) was not seen to begin, so what its attention "
                f"({captured.name}) belongs to is unknown"
            )
        layer_capture = self.running[max(around, key=len)]
        known = layer_capture.cross if captured.kind == "cross" else layer_capture.attention
        if known is not None and layer_capture.layout is None:
            raise UnsupportedModelError(
                f"{layer_capture.name} attends twice ({known.name}, {captured.name}), so it has no "
                "single map from its input to its output; available for it are the maps of "
                "attention alone"
            )
        if captured.kind == "cross":
            layer_capture.cross = captured
        else:
            layer_capture.attention = captured

    def _records(self) -> bool:
        """Whether the running thread is the one that captures, in a forward pass."""
        return threading.get_ident() == self.thread and not recomputing()

    def _watch_layer(self, name: str, layer: nn.Module, layout: Layout | None) -> None:
        def begin(*_: Any) -> None:
            if self._records():
                self.running[name] = LayerCapture(name, layer, layout)

        def end(_: nn.Module, args: Any, output: Any) -> None:
            if self._records() and name in self.running:
                finished = self.running.pop(name)
                finished.raw_output = output if isinstance(output, Tensor) else output[0]
                if finished.cross is None and finished.layout is not None:
                    # A decoder that ran without an encoder.
                    finished.layout = replace(finished.layout, cross=None)
                if finished.attention is not None or finished.cross is not None:
                    self.callback(finished)

        self.hooks.append(layer.register_forward_pre_hook(begin))
        self.hooks.append(layer.register_forward_hook(end))

    def _watch_module(self, name: str, path: str, module: nn.Module, layout: Layout) -> None:
        # Some parallel layers add the attention's output into that of the feed-forward.
        overwritten = layout.parallel and path == getattr(layout.ff, "second", None)

        def note(_: nn.Module, args: Any, output: Any) -> None:
            if self._records() and name in self.running and args:
                output = output if isinstance(output, Tensor) else output[0]
                kept = output.clone() if overwritten else output
                self.running[name].ran[path] = args[0], kept

        self.hooks.append(module.register_forward_hook(note))


def layers_of(model: nn.Module) -> dict[str, tuple[nn.Module, Layout]]:
    """Return the layers of a model whose layout is known, by path: elements of its layer lists."""
    structure = ModuleTree(model)
    config = getattr(model, "config", None)
    configured = None if config is None else weakref.ref(config)
    state = structure.kept(), dict(layouts.LAYOUTS), configured
    known = _LAYOUTS.get(model, state, lambda: _find_layouts(model, structure.places))
    return {name: (structure.places[at], layout) for name, (at, layout) in known.items()}


def unlisted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that attend and whose layout is not known, by path.

    Such a layer is the outermost element of a list of modules around an attention.
    """
    inventory, known = Inventory(model), layers_of(model)
    layers: dict[str, nn.Module] = {}
    for attention in inventory.attention:
        path = inventory[attention].name
        if any(path.startswith(f"{name}.") for name in known):
            continue
        around = [path[:at] for at, letter in enumerate(path) if letter == "."]
        for place in around:
            element = inventory.named[place]
            listed = isinstance(inventory.named.get(place.rpartition(".")[0]), nn.ModuleList)
            if listed and not isinstance(element, nn.ModuleList):
                layers[place] = element
                break
    return layers


def _find_layouts(model: nn.Module, places: Sequence[nn.Module]) -> dict[str, tuple[int, Layout]]:
    config = getattr(model, "config", None)
    index = {module: at for at, module in enumerate(places)}
    known: dict[str, tuple[int, Layout]] = {}
    for name, listed in model.named_modules():
        inside = any(name.startswith(f"{layer}.") for layer in known)
        if not isinstance(listed, nn.ModuleList) or inside:
            continue
        for number, layer in listed.named_children():
            try:
                known[f"{name}.{number}"] = index[layer], layout_of(layer, config)
            except UnsupportedModelError:
                continue  # experts, convolutions, lists of lists; an attention in one is refused
    return known


def paths_of(layout: Layout) -> list[str]:
    """Return the paths of the modules whose input or output a decomposition needs."""
    blocks = [layout.attention, layout.ff, *([layout.cross] if layout.cross else [])]
    paths = [path for block in blocks for path in (block.before, block.branch, block.after)]
    if isinstance(layout.ff, Experts):
        paths.append(layout.ff.module)
    else:
        paths += [layout.ff.first, layout.ff.gate, layout.ff.second]
    return list(dict.fromkeys(path for path in paths if path is not None))
