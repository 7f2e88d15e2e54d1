"""What a batch gave, judged and cut into one result for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.decomposition.maps import bound_of
from normscope.decomposition.rows import largest
from normscope.engine.collector import Collector, Fetched
from normscope.engine.labels import OTHER, part_names, with_residual
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.results.reductions import Reductions
from normscope.results.signature import Signature
from normscope.text.tokens import Tokens

Place = tuple[str, str]  # stack and kind of attention
Arrays = Mapping[tuple[str, str], np.ndarray]  # by kind and map


class Results:
    """A batch on its way to the CPU. Another may be computed before :meth:`rows` is asked for."""

    def __init__(
        self,
        collector: Collector,
        signature: Signature,
        again: Callable[[], Results] | None = None,
    ) -> None:
        self.again = again  # another way to the same, if this one is not exact
        self.collector, self.signature = collector, signature
        self.maps, self.options, self.labels = collector.maps, collector.options, collector.labels
        self.parts = {place: part.fetch() for place, part in collector.parts.items()}
        devices = {part.positions.queries.device for part in collector.parts.values()}
        self._arriving = [
            torch.cuda.current_stream(device).record_event()
            for device in devices
            if device.type == "cuda"
        ]

    def rows(self) -> Sequence[Contributions | Reductions]:
        """One result for each row, if nothing is wrong with any."""
        for arriving in self._arriving:
            arriving.synchronize()
        model, signature = self.collector.model, self.signature
        if not self.parts:
            raise UnsupportedModelError(
                f"{type(model).__name__} ran without any attention that normscope can see, "
                "so there is nothing to show"
            )
        signature.path = "+".join(sorted(self.collector.paths))
        names = part_names(list(self.parts))
        try:
            judged = {place: _judge(model, part) for place, part in self.parts.items()}
        except ExactnessError as gap:
            if "fused" not in self.collector.paths:
                raise
            if self.again is not None:
                return self.again().rows()
            raise ExactnessError(
                f'{gap} Its weights were made from queries and keys: try attention="eager".'
            ) from gap
        arrays = {
            place: {what: array.numpy() for what, array in part.arrays.items()}
            for place, part in self.parts.items()
        }
        rows = range(self._count(names))

        def error(place: Place, b: int) -> dict[str, float]:
            return {name: float(found[:, b].max()) for name, found in judged[place].items()}

        cut = self._reduced if self.options.reduce else self._row
        results = []
        for b in rows:
            made: dict[str, Any] = {
                names[place]: cut(place, b, arrays[place], error(place, b)) for place in self.parts
            }
            single = list(made.values())
            results.append(single[0] if len(single) == 1 else self._together(made))
        return results

    def _count(self, names: Mapping[Place, str]) -> int:
        """How many rows there are, the same in all parts."""
        counts = {names[place]: len(part.queries) for place, part in self.parts.items()}
        count = next(iter(counts.values()))
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{n} of {name}" for name, n in counts.items())
            raise InputError(
                f"the parts of this model ran on different numbers of rows: {told}. A result has "
                "one row of each: give as many of one as of the other"
            )
        if self.labels.known is not None and len(self.labels.known) != count:
            raise InputError(
                f"tokens names the positions of {len(self.labels.known)} rows, but there are "
                f"{count}"
            )
        return count

    def _together(self, parts: dict[str, Any]) -> Contributions | Reductions:
        """The parts of one row: encoder, decoder, cross."""
        if not self.options.reduce:
            return Contributions(parts=parts, signature=self.signature)
        worst: dict[str, float] = {}
        for part in parts.values():
            worst |= {name: max(gap, worst.get(name, 0.0)) for name, gap in part.error.items()}
        return Reductions(error=worst, parts=parts, source=self.signature)

    def _reduced(
        self,
        place: Place,
        b: int,
        arrays: Arrays,
        error: dict[str, float],
    ) -> Reductions:
        """Row ``b`` of one part, its padding removed; keys are counted among the real ones."""
        names = self.options.reduce
        mine, theirs, here, there = self._both(place, b)
        categories = (*self.options.categories, OTHER) if "category" in names else ()
        found = Reductions(mine, theirs, categories, error, source=self.signature)
        order = np.concatenate([np.cumsum(there) - 1, [int(there.sum())]])  # the residual last
        for (kind, name), array in arrays.items():
            rows = array[b][:, here]
            if kind == "top_key":
                padding = np.append(~there, False)[rows]
                rows = np.where(padding, -1, order[rows])
            elif kind == "top_value":
                rows = np.maximum(rows, 0)  # padding was put last
            if kind != "mixing_ratio" or "mixing_ratio" in names:
                getattr(found, kind)[name] = rows
        for arrays_of, left in ((found.top_key, -1), (found.top_value, 0)):
            for name, ranks in arrays_of.items():
                lacking = [(0, 0), (0, 0), (0, largest(names) - ranks.shape[-1])]
                arrays_of[name] = np.pad(ranks, lacking, constant_values=left)
        if "argmax" in names:
            found.argmax.update({n: keys[..., 0] for n, keys in found.top_key.items()})
        if not any(name.startswith("top") for name in names):
            found.top_key, found.top_value = {}, {}
        return found

    def _both(self, place: Place, b: int) -> tuple[Tokens, Tokens, np.ndarray, np.ndarray]:
        """Tokens of the queries and of the keys of a row, and which positions are real."""
        (stack, kind), part = place, self.parts[place]
        here, there = part.queries[b].numpy(), part.keys[b].numpy()
        mine = self.labels.tokens(self.labels.role(stack), stack, here, b)
        theirs = mine if kind == "self" else self.labels.keys(stack, kind, there, b)
        return mine, theirs, here, there

    def _row(
        self,
        place: Place,
        b: int,
        arrays: Arrays,
        error: dict[str, float],
    ) -> Contributions:
        """Row ``b`` of one part, its padding removed."""
        mine, theirs, here, there = self._both(place, b)
        each = self.options.heads == "each"
        axes = ("layer", *(["head"] if each else []), "query", "key")

        def labelled(what: str, name: str, axes: tuple[str, ...]) -> LabelledArray:
            array = arrays[what, name][b]
            for axis, label in enumerate(axes):
                if label == "query" and not here.all():
                    array = array.compress(here, axis=axis)
                elif label == "key" and not there.all():
                    array = array.compress(_and_residual(there, array.shape[axis]), axis=axis)
            keys = theirs if array.shape[-1] == len(theirs) else with_residual(theirs)
            tokens = {
                axis: mine if axis == "query" else keys for axis in axes[1:] if axis != "head"
            }
            title = name if what == "map" else what
            reduce = "sum" if what == "map" else "mean"
            # Pinned memory is scarce, and is given back when this batch is done.
            array = np.array(array) if self._arriving else np.ascontiguousarray(array)
            return LabelledArray(array, axes, tokens, name=title, key_reduce=reduce)

        extras: dict[str, dict[str, LabelledArray]] = {}
        for what, name in arrays:
            if what in ("mixing_ratio", "bias_share"):
                extras.setdefault(what, {})[name] = labelled(what, name, ("layer", "query"))
        return Contributions(
            maps={n: labelled("map", n, axes) for n in self.maps if ("map", n) in arrays},
            transformed_norm=labelled("transformed_norm", "", ("layer", "head", "key")),
            tokens=mine,
            key_tokens=theirs,
            error=error,
            signature=self.signature,
            extras=extras,
        )


# ---- refusals


def _judge(model: nn.Module, part: Fetched) -> dict[str, np.ndarray]:
    """The error of each map and row, (layer, row); the first layer that is wrong raises."""
    errors = {name: found.numpy() for name, found in part.errors.items()}
    finite = np.isfinite(np.stack(list(errors.values()))).all(axis=(0, 2))
    for layer, name in enumerate(part.names):
        _refuse_wrong(name, part.blocked[layer], part.leaked[layer])
        if not finite[layer]:
            _refuse_not_finite(model, name, part.dtypes[layer])
        for which, found in errors.items():
            _refuse_inexact(name, which, found[layer], part.dtypes[layer])
    return errors


def _refuse_wrong(name: str, blocked: Tensor | None, leaked: tuple[Tensor, Tensor] | None) -> None:
    if blocked is not None and bool(blocked.any()):
        row, query = blocked.nonzero()[0].tolist()
        raise InputError(
            f"row {row}, position {query} is a real token but its attention mask admits no "
            f"key in {name}; its weights would mean nothing. Correct the mask."
        )
    if leaked is not None and bool((leaked[0] > 0).any()):
        row, query = (leaked[0] > 0).nonzero()[0].tolist()
        raise InputError(
            f"row {row}, position {query} attends to position {int(leaked[1][row, query])}, "
            f"which the attention mask calls padding, in {name}: the model does not apply the "
            "mask it was given, or the row is masked as a whole. Run each row by itself, "
            "unpadded."
        )


def _refuse_not_finite(model: nn.Module, where: str, dtypes: set[torch.dtype]) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(
                f"the model's parameter {name} contains NaN or infinity; its numbers would "
                "mean nothing. Load or train the model again."
            )
    raise InputError(
        f"{where} gives NaN or infinity although all parameters are finite: an overflow in "
        f"{_listed(dtypes)}. Use float32: model.float(), --dtype float32."
    )


def _refuse_inexact(where: str, name: str, errors: np.ndarray, dtypes: set[torch.dtype]) -> None:
    bound, error = bound_of(dtypes), float(errors.max())
    if not error <= bound:
        raise ExactnessError(
            f"{name} of {where}: the parts differ from the model's own output by {error:.1e} of "
            f"their size, more than {bound:.0e}, the bound for {_listed(dtypes)}. The map would "
            "be wrong, so none is returned."
        )


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def _and_residual(keys: np.ndarray, length: int) -> np.ndarray:
    """Real keys, and the residual's column where a map of this many keys has one."""
    return np.concatenate([keys, np.ones(length - len(keys), dtype=bool)])
