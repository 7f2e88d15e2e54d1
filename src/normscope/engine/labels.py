"""Which positions of a batch are real, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.errors import InputError
from normscope.foundation.shapes import Bool
from normscope.results.arrays import take
from normscope.results.contributions import RESIDUAL
from normscope.text.tokens import Tokens

Known = Sequence[Mapping[str, Tokens | None]] | None
OTHER = "other"  # tokens of no category


class Labels:
    """The masks and the tokens of one batch."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        known: Known = None,
        host: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.host = inputs if host is None else host  # the same on the CPU: no wait for a GPU
        self.known = known  # each row's tokens, by role
        self.two = bool(getattr(model.config, "is_encoder_decoder", False))
        self.padded = self._check_masks()

    # ---- which positions are real

    def real(self, captured: Capture) -> tuple[Bool[Tensor, "b q"], Bool[Tensor, "b k"]]:
        """Which queries and which keys are real, not padding."""
        batch, _, queries, keys = captured.shape
        decoder = self.role(captured.stack) == "decoder"
        own = "decoder_attention_mask" if decoder else "attention_mask"
        # A decoder alone may be given what an encoder made, and which of it is real.
        source = "attention_mask" if self.two else "encoder_attention_mask"
        other = source if captured.kind == "cross" else own
        return (
            self._mask(captured, own, batch, queries),
            self._mask(captured, other, batch, keys),
        )

    def _mask(self, captured: Capture, name: str, batch: int, length: int) -> Tensor:
        full = torch.ones(batch, length, dtype=torch.bool, device=captured.device)
        mask = _rows(self.inputs, name)
        if mask is None or is_vision(captured.stack):
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
        for name in ("attention_mask", "decoder_attention_mask", "encoder_attention_mask"):
            mask = _rows(self.host, name)
            if mask is None:
                continue
            real = mask.cpu().bool()
            if not bool(real.any(dim=1).all()):
                row = int((~real.any(dim=1)).nonzero()[0])
                raise InputError(f"row {row} of {name} is all zero: it has no real position at all")
            padded = padded or not bool(real.all())
        return padded

    def role(self, stack: str) -> str:
        """Say "decoder" for the decoder of an encoder–decoder model, otherwise nothing."""
        return "decoder" if self.two and "decoder" in stack.split(".") else ""

    # ---- what they are called

    def keys(self, stack: str, kind: str, real: np.ndarray, b: int) -> Tokens:
        """Those that an attention of a stack reads."""
        if kind == "cross" and not self.two:  # what an encoder made, of which nothing is known
            return named([f"position {i}" for i in np.flatnonzero(real)])
        return self.tokens(self.role(stack) if kind == "self" else "", stack, real, b)

    def tokens(self, role: str, stack: str, real: np.ndarray, b: int) -> Tokens:
        """Those of the real positions of a row, in a stack that reads as ``role``."""
        known = None if self.known is None else self.known[b]
        given = None if known is None or is_vision(stack) else known.get(role)
        if given is not None and len(given) == len(real):
            given = take(given, np.flatnonzero(real).tolist())
        if given is not None:
            if len(given) != int(real.sum()):
                raise InputError(
                    f"tokens names {len(given)} positions of row {b}, but it has "
                    f"{int(real.sum())} real ones ({len(real)} with padding)"
                )
            return given
        ids = _rows(self.host, "decoder_input_ids" if role else "input_ids")
        if ids is not None and ids.shape[-1] == len(real) and not is_vision(stack):
            kept = ids[b].cpu().numpy()[real].tolist()
            return replace(named([str(i) for i in kept]), ids=tuple(kept))
        return named([f"position {i}" for i in np.flatnonzero(real)])


def _rows(inputs: Mapping[str, Any], name: str) -> Tensor | None:
    """Ids or a mask, (row, position); several texts a row, as for multiple choice, are rows too."""
    found, ids = inputs.get(name), inputs.get("input_ids")
    if not isinstance(found, Tensor):
        return None
    if found.dim() == 3 and isinstance(ids, Tensor) and found.shape == ids.shape:
        return found.flatten(0, 1)
    return found if found.dim() == 2 else None


def named(strings: Sequence[str]) -> Tokens:
    """Tokens that are only names, each a word of its own."""
    names = tuple(str(name) for name in strings)
    each = tuple(range(len(names)))
    return Tokens(names, None, (False,) * len(names), names, word_of=each, words=names)


def with_residual(tokens: Tokens) -> Tokens:
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


def category_of(tokens: Tokens, categories: Mapping[str, Sequence[str]]) -> list[int]:
    """For each token the first category that names it, or the number after the last."""
    names = {name: index for index, many in reversed(list(enumerate(categories.values())))
             for name in many}  # fmt: skip
    return [names.get(token, len(categories)) for token in tokens.strings]


def is_vision(stack: str) -> bool:
    """Whether a stack reads an image, whatever its inputs are called."""
    return any(word in stack for word in ("vision", "visual", "image"))


def part_names(parts: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
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
