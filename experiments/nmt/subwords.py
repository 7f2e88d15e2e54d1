"""Byte-pair encoding, as a plain tokenizer file that transformers loads without more packages."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from experiments.nmt.text import AFTER_LOWER, QUOTES

PAD, EOS, UNK = 0, 1, 2
SPECIAL = ["<pad>", "</s>", "<unk>"]
MARK = "▁"  # begins every piece that begins a word


def train_bpe(lines: Iterable[str], size: int, *, alphabet: int = 160) -> Tokenizer:
    """A tokenizer of ``size`` pieces, which normalises by itself what it is given."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    by_class: dict[str, str] = {}
    for one, other in QUOTES.items():
        by_class[other] = by_class.get(other, "") + one
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            *(normalizers.Replace(Regex(f"[{ones}]"), to) for to, ones in by_class.items()),
            normalizers.Lowercase(),
            *(normalizers.Replace(one, other) for one, other in AFTER_LOWER.items()),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme="always", split=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", EOS)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        limit_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer
