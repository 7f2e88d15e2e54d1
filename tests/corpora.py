"""A tiny model in a folder and small corpora for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tiny import TEXT, tokenizer

from normscope.architectures import tiny_model
from normscope.statistics import Settings

WORDS = [word for word in TEXT.split() if not word.startswith("##")][:50]
STATISTICS = ("dispersion", "categories", "mixing", "preserve_mix")
SETTINGS = Settings(masking=0.0, replicates=20)  # the tiny tokenizer has no mask token


def save_model(folder: Path, *, seed: int = 0) -> Path:
    """A random BERT and its tokenizer, as a user has them."""
    tiny_model("bert", seed=seed, dtype=torch.float32).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences(count: int, *, seed: int = 0, longest: int = 14) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(count)]


def text_file(path: Path, count: int, *, seed: int = 0) -> Path:
    path.write_text("".join(f"{one}\n" for one in sentences(count, seed=seed)))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, the lock aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".normscope.lock"
    }


def lasting(folder: Path) -> dict[str, bytes]:
    """The files that must not differ between equal runs: all but the times."""
    return {name: data for name, data in contents(folder).items() if name != "run.json"}


def columns(result: Any) -> dict[str, dict[str, list[Any]]]:
    return {name: table.lists() for name, table in result.tables.items()}
