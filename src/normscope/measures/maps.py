"""Measure maps or their reductions, and return a labelled result for each row of a batch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.decomposition.available import available
from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.closeness import feed_forward_share
from normscope.decomposition.layer import LayerView
from normscope.decomposition.maps import Reduce
from normscope.decomposition.reductions import largest
from normscope.decomposition.scopes import SCOPES, behind_feed_forward, need_whole_layers, related
from normscope.engine.batch import Batch, with_residual
from normscope.engine.given import row_count
from normscope.engine.measure import Needs, Observed, Part
from normscope.engine.naming import named
from normscope.engine.options import OTHER, AnalysisOptions
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.garbage import collection_paused
from normscope.kernels.backend import triton_for
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.results.signature import Signature
from normscope.text.tokens import Tokens

SPOT_CHECK = 3  # one layer in this many has cells computed again from the definition
KEPT = {  # the axes of reductions and of arrays that accompany a map
    "mixing_ratio": ("layer", "query"),
    "bias_share": ("layer", "query"),
    "ff_share": ("layer", "query"),
    "row_sum": ("layer", "query"),
    "argmax": ("layer", "query"),
    "top_key": ("layer", "query", "rank"),
    "top_value": ("layer", "query", "rank"),
    "category": ("layer", "query", "category"),
}


class Maps:
    """The measure of `analyze`: the maps of every attention call."""

    def __init__(self, options: AnalysisOptions, signature: Signature) -> None:
        self.options, self.signature = options, signature
        self.maps = tuple(options.maps)
        self.heads = options.heads
        self.whole_layers = need_whole_layers(self.maps)

    @property
    def needs(self) -> Needs:
        """Whole layers for residuals and norms, weights for single heads and feed-forwards."""
        behind = behind_feed_forward(self.maps)
        options: Any = self.options
        return Needs(
            whole_layers=self.whole_layers,
            weights=self.heads == "each" or bool(behind),
            masks=True,
            spot_check=SPOT_CHECK,
            recordable=not (options.reduce or behind or related(self.maps)),
            slow=bool(behind),
            replay=tuple(behind) if options.ff_bias == "path" else (),
            how=DecompositionOptions(
                options.ff_bias, options.memory, options.kernels, options.precision
            ),
        )

    def observe(self, view: LayerView) -> dict[str, Tensor]:
        """Return the maps of one attention call, or their reductions."""
        captured = view.captured
        wanted = self._wanted(view)
        if not wanted:
            return {}
        _check_call(captured)
        if self.heads == "each":
            maps = view.head_maps(wanted)
        else:
            maps = view.maps(wanted, self._reduce(view) if self.options.reduce else None)
        stored = torch.promote_types(captured.output.dtype, torch.float32)
        noted: dict[str, Tensor] = {}
        if not self.options.reduce and captured.gate is None:
            noted["transformed_norm/"] = view.transformed_norm.to(stored)
        for name, scope_map in maps.items():
            summed = scope_map.scope.cell == "length" and self.heads == "sum"
            routed = scope_map.scope.cell == "routed" and not self.options.reduce
            kept = {
                "map": scope_map.values,
                **scope_map.reduced,
                "mixing_ratio": scope_map.mixing_ratio,
                "bias_share": scope_map.bias if summed else None,
                "ff_share": feed_forward_share(view) if routed else None,
            }
            for kind, tensor in kept.items():
                if tensor is not None:
                    dtype = stored if tensor.is_floating_point() else tensor.dtype
                    noted[f"{kind}/{name}"] = tensor.to(dtype)
        return noted

    def _wanted(self, view: LayerView) -> list[str]:
        """Return the maps that every layer of this part has."""
        if view.layer is None or not self.whole_layers:
            return list(self.maps)
        memo = view.batch.memo
        if available not in memo:  # the pass may have shown more of the model's layers
            memo[available] = available(view.batch.model)
        # ALBERT's layers are in a list inside the one that counts as its stack.
        if view.layer.layout is None:
            return [name for name in self.maps if name in view.scopes]
        names = memo[available][view.layer.name.rpartition(".")[0], view.kind]
        return [name for name in self.maps if name in names]

    def _reduce(self, view: LayerView) -> Reduce:
        """Return the reductions to keep for the maps of one part."""
        batch, captured, keys = view.batch, view.captured, view.positions.keys
        part = self, captured.stack, captured.kind, keys.device
        if part in batch.memo:
            known: Reduce = batch.memo[part]
            return known
        names, categories = self.options.reduce, self.options.categories or {}
        members: Tensor | None = None
        if "category" in names:
            members = torch.zeros((*keys.shape, len(categories) + 1), device=keys.device)
            for row, real in enumerate(keys.cpu().numpy()):
                tokens = batch.key_tokens(captured.stack, captured.kind, real, row)
                columns = torch.as_tensor(category_of(tokens, categories))
                members[row, torch.as_tensor(np.flatnonzero(real)), columns] = 1
        reduce = Reduce(top=largest(names), row_sum="row_sum" in names, category=members)
        batch.memo[part] = reduce
        return reduce

    # ---- results

    def finish(
        self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]
    ) -> list[Contributions]:
        """Return one result for each row of a batch, its padding removed."""
        parts = {part: observed for part, observed in parts.items() if observed.arrays}
        path = "+".join([*sorted(paths), *_without_attention(batch.model, parts)])
        signature = self.signature.with_path(path)
        if not parts:
            raise UnsupportedModelError(
                f"none of the parts of {type(batch.model).__name__} that ran has these maps: "
                f"{', '.join(self.maps)}"
            )
        names = part_names(list(parts))
        count = _count_rows(batch, {names[part]: o for part, o in parts.items()})
        rows = {
            names[part]: _PartRows(self, batch, part, observed) for part, observed in parts.items()
        }
        results = []
        with collection_paused():
            for row in range(count):
                by_name: dict[str, Contributions] = {}
                for name, part in rows.items():
                    by_name |= part.results(name, row, count, signature)
                results.append(
                    next(iter(by_name.values()))
                    if len(by_name) == 1
                    else Contributions(parts=by_name, signature=signature)
                )
        return results

    def axes(self, kind: str) -> tuple[str, ...]:
        """Return the axes of an observed array of this kind."""
        if kind == "map":
            return ("layer", *(["head"] if self.heads == "each" else []), "query", "key")
        return ("layer", "head", "key") if kind == "transformed_norm" else KEPT[kind]


@dataclass(frozen=True)
class _Column:
    """One array of all rows: its kind ("map", "mixing_ratio", …), map, axes and tensors."""

    kind: str
    map_name: str
    axes: tuple[str, ...]
    rows: tuple[Tensor, ...]  # views of the batch's tensor


class _PartRows:
    """The results of the rows of one part; their arrays are views of the batch's tensors."""

    def __init__(self, measure: Maps, batch: Batch, part: Part, observed: Observed) -> None:
        self.measure, self.batch = measure, batch
        self.stack, self.kind = part
        self.queries, self.keys = observed.queries, observed.keys
        self.query_spans, self.key_spans = _spans(observed.queries), _spans(observed.keys)
        self.categories = named([*(measure.options.categories or {}), OTHER])
        self.error = {name: gaps.max(axis=0).tolist() for name, gaps in observed.gaps.items()}
        self.layers = layer_numbers(self.stack, observed.layers)
        # Arrays of the same shape lose the same padding.
        self.columns: dict[tuple[Any, ...], list[_Column]] = {}
        for key in observed.arrays:
            tensor = observed.tensor(key)
            kind, map_name = key.split("/")
            axes = measure.axes(kind)
            column = _Column(kind, map_name, axes, tensor.unbind(0))
            self.columns.setdefault((axes, tuple(tensor.shape[1:])), []).append(column)

    def results(
        self, name: str, row: int, count: int, signature: Signature
    ) -> dict[str, Contributions]:
        """Return the results of one row of the batch by name: several if it has several images."""
        each = len(self.queries) // count
        if each == 1:
            return {name: self.result(row, signature)}
        return {f"{name}_{at}": self.result(row * each + at, signature) for at in range(each)}

    def result(self, row: int, signature: Signature) -> Contributions:
        """Return the result of one row."""
        query_tokens = self.batch.query_tokens(self.stack, self.queries[row], row)
        key_tokens = query_tokens
        if self.kind != "self" or self.keys.shape[1] != self.queries.shape[1]:
            key_tokens = self.batch.key_tokens(self.stack, self.kind, self.keys[row], row)
        kinds: dict[str, dict[str, LabelledArray]] = {}
        for (axes, shape), columns in self.columns.items():
            cut = self._cut(row, query_tokens, key_tokens, axes, shape)
            for column in columns:
                kinds.setdefault(column.kind, {})[column.map_name] = cut.array(column, row)
        computed = kinds.pop("map", {})
        maps = {name: computed[name] for name in self.measure.maps if name in computed}
        norm = kinds.pop("transformed_norm", {}).get("")
        if self.measure.options.reduce:
            kinds = _reductions(kinds, self.measure.options.reduce, self.keys[row])
        error = {name: gaps[row] for name, gaps in self.error.items()}
        return Contributions(maps, norm, query_tokens, key_tokens, error, signature, extras=kinds)

    def _cut(
        self,
        row: int,
        query_tokens: Tokens,
        key_tokens: Tokens,
        axes: tuple[str, ...],
        shape: tuple[int, ...],
    ) -> _Cut:
        """Return how the padding of one row is removed from arrays of this shape."""
        cut = _Cut(self.layers)
        for place, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if axis == "query":
                cut.along(place, axis, self.query_spans[row], query_tokens)
            elif axis == "key" and size == self.keys.shape[1]:
                cut.along(place, axis, self.key_spans[row], key_tokens)
            elif axis == "key":  # there is one more column, for the residual
                span = self.key_spans[row].extended(self.keys.shape[1])
                cut.along(place, axis, span, with_residual(key_tokens))
            elif axis == "category":
                cut.tokens[axis] = self.categories
        return cut


