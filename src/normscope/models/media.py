"""Read images and recordings that a caller gives: files, arrays, objects of Pillow."""

from __future__ import annotations

import os
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import InputError, MissingExtraError
from normscope.foundation.texts import shortened


def rgb_of(image: Any) -> Any:
    """Return an image in a form that processors read: of Pillow, or an array of bytes.

    Args:
        image: a path; an image of Pillow; an array or tensor (row, column), (row, column, channel)
            or (channel, row, column), of bytes or of numbers from 0 to 1.

    Raises:
        InputError: it is something else, or the file is no image.
        MissingExtraError: a path was given and Pillow is not installed.
    """
    if isinstance(image, str | os.PathLike):
        return _opened(Path(image))
    if callable(getattr(image, "convert", None)):  # an image of Pillow
        return image if image.mode == "RGB" else image.convert("RGB")
    if not isinstance(image, Tensor | np.ndarray):
        raise InputError(
            f"an image is a path, an image of Pillow, an array or a tensor, not "
            f"{type(image).__name__}"
        )
    return _bytes_of(image)


def _opened(path: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("pillow", "images") from error
    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except UnidentifiedImageError:
        why = "it is not an image of a format that Pillow reads"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise InputError(f"could not read the image {shortened(str(path), 300)}: {why:.300}")


def _bytes_of(image: Any) -> NDArray[np.uint8]:
    values = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    shape = values.shape
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim == 3 and values.shape[-1] not in (1, 3, 4) and values.shape[0] in (1, 3, 4):
        values = np.moveaxis(values, 0, -1)
    if values.ndim != 3 or values.shape[-1] not in (1, 3, 4) or 0 in values.shape:
        raise InputError(
            f"an image as an array has the shape (row, column), (row, column, 3) or (3, row, "
            f"column), not {tuple(shape)}; a list is several images"
        )
    values = values[..., :3]
    if values.dtype != np.uint8:
        numbers = values.astype(np.float64)
        if not (numbers >= 0).all() or not (numbers <= 255).all():
            raise InputError(
                "an image as an array has bytes, or numbers from 0 to 1: this one has "
                f"numbers from {numbers.min():.3g} to {numbers.max():.3g}. What a "
                "processor has normalised already is input of analyze_inputs or attribute_inputs"
            )
        whole = np.issubdtype(values.dtype, np.integer) or numbers.max() > 1
        values = np.round(numbers if whole else 255 * numbers).astype(np.uint8)
    return np.repeat(values, 3, axis=-1) if values.shape[-1] == 1 else values


def recording_of(audio: Any, sampling_rate: int | None, wanted: int) -> NDArray[np.float32]:
    """Return the samples of a recording, from −1 to 1, with one channel.

    Args:
        audio: the path of a WAV file, or samples as an array, a tensor or a list.
        sampling_rate: the samples in a second; None if a file says it, or if it is ``wanted``.
        wanted: the sampling rate that the model was trained with.

    Raises:
        InputError: it is something else, or its sampling rate is another.
    """
    if isinstance(audio, str | os.PathLike):
        samples, rate = _wave(Path(audio))
    else:
        samples, rate = _samples(audio), wanted if sampling_rate is None else sampling_rate
    if rate != wanted:
        raise InputError(
            f"the recording has {rate} samples in a second, and the model hears {wanted}: resample "
            "it first (ffmpeg -i in.wav -ar "
            f"{wanted} out.wav)"
        )
    return samples


def _samples(audio: Any) -> NDArray[np.float32]:
    values = audio.detach().cpu().numpy() if isinstance(audio, Tensor) else np.asarray(audio)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iuf":
        raise InputError(
            f"a recording is the path of a WAV file or its samples as numbers with one axis, not "
            f"{type(audio).__name__} of shape {tuple(values.shape)}"
        )
    if values.dtype.kind in "iu":
        return (values / float(np.iinfo(values.dtype).max)).astype(np.float32)
    return np.asarray(values, dtype=np.float32)


def _wave(path: Path) -> tuple[NDArray[np.float32], int]:
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        why = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise InputError(
            f"could not read the recording {shortened(str(path), 300)}: {why:.200}; give a WAV "
            "file of whole numbers (PCM), or samples"
        ) from None
    data = data[: len(data) // (width * channels) * width * channels]
    if not data:
        raise InputError(f"the recording {shortened(str(path), 300)} has no samples")
    if width == 1:
        values = np.frombuffer(data, dtype=np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        thirds = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3).astype(np.int32)
        numbers = (thirds[:, 0] << 8) | (thirds[:, 1] << 16) | (thirds[:, 2] << 24)
        values = (numbers / 2.0**31).astype(np.float32)
    else:
        whole = np.frombuffer(data, dtype=f"<i{width}")
        values = (whole / 2.0 ** (8 * width - 1)).astype(np.float32)
    return values.reshape(-1, channels).mean(axis=1), rate
