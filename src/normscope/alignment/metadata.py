"""The file ``normscope.json`` in a model's folder: what the aligner must know about the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.alignment.extract import Choice
from normscope.errors import InputError
from normscope.models.sides import METADATA_FILE, read_json
from normscope.text.normalization import Normalization


@dataclass(frozen=True)
class ModelMetadata:
    """The contents of ``normscope.json``; the defaults stand for a model without the file."""

    normalization: Normalization = field(default_factory=Normalization)
    target_tokenizer: str | None = None  # subfolder with the target's tokenizer
    languages: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    """The best soft alignments of this model on a large text, the best first."""


def read_metadata(folder: str | Path) -> ModelMetadata:
    """Read ``normscope.json`` from a folder; return the defaults if there is none."""
    data = read_json(folder)
    try:
        return ModelMetadata(
            Normalization.from_dict(data),
            data.get("target_tokenizer"),
            tuple(str(language) for language in data.get("languages", ())),
            tuple(_choice(entry) for entry in data.get("choices", ())),
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot use {Path(folder) / METADATA_FILE}: {error}") from None


def _choice(entry: Any) -> Choice:
    head = entry["head"]
    return Choice(int(entry["layer"]), None if head is None else int(head), str(entry["reading"]))
