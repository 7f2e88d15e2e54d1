"""From what a processor reads at once, an item, to the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.engine.footprints import images_in
from normscope.engine.given import checked_inputs, row_tokens
from normscope.engine.naming import SeenPositions
from normscope.errors import InputError
from normscope.models.processors import (
    FEATURES,
    MediaItem,
    check_placeholders,
    is_tokenizer,
    items_of,
    processed,
)
from normscope.models.running import accepted_by
from normscope.models.sides import tokenizer_in, tokenizers_of
from normscope.text.limits import max_length_of
from normscope.text.targets import shift_right
from normscope.text.tokens import Encoded, Tokens, encode

PREFERRED = 'give the model that does, such as AutoModel.from_pretrained("…")'


@dataclass(frozen=True)
class PreparedItem:
    """The inputs of a model for one item.

    Attributes:
        inputs: the keyword arguments of its forward pass, as one row on the CPU.
        tokens: what its ids are, by role: "" or "decoder".
        target: what a decoder is to write, if it was given.
    """

    inputs: dict[str, Any]
    tokens: Mapping[str, Tokens | None]
    target: Encoded | None = None

    def moved(self, model: Any) -> dict[str, Any]:
        """Return the inputs on the device of a model."""
        device: Any = model.device
        given = self.inputs.items()
        return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in given}

    def seen(self, model: Any, processor: Any) -> SeenPositions:
        """Return what positions read of the item's images and recordings."""
        return SeenPositions(model, self.inputs, processor)


def prepared(
    model: Any,
    processor: Any,
    item: MediaItem,
    *,
    sampling_rate: int | None = None,
    target: str | None = None,
) -> PreparedItem:
    """Return what a model reads of an item.

    Args:
        model: a transformers model.
        processor: its processor.
        item: a text, images, a recording.
        sampling_rate: of a recording that is given as samples.
        target: what the decoder of an encoder–decoder model writes.

    Raises:
        InputError: processor, model and item do not go together.
    """
    made = processed(processor, item, sampling_rate)
    accepted = accepted_by(model)
    inputs = {name: value for name, value in made.items() if name in accepted}
    _check_read(model, item, inputs)
    check_placeholders(model, inputs, item)
    encoded = None
    if target is not None:
        if "decoder_input_ids" not in accepted:
            raise InputError(f"{type(model).__name__} has no decoder that reads a target")
        encoded = _target(model, processor, target)
        read = shift_right(model, tokenizers_of(model, processor).target, encoded)
        inputs["decoder_input_ids"] = torch.tensor([read.ids])
    inputs = checked_inputs(model, inputs, "the processor")
    known: dict[str, Tokens | None] = {}
    if is_tokenizer(tokenizer_in(processor)):
        known = (row_tokens(model, processor, inputs) or [{}])[0]
    return PreparedItem(inputs, known, encoded)


def _target(model: Any, processor: Any, target: str) -> Encoded:
    both = tokenizers_of(model, processor)
    limit = max_length_of(model.config, both.target, as_target=True)
    target = both.normalized(target, as_target=True)
    return encode(both.target, target, max_length=limit, truncate=False, as_target=True)


def _check_read(model: Any, item: MediaItem, inputs: Mapping[str, Any]) -> None:
    """Raise InputError if a model does not read a part of an item, or needs another."""
    kind = type(model).__name__
    reads = {
        "images": bool(item.images) and images_in(inputs) is None,
        "a recording": item.audio is not None
        and not any(isinstance(inputs.get(name), Tensor) for name in FEATURES),
        "text": item.text is not None and "input_ids" not in inputs,
    }
    for what, lacking in reads.items():
        if lacking:
            raise InputError(f"{kind} does not read {what}: {PREFERRED}, or leave it out")
    towers = hasattr(model.config, "text_config") and hasattr(model.config, "vision_config")
    if towers and item.text is None and "input_ids" in accepted_by(model):
        raise InputError(f"{kind} reads images with a text: give text= too")


@dataclass(frozen=True)
class MediaGiven:
    """What a caller gives beside text: images, recordings, and their sampling rate."""

    images: Any = None
    audio: Any = None
    sampling_rate: int | None = None

    def __bool__(self) -> bool:
        return self.images is not None or self.audio is not None

    def items(self, text: Any, target: Any, **of_text: Any) -> GivenItems:
        """Return what is read, item by item; raise InputError for what does not go together.

        Args:
            text: a text, the messages of a chat, a list of them, or None.
            target: what a decoder is to write: one text, or one for each item.
            **of_text: arguments that apply to text alone.
        """
        for name, value in of_text.items():
            if value:
                raise InputError(f"{name} applies to a text without images and recordings")
        items, single = items_of(text, self.images, self.audio)
        targets = list(target) if isinstance(target, list | tuple) else [target] * len(items)
        if len(targets) != len(items) or (single and isinstance(target, list | tuple)):
            raise InputError(
                f"target must match what is read: give one text for each of {len(items)}"
            )
        return GivenItems(items, targets, single, self.sampling_rate)


@dataclass(frozen=True)
class GivenItems:
    """Items with the target of each, and whether it is a single one."""

    items: Sequence[MediaItem]
    targets: Sequence[str | None]
    single: bool
    sampling_rate: int | None

    def prepared(self, model: Any, processor: Any, at: int) -> PreparedItem:
        """Return what a model reads of one item."""
        item, target = self.items[at], self.targets[at]
        rate = self.sampling_rate
        return prepared(model, processor, item, sampling_rate=rate, target=target)
