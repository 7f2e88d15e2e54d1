"""Record whole layers: their attention calls, norms, feed-forward and output.

Built on :func:`normscope.capture.capture` and the layouts that were seen in a pass of the model,
which say where in a layer each of these is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture import AttentionMode, Capture, capture
from normscope.capture.active import ACTIVE, recomputing
from normscope.capture.wiring import Seen, Sighting, layer_elements
from normscope.errors import UnsupportedModelError
from normscope.foundation.caching import ModuleCache
from normscope.foundation.interrupts import shielded
from normscope.models import layouts
from normscope.models.failures import first_line
from normscope.models.inventory import Inventory
from normscope.models.layouts import REMEDY, Layout, paths_of, registered_layout
from normscope.models.random_inputs import random_inputs
from normscope.models.walk import ModuleTree


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
        first = self.last.batch_first
        if batch != queries and states.dim() == 3 and states.shape[:2] == (queries, batch):
            first = False
        elif batch != queries and states.shape[:2] == (batch, queries):
            first = True
        return states.reshape(batch, queries, -1) if first else states.transpose(0, 1)


@shielded
def capture_layers(
    model: nn.Module,
    callback: Callable[[LayerCapture], None],
    *,
    attention: AttentionMode = "eager",
    inputs: Mapping[str, Any] | None = None,
    unlisted: bool = False,
) -> Iterator[None]:
    """Call ``callback`` with every layer that this thread runs inside the context.

    A layer is dropped after the call, so that memory holds one at a time. ``attention`` is as for
    :func:`~normscope.capture.capture`, and ``inputs`` as for :func:`layers_of`. With ``unlisted``,
    layers whose layout is not known are recorded too, without what is in them.
    """
    watcher = _LayerWatcher(model, callback, layers_of(model, inputs))
    watcher.unlisted = unlisted_layers(model) if unlisted else {}
    try:
        watcher.add_hooks()
        with capture(model, watcher.attended, attention=attention):
            yield
    finally:
        watcher.remove_hooks()


class _LayerWatcher:
    """Collects what the hooks on a model's layers and the attention captures report."""

    def __init__(
        self,
        model: nn.Module,
        callback: Callable[[LayerCapture], None],
        layers: Mapping[str, tuple[nn.Module, Layout]],
    ) -> None:
        self.model, self.callback, self.layers = model, callback, layers
        self.thread = threading.get_ident()
        self.running: dict[str, LayerCapture] = {}
        self.unlisted: dict[str, nn.Module] = {}
        self.hooks: list[Any] = []

    def add_hooks(self) -> None:
        """Watch every layer, and the modules in it that a decomposition needs."""
        for name, layer in self.unlisted.items():
            self._watch_layer(name, layer, None)
        for name, (layer, layout) in self.layers.items():
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
            name = layer_around(self.model, captured.name)  # raises if the layer is not known
            raise UnsupportedModelError(
                f"{name} was not seen to begin, so what its attention ({captured.name}) belongs to "
                "is unknown"
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


@dataclass(eq=False)
class _Known:
    """What is known of the layers of one model, by path."""

    layouts: dict[str, Layout] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    failure: str | None = None  # of the pass in which the layers were to be seen
    unseen: bool = True  # whether some attention has not run yet
    tried: set[frozenset[str]] = field(default_factory=set)  # names of inputs

    def look(self, model: Any, inputs: Mapping[str, Any] | None) -> None:
        """Run the model on a few random inputs; then, if parts did not run, on those given."""
        if any(recorder.emitting for recorder in ACTIVE.get()):
            return  # a pass of the model is under way
        if not self.tried:
            self.tried.add(frozenset())
            try:
                self._see(model, random_inputs(model))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a model's own, on inputs that it was not made for
                self.failure = f"{type(error).__name__}: {first_line(error)}"
        if self.unseen and inputs and frozenset(inputs) not in self.tried:
            self.tried.add(frozenset(inputs))
            self._see(model, inputs)

    def _see(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        sighting = Sighting(model)
        self.failure = None
        try:
            sighting.run(inputs)
        except UnsupportedModelError as refusal:  # layers before it have been seen
            self.failure = str(refusal)
        finally:
            self._add(sighting)

    def _add(self, sighting: Sighting) -> None:
        self.unseen = sighting.unseen()
        layers = layer_elements(sighting.inventory)
        whole: list[str] = []
        partial: list[str] = []
        for path, layer in layers.items():
            seen = sighting.layers.get(path)
            try:
                registered = registered_layout(layer)
            except UnsupportedModelError as misfit:
                self.refusals[path] = str(misfit)
                continue
            if registered is not None:
                seen = Seen(registered, True, "")
            if seen is None:
                continue
            if seen.layout is None:
                self.refusals[path] = (
                    f"{path} ({type(layer).__name__}) is not wired like a layer that normscope "
                    f"can take apart: from its input x it makes {seen.formula}. {REMEDY}"
                )
                continue
            (whole if seen.whole else partial).append(path)
            known = self.layouts.get(path)
            if known is None or known.cross is None:
                self.layouts[path] = seen.layout
        # The innermost element that is a whole layer, else the outermost with an attention block.
        around = {p for p in whole for q in whole if q.startswith(f"{p}.")}
        for path in partial:
            outer = any(path.startswith(f"{q}.") for q in (*whole, *partial))
            if outer or any(q.startswith(f"{path}.") for q in whole):
                around.add(path)
        kept = [path for path in layers if path in self.layouts and path not in around]
        self.layouts = {path: self.layouts[path] for path in kept}


_KNOWN: ModuleCache[_Known] = ModuleCache()


def layers_of(
    model: nn.Module, inputs: Mapping[str, Any] | None = None
) -> dict[str, tuple[nn.Module, Layout]]:
    """Return the layers of a model whose layout is known, by path: elements of its layer lists.

    The layouts are read from a pass of the model on a few random inputs, which is made once for
    each model. If an attention of the model does not run on them, ``inputs`` are used as well.
    """
    known = _known(model, inputs)
    return {path: (model.get_submodule(path), layout) for path, layout in known.layouts.items()}


def layer_around(
    model: nn.Module, attention_path: str, inputs: Mapping[str, Any] | None = None
) -> str:
    """Return the path of the layer around an attention module.

    Raises:
        UnsupportedModelError: the layer is not known, with what is known of it.
    """
    known = _known(model, inputs)
    around = [path for path in known.layouts if attention_path.startswith(f"{path}.")]
    if around:
        return max(around, key=len)
    refused = [path for path in known.refusals if attention_path.startswith(f"{path}.")]
    if refused:
        raise UnsupportedModelError(known.refusals[max(refused, key=len)])
    why = f" ({known.failure})" if known.failure else ""
    raise UnsupportedModelError(
        f"{attention_path} is in no layer of a list that normscope has seen attend{why}. {REMEDY}"
    )


def _known(model: nn.Module, inputs: Mapping[str, Any] | None) -> _Known:
    config = getattr(model, "config", None)
    configured = None if config is None else weakref.ref(config)
    state = ModuleTree(model).kept(), dict(layouts.LAYOUTS), configured
    known = _KNOWN.get(model, state, _Known)
    known.look(model, inputs)
    return known


def unlisted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that attend and whose layout is not known, by path.

    Such a layer is the outermost element of a list of modules around an attention that is no stage:
    one that has a list of layers of its own.
    """
    inventory, known = Inventory(model), layers_of(model)
    layers: dict[str, nn.Module] = {}
    for attention in inventory.attention:
        path = inventory[attention].name
        if any(path.startswith(f"{name}.") for name in known):
            continue
        around = [path[:at] for at, letter in enumerate(path) if letter == "."]
        elements = [
            place
            for place in around
            if isinstance(inventory.named.get(place.rpartition(".")[0]), nn.ModuleList)
            and not isinstance(inventory.named[place], nn.ModuleList)
        ]
        stages = [place for place in elements if _is_stage(inventory, place)]
        for place in [e for e in elements if e not in stages][:1] or stages[-1:]:
            layers[place] = inventory.named[place]
    return layers


def _is_stage(inventory: Inventory, place: str) -> bool:
    """Whether a module has a list of layers: elements of one class, which all attend."""
    attending = [inventory[attention].name for attention in inventory.attention]
    for path, module in inventory.named[place].named_modules(prefix=place):
        if isinstance(module, nn.ModuleList) and len({type(layer) for layer in module}) == 1:
            names = [f"{path}.{name}." for name, _ in module.named_children()]
            if all(any(f"{other}.".startswith(name) for other in attending) for name in names):
                return True
    return False