class _Cut:
    """Removes padding from the arrays of one row, and adds the tokens of their axes."""

    def __init__(self, layers: Sequence[int] | None) -> None:
        self.labels = None if layers is None else {"layer": layers}
        self.tokens: dict[str, Tokens] = {}
        self.slices: tuple[slice, ...] = ()
        self.indices: list[tuple[int, Tensor]] = []

    def along(self, place: int, axis: str, span: _Span, tokens: Tokens) -> None:
        """Keep the real positions along an axis."""
        self.tokens[axis] = tokens
        if span.indices is not None:
            self.indices.append((place, torch.from_numpy(span.indices)))
        elif span.padded:
            whole = (slice(None),) * (place - len(self.slices))
            self.slices = (*self.slices, *whole, slice(span.start, span.end))

    def array(self, column: _Column, row: int) -> LabelledArray:
        """Return one row of an array; a view if its real positions are consecutive."""
        tensor = column.rows[row]
        if self.slices:
            tensor = tensor[self.slices]
        for place, indices in self.indices:
            tensor = tensor.index_select(place, indices)
        if column.kind == "map":
            name = column.map_name
            signed = SCOPES[name].signed
            return LabelledArray(
                tensor, column.axes, self.tokens, self.labels, name=name, signed=signed
            )
        return LabelledArray(
            tensor, column.axes, self.tokens, self.labels, name=column.kind, key_reduce="mean"
        )


