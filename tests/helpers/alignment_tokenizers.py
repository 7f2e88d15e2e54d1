"""Tokenizers of many kinds, small and made here."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

TEXT = "the cats sat on a mat , and the dogs ran over the gardens . été größer 12 %"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def trained(pre_tokenizer: Any, decoder: Any, size: int, alphabet: list[str]) -> Any:
    """Byte-pair encoding of the text above, </s> at the end."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False, initial_alphabet=alphabet
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return fast(backend)


def fast(backend: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def metaspace() -> Any:
    """Like T5's: a mark for the beginning of a word, often a piece of its own."""
    mark = pre_tokenizers.Metaspace(prepend_scheme="always")
    return trained(mark, decoders.Metaspace(), 60, [])


def bytelevel() -> Any:
    """Like BART's: bytes, a space before a word as part of it."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(pre_tokenizer, decoders.ByteLevel(), 300, alphabet)


def dropping() -> Any:
    """Words by whole; what is only control characters vanishes."""
    words = dict.fromkeys([*SPECIAL, *TEXT.split()])
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return fast(backend)


class Slow(PreTrainedTokenizer):
    """Like Marian's and M2M100's: no offsets, two modes, a language code before the text."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, codes: bool = False, **more: Any) -> None:
        letters = sorted(set(TEXT) - {" "})
        pieces = [*SPECIAL, *letters, *(f"▁{letter}" for letter in letters)]
        self.table = {piece: at for at, piece in enumerate(pieces)}
        if codes:
            self.lang_code_to_id = {"de": len(pieces), "en": len(pieces) + 1}
            self.src_lang, self.tgt_lang = "de", None
        self.prefix: list[int] = []
        super().__init__(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                         **more)  # fmt: skip

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.table)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        words = text.replace("\u200b", "").split()
        return [piece for word in words for piece in (f"▁{word[0]}", *word[1:])]

    def _convert_token_to_id(self, token: str) -> int:
        return self.table.get(token, 3)

    def _convert_id_to_token(self, index: int) -> str:
        return {at: piece for piece, at in self.table.items()}.get(index, "<unk>")

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace("▁", " ").strip()

    def _switch_to_target_mode(self) -> None:
        self.prefix = [self.lang_code_to_id[self.tgt_lang]] if self.tgt_lang else []

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [*self.prefix, *token_ids_0, 2]
