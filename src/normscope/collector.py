"""Captures in, results out: each attention call is reduced to its maps as it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from normscope.arrays import LabelledArray, take
from normscope.capture import Capture
from normscope.capture.layers import LayerCapture
from normscope.contributions import RESIDUAL, Contributions
from normscope.decomposition.attention import MAPS, AttentionDecomposition, Heads, Positions
from normscope.decomposition.feedforward import FFBias
from normscope.decomposition.layer import LayerDecomposition
from normscope.decomposition.rows import Reduce, largest
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.kernels import Kernels, Scratch
from normscope.maps import Map, attention_maps, available, bound_of, each_head, layer_maps
from normscope.reductions import Reductions
from normscope.shapes import Bool
from normscope.signature import Signature
from normscope.tokens import Tokens


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
    """Reduces captures to maps as they arrive; judges them and cuts them into rows at the end.

    Nothing is read back from the device before the last layer has been taken in.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        maps: tuple[str, ...],
        options: Options,
        known: Sequence[Mapping[str, Tokens | None]] | None = None,
    ) -> None:
        self.model, self.inputs, self.maps, self.options = model, inputs, maps, options
        self.known = known  # each row's tokens, by role
        self.padded = self._check_masks()
        self.parts: dict[tuple[str, str], _Part] = {}  # by stack and kind
        self.paths: set[str] = set()
        self.whole_layers = any(name not in MAPS for name in maps)
        self.has = available(model) if self.whole_layers else {}
        self.scratch = Scratch()

    def attention(self, captured: Capture) -> None:
        """Take in one attention call."""
        part = self._part_of(captured)
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
            part = self._part_of(captured)
            taken = LayerDecomposition(
                layer,
                captured.kind,
                ff_bias=self.options.ff_bias,
                memory=self.options.memory,
                scratch=self.scratch,
                kernels=self.options.kernels,
            )
            device = captured.device
            made = layer_maps(taken, wanted, part.on(device), part.reduce_on(device))
            self._store(part, taken.alone, made, taken.dtypes)

    def _store(
        self,
        part: _Part,
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
        part.blocked.append(_blocked(captured, real))
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

    def _part_of(self, captured: Capture) -> _Part:
        if captured.step:
            raise UnsupportedModelError(
                f"{captured.stack} ran more than once in one forward pass; which run a map "
                "belongs to is not defined. Use capture() and take the steps apart yourself."
            )
        found = self.parts.get((captured.stack, captured.kind))
        if found is None:
            queries, keys = self.real(captured)
            reduce = self._reduce(captured, keys) if self.options.reduce else None
            found = _Part(Positions(queries, keys, EVERY), self.padded, reduce)
            self.parts[captured.stack, captured.kind] = found
        return found

    def _reduce(self, captured: Capture, keys: Tensor) -> Reduce:
        """What to keep of the maps of one part."""
        names = self.options.reduce
        of = None
        if "category" in names:
            of = torch.zeros((*keys.shape, len(self.options.categories) + 1), device=keys.device)
            for b, real in enumerate(keys.cpu().numpy()):
                role = self._role(captured.stack) if captured.kind == "self" else ""
                tokens = self._tokens(self._known(b), role, captured.stack, real, b)
                named = category_of(tokens, self.options.categories)
                of[b, torch.as_tensor(np.flatnonzero(real)), torch.as_tensor(named)] = 1
        return Reduce(top=largest(names), row_sum="row_sum" in names, category=of)

    def _known(self, b: int) -> Mapping[str, Tokens | None] | None:
        return None if self.known is None else self.known[b]

    # ---- which positions are real

    def real(self, captured: Capture) -> tuple[Bool[Tensor, "b q"], Bool[Tensor, "b k"]]:
        """Which queries and which keys are real, not padding."""
        batch, _, queries, keys = captured.shape
        decoder = self._role(captured.stack) == "decoder"
        own = "decoder_attention_mask" if decoder else "attention_mask"
        other = "attention_mask" if captured.kind == "cross" else own
        return (
            self._mask(captured, own, batch, queries),
            self._mask(captured, other, batch, keys),
        )

    def _mask(self, captured: Capture, name: str, batch: int, length: int) -> Tensor:
        full = torch.ones(batch, length, dtype=torch.bool, device=captured.device)
        mask = self.inputs.get(name)
        if not isinstance(mask, Tensor) or mask.dim() != 2 or _is_vision(captured.stack):
            return full
        if mask.shape != full.shape:
            shrink = getattr(self.model, "_get_feature_vector_attention_mask", None)
            if shrink is None or captured.kind == "cross":
                return full
            mask = shrink(length, mask)
        return mask.to(full.device).bool()

    def _check_masks(self) -> bool:
        """Whether any position is padding; a row that is nothing else is refused."""
        padded = False
        for name in ("attention_mask", "decoder_attention_mask"):
            mask = self.inputs.get(name)
            if not isinstance(mask, Tensor) or mask.dim() != 2:
                continue
            real = mask.cpu().bool()
            if not bool(real.any(dim=1).all()):
                row = int((~real.any(dim=1)).nonzero()[0])
                raise InputError(f"row {row} of {name} is all zero: it has no real position at all")
            padded = padded or not bool(real.all())
        return padded

    def _role(self, stack: str) -> str:
        """Say "decoder" for the decoder of an encoder–decoder model, otherwise nothing."""
        two = bool(getattr(self.model.config, "is_encoder_decoder", False))
        return "decoder" if two and "decoder" in stack.split(".") else ""

    # ---- refusals

    def _judge(self, part: _Part) -> dict[str, np.ndarray]:
        """The error of each map and row, (layer, row); the first layer that is wrong raises."""
        errors = {name: torch.stack(found).cpu().numpy() for name, found in part.errors.items()}
        finite = np.isfinite(np.stack(list(errors.values()))).all(axis=(0, 2))
        for layer, name in enumerate(part.names):
            self._refuse_wrong(name, part.blocked[layer], part.leaked[layer])
            if not finite[layer]:
                self._refuse_not_finite(name, part.dtypes[layer])
            for which, found in errors.items():
                _refuse_inexact(name, which, found[layer], part.dtypes[layer])
        return errors

    def _refuse_wrong(
        self, name: str, blocked: Tensor | None, leaked: tuple[Tensor, Tensor] | None
    ) -> None:
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

    def _refuse_not_finite(self, where: str, dtypes: set[torch.dtype]) -> None:
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise InputError(
                    f"the model's parameter {name} contains NaN or infinity; its numbers would "
                    "mean nothing. Load or train the model again."
                )
        raise InputError(
            f"{where} gives NaN or infinity although all parameters are finite: an overflow in "
            f"{_listed(dtypes)}. Use float32: model.float(), --dtype float32."
        )

    # ---- the results

    def results(self, signature: Signature) -> list[Contributions] | list[Reductions]:
        """One result for each row of the batch."""
        if not self.parts:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} ran without any attention that normscope can see, "
                "so there is nothing to show"
            )
        signature.path = "+".join(sorted(self.paths))
        names = _part_names(list(self.parts))
        judged = {place: self._judge(part) for place, part in self.parts.items()}
        arrays = {place: part.fetch() for place, part in self.parts.items()}
        rows = range(len(next(iter(self.parts.values())).positions.queries))

        def error(place: tuple[str, str], b: int) -> dict[str, float]:
            return {name: float(found[:, b].max()) for name, found in judged[place].items()}

        if self.options.reduce:
            reductions = []
            for b in rows:
                reduced = {
                    names[place]: self._reduced(place, b, arrays[place], error(place, b), signature)
                    for place in self.parts
                }
                one = list(reduced.values())
                whole = Reductions(parts=reduced, source=signature)
                reductions.append(one[0] if len(one) == 1 else whole)
            return reductions
        results = []
        for b in rows:
            made = {
                names[place]: self._row(place, b, arrays[place], error(place, b), signature)
                for place in self.parts
            }
            single = list(made.values())
            results.append(
                single[0] if len(single) == 1 else Contributions(parts=made, signature=signature)
            )
        return results

    def _reduced(
        self,
        place: tuple[str, str],
        b: int,
        arrays: Mapping[tuple[str, str], np.ndarray],
        error: dict[str, float],
        signature: Signature,
    ) -> Reductions:
        """Row ``b`` of one part, its padding removed; keys are counted among the real ones."""
        names, part = self.options.reduce, self.parts[place]
        mine, theirs, here, there = self._both(place, b)
        categories = (*self.options.categories, OTHER) if "category" in names else ()
        found = Reductions(mine, theirs, categories, error, source=signature)
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
        if "argmax" in names:
            found.argmax.update({n: keys[..., 0] for n, keys in found.top_key.items()})
        if not any(name.startswith("top") for name in names):
            found.top_key, found.top_value = {}, {}
        assert part.reduce is not None
        return found

    def _both(
        self, place: tuple[str, str], b: int
    ) -> tuple[Tokens, Tokens, np.ndarray, np.ndarray]:
        """Tokens of the queries and of the keys of a row, and which positions are real."""
        (stack, kind), (here, there) = place, self.parts[place].real(b)
        mine = self._tokens(self._known(b), self._role(stack), stack, here, b)
        theirs = mine if kind == "self" else self._tokens(self._known(b), "", stack, there, b)
        return mine, theirs, here, there

    def _row(
        self,
        place: tuple[str, str],
        b: int,
        arrays: Mapping[tuple[str, str], np.ndarray],
        error: dict[str, float],
        signature: Signature,
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
            keys = theirs if array.shape[-1] == len(theirs) else _with_residual(theirs)
            tokens = {
                axis: mine if axis == "query" else keys for axis in axes[1:] if axis != "head"
            }
            title = name if what == "map" else what
            reduce = "sum" if what == "map" else "mean"
            return LabelledArray(
                np.ascontiguousarray(array), axes, tokens, name=title, key_reduce=reduce
            )

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
            signature=signature,
            extras=extras,
        )

    def _tokens(
        self,
        known: Mapping[str, Tokens | None] | None,
        role: str,
        stack: str,
        real: np.ndarray,
        b: int,
    ) -> Tokens:
        given = None if known is None or _is_vision(stack) else known.get(role)
        if given is not None and len(given) == len(real):
            given = take(given, np.flatnonzero(real).tolist())
        if given is not None:
            if len(given) != int(real.sum()):
                raise InputError(
                    f"tokens names {len(given)} positions of row {b}, but it has "
                    f"{int(real.sum())} real ones ({len(real)} with padding)"
                )
            return given
        ids = self.inputs.get("decoder_input_ids" if role else "input_ids")
        if isinstance(ids, Tensor) and ids.shape[-1] == len(real) and not _is_vision(stack):
            kept = ids[b].cpu().numpy()[real].tolist()
            return replace(named([str(i) for i in kept]), ids=tuple(kept))
        return named([f"position {i}" for i in np.flatnonzero(real)])


