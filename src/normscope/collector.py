"""Captures in, results out: each attention call is reduced to its maps as it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.arrays import LabelledArray, take
from normscope.capture import Capture
from normscope.capture.layers import LayerCapture
from normscope.contributions import RESIDUAL, Contributions
from normscope.decomposition.attention import MAPS, AttentionDecomposition, Heads
from normscope.decomposition.feedforward import FFBias
from normscope.decomposition.layer import LayerDecomposition
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.maps import Map, attention_maps, available, bound_of, layer_maps
from normscope.shapes import Bool
from normscope.signature import Signature
from normscope.tokens import Tokens


@dataclass(frozen=True)
class Options:
    """How maps are made, beyond which ones."""

    heads: Heads = "sum"
    ff_bias: FFBias = "path"
    memory: int = 2**31  # bytes for the largest arrays of a feed-forward scope


class Collector:
    """Reduces captures to maps as they arrive, a row of the batch at a time."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], maps: tuple[str, ...], options: Options
    ) -> None:
        self.model, self.inputs, self.maps, self.options = model, inputs, maps, options
        self.parts: dict[tuple[str, str], list[_Row]] = {}  # (stack, kind) -> rows
        self.paths: set[str] = set()
        self.whole_layers = any(name not in MAPS for name in maps)
        self.has = available(model) if self.whole_layers else {}

    def attention(self, captured: Capture) -> None:
        """Take in one attention call."""
        queries, keys = self._check(captured)
        taken = AttentionDecomposition(captured)
        made = attention_maps(taken, self.maps, self.options.heads, queries, keys)
        self._store(captured, taken, made, {captured.output.dtype})

    def layer(self, layer: LayerCapture) -> None:
        """Take in one layer, with one or two attention calls."""
        for captured in (layer.attention, layer.cross):
            if captured is None:
                continue
            queries, keys = self._check(captured)
            has = self.has[captured.stack, captured.kind]
            taken = LayerDecomposition(
                layer, captured.kind, ff_bias=self.options.ff_bias, memory=self.options.memory
            )
            wanted = [name for name in self.maps if name in has]
            if wanted:
                made = layer_maps(taken, wanted, queries, keys)
                self._store(captured, taken.alone, made, taken.dtypes)

    def _store(
        self,
        captured: Capture,
        alone: AttentionDecomposition,
        made: Mapping[str, Map],
        dtypes: set[torch.dtype],
    ) -> None:
        """Cut each row's real positions out of the batch, and judge its error."""
        queries, keys = self.real(captured)
        self._refuse_not_finite(captured, alone.gap()[queries])
        stored = torch.promote_types(captured.output.dtype, torch.float32)

        def fetch(tensor: Tensor) -> np.ndarray:
            return tensor.to(stored).cpu().numpy()

        norms, here, there = (
            fetch(alone.transformed_norm),
            queries.cpu().numpy(),
            keys.cpu().numpy(),
        )
        rows = self.parts.setdefault((captured.stack, captured.kind), [])
        rows.extend(_Row() for _ in range(len(here) - len(rows)))
        for b, row in enumerate(rows):
            row.norms.append(norms[b][:, there[b]])
            row.queries, row.keys = here[b], there[b]
        for name, one in made.items():
            values, gaps, spots = fetch(one.values), one.gap.cpu().numpy(), one.spot.cpu().numpy()
            extras = {"mixing_ratio": one.mixing_ratio, "bias_share": one.bias_share}
            arrays = {kind: fetch(array) for kind, array in extras.items() if array is not None}
            for b, row in enumerate(rows):
                error = max(float(gaps[b][here[b]].max()), float(spots[b]))
                self._refuse_inexact(captured, name, error, dtypes)
                row.error[name] = max(error, row.error.get(name, 0.0))
                column = np.ones(values.shape[-1] - len(there[b]), dtype=bool)  # the residual's
                cells = values[b][..., here[b], :][..., np.concatenate([there[b], column])]
                row.maps.setdefault(name, []).append(cells)
                for kind, array in arrays.items():
                    row.extras.setdefault((kind, name), []).append(array[b][here[b]])
        self.paths.add(captured.path)

    def _check(self, captured: Capture) -> tuple[Tensor, Tensor]:
        if captured.step:
            raise UnsupportedModelError(
                f"{captured.stack} ran more than once in one forward pass; which run a map "
                "belongs to is not defined. Use capture() and take the steps apart yourself."
            )
        queries, keys = self.real(captured)
        self._refuse_wrong(captured, queries, keys)
        return queries, keys

    # ---- which positions are real

    def real(self, captured: Capture) -> tuple[Bool[Tensor, "b q"], Bool[Tensor, "b k"]]:
        """Which queries and which keys are real, not padding."""
        batch, _, queries, keys = captured.alpha.shape
        decoder = self._role(captured.stack) == "decoder"
        own = "decoder_attention_mask" if decoder else "attention_mask"
        other = "attention_mask" if captured.kind == "cross" else own
        return (
            self._mask(captured, own, batch, queries),
            self._mask(captured, other, batch, keys),
        )

    def _mask(self, captured: Capture, name: str, batch: int, length: int) -> Tensor:
        full = torch.ones(batch, length, dtype=torch.bool, device=captured.alpha.device)
        mask = self.inputs.get(name)
        if not isinstance(mask, Tensor) or mask.dim() != 2 or _is_vision(captured.stack):
            return full
        if mask.shape != full.shape:
            shrink = getattr(self.model, "_get_feature_vector_attention_mask", None)
            if shrink is None or captured.kind == "cross":
                return full
            mask = shrink(length, mask)
        real = mask.to(full.device).bool()
        if not bool(real.any(dim=1).all()):
            row = int((~real.any(dim=1)).nonzero()[0])
            raise InputError(f"row {row} of {name} is all zero: it has no real position at all")
        return real

    def _role(self, stack: str) -> str:
        """Say "decoder" for the decoder of an encoder–decoder model, otherwise nothing."""
        two = bool(getattr(self.model.config, "is_encoder_decoder", False))
        return "decoder" if two and "decoder" in stack.split(".") else ""

    # ---- refusals

    def _refuse_wrong(self, captured: Capture, queries: Tensor, keys: Tensor) -> None:
        blocked = captured.blocked()
        if blocked is not None and bool((blocked & queries).any()):
            row, query = (blocked & queries).nonzero()[0].tolist()
            raise InputError(
                f"row {row}, position {query} is a real token but its attention mask admits no "
                f"key in {captured.name}; its weights would mean nothing. Correct the mask."
            )
        if bool(keys.all()):
            return
        leaked = captured.alpha.amax(dim=1).masked_fill(keys[:, None, :], 0)
        leaked = leaked.masked_fill(~queries[:, :, None], 0)
        if bool((leaked > 0).any()):
            row, query, key = (leaked > 0).nonzero()[0].tolist()
            raise InputError(
                f"row {row}, position {query} attends to position {key}, which the attention "
                f"mask calls padding, in {captured.name}: the model does not apply the mask it "
                "was given, or the row is masked as a whole. Run each row by itself, unpadded."
            )

    def _refuse_not_finite(self, captured: Capture, gaps: Tensor) -> None:
        if bool(torch.isfinite(gaps).all()):
            return
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise InputError(
                    f"the model's parameter {name} contains NaN or infinity; its numbers would "
                    "mean nothing. Load or train the model again."
                )
        raise InputError(
            f"{captured.name} gives NaN or infinity although all parameters are finite: an "
            f"overflow in {captured.output.dtype}. Use float32: model.float(), --dtype float32."
        )

    def _refuse_inexact(
        self, captured: Capture, name: str, error: float, dtypes: set[torch.dtype]
    ) -> None:
        bound = bound_of(dtypes)
        if not error <= bound:
            kinds = ", ".join(sorted(str(dtype) for dtype in dtypes))
            raise ExactnessError(
                f"{name} of {captured.name}: the parts differ from the model's own output by "
                f"{error:.1e} of their size, more than {bound:.0e}, the bound for {kinds}. The map "
                "would be wrong, so none is returned."
            )

    # ---- the results

    def results(
        self, known: Sequence[Mapping[str, Tokens | None]] | None, signature: Signature
    ) -> list[Contributions]:
        """One result for each row of the batch."""
        if not self.parts:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} ran without any attention that normscope can see, "
                "so there is nothing to show"
            )
        signature.path = "+".join(sorted(self.paths))
        names = _part_names(list(self.parts))
        count = len(next(iter(self.parts.values())))
        results = []
        for b in range(count):
            parts = {
                names[part]: self._part(
                    part, rows[b], None if known is None else known[b], b, signature
                )
                for part, rows in self.parts.items()
            }
            single = list(parts.values())
            results.append(
                single[0] if len(single) == 1 else Contributions(parts=parts, signature=signature)
            )
        return results

    def _part(
        self,
        part: tuple[str, str],
        row: _Row,
        known: Mapping[str, Tokens | None] | None,
        b: int,
        signature: Signature,
    ) -> Contributions:
        stack, kind = part
        role = self._role(stack)
        mine = self._tokens(known, role, stack, row.queries, b)
        theirs = mine if kind == "self" else self._tokens(known, "", stack, row.keys, b)
        each = self.options.heads == "each"
        axes = ("layer", *(["head"] if each else []), "query", "key")

        def labelled(values: list[np.ndarray], axes: tuple[str, ...], name: str) -> LabelledArray:
            array = np.stack(values)
            keys = theirs if array.shape[-1] == len(theirs) else _with_residual(theirs)
            tokens = {
                axis: mine if axis == "query" else keys for axis in axes[1:] if axis != "head"
            }
            reduce = "sum" if name in row.maps else "mean"
            return LabelledArray(array, axes, tokens, name=name, key_reduce=reduce)

        extras: dict[str, dict[str, LabelledArray]] = {}
        for (extra, name), values in row.extras.items():
            extras.setdefault(extra, {})[name] = labelled(values, ("layer", "query"), extra)
        return Contributions(
            maps={
                name: labelled(row.maps[name], axes, name) for name in self.maps if name in row.maps
            },
            transformed_norm=labelled(row.norms, ("layer", "head", "key"), "transformed_norm"),
            tokens=mine,
            key_tokens=theirs,
            error=row.error,
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


class _Row:
    """One row of a batch in one part: a list over layers for each map."""

    def __init__(self) -> None:
        self.maps: dict[str, list[np.ndarray]] = {}
        self.norms: list[np.ndarray] = []
        self.extras: dict[tuple[str, str], list[np.ndarray]] = {}  # (kind, map) -> layers
        self.error: dict[str, float] = {}
        self.queries = self.keys = np.zeros(0, dtype=bool)


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
