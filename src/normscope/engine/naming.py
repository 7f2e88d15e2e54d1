"""Names for positions that are no ids: patches of images with their places, frames with times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.engine.footprints import Footprint, footprints_of, images_in
from normscope.models.processors import FEATURES, Scales, scales_of
from normscope.text.pictures import PatchPlace, Picture, small_copy, wide_copy
from normscope.text.tokens import Tokens


def named(strings: Any, ids: tuple[int, ...] | None = None) -> Tokens:
    """Return tokens with these names, each a word of its own."""
    names = tuple(map(str, strings))
    each = tuple(range(len(names)))
    return Tokens(names, ids, (False,) * len(names), names, word_of=each, words=names)


class SeenPositions:
    """What the positions of one batch read of its images and recordings.

    Args:
        model: a transformers model.
        inputs: the keyword arguments of its forward pass.
        processor: what made the inputs, if known: its scales give colours and times.
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], processor: Any = None) -> None:
        self.model, self.inputs = model, inputs
        self.scales: Scales = scales_of(processor)
        self.footprints = footprints_of(model, inputs)
        self._copies: dict[tuple[int, Any], bytes] = {}

    def tokens(self, stack: str, start: int, length: int, known: Tokens | None) -> Tokens | None:
        """Return the names of positions of a stack, in the order of its rows.

        Args:
            stack: the path of the stack.
            start: the number of the first position, all positions of earlier rows included.
            length: how many positions.
            known: their names as ids, if they are ids.

        Returns:
            ``known`` if these positions read no images or recordings.
        """
        footprint = self.footprints.get(stack)
        if footprint is None or start + length > len(footprint.places):
            if known is not None:
                return known
            return self._frames(stack, length) or self._objects(stack, length)
        return self._patches(footprint, start, length, known)

    def read_across(self, length: int, row: int) -> Tokens | None:
        """Return the positions of another stack that a cross-attention reads, if they are seen."""
        for stack, footprint in self.footprints.items():
            if len(footprint.places) == length * footprint.rows:
                return self.tokens(stack, row * length, length, None)
        return self._frames("", length)

    # ---- images

    def _patches(
        self, footprint: Footprint, start: int, length: int, known: Tokens | None
    ) -> Tokens:
        size = len(footprint.places) // footprint.rows
        places = footprint.places[start : start + length]
        numbers = list(dict.fromkeys(place[0] for place in places if place is not None))
        local: list[PatchPlace | None] = [
            place and (numbers.index(place[0]), *place[1:]) for place in places
        ]
        strings, special = [], []
        for at, place in enumerate(local):
            if place is not None:
                image = f"image {place[0]} " if len(numbers) > 1 else ""
                strings.append(f"{image}patch {place[1]},{place[2]}")
                special.append(False)
            elif known is not None:
                strings.append(known.strings[at])
                special.append(known.special[at])
            else:
                place_in_row = (start + at) % size
                strings.append(footprint.names.get(place_in_row, f"[EXTRA {place_in_row}]"))
                special.append(True)
        tokens = named(strings, None if known is None else known.ids)
        if known is not None:
            tokens = _with_texts(tokens, known, [place is not None for place in local])
        pictures = tuple(
            self._picture(footprint, image, number) for number, image in enumerate(numbers)
        )
        return replace(tokens, special=tuple(special), places=tuple(local), pictures=pictures)

    def _picture(self, footprint: Footprint, image: int, number: int) -> Picture:
        grid = footprint.grids[image]
        key = (image, grid.covers)
        if key not in self._copies:
            name = images_in(self.inputs)
            assert name is not None
            top, left, bottom, right = grid.covers
            pixels = footprint.layout.image(self.inputs[name], image)[top:bottom, left:right]
            beyond = bottom - top - pixels.shape[0], right - left - pixels.shape[1]
            pixels = np.pad(pixels, ((0, beyond[0]), (0, beyond[1]), (0, 0)), mode="edge")
            self._copies[key] = small_copy(self.scales.colours(pixels))
        return Picture(f"image {number}", grid.rows, grid.columns, self._copies[key])

    def _objects(self, stack: str, length: int) -> Tokens | None:
        """Return the learnt queries of a decoder, each of which asks for one object of an image."""
        learnt = getattr(self.model.config, "num_queries", None) == length
        if not learnt or images_in(self.inputs) is None or "decoder" not in stack.split("."):
            return None
        return named(f"object {at}" for at in range(length))

    # ---- recordings

    def _frames(self, stack: str, length: int) -> Tokens | None:
        """Return frames with their times, if the model hears; None for other positions."""
        name = next((name for name in FEATURES if isinstance(self.inputs.get(name), Tensor)), None)
        two = bool(getattr(self.model.config, "is_encoder_decoder", False))
        if name is None or (two and "decoder" in stack.split(".")):
            return None
        sound = self.inputs[name][0].detach().double().cpu().numpy()
        sound = sound if sound.ndim == 1 else self._by_step(sound)
        stride = _stride(self.model, len(sound), length)
        seconds = self.scales.seconds_of_step(name)
        names = [f"frame {at}" for at in range(length)]
        if seconds is not None:
            digits = max(2, -math.floor(math.log10(stride * seconds)))
            names = [f"{at * stride * seconds:.{digits}f} s" for at in range(length)]
        whole = None if seconds is None else length * stride * seconds
        copy = wide_copy(_drawn(sound)[:, : length * stride])
        picture = Picture("recording", 1, length, copy, whole, recording=True)
        places = tuple((0, 0, at) for at in range(length))
        return replace(named(names), places=places, pictures=(picture,))

    def _by_step(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features of a recording as (step, feature)."""
        bins = self.scales.bins or getattr(self.model.config, "num_mel_bins", None)
        first, second = features.shape
        return features.T if first == bins or (second != bins and first < second) else features


def _drawn(sound: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a recording as a picture (row, step) from 0 to 1: its features, or its loudness."""
    if sound.ndim == 2:
        low, high = float(sound.min()), float(sound.max())
        return (high - sound.T[::-1]) / (high - low if high > low else 1.0)  # loud is dark
    loud = np.abs(sound) / max(float(np.abs(sound).max()), 1e-12)
    lines = np.abs(np.linspace(1, -1, 65))[:, None]
    return np.where(lines <= loud, 0.25, 1.0)


def _stride(model: Any, steps: int, length: int) -> int:
    """Return how many steps of the input there are from one frame to the next."""
    strides = getattr(model.config, "conv_stride", None)
    if not isinstance(strides, list | tuple) or not strides:
        return max(1, round(steps / length))
    whole = math.prod(strides)
    squeezed = whole * int(getattr(model.config, "squeeze_factor", 1) or 1)
    return min((whole, squeezed), key=lambda stride: abs(steps / stride - length))


def _with_texts(tokens: Tokens, known: Tokens, patch: Sequence[bool]) -> Tokens:
    """Return tokens with the texts and words of those that are ids."""
    texts = [t if own else k for t, k, own in zip(tokens.texts, known.texts, patch, strict=True)]
    if known.word_of is None or known.words is None:
        return replace(tokens, texts=tuple(texts))
    words: list[str] = []
    word_of: list[int] = []
    for at, (own, word) in enumerate(zip(patch, known.word_of, strict=True)):
        same = at > 0 and not own and not patch[at - 1] and word == known.word_of[at - 1]
        if not same:
            words.append(tokens.strings[at] if own else known.words[word])
        word_of.append(len(words) - 1)
    return replace(tokens, texts=tuple(texts), word_of=tuple(word_of), words=tuple(words))
