"""Tiny models that several files of tests align with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normscope.models.architectures import randomize_, tiny_model
from tests.helpers import alignment_tokenizers as tokenizers


@pytest.fixture(scope="session")
def marian() -> Any:
    return tiny_model("marian")


@pytest.fixture(scope="session")
def reverse_marian() -> Any:
    return tiny_model("marian", seed=1)


@pytest.fixture(scope="session")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny NLLB: the architecture of M2M100, 200 languages."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    folder = tmp_path_factory.mktemp("nllb")
    pieces = [*tokenizers.SPECIAL, "▁", *"thecasdog", "▁t", "▁th", "▁the"]
    merges: Any = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    NllbTokenizer(
        vocab={piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, merges=merges
    ).save_pretrained(folder)
    config = M2M100Config(
        vocab_size=260, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=64,
    )  # fmt: skip
    model = M2M100ForConditionalGeneration(config).double()
    randomize_(model)
    model.save_pretrained(folder)
    return folder
