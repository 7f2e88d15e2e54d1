"""Maps from forward replay, for what has no factored form: experts, layers of unknown wiring.

Every key is pushed through the whole unmodified model, in which each layer starts anew, so T passes
give the maps of all layers. Of the components only lengths and sums over the keys are kept. The
sums, together with the component of all constants, must be the model's own states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture import eager
from normscope.capture.layers import layers_of, unlisted_layers
from normscope.decomposition.chain import by_replay, scopes_of
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import SCOPES
from normscope.decomposition.stations import LayerStates, Stations, factor_of
from normscope.errors import NormscopeError, UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.foundation.shapes import Float
from normscope.linearisation.network import networks_kept
from normscope.linearisation.replay import Kind, LayerRun, Push, Replay, Watched
from normscope.linearisation.running import (
    dual_level,
    plain_experts,
    refuse_without_gradients,
)
from normscope.linearisation.structure import structure_of
from normscope.models.failures import first_line
from normscope.models.inventory import Inventory
from normscope.models.layouts import Layout, paths_of
from normscope.models.running import evaluating

Run = tuple[str, int]  # the path of a layer, and how often it ran before
ANCHOR = next(name for name, scope in SCOPES.items() if scope.end == "block")
POSITIONS = 4096  # of one pass


@dataclass(eq=False)
class ReplayedScope:
    """The components at the end of one scope: lengths, and sums over the keys."""

    lengths: Float[Tensor, "batch query keys"]
    own: Float[Tensor, "batch query hidden"]  # where a query meets itself, or the residual's column
    total: Float[Tensor, "batch query hidden"]
    bias: Float[Tensor, "batch query hidden"]

    @classmethod
    def with_bias(cls, bias: Tensor, columns: int) -> ReplayedScope:
        """Return a scope of which only the component of constants is known."""
        bias = bias.double()
        zeros = torch.zeros_like(bias)
        lengths = bias.new_zeros((*bias.shape[:2], columns))
        return cls(lengths, zeros, zeros.clone(), bias)

    def add_keys(
        self, parts: Float[Tensor, "key batch query hidden"], first: int, own: bool
    ) -> None:
        """Add the components of some keys that follow each other."""
        parts = parts.double()
        count = max(
            0, min(len(parts), self.lengths.shape[2] - first)
        )  # other layers have more keys
        self.lengths[:, :, first : first + count] = parts[:count].norm(dim=-1).permute(1, 2, 0)
        self.total += parts.sum(dim=0)
        for number in range(count if own else 0):
            self.own[:, first + number] = parts[number, :, first + number]

    def add_column(self, part: Float[Tensor, "batch query hidden"]) -> None:
        """Add the component of the residual's column."""
        self.own = part.double()
        self.total += self.own
        self.lengths[..., -1] = self.own.norm(dim=-1)

    def map(
        self, name: str, real: Float[Tensor, "batch query hidden"], keys: Tensor, column: bool
    ) -> ScopeMap:
        """Return the map, with what it is judged by."""
        return ScopeMap(
            SCOPES[name],
            keys,
            self.own.shape[1],
            own=self.own.norm(dim=-1),
            others=(self.total - self.own).norm(dim=-1),
            bias=self.bias.norm(dim=-1),
            difference=(self.total + self.bias - real).norm(dim=-1),
            column=column,
            values=self.lengths,
            sums=self.lengths.sum(dim=-1),
        )


@dataclass(eq=False)
class ReplayedLayer:
    """The scopes of one layer in one run that come from replay."""

    kind: Kind
    dtypes: set[torch.dtype]
    scopes: dict[str, ReplayedScope] = field(default_factory=dict)


