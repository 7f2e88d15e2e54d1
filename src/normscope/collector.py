"""Captures in, results out: each attention call is reduced to its maps as it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.arrays import LabelledArray, take
from normscope.capture import Capture
from normscope.contributions import Contributions
from normscope.decomposition.attention import BOUNDS, AttentionDecomposition, Heads
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.shapes import Bool
from normscope.signature import Signature
from normscope.tokens import Tokens


class Collector:
    """Reduces captures to maps as they arrive, a row of the batch at a time."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], maps: tuple[str, ...], heads: Heads
    ) -> None:
        self.model, self.inputs, self.maps, self.heads = model, inputs, maps, heads
        self.parts: dict[tuple[str, str], list[_Row]] = {}  # (stack, kind) -> rows
        self.paths: set[str] = set()

    def __call__(self, captured: Capture) -> None:
        if captured.step:
            raise UnsupportedModelError(
                f"{captured.stack} ran more than once in one forward pass; which run a map "
                "belongs to is not defined. Use capture() and take the steps apart yourself."
            )
        queries, keys = self._real(captured)
        taken = AttentionDecomposition(captured)
        made = {name: taken.map(name, self.heads) for name in self.maps}
        self._refuse_wrong(captured, queries, keys)
        gap = taken.gap()
        self._refuse_not_finite(captured, gap[queries])
        spots = taken.spot_check(made, self.heads, queries, keys)
        checks = {name: gaps.cpu().numpy() for name, gaps in spots.items()}
        stored = torch.promote_types(captured.output.dtype, torch.float32)
        arrays = {name: tensor.to(stored).cpu().numpy() for name, tensor in made.items()}
        norms = taken.transformed_norm.to(stored).cpu().numpy()
        gaps, here, there = gap.cpu().numpy(), queries.cpu().numpy(), keys.cpu().numpy()
        rows = self.parts.setdefault((captured.stack, captured.kind), [])
        rows.extend(_Row() for _ in range(len(gaps) - len(rows)))
        for b, row in enumerate(rows):
            worst = float(gaps[b][here[b]].max())
            for name, array in arrays.items():
                row.maps.setdefault(name, []).append(array[b][..., here[b], :][..., there[b]])
            row.norms.append(norms[b][:, there[b]])
            for name in self.maps:
                error = max(worst, float(checks[name][b]))
                self._refuse_inexact(captured, name, error)
                row.error[name] = max(error, row.error.get(name, 0.0))
            row.queries, row.keys = here[b], there[b]
        self.paths.add(captured.path)

    # ---- which positions are real

    def _real(self, captured: Capture) -> tuple[Bool[Tensor, "b q"], Bool[Tensor, "b k"]]:
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

    def _refuse_inexact(self, captured: Capture, name: str, error: float) -> None:
        bound = BOUNDS.get(captured.output.dtype, BOUNDS[torch.float32])
        if not error <= bound:
            raise ExactnessError(
                f"{name} of {captured.name}: the parts differ from the model's own output by "
                f"{error:.1e} of their size, more than {bound:.0e}, the bound for "
                f"{captured.output.dtype}. The map would be wrong, so none is returned."
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
        axes = (
            ("layer", "query", "key") if self.heads == "sum" else ("layer", "head", "query", "key")
        )
        tokens = {"query": mine, "key": theirs}
        norms = LabelledArray(
            np.stack(row.norms),
            ("layer", "head", "key"),
            {"key": theirs},
            name="transformed_norm",
            key_reduce="mean",
        )
        maps = {
            name: LabelledArray(np.stack(row.maps[name]), axes, tokens, name=name)
            for name in self.maps
        }
        return Contributions(
            maps=maps,
            transformed_norm=norms,
            tokens=mine,
            key_tokens=theirs,
            error=row.error,
            signature=signature,
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


class _Row:
    """One row of a batch in one part: a list over layers for each map."""

    def __init__(self) -> None:
        self.maps: dict[str, list[np.ndarray]] = {}
        self.norms: list[np.ndarray] = []
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
