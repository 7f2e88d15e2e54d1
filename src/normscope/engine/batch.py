"""One batch: the model's inputs, which positions are real, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.engine.arranged import Arrangement
from normscope.engine.naming import SeenPositions, named
from normscope.errors import InputError
from normscope.foundation.shapes import Bool
from normscope.models.running import accepted_by
from normscope.results.arrays import RESIDUAL, take
from normscope.text.tokens import Tokens

RowTokens = Mapping[str, Tokens | None]  # by role: "" or "decoder"
_IDS = "attention_mask", "input_ids"  # what a mask and its ids are called
MASKS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")


class Batch:
    """The inputs of one forward pass, with the masks and the tokens of its rows.

    Args:
        model: the model that will run.
        inputs: its keyword arguments, on its device.
        tokens: the tokens of each row by role, if known.
        host: the inputs on the CPU, if available.
        seen: what positions read of images and recordings, if known.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        tokens: Sequence[RowTokens] | None = None,
        *,
        host: Mapping[str, Any] | None = None,
        seen: SeenPositions | None = None,
    ) -> None:
        self.model, self._inputs, self.row_tokens = model, inputs, tokens
        self.seen = seen
        self.host = inputs if host is None else host
        self.memo: dict[Any, Any] = {}  # what measures computed for this batch
        self._arranged: dict[tuple[str, int], Arrangement] = {}  # (stack, positions)
        self._on_cpu: dict[str, Tensor | None] = {}
        config: Any = getattr(model, "config", None)
        self.encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        self.padded = self._check_masks()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The keyword arguments of the model, on its device."""
        return self._inputs

    def row_name(self, row: int) -> str:
        """Return the name of a row in error messages."""
        return f"row {row}"

    def split(self) -> list[Batch]:
        """Return the rows as two batches, for a GPU without room; none if that is not possible."""
        return []

    def forward(self, model: nn.Module) -> Any:
        """Run the model with the inputs of this batch."""
        return self.call(model, self.inputs)

    def call(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Run the model with given inputs, in the way of this batch."""
        # A cache costs memory and is not used here; with one, FSMT even drops its causal mask. But
        # without one, many models take a jump in given position ids for the start of a new text.
        caller_decides = not {"use_cache", "position_ids"}.isdisjoint(inputs)
        uncached = not caller_decides and "use_cache" in accepted_by(model)
        return model(**inputs, **({"use_cache": False} if uncached else {}))

    # ---- which positions are real

    def real(self, captured: Capture) -> tuple[Bool[Tensor, "b q"], Bool[Tensor, "b k"]]:
        """Return which queries and which keys of an attention call are real, not padding."""
        batch, _, queries, keys = captured.shape
        decoder = self.role(captured.stack) == "decoder"
        own = "decoder_attention_mask" if decoder else "attention_mask"
        # A decoder alone may get an encoder's states with a mask of their own.
        source = "attention_mask" if self.encoder_decoder else "encoder_attention_mask"
        other = source if captured.kind == "cross" else own
        return (
            self._mask(captured, own, batch, queries),
            self._mask(captured, other, batch, keys),
        )

    def _mask(self, captured: Capture, name: str, batch: int, length: int) -> Tensor:
        full = torch.ones(batch, length, dtype=torch.bool, device=captured.device)
        if is_vision(captured.stack):
            return full
        mask = _rows(self.inputs, name)
        known = mask if mask is not None else _rows(self.inputs, name.replace(*_IDS))
        if known is not None and len(known) == batch and known.shape != full.shape:
            extra = captured.extra if captured.extra < length else 0
            config, own = getattr(self.model, "config", None), known.shape[1]
            arrangement = Arrangement.of(config, length, own, extra)
            if arrangement is not None:
                self._arranged[captured.stack, length] = arrangement
                real = full[:, :own] if mask is None else mask.to(full.device).bool()
                return arrangement.mask(real)
        if mask is None:
            return full
        if mask.shape != full.shape:
            shrink = getattr(self.model, "_get_feature_vector_attention_mask", None)
            if shrink is None or captured.kind == "cross":
                return full
            mask = shrink(length, mask)
        return mask.to(full.device).bool()

    def _check_masks(self) -> bool:
        """Return whether any position is padding; raise InputError for a row of padding alone."""
        padded = False
        for name in MASKS:
            mask = self._host_rows(name)
            if mask is None:
                continue
            real = mask.bool()
            if not bool(real.any(dim=1).all()):
                row = int((~real.any(dim=1)).nonzero()[0])
                raise InputError(f"row {row} of {name} is all zero: it has no real position")
            padded = padded or not bool(real.all())
        return padded

    def _host_rows(self, name: str) -> Tensor | None:
        """Return ids or a mask on the CPU, (row, position), from a GPU copied once for all rows."""
        if name not in self._on_cpu:
            rows = _rows(self.host, name)
            self._on_cpu[name] = None if rows is None else rows.cpu()
        return self._on_cpu[name]

    def unpadded_masks(self) -> frozenset[tuple[int, ...]] | None:
        """Return the shapes of the masks, all without padding; None if there may be padding."""
        others = [name for name in self.inputs if "mask" in name and name not in MASKS]
        if self.padded or others:
            return None
        masks = [self.inputs.get(name) for name in MASKS]
        return frozenset(tuple(mask.shape) for mask in masks if isinstance(mask, Tensor))

    def role(self, stack: str) -> str:
        """Return "decoder" for the decoder of an encoder–decoder model, otherwise ""."""
        return "decoder" if self.encoder_decoder and "decoder" in stack.split(".") else ""

    # ---- their tokens

    def query_tokens(self, stack: str, real: np.ndarray, row: int) -> Tokens:
        """Return the tokens along the queries of an attention of a stack."""
        return self._tokens(self.role(stack), stack, real, row)

    def key_tokens(self, stack: str, kind: str, real: np.ndarray, row: int) -> Tokens:
        """Return the tokens along the keys of an attention of a stack."""
        if kind == "self":
            return self._tokens(self.role(stack), stack, real, row)
        if self.seen is not None and (read := self.seen.read_across(len(real), row)) is not None:
            return take(read, np.flatnonzero(real).tolist())
        if not self.encoder_decoder:  # the encoder's tokens are unknown
            return named([f"position {i}" for i in np.flatnonzero(real)])
        return self._tokens("", stack, real, row)

    def _tokens(self, role: str, stack: str, real: np.ndarray, row: int) -> Tokens:
        """Return the tokens of the real positions of a row, in a stack with this role."""
        if (arrangement := self._arranged.get((stack, len(real)))) is not None:
            own = len(real) - arrangement.padding - arrangement.extra
            text = self._tokens(role, stack, real[: own // arrangement.streams], row)
            trivial = arrangement.streams == 1 and not arrangement.extra
            return text if trivial else arrangement.tokens(text)
        kept, vision = np.flatnonzero(real).tolist(), is_vision(stack)
        known = None if self.row_tokens is None or vision else self.row_tokens[row]
        tokens = None if known is None else known.get(role)
        ids = None if vision else self._host_rows("decoder_input_ids" if role else "input_ids")
        if tokens is None and ids is not None and ids.shape[-1] == len(real):
            numbers = ids[row].tolist()
            tokens = named(numbers, ids=tuple(numbers))
        if tokens is not None and len(tokens) not in (len(real), len(kept)):
            raise InputError(
                f"tokens names {len(tokens)} positions of row {row}, but it has {len(kept)} real "
                f"ones ({len(real)} with padding)"
            )
        if self.seen is not None and (tokens is None or len(tokens) == len(real)):
            tokens = self.seen.tokens(stack, row * len(real), len(real), tokens)
        if tokens is None:
            return named([f"position {i}" for i in kept])
        return take(tokens, kept) if len(tokens) == len(real) > len(kept) else tokens


def _rows(inputs: Mapping[str, Any], name: str) -> Tensor | None:
    """Return ids or a mask as (row, position); the texts of a multiple choice become rows."""
    tensor, ids = inputs.get(name), inputs.get("input_ids")
    if not isinstance(tensor, Tensor):
        return None
    if tensor.dim() == 3 and isinstance(ids, Tensor) and tensor.shape == ids.shape:
        return tensor.flatten(0, 1)
    return tensor if tensor.dim() == 2 else None


def with_residual(tokens: Tokens) -> Tokens:
    """Return the keys of a cross-attention with the decoder's own state as the last key."""
    word_of, words = tokens.word_of, tokens.words
    return Tokens(
        strings=(*tokens.strings, RESIDUAL),
        ids=None,
        special=(*tokens.special, True),
        texts=(*tokens.texts, RESIDUAL),
        word_of=None if word_of is None or words is None else (*word_of, len(words)),
        words=None if words is None else (*words, RESIDUAL),
        places=None if tokens.places is None else (*tokens.places, None),
        pictures=tokens.pictures,
    )


def is_vision(stack: str) -> bool:
    """Return whether a stack reads images, judging by its path."""
    return any(word in stack for word in ("vision", "visual", "image"))