class _Components(LayerStates):
    """Components of the states of one layer, as its stations read them."""

    def __init__(self, run: LayerRun, projection: str | None) -> None:
        self.run, self.projection = run, projection

    @property
    def residual(self) -> Tensor:
        return torch.zeros_like(self.output) if self.run.start is None else self.run.start

    @property
    def attended(self) -> Tensor:
        assert self.projection is not None
        return self.output_of(self.projection)

    @property
    def output(self) -> Tensor:
        assert self.run.output is not None
        return self.run.output

    def given(self, path: str) -> Tensor:
        return self.run.ran[path][0]

    def output_of(self, path: str) -> Tensor:
        return self.run.ran[path][1]


def replayed_scopes(layout: Layout | None, kind: Kind, wanted: Sequence[str]) -> list[str]:
    """List those of the wanted maps of a layer that come from replay, and one to compare.

    The last is where the attention block ends, if the wiring is known: there the factored form has
    the same lengths.
    """
    scopes = scopes_of(layout, kind)
    replayed = [name for name in scopes if name in wanted and by_replay(layout, name)]
    return [*replayed, *(name for name in (ANCHOR,) if replayed and name in scopes)]


class Replays:
    """The replay of one batch.

    Args:
        model: an unmodified model.
        call: runs it with keyword arguments.
        inputs: the keyword arguments.
        choose: returns the scopes to replay of a layer, given its layout and its kind of attention.
        kind: the attention whose keys are pushed in layers that have both; by default that which
            the feed-forward follows.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Callable[[Mapping[str, Any]], Any],
        inputs: Mapping[str, Any],
        choose: Callable[[Layout | None, Kind], Sequence[str]],
        kind: Kind = "cross",
    ) -> None:
        self.model, self.call, self.inputs, self.choose = model, call, inputs, choose
        self.preferred = kind
        self.layers: dict[str, tuple[nn.Module, Layout | None]] = {
            **layers_of(model),
            **{path: (layer, None) for path, layer in unlisted_layers(model).items()},
        }
        tensors = [t for t in inputs.values() if isinstance(t, Tensor) and t.dim()]
        self.rows = len(tensors[0])
        simple = all(isinstance(v, Tensor | int | float | str | None) for v in inputs.values())
        # Pixels of several images may follow each other, whatever row they belong to.
        self.repeatable = simple and all(len(tensor) == self.rows for tensor in tensors)
        self.looked: dict[Run, LayerRun] = {}
        self.wanted: dict[Run, list[str]] = {}
        self.results: dict[Run, ReplayedLayer] = {}

    def run(self) -> dict[Run, ReplayedLayer]:
        """Push everything through the model, and return what comes from replay, by layer."""
        kinds: tuple[Kind, ...] = ("self", "cross")
        layouts = [layout for _, layout in self.layers.values()]
        if not any(
            self.choose(layout, kind) for layout in layouts for kind in kinds if _has(layout, kind)
        ):
            return {}
        refuse_without_gradients(self.model)
        with self._prepared():
            runs: list[LayerRun] = []
            self._pass(Push("nothing"), runs.append)
            for run in runs:
                place = run.path, run.number
                run.kind = self._kind(run)
                self.looked[place] = run
                if names := self._wanted(run):
                    self.wanted[place] = names
            if not self.wanted:
                return {}
            self._pass(Push("constants"), self._add_constants)
            if any(self.looked[place].kind == "cross" for place in self.wanted):
                self._pass(Push("residual"), self._add_residual)
            self._push_keys()
        return self.results

    def _kind(self, run: LayerRun) -> Kind:
        return self.preferred if self.preferred in run.keys else next(iter(run.keys), "self")

    def _wanted(self, run: LayerRun) -> list[str]:
        layout = self.layers[run.path][1]
        return list(self.choose(layout, run.kind)) if run.keys else []

    def _push_keys(self) -> None:
        runs = [self.looked[place] for place in self.wanted]
        count = max(run.keys[run.kind] for run in runs)
        lengths = {run.shape[1] for run in self.looked.values()}
        together = max(1, POSITIONS // (self.rows * max(lengths))) if self.repeatable else 1
        while together > 1 and self.rows * together in lengths:
            together -= 1  # rows and positions can then be told apart by their number
        for first in range(0, count, together):
            keys = tuple(range(first, min(first + together, count)))
            self._pass(Push("keys", keys), partial(self._add_keys, keys))

    @shielded
    def _prepared(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(evaluating(self.model))
            stack.enter_context(eager(self.model))
            stack.enter_context(plain_experts(self.model))
            yield

    def _pass(self, push: Push, report: Callable[[LayerRun], None]) -> None:
        repeats = max(1, len(push.keys))
        structure, inventory = structure_of(self.model), Inventory(self.model)
        watched = {
            layer: Watched(path, self._modules(path)) for path, (layer, _) in self.layers.items()
        }

        def reported(run: LayerRun) -> None:
            if push.part == "nothing" or (run.path, run.number) in self.wanted:
                report(run)

        rows = repeats * self.rows
        network = Replay(structure, inventory, rows, push, watched, self.looked, reported)
        self.network = network
        with networks_kept(), network.hooked(), dual_level():
            inputs = self._repeated(repeats)
            with network:
                self._call(inputs)

    def _call(self, inputs: Mapping[str, Any]) -> None:
        try:
            self.call(inputs)
        except (NormscopeError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} cannot be replayed: its own code fails where its "
                f"operations are replaced by linear maps ({first_line(error)})"
            ) from error

    def _modules(self, path: str) -> tuple[str, ...]:
        layout = self.layers[path][1]
        if layout is None or not any(layer == path for layer, _ in self.wanted):
            return ()
        outputs = [b.output for b in (layout.attention, layout.cross) if b is not None]
        return tuple(dict.fromkeys([*paths_of(layout), *outputs]))

    def _repeated(self, repeats: int) -> dict[str, Any]:
        def repeated(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.dim() and repeats > 1:
                return value.repeat_interleave(repeats, 0)
            return value.clone() if value.is_inference() else value

        return {name: repeated(value) for name, value in self.inputs.items()}

    # ---- what comes out

    def _stations(self, run: LayerRun) -> Stations:
        layer, layout = self.layers[run.path]
        if layout is None:
            return Stations(None, None, _Components(run, None), lambda _: None)
        block = layout.cross if run.kind == "cross" else layout.attention
        assert block is not None
        assert run.output is not None
        device = run.output.device
        factor = partial(factor_of, layer, device=device)
        if run.kind == "self" and "cross" not in run.keys:  # a decoder that ran alone
            layout = replace(layout, cross=None)
        return Stations(layout, block, _Components(run, block.output), factor)

    def _add_constants(self, run: LayerRun) -> None:
        place, stations = (run.path, run.number), self._stations(run)
        columns = run.keys[run.kind] + (run.kind == "cross")
        layer = self.results[place] = ReplayedLayer(run.kind, self.network.dtypes)
        for name in self.wanted[place]:
            layer.scopes[name] = ReplayedScope.with_bias(
                stations.at(SCOPES[name].end),
                columns if not SCOPES[name].per_head else run.keys[run.kind],
            )

    def _add_residual(self, run: LayerRun) -> None:
        if run.kind == "cross":
            place, stations = (run.path, run.number), self._stations(run)
            for name, scope in self.results[place].scopes.items():
                if not SCOPES[name].per_head:
                    scope.add_column(stations.at(SCOPES[name].end))

    def _add_keys(self, keys: tuple[int, ...], run: LayerRun) -> None:
        stations = self._stations(run)
        for name, scope in self.results[run.path, run.number].scopes.items():
            parts = stations.at(SCOPES[name].end)
            choices = max(1, len(parts) // (self.rows * len(keys)))
            parts = parts.unflatten(0, (-1, len(keys), choices)).transpose(0, 1).flatten(1, 2)
            scope.add_keys(parts, keys[0], own=run.kind == "self")


def _has(layout: Layout | None, kind: Kind) -> bool:
    return kind == "self" or (layout is not None and layout.cross is not None)
