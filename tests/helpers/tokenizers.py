"""Small tokenizers of every kind, built without files from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PythonBackend

from normscope.text.tokens import Encoded, encode

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read(tokenizer: Any, text: str, pair: str | None = None, **options: Any) -> Encoded:
    """`encode` without a limit, unless one is given."""
    return encode(tokenizer, text, pair, **{"max_length": None, "truncate": False, **options})


def reloaded(tokenizer: Any, folder: Path) -> Any:
    """The tokenizer as a user gets it: written to a folder and read back."""
    tokenizer.save_pretrained(folder)
    return type(tokenizer).from_pretrained(folder)


class SlowWordPiece(PythonBackend):
    """A WordPiece tokenizer in Python, with BERT's frame."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012 (as transformers declares it)

    def __init__(self, **options: Any) -> None:
        pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
        self.vocab = {piece: index for index, piece in enumerate(pieces)}
        super().__init__(
            unk_token="[UNK]",
            sep_token="[SEP]",
            pad_token="[PAD]",
            cls_token="[CLS]",
            special_tokens_pattern="cls_sep",
            token_type_ids_pattern="bert_style",
            token_type_ids_include_special_tokens=True,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **options,
        )

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocab)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [c if i == 0 else f"##{c}" for word in text.split() for i, c in enumerate(word)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocab.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self.vocab)[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" ##", "")


class TwoVocabularies(PythonBackend):
    """What FSMT's tokenizer does: ids by the source's vocabulary, pieces by the target's."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        frame = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        self.encoder = {**frame, "cat": 4, "dog": 5}
        self.decoder = {i: p for p, i in {**frame, "chien": 4, "chat": 5, "l'": 6}.items()}
        self.src_lang, self.tgt_lang = "en", "fr"
        self.tgt_vocab_file = "vocab-tgt.json"
        super().__init__(
            bos_token="<s>",
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
            special_tokens_pattern="eos",
            **options,
        )

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.encoder)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return (text.replace("'", "' ") if self.src_lang == "fr" else text).split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.encoder.get(token, 3)

    def _convert_id_to_token(self, index: int) -> str:
        return self.decoder.get(index, "<unk>")


class SeparateMarian(TwoVocabularies):
    """What Marian does with separate_vocabs: a mode for the ids, none for the pieces."""

    def __init__(self, **options: Any) -> None:
        self.separate_vocabs = True
        super().__init__(**options)
        del self.tgt_vocab_file

    def _convert_token_to_id(self, token: str) -> int:
        current: dict[str, int] = vars(self).get("current", self.encoder)
        return current.get(token, 3)

    def _switch_to_input_mode(self) -> None:
        self.current = self.encoder

    def _switch_to_target_mode(self) -> None:
        self.current = {piece: index for index, piece in self.decoder.items()}
