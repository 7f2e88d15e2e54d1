"""Processors of transformers, which make a model's inputs of images, recordings and text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import InputError
from normscope.models.failures import first_line
from normscope.models.media import recording_of, rgb_of
from normscope.models.sides import tokenizer_in

FEATURES = ("input_features", "input_values")  # what a model hears


def is_tokenizer(reader: Any) -> bool:
    """Return whether something is a tokenizer of transformers."""
    from transformers import PreTrainedTokenizerBase

    return isinstance(reader, PreTrainedTokenizerBase)


def is_processor(reader: Any) -> bool:
    """Return whether something reads images or recordings and no text, or is nothing."""
    known = image_processor_in(reader) or feature_extractor_in(reader)
    return reader is None or (known is reader and not is_tokenizer(reader))


def image_processor_in(processor: Any) -> Any:
    """Return the part of a processor that reads images, or None."""
    part = getattr(processor, "image_processor", processor)
    return part if hasattr(part, "preprocess") or hasattr(part, "image_mean") else None


def feature_extractor_in(processor: Any) -> Any:
    """Return the part of a processor that reads recordings, or None."""
    part = getattr(processor, "feature_extractor", processor)
    return part if hasattr(part, "sampling_rate") else None


@dataclass(frozen=True)
class Scales:
    """What numbers in a model's inputs stand for: colours, and moments.

    Attributes:
        mean: the mean that was subtracted from each channel, if known.
        deviation: what each channel was divided by.
        sampling_rate: samples of a recording in a second, if known.
        hop: samples from one step of the features of a recording to the next.
        bins: the number of features of a step.
    """

    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    sampling_rate: int | None = None
    hop: int | None = None
    bins: int | None = None

    def colours(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return pixels (row, column, channel) as colours from 0 to 1, with one channel or three.

        Without a known mean and deviation, they are from the darkest to the brightest.
        """
        channels = pixels.shape[-1]
        if self.mean is not None and self.deviation is not None and len(self.mean) == channels:
            pixels = pixels * np.array(self.deviation) + np.array(self.mean)
        else:
            low, high = float(pixels.min()), float(pixels.max())
            pixels = (pixels - low) / (high - low) if high > low else np.zeros_like(pixels)
        if channels not in (1, 3):
            pixels = pixels[..., :3] if channels > 3 else pixels.mean(axis=-1, keepdims=True)
        return pixels

    def seconds_of_step(self, name: str) -> float | None:
        """Return the seconds from one step of an input to the next; None if it is not known."""
        hop = 1 if name == "input_values" else self.hop
        return hop / self.sampling_rate if hop and self.sampling_rate else None


def scales_of(processor: Any) -> Scales:
    """Return what a processor's numbers stand for, as far as it says."""
    images, sound = image_processor_in(processor), feature_extractor_in(processor)
    mean, deviation = None, None
    if images is not None and getattr(images, "do_normalize", True):
        mean, deviation = getattr(images, "image_mean", None), getattr(images, "image_std", None)
    bins = getattr(sound, "feature_size", None)
    return Scales(
        None if mean is None else tuple(np.atleast_1d(mean).tolist()),
        None if deviation is None else tuple(np.atleast_1d(deviation).tolist()),
        getattr(sound, "sampling_rate", None),
        getattr(sound, "hop_length", None),
        bins if isinstance(bins, int) and bins > 1 else None,
    )


def processor_name(processor: Any) -> str:
    """Return the class of a processor, with a hash of its settings, for a signature."""
    try:
        digest = hashlib.sha256(processor.to_json_string().encode()).hexdigest()[:12]
    except (AttributeError, TypeError, ValueError):
        return type(processor).__name__
    return f"{type(processor).__name__}:{digest}"


@dataclass(frozen=True)
class MediaItem:
    """What a model reads at once: a text, images that belong to it, a recording.

    Attributes:
        text: a text, the messages of a chat, or None.
        images: images in the order of the text.
        audio: a recording, as a path or samples.
    """

    text: Any = None
    images: tuple[Any, ...] = ()
    audio: Any = None


