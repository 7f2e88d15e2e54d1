"""Measure maps or their reductions, and return a labelled result for each row of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.decomposition.available import available
from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.layer import LayerView
from normscope.decomposition.maps import Reduce
from normscope.decomposition.reductions import largest
from normscope.decomposition.scopes import behind_feed_forward, need_whole_layers
from normscope.engine.batch import Batch, named, with_residual
from normscope.engine.measure import Needs, Observed, Part
from normscope.engine.options import OTHER, AnalysisOptions
from normscope.errors import InputError, UnsupportedModelError
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.results.signature import Signature
from normscope.text.tokens import Tokens

SPOT_CHECK = 3  # one layer in this many has cells computed again from the definition
KEPT = {  # the axes of reductions and of arrays that accompany a map
    "mixing_ratio": ("layer", "query"),
    "bias_share": ("layer", "query"),
    "row_sum": ("layer", "query"),
    "argmax": ("layer", "query"),
    "top_key": ("layer", "query", "rank"),
    "top_value": ("layer", "query", "rank"),
    "category": ("layer", "query", "category"),
}


class Maps:
    """The measure of `analyze`: the maps of every attention call."""

    def __init__(self, model: nn.Module, options: AnalysisOptions, signature: Signature) -> None:
        self.options, self.signature = options, signature
        self.maps = tuple(options.maps)
        self.heads = options.heads
        self.whole_layers = need_whole_layers(self.maps)
        self.available = available(model) if self.whole_layers else {}

    @property
    def needs(self) -> Needs:
        """Whole layers for residuals and norms, weights for single heads and feed-forwards."""
        behind = bool(behind_feed_forward(self.maps))
        options: Any = self.options
        return Needs(
            whole_layers=self.whole_layers,
            weights=self.heads == "each" or behind,
            masks=True,
            spot_check=SPOT_CHECK,
            recordable=not (options.reduce or behind),
            slow=behind,
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
        if not self.options.reduce:
            noted["transformed_norm/"] = view.transformed_norm.to(stored)
        for name, scope_map in maps.items():
            summed = not scope_map.scope.weight and self.heads == "sum"
            kept = {
                "map": scope_map.values,
                **scope_map.reduced,
                "mixing_ratio": scope_map.mixing_ratio,
                "bias_share": scope_map.bias if summed else None,
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
        # ALBERT's layers are in a list inside the one that counts as its stack.
        names = self.available[view.layer.name.rpartition(".")[0], view.kind]
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
        signature = self.signature.with_path("+".join(sorted(paths)))
        parts = {part: observed for part, observed in parts.items() if observed.arrays}
        if not parts:
            raise UnsupportedModelError(
                f"none of the parts of {type(batch.model).__name__} that ran has these maps: "
                f"{', '.join(self.maps)}"
            )
        names = part_names(list(parts))
        count = _count_rows(batch, {names[part]: o for part, o in parts.items()})
        arrays = {
            part: {key: observed[key] for key in observed.arrays}
            for part, observed in parts.items()
        }
        results = []
        for row in range(count):
            by_name = {
                names[part]: self._row(batch, part, observed, arrays[part], row, signature)
                for part, observed in parts.items()
            }
            results.append(
                next(iter(by_name.values()))
                if len(by_name) == 1
                else Contributions(parts=by_name, signature=signature)
            )
        return results

    def _row(
        self,
        batch: Batch,
        part: Part,
        observed: Observed,
        arrays: Mapping[str, NDArray[Any]],
        row: int,
        signature: Signature,
    ) -> Contributions:
        """Return one row of one part."""
        stack, kind = part
        queries, keys = observed.queries[row], observed.keys[row]
        query_tokens = batch.query_tokens(stack, queries, row)
        key_tokens = query_tokens
        if kind != "self":
            key_tokens = batch.key_tokens(stack, kind, keys, row)
        labels = _RowLabels(query_tokens, key_tokens, queries, keys, observed.pinned)
        map_axes = ("layer", *(["head"] if self.heads == "each" else []), "query", "key")
        maps: dict[str, LabelledArray] = {}
        extras: dict[str, dict[str, LabelledArray]] = {}
        norm: LabelledArray | None = None
        for key, array in arrays.items():
            what, name = key.split("/")
            if what == "map":
                maps[name] = labels.array(array[row], map_axes, name)
            elif what == "transformed_norm":
                norm = labels.array(array[row], ("layer", "head", "key"), what, reduce="mean")
            else:
                extras.setdefault(what, {})[name] = labels.array(
                    array[row], KEPT[what], what, reduce="mean", categories=self._categories()
                )
        if self.options.reduce:
            extras = _reductions(extras, self.options.reduce, keys)
        error = {name: float(gaps[:, row].max()) for name, gaps in observed.gaps.items()}
        maps = {name: maps[name] for name in self.maps if name in maps}
        return Contributions(maps, norm, query_tokens, key_tokens, error, signature, extras=extras)

    def _categories(self) -> Tokens:
        return named([*(self.options.categories or {}), OTHER])


class _RowLabels:
    """The tokens of one row of one part, and which of its positions are real."""

    def __init__(
        self,
        query_tokens: Tokens,
        key_tokens: Tokens,
        queries: NDArray[np.bool_],
        keys: NDArray[np.bool_],
        pinned: bool,
    ) -> None:
        self.tokens = {"query": query_tokens, "key": key_tokens}
        self.real = {"query": queries, "key": keys}
        self.pinned = pinned

    def array(
        self,
        values: NDArray[Any],
        axes: tuple[str, ...],
        name: str,
        *,
        reduce: str = "sum",
        categories: Tokens | None = None,
    ) -> LabelledArray:
        """Return an array without its padding, with the tokens of its axes."""
        tokens: dict[str, Tokens] = {}
        for place, axis in enumerate(axes):
            if axis == "category" and categories is not None:
                tokens[axis] = categories
            if axis not in self.real:
                continue
            real, labels = self.real[axis], self.tokens[axis]
            if values.shape[place] > len(real):  # the residual's column
                real, labels = np.append(real, True), with_residual(labels)
            values = values if real.all() else values.compress(real, axis=place)
            tokens[axis] = labels
        # Pinned memory is scarce and is released after this batch, so copy from it.
        values = np.array(values) if self.pinned else np.ascontiguousarray(values)
        return LabelledArray(values, axes, tokens, name=name, key_reduce=reduce)


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


def _check_call(captured: Capture) -> None:
    """Raise for an attention call whose map would not be defined."""
    if captured.step:
        raise UnsupportedModelError(
            f"{captured.stack} ran more than once in one forward pass, so it has no single "
            "map. Use capture() and read the steps one by one."
        )
    queries, keys = captured.shape[2:]
    if captured.kind == "self" and queries != keys:
        raise InputError(
            f"{captured.name} attends from {queries} positions to {keys}: the model was given "
            "a cache of earlier positions (past_key_values) or adds a prefix. It is then not known "
            "which key is the query's own position: give the whole text at once, without a cache"
        )


def _count_rows(batch: Batch, parts: Mapping[str, Observed]) -> int:
    """Return how many rows there are; raise InputError if parts differ."""
    counts = {name: len(observed.queries) for name, observed in parts.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) > 1:
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