class _Span(NamedTuple):
    """The real positions of one row: those from start to end, or those with these indices."""

    start: int
    end: int
    padded: bool
    indices: NDArray[np.intp] | None

    def extended(self, length: int) -> _Span:
        """Return the real positions and the position after all others, whose index is length."""
        if self.indices is None and self.end == length:
            return _Span(self.start, length + 1, self.padded, None)
        real = np.arange(self.start, self.end) if self.indices is None else self.indices
        return _Span(self.start, length + 1, True, np.append(real, length))


def _spans(real: NDArray[np.bool_]) -> list[_Span]:
    """Return the real positions of each row; with padding on one side they are consecutive."""
    length = real.shape[1]
    counts = real.sum(axis=1)
    starts = real.argmax(axis=1)
    ends = length - real[:, ::-1].argmax(axis=1)
    consecutive = ends - starts == counts
    return [
        _Span(start, end, count < length, None if whole else np.flatnonzero(real[row]))
        for row, (start, end, count, whole) in enumerate(
            zip(*(a.tolist() for a in (starts, ends, counts, consecutive)), strict=True)
        )
    ]


def _reductions(
    extras: dict[str, dict[str, LabelledArray]], names: Sequence[str], keys: NDArray[np.bool_]
) -> dict[str, dict[str, LabelledArray]]:
    """Return the requested reductions, with keys counted among the real ones."""
    order = np.concatenate([np.cumsum(keys) - 1, [int(keys.sum())]])  # the residual last
    padding = np.append(~keys, False)
    ranks = largest(names)

    def full(array: LabelledArray, values: NDArray[Any], rest: int) -> LabelledArray:
        lacking = [(0, 0), (0, 0), (0, ranks - values.shape[-1])]
        values = np.pad(values, lacking, constant_values=rest)
        return replace(array, values=values, labels={})

    if "top_key" in extras:
        for name, top in extras["top_key"].items():
            values = np.where(padding[top.values], -1, order[top.values]).astype(np.int64)
            extras["top_key"][name] = full(top, values, -1)
            top_value = extras["top_value"][name]
            positive = np.maximum(top_value.values, 0)  # padding was put last, as -1
            extras["top_value"][name] = full(top_value, positive, 0)
    if "argmax" in names:
        extras["argmax"] = {
            name: replace(
                top,
                values=top.values[..., 0],
                axes=KEPT["argmax"],
                labels={},
                name="argmax",
            )
            for name, top in extras["top_key"].items()
        }
    unasked = {"mixing_ratio"} - set(names)
    if not any(name.startswith("top") for name in names):
        unasked |= {"top_key", "top_value"}
    return {kind: by_map for kind, by_map in extras.items() if kind not in unasked}


