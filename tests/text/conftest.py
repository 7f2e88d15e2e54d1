"""The tokenizers that the tests of text share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, EsmTokenizer, NllbTokenizer, PreTrainedTokenizerFast

from normscope.models.default import default_model_path
from tests.helpers.logs import messages  # noqa: F401 (a fixture)
from tests.helpers.tokenizers import LETTERS, SPECIALS, reloaded


@pytest.fixture(scope="module")
def minilm() -> Any:
    return AutoTokenizer.from_pretrained(default_model_path())


@pytest.fixture
def bert_like(tmp_path: Path) -> Any:
    pieces = [*SPECIALS, "the", "cat", "##s", "sat", "mat", "un", "##like", "##ly", ".", "!"]
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    return reloaded(tokenizer, tmp_path / "bert")


def byte_level(folder: Path, *, trim_offsets: bool) -> Any:
    """GPT-2's scheme with few merges; RoBERTa's offsets leave the space out, GPT-2's keep it."""
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "c"), ("a", "t"), ("Ġc", "at")]
    pieces += ["".join(pair) for pair in merges]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )
    return reloaded(tokenizer, folder)


@pytest.fixture(params=[True, False], ids=["trimmed", "untrimmed"])
def gpt2_like(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return byte_level(tmp_path / "gpt2", trim_offsets=request.param)


@pytest.fixture(params=["normalizer", "pre_tokenizer"])
def llama_like(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Byte fallback and no splitting, so that the whole text has one word id. Both spellings."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("▁", "c"), ("▁c", "at")]
    pieces += ["".join(pair) for pair in merges]
    backend = Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True
        )
    )
    if request.param == "normalizer":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return reloaded(tokenizer, tmp_path / "llama")


@pytest.fixture
def t5_like(tmp_path: Path) -> Any:
    scores = {"<pad>": 0, "</s>": 0, "<unk>": 0, "▁": -2, "▁the": -3, "▁cat": -3, "s": -4, "x": -5}
    backend = Tokenizer(models.Unigram([*scores.items()], unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    return reloaded(tokenizer, tmp_path / "t5")


@pytest.fixture
def nllb() -> Any:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS]
    return NllbTokenizer(
        vocab={p: i for i, p in enumerate(pieces)},
        merges=[],
        src_lang="eng_Latn",
        tgt_lang="fra_Latn",
    )


@pytest.fixture
def slow_esm(tmp_path: Path) -> Any:
    """A tokenizer written in Python: no offsets, no word ids."""
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERT", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    return EsmTokenizer(str(tmp_path / "vocab.txt"))