def named(strings: Sequence[str]) -> Tokens:
    """Tokens that are only names, each a word of its own."""
    names = tuple(str(name) for name in strings)
    each = tuple(range(len(names)))
    return Tokens(names, None, (False,) * len(names), names, word_of=each, words=names)


def _with_residual(tokens: Tokens) -> Tokens:
    """The keys of a cross-attention, and the decoder's own state as a last one."""
    word_of, words = tokens.word_of, tokens.words
    return Tokens(
        strings=(*tokens.strings, RESIDUAL),
        ids=None,
        special=(*tokens.special, True),
        texts=(*tokens.texts, RESIDUAL),
        word_of=None if word_of is None or words is None else (*word_of, len(words)),
        words=None if words is None else (*words, RESIDUAL),
    )


@dataclass(eq=False)
class _Part:
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

    def fetch(self) -> dict[tuple[str, str], np.ndarray]:
        """(row, layer, …) arrays on the CPU."""
        # By row first: what belongs to one text then lies together.
        return {w: torch.stack(found, dim=1).cpu().numpy() for w, found in self.arrays.items()}

    def real(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        """Which queries and which keys of a row are real."""
        return self.positions.queries[b].cpu().numpy(), self.positions.keys[b].cpu().numpy()


def _blocked(captured: Capture, real: Positions) -> Tensor | None:
    """True where a real query may attend to nothing."""
    blocked = captured.blocked()
    return None if blocked is None else blocked.to(real.queries.device) & real.queries


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


EVERY = 3  # one layer in so many has cells computed again the slow way
OTHER = "other"  # tokens of no category


def category_of(tokens: Tokens, categories: Mapping[str, Sequence[str]]) -> list[int]:
    """For each token the first category that names it, or the number after the last."""
    names = {name: index for index, many in reversed(list(enumerate(categories.values())))
             for name in many}  # fmt: skip
    return [names.get(token, len(categories)) for token in tokens.strings]


def _refuse_inexact(where: str, name: str, errors: np.ndarray, dtypes: set[torch.dtype]) -> None:
    bound, error = bound_of(dtypes), float(errors.max())
    if not error <= bound:
        raise ExactnessError(
            f"{name} of {where}: the parts differ from the model's own output by {error:.1e} of "
            f"their size, more than {bound:.0e}, the bound for {_listed(dtypes)}. The map would "
            "be wrong, so none is returned."
        )


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype) for dtype in dtypes))


def _and_residual(keys: np.ndarray, length: int) -> np.ndarray:
    """Real keys, and the residual's column where a map of this many keys has one."""
    return np.concatenate([keys, np.ones(length - len(keys), dtype=bool)])


def _is_vision(stack: str) -> bool:
    return any(word in stack for word in ("vision", "visual", "image"))


def _part_names(parts: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Short names for several stacks: encoder, decoder, cross; text, vision."""
    stacks = list(dict.fromkeys(stack for stack, _ in parts))
    split = [stack.split(".") for stack in stacks]
    depth = 0
    while len(stacks) > 1 and len({s[depth] if depth < len(s) else "" for s in split}) == 1:
        depth += 1
    names = {}
    for stack, kind in parts:
        words = stack.split(".")
        name = words[min(depth, len(words) - 1)] if len(stacks) > 1 else "decoder"
        name = name.removesuffix("_model").removesuffix("_tower") or "model"
        crosses = [s for s, k in parts if k == "cross"]
        if kind == "cross":
            name = "cross" if len(set(crosses)) == 1 else f"{name}_cross"
        names[stack, kind] = name
    return names
