"""A small model saved to a folder, or into a cache of the hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as algorithms
from torch import Tensor
from transformers import BertConfig, PreTrainedTokenizerFast

Weights = dict[str, Tensor]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL: dict[str, Any] = {"vocab_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_BERT = BertConfig(**SMALL, hidden_size=8, intermediate_size=8, max_position_embeddings=16)


def save_tokenizer(folder: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"]
    backend = Tokenizer(
        algorithms.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


def save(model: Any, folder: Path) -> Path:
    """Write a model with all parameters drawn anew, so that no two of them agree by default."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # Marian's position table is a formula, and is not saved
                parameter.normal_()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def rewrite(folder: Path, change: Callable[[Weights], Mapping[str, Tensor]]) -> None:
    """Save what a function makes of a folder's weights."""
    file = folder / "model.safetensors"
    changed = {name: tensor.clone() for name, tensor in change(load_file(file)).items()}
    save_file(changed, file, metadata={"format": "pt"})


def without(*parts: str) -> Callable[[Weights], Weights]:
    """A change of weights that leaves out those with one of these parts in their name."""
    return lambda weights: {
        name: tensor for name, tensor in weights.items() if not any(part in name for part in parts)
    }


def edit(file: Path, **changes: Any) -> None:
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value != "GONE"}))


def put_in_cache(cache: Path, name: str, commit: str, files: Path) -> Path:
    """The files of a folder, laid out as the hub's client leaves them."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in files.iterdir():
        if file.is_file():
            (snapshot / file.name).symlink_to(file)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return snapshot