def layer_numbers(stack: str, names: Sequence[str]) -> list[int] | None:
    """Return the numbers in their list of the layers that attended; None if all did, in order.

    A hybrid model has other layers between them; a layer that is used several times has no number
    of its own.
    """
    numbers = [name.removeprefix(f"{stack}.").partition(".")[0] for name in names]
    if not stack or not all(number.isdecimal() for number in numbers):
        return None
    found = [int(number) for number in numbers]
    increasing = all(a < b for a, b in itertools.pairwise(found))
    return found if increasing and found != list(range(len(found))) else None


def _without_attention(model: nn.Module, parts: Mapping[Part, Observed]) -> list[str]:
    """Name the layers of a hybrid model that have no map, for the signature."""
    notes = []
    for stack in dict.fromkeys(stack for stack, _ in parts):
        listed = model.get_submodule(stack) if stack else None
        if not isinstance(listed, nn.ModuleList):
            continue
        names = [name for (own, _), o in parts.items() if own == stack for name in o.layers]
        mapped = {name.removeprefix(f"{stack}.").partition(".")[0] for name in names}
        without = [number for number, _ in listed.named_children() if number not in mapped]
        notes += [f"no-attention={stack}.{','.join(without)}"] if without else []
    return notes


def _check_call(captured: Capture) -> None:
    """Raise for an attention call whose map would not be defined."""
    if captured.step:
        raise UnsupportedModelError(
            f"{captured.stack} ran more than once in one forward pass, so it has no single "
            "map. Use capture() and read the steps one by one."
        )
    queries, keys = captured.shape[2:]
    if captured.kind == "self" and queries != keys - captured.extra and queries != keys:
        raise InputError(
            f"{captured.name} attends from {queries} positions to {keys}: the model was given "
            "a cache of earlier positions (past_key_values) or adds a prefix. It is then not known "
            "which key is the query's own position: give the whole text at once, without a cache"
        )


def _count_rows(batch: Batch, parts: Mapping[str, Observed]) -> int:
    """Return how many rows there are; raise InputError if parts differ.

    A tower may have several rows for one of the batch: the images of a text, or parts of an image.
    """
    counts = {name: len(observed.queries) for name, observed in parts.items()}
    count = next(iter(counts.values())) if batch.seen is None else row_count(batch.host)
    ids = batch.host.get("input_ids")
    if isinstance(ids, Tensor) and ids.dim() == 3:  # choices are rows of their own
        count = ids.shape[:2].numel()
    if any(n % count for n in counts.values()) or (
        batch.seen is None and len({*counts.values()}) > 1
    ):
        listing = ", ".join(f"{n} of {name}" for name, n in counts.items())
        raise InputError(
            f"the parts of this model ran on different numbers of rows: {listing}. A result has "
            "one row of each: give the same number of rows for every part"
        )
    if batch.row_tokens is not None and len(batch.row_tokens) != count:
        raise InputError(
            f"tokens names the positions of {len(batch.row_tokens)} rows, but there are {count}"
        )
    return count


def settings_of(model: nn.Module, options: AnalysisOptions) -> dict[str, str]:
    """Return the settings that belong in the signature."""
    parameter = next(model.parameters())
    settings = options.describe()
    if options.categories:
        settings["categories"] = json.dumps(options.categories)
    kernels: Any = options.kernels
    if triton_for(kernels, parameter.device) is not None:
        settings["kernels"] = "triton"
    settings["dtype"] = str(parameter.dtype).removeprefix("torch.")
    return settings


def category_of(tokens: Tokens, categories: Mapping[str, Sequence[str]]) -> list[int]:
    """Return the index of each token's first category, or len(categories) for none."""
    numbers: dict[str, int] = {}
    for number, members in reversed(list(enumerate(categories.values()))):
        numbers |= dict.fromkeys(members, number)
    return [numbers.get(token, len(categories)) for token in tokens.strings]


def part_names(parts: Sequence[Part]) -> dict[Part, str]:
    """Return short names for several stacks: encoder, decoder, cross; text, vision."""
    stacks = list(dict.fromkeys(stack for stack, _ in parts))
    split = [stack.split(".") for stack in stacks]
    depth = 0
    while len(stacks) > 1 and len({s[depth] if depth < len(s) else "" for s in split}) == 1:
        depth += 1
    crosses = {stack for stack, kind in parts if kind == "cross"}
    names = {}
    for stack, kind in parts:
        words = stack.split(".")
        name = words[min(depth, len(words) - 1)] if len(stacks) > 1 else "decoder"
        name = name.removesuffix("_model").removesuffix("_tower") or "model"
        if kind == "cross":
            name = "cross" if len(crosses) == 1 else f"{name}_cross"
        names[stack, kind] = name
    return names
