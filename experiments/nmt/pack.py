"""One compact file that holds all that training needs: sentence pairs as token ids, tokenizers.

Ids are 16 bits wide and compressed by xz: about 65 bytes a pair of Europarl.
"""

from __future__ import annotations

import io
import json
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Ids = NDArray[np.uint16]

# Two-byte numbers: the position in the pair of bytes is what predicts a byte.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26, "lc": 3, "lp": 1, "pb": 1}]


@dataclass(frozen=True)
class Side:
    """Sentences of one language end to end, without ``</s>``."""

    ids: Ids
    lengths: Ids

    @classmethod
    def of(cls, sentences: list[list[int]]) -> Side:
        lengths = np.array([len(sentence) for sentence in sentences], np.uint16)
        return cls(np.fromiter((i for s in sentences for i in s), np.uint16), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths[:-1], dtype=np.int64)])

    def select(self, index: NDArray[np.int64]) -> Side:
        starts, lengths = self.starts()[index], self.lengths[index].astype(np.int64)
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Side(self.ids[np.repeat(starts, lengths) + offsets], self.lengths[index])


@dataclass(frozen=True)
class Pack:
    """A parallel corpus, ready to train on in either direction."""

    languages: tuple[str, str]
    tokenizers: tuple[Tokenizer, Tokenizer]
    train: tuple[Side, Side]
    valid: tuple[Side, Side]
    valid_text: tuple[list[str], list[str]]

    def turned(self) -> Pack:
        """The other direction."""
        return Pack(
            self.languages[::-1],
            self.tokenizers[::-1],
            self.train[::-1],
            self.valid[::-1],
            self.valid_text[::-1],
        )

    def direction(self, name: str) -> Pack:
        """The corpus with the source first, for ``name`` such as ``de-en``."""
        for pack in (self, self.turned()):
            if "-".join(pack.languages) == name:
                return pack
        one, other = self.languages
        raise ValueError(f"direction {name!r}: this corpus has {one}-{other} and {other}-{one}")


def save(pack: Pack, path: Path) -> None:
    """Write a corpus; the file is there in whole or not at all."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, sides in (("train", pack.train), ("valid", pack.valid)):
        for number, side in enumerate(sides):
            arrays[f"{name}_{number}_ids"] = side.ids
            arrays[f"{name}_{number}_lengths"] = side.lengths
    about = {
        "languages": pack.languages,
        "tokenizers": [tokenizer.to_str() for tokenizer in pack.tokenizers],
        "valid_text": pack.valid_text,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    whole = io.BytesIO()
    np.savez(whole, **arrays)  # type: ignore[arg-type]
    part = path.with_name(path.name + ".part")
    part.write_bytes(lzma.compress(whole.getbuffer(), lzma.FORMAT_XZ, filters=_FILTERS))
    part.replace(path)


def load(path: Path) -> Pack:
    """Read what ``save`` wrote."""
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as arrays:
        about = json.loads(arrays["about"].tobytes())
        sides = {
            name: tuple(
                Side(arrays[f"{name}_{number}_ids"], arrays[f"{name}_{number}_lengths"])
                for number in range(2)
            )
            for name in ("train", "valid")
        }
    one, other = (Tokenizer.from_str(text) for text in about["tokenizers"])
    return Pack(
        (about["languages"][0], about["languages"][1]),
        (one, other),
        (sides["train"][0], sides["train"][1]),
        (sides["valid"][0], sides["valid"][1]),
        (about["valid_text"][0], about["valid_text"][1]),
    )
