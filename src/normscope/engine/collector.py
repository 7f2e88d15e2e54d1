"""Captures in, maps out: each attention call is reduced to its maps as it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.capture.layers import LayerCapture
from normscope.decomposition.attention import MAPS, AttentionDecomposition, Heads, Positions
from normscope.decomposition.feedforward import FFBias
from normscope.decomposition.layer import LayerDecomposition
from normscope.decomposition.maps import Map, attention_maps, available, each_head, layer_maps
from normscope.decomposition.rows import Reduce, largest
from normscope.engine.labels import Known, Labels, category_of
from normscope.errors import InputError, UnsupportedModelError
from normscope.kernels import Kernels, Scratch

EVERY = 3  # one layer in so many has cells computed again the slow way


@dataclass(frozen=True)
class Options:
    """How maps are made, beyond which ones."""

    heads: Heads = "sum"
    ff_bias: FFBias = "path"
    memory: int = 2**31  # bytes for the largest arrays of a feed-forward scope
    attention: Literal["auto", "eager", "fused"] = "auto"
    kernels: Kernels = "auto"
    reduce: tuple[str, ...] = ()  # what to keep of the maps instead of them
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)  # name -> tokens


class Collector:
    """Reduces captures to maps as they arrive; what they are judged by is kept with them.

    Nothing is read back from the device before the last layer has been taken in.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        maps: tuple[str, ...],
        options: Options,
        known: Known = None,
        host: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.maps, self.options = model, maps, options
        self.labels = Labels(model, inputs, known, host)
        self.parts: dict[tuple[str, str], Part] = {}  # by stack and kind
        self.paths: set[str] = set()
        self.whole_layers = any(name not in MAPS for name in maps)
        self.has = available(model) if self.whole_layers else {}
        self.scratch = Scratch()
        self._last: tuple[Tensor | None, Tensor | None] = None, None  # a mask, and whom it blocks

    def attention(self, captured: Capture) -> None:
        """Take in one attention call."""
        part = self._part_of(captured)
        with _without_autocast(captured.device):
            taken = AttentionDecomposition(captured, self.scratch, self.options.kernels)
            positions = part.on(captured.device)
            if self.options.heads == "each":
                made = each_head(taken, self.maps, positions)
            else:
                made = attention_maps(taken, self.maps, positions, part.reduce_on(captured.device))
            self._store(part, taken, made, {captured.output.dtype})

    def layer(self, layer: LayerCapture) -> None:
        """Take in one layer, with one or two attention calls."""
        for captured in (layer.attention, layer.cross):
            if captured is None:
                continue
            # ALBERT's layers stand in a list inside the one that counts as its stack.
            has = self.has[layer.name.rpartition(".")[0], captured.kind]
            wanted = [name for name in self.maps if name in has]
            if not wanted:
                continue
            part, device = self._part_of(captured), captured.device
            with _without_autocast(device):
                taken = LayerDecomposition(
                    layer,
                    captured.kind,
                    ff_bias=self.options.ff_bias,
                    memory=self.options.memory,
                    scratch=self.scratch,
                    kernels=self.options.kernels,
                )
                made = layer_maps(taken, wanted, part.on(device), part.reduce_on(device))
                self._store(part, taken.alone, made, taken.dtypes)

    def _store(
        self,
        part: Part,
        alone: AttentionDecomposition,
        made: Mapping[str, Map],
        dtypes: set[torch.dtype],
    ) -> None:
        """Keep the maps of one layer, and what they will be judged by."""
        captured, real = alone.captured, part.positions
        stored = torch.promote_types(captured.output.dtype, torch.float32)
        home = real.queries.device  # layers may be on several

        def worst(gaps: Tensor) -> Tensor:
            return gaps.to(home).masked_fill(~real.queries, 0).amax(dim=1)

        def keep(kind: str, name: str, tensor: Tensor) -> None:
            dtype = stored if tensor.is_floating_point() else tensor.dtype
            part.arrays.setdefault((kind, name), []).append(tensor.to(home, dtype))

        part.names.append(captured.name)
        part.dtypes.append(dtypes)
        part.blocked.append(self._blocked(captured, real))
        part.leaked.append(_leaked(captured, real) if part.padded else None)
        if not part.reduce:
            keep("transformed_norm", "", alone.transformed_norm)
        for name, one in made.items():
            error = worst(one.gap)
            error = error if one.spot is None else torch.maximum(error, one.spot.to(home))
            part.errors.setdefault(name, []).append(error)
            if one.values is not None:
                keep("map", name, one.values)
            for kind, reduced in one.reduced.items():
                keep(kind, name, reduced)
            if one.mixing_ratio is not None:
                keep("mixing_ratio", name, one.mixing_ratio)
            if one.bias_share is not None:
                keep("bias_share", name, one.bias_share)
        self.paths.add(captured.path)

    def _part_of(self, captured: Capture) -> Part:
        if captured.step:
            raise UnsupportedModelError(
                f"{captured.stack} ran more than once in one forward pass; which run a map "
                "belongs to is not defined. Use capture() and take the steps apart yourself."
            )
        rows, columns = captured.shape[2:]
        if captured.kind == "self" and rows != columns:
            raise InputError(
                f"{captured.name} attends from {rows} positions to {columns}: the model was given "
                "a cache of earlier ones (past_key_values) or a prefix of its own. Which key is a "
                "position itself is not known then: give the whole text at once, without a cache"
            )
        found = self.parts.get((captured.stack, captured.kind))
        if found is None:
            queries, keys = self.labels.real(captured)
            reduce = self._reduce(captured, keys) if self.options.reduce else None
            found = Part(Positions(queries, keys, EVERY), self.labels.padded, reduce)
            self.parts[captured.stack, captured.kind] = found
        return found

    def _blocked(self, captured: Capture, real: Positions) -> Tensor | None:
        """True where a real query may attend to nothing; layers mostly share one mask."""
        if self._last[0] is not captured.mask or captured.mask is None:
            blocked = captured.blocked()
            if blocked is not None:
                blocked = blocked.to(real.queries.device) & real.queries
            self._last = captured.mask, blocked
        return self._last[1]

    def _reduce(self, captured: Capture, keys: Tensor) -> Reduce:
        """What to keep of the maps of one part."""
        names = self.options.reduce
        of = None
        if "category" in names:
            of = torch.zeros((*keys.shape, len(self.options.categories) + 1), device=keys.device)
            for b, real in enumerate(keys.cpu().numpy()):
                tokens = self.labels.keys(captured.stack, captured.kind, real, b)
                named = category_of(tokens, self.options.categories)
                of[b, torch.as_tensor(np.flatnonzero(real)), torch.as_tensor(named)] = 1
        return Reduce(top=largest(names), row_sum="row_sum" in names, category=of)