def items_of(text: Any, images: Any, audio: Any) -> tuple[list[MediaItem], bool]:
    """Return what is read item by item, and whether it is a single item.

    Without a text, a list of images or recordings has an item for each; with one text, all images
    belong to it; with a list of texts, there are as many images, or lists of images.
    """
    several_texts = isinstance(text, Sequence) and not isinstance(text, str) and not _is_chat(text)
    pictures = None if images is None else _listed(images)
    sounds = None if audio is None else _listed(audio)
    if several_texts:
        columns = {"images": pictures, "audio": sounds}
        for name, column in columns.items():
            if column is not None and len(column) != len(text):
                raise InputError(
                    f"there are {len(column)} {name} for {len(text)} texts: give as many, each one "
                    "or a list that belongs to its text"
                )
        return [
            MediaItem(
                each,
                () if pictures is None else tuple(_listed(pictures[at])),
                None if sounds is None else sounds[at],
            )
            for at, each in enumerate(text)
        ], False
    if text is not None:
        if sounds is not None and len(sounds) != 1:
            raise InputError(f"one text was given with {len(sounds)} recordings: give one")
        return [MediaItem(text, tuple(pictures or ()), None if sounds is None else sounds[0])], True
    if pictures is not None and sounds is not None:
        raise InputError("images and a recording were given without a text: give one of them")
    if pictures is not None:
        return [MediaItem(None, (each,)) for each in pictures], not _is_list(images)
    return [MediaItem(None, (), each) for each in sounds or ()], not _is_list(audio)


def _is_chat(text: Sequence[Any]) -> bool:
    return len(text) > 0 and all(isinstance(message, Mapping) for message in text)


def _is_list(value: Any) -> bool:
    """Return whether images or recordings are several; samples as numbers are one recording."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 4
    if not isinstance(value, list | tuple):
        return False
    return not value or not isinstance(value[0], int | float)


def _listed(value: Any) -> list[Any]:
    if not _is_list(value):
        return [value]
    if len(value) == 0:
        raise InputError("the list of images or recordings is empty: give at least one")
    return list(value)


def processed(processor: Any, item: MediaItem, sampling_rate: int | None = None) -> dict[str, Any]:
    """Return the inputs that a processor makes of an item, as tensors of one row.

    Raises:
        InputError: the processor does not read what the item has, or fails.
    """
    arguments: dict[str, Any] = {"return_tensors": "pt"}
    if item.images:
        if image_processor_in(processor) is None:
            raise InputError(_lacks(processor, "images", "image processor"))
        pictures = [rgb_of(image) for image in item.images]
        arguments["images"] = pictures if len(pictures) > 1 else pictures[0]
    if item.text is not None:
        if not is_tokenizer(tokenizer_in(processor)):
            raise InputError(_lacks(processor, "text", "tokenizer"))
        arguments["text"] = rendered(processor, item.text)
    if item.audio is not None:
        extractor = feature_extractor_in(processor)
        if extractor is None:
            raise InputError(_lacks(processor, "audio", "feature extractor"))
        samples = recording_of(item.audio, sampling_rate, int(extractor.sampling_rate))
        name = "raw_speech" if extractor is processor else "audio"
        arguments |= {name: samples, "sampling_rate": int(extractor.sampling_rate)}
    try:
        made = processor(**arguments)
    except Exception as error:
        given = ", ".join(name for name in ("text", "images", "audio") if name in arguments)
        raise InputError(
            f"{type(processor).__name__} fails on this {given or 'input'}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    return {name: value for name, value in made.items() if value is not None}


def rendered(processor: Any, text: Any) -> str:
    """Return a text, or the messages of a chat by the processor's template."""
    if isinstance(text, str):
        return text
    template = getattr(processor, "chat_template", None)
    if not template and not getattr(tokenizer_in(processor), "chat_template", None):
        raise InputError(
            f"the text is a list of messages, and {type(processor).__name__} has no chat template: "
            "give a string with the place of the image in it"
        )
    how = processor if template else tokenizer_in(processor)
    rendered = how.apply_chat_template(list(text), tokenize=False, add_generation_prompt=True)
    return str(rendered)


def _lacks(processor: Any, what: str, part: str) -> str:
    return (
        f"{type(processor).__name__} does not read {what}: give the model's processor "
        f"(AutoProcessor.from_pretrained(...)), which has its {part}"
    )


def check_placeholders(model: Any, inputs: Mapping[str, Any], item: MediaItem) -> None:
    """Raise InputError for a text without the place of an image that a model wants in it."""
    ids, config = inputs.get("input_ids"), model.config
    for kind, given in (("image", bool(item.images)), ("audio", item.audio is not None)):
        names = (f"{kind}_token_id", f"{kind}_token_index")
        known = (getattr(config, name, None) for name in names)
        wanted = next((index for index in known if isinstance(index, int)), None)
        if given and wanted is not None and isinstance(ids, Tensor) and not (ids == wanted).any():
            raise InputError(
                f"the text has no place for the {kind} that {type(model).__name__} reads in it "
                f'(the token with the id {wanted}): put it into the text, as in "<image>\\nWhat is '
                'this?", or give a chat whose content has {"type": "image"}'
            )