@dataclass(eq=False)
class Part:
    """One stack's attentions of one kind: a list over layers of everything."""

    positions: Positions
    padded: bool  # whether any key is not real
    reduce: Reduce | None = None
    names: list[str] = field(default_factory=list)
    dtypes: list[set[torch.dtype]] = field(default_factory=list)
    arrays: dict[tuple[str, str], list[Tensor]] = field(default_factory=dict)  # (kind, map)
    errors: dict[str, list[Tensor]] = field(default_factory=dict)
    blocked: list[Tensor | None] = field(default_factory=list)
    leaked: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)

    def on(self, device: torch.device) -> Positions:
        """The positions on a layer's own device."""
        there = self.positions
        if there.queries.device == device:
            return there
        return Positions(there.queries.to(device), there.keys.to(device), there.every)

    def reduce_on(self, device: torch.device) -> Reduce | None:
        """What to keep of the maps, with its arrays on a layer's own device."""
        if self.reduce is None or self.reduce.category is None:
            return self.reduce
        return replace(self.reduce, category=self.reduce.category.to(device))

    def fetch(self) -> Fetched:
        """All of it on the CPU, or on its way there from a GPU: wait for that before reading."""
        return Fetched(
            self.names,
            self.dtypes,
            # By row first: what belongs to one text then lies together.
            {what: _home(torch.stack(found, dim=1)) for what, found in self.arrays.items()},
            {name: _home(torch.stack(found)) for name, found in self.errors.items()},
            [None if blocked is None else _home(blocked) for blocked in self.blocked],
            [
                None if found is None else (_home(found[0]), _home(found[1]))
                for found in self.leaked
            ],
            _home(self.positions.queries),
            _home(self.positions.keys),
        )


@dataclass(frozen=True, eq=False)
class Fetched:
    """One part, read back: a list over layers, or arrays with a layer axis."""

    names: list[str]
    dtypes: list[set[torch.dtype]]
    arrays: dict[tuple[str, str], Tensor]  # (kind, map) -> (row, layer, …)
    errors: dict[str, Tensor]  # map -> (layer, row)
    blocked: list[Tensor | None]
    leaked: list[tuple[Tensor, Tensor] | None]
    queries: Tensor  # (row, position): which are real
    keys: Tensor


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The model may run in mixed precision; what is measured of it does not."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _home(tensor: Tensor) -> Tensor:
    """On the CPU; from a GPU into pinned memory, without waiting for it."""
    if not tensor.is_cuda:
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _leaked(captured: Capture, real: Positions) -> tuple[Tensor, Tensor]:
    """The largest weight of padding, and where it is, for each real query."""
    values, indices = [], []
    for here in captured.blocks():
        weights = captured.rows(here).amax(dim=1).to(real.keys.device)
        weights = weights.masked_fill(real.keys[:, None, :] | ~real.queries[:, here, None], 0)
        most = weights.max(dim=-1)
        values.append(most.values)
        indices.append(most.indices)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
