"""Encode sentences of given words, keeping track of the word that each piece belongs to.

The aligner's links are indices of the given words, however the tokenizer splits them. Tokenizers
with offsets encode the whole sentence; the others encode it word by word. A word that the tokenizer
drops (control characters, for example) has no piece, and so it never has a link.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from normscope.errors import InputError, MissingExtraError
from normscope.text.normalization import Normalization
from normscope.text.tokens import choose_side, state_kept

Sentences = Sequence[Sequence[str]]  # the words of each sentence
SPLITS = ("space", "punctuation", "moses")
FRAME = -1  # the word index of tokens that frame a sentence: special tokens and the prefix
_SPACE = re.compile(r"[ \t\r\f\v\n]+")
_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # de_DE, deu_Latn


@dataclass(frozen=True, eq=False)
class Side:
    """One encoded sentence of a pair."""

    ids: list[int]
    word_of: list[int]  # the word of each id, or FRAME
    words: int  # how many words the sentence has

    @property
    def dropped(self) -> tuple[int, ...]:
        """The words for which the tokenizer gave no piece."""
        encoded = set(self.word_of)
        return tuple(word for word in range(self.words) if word not in encoded)


def split(line: str, how: str = "space", language: str | None = None) -> list[str]:
    """Split a line into words.

    Args:
        line: the text.
        how: "space": at spaces. "punctuation": at spaces, and punctuation marks at the ends of a
            word become words of their own. "moses": with the Moses tokenizer (extra ``align``).
        language: the language code, for Moses.
    """
    words = [word for word in _SPACE.split(line) if word]
    if how == "space":
        return words
    if how == "punctuation":
        return [part for word in words for part in _without_marks(word)]
    if how != "moses":
        raise InputError(f"unknown way to split words {how!r}; valid: {', '.join(SPLITS)}")
    return [str(word) for word in _moses(language or "en").tokenize(line, escape=False)]


def _without_marks(word: str) -> list[str]:
    """Split punctuation marks and symbols off both ends of a word; equal ones stay together."""
    is_mark = [unicodedata.category(character)[0] in "PS" for character in word]
    if all(is_mark):
        return ["".join(marks) for _, marks in groupby(word)]
    start, end = is_mark.index(False), len(word) - is_mark[::-1].index(False)
    before, after = (["".join(m) for _, m in groupby(part)] for part in (word[:start], word[end:]))
    return [*before, word[start:end], *after]


_MOSES: dict[str, Any] = {}


def _moses(language: str) -> Any:
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise MissingExtraError("sacremoses", "align") from error
    short = language.strip("_<>|").partition("_")[0]
    if short not in _MOSES:
        _MOSES[short] = MosesTokenizer(short)
    return _MOSES[short]


# ---- languages


def language_codes(tokenizer: Any) -> list[str]:
    """List the language codes that a multilingual tokenizer knows; empty for other tokenizers."""
    if codes := getattr(tokenizer, "lang_code_to_id", None):
        return sorted(codes)
    if codes := getattr(tokenizer, "supported_language_codes", None):  # Marian's >>fra<<
        return sorted(codes)
    if hasattr(tokenizer, "set_prefix_tokens"):  # Whisper
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        return sorted(LANGUAGES)
    if not hasattr(tokenizer, "src_lang"):
        return []
    added = getattr(tokenizer, "added_tokens_encoder", {})
    tokens = {*tokenizer.all_special_tokens, *added}
    return sorted(token for token in tokens if _CODE.fullmatch(token))


def reads_target_code(tokenizer: Any) -> bool:
    """Whether the code of the target language goes before the source, as in Marian models."""
    return bool(getattr(tokenizer, "supported_language_codes", None))


def check_language(tokenizer: Any, code: str | None, side: str) -> None:
    """Raise InputError for a language code that the tokenizer does not know."""
    if code is None:
        return
    codes = language_codes(tokenizer)
    if not codes:
        raise InputError(
            f"{side}_lang={code!r} was given, but this model's tokenizer uses no language codes: "
            "leave it out"
        )
    if code not in codes:
        raise InputError(f"unknown {side} language {code!r}; valid: {', '.join(codes)}")


def _set_language(tokenizer: Any, language: str | None, *, as_target: bool) -> None:
    """Set the language code of the next text; `state_kept` restores the tokenizer."""
    if language is None:
        if as_target and hasattr(tokenizer, "tgt_lang") and not tokenizer.tgt_lang:
            codes = language_codes(tokenizer)
            if codes:
                raise InputError(
                    "this model writes many languages: give the language of the target with "
                    f"target_lang (--target-lang); valid: {', '.join(codes)}"
                )
        return
    if hasattr(tokenizer, "set_prefix_tokens"):
        tokenizer.set_prefix_tokens(language=language, task="transcribe", predict_timestamps=False)
    elif hasattr(tokenizer, "src_lang"):
        setattr(tokenizer, "tgt_lang" if as_target else "src_lang", language)


# ---- pieces


def encode_sides(
    tokenizer: Any,
    sentences: Sentences,
    *,
    as_target: bool = False,
    language: str | None = None,
    prefix: str = "",
    normalization: Normalization = Normalization(),  # noqa: B008
) -> list[Side]:
    """Encode sentences of given words, with the tokenizer's special tokens.

    Args:
        tokenizer: any transformers tokenizer. Its state is restored afterwards.
        sentences: the words of each sentence, at least one word per sentence.
        as_target: encode as text that the model writes rather than reads.
        language: the code for a multilingual tokenizer.
        prefix: text before each sentence that is not part of it ("translate German to English:").
        normalization: applied to each word before it is encoded.
    """
    if language is not None and reads_target_code(tokenizer):
        prefix = f"{language} {prefix}".strip()
    normalized = [[normalization(word) for word in words] for words in sentences]
    with state_kept(tokenizer):
        choose_side(tokenizer, as_target=as_target)
        _set_language(tokenizer, language, as_target=as_target)
        if tokenizer.is_fast:
            return _encode_by_offsets(tokenizer, normalized, prefix, as_target=as_target)
        return _encode_by_words(tokenizer, normalized, prefix, as_target=as_target)


def _encode_by_offsets(
    tokenizer: Any, sentences: Sentences, prefix: str, *, as_target: bool
) -> list[Side]:
    """Encode whole sentences, and find the word of each piece by its offset in the text."""
    texts = []
    owners = []  # for each text, the offsets at which words start, and FRAME before their indices
    for words in sentences:
        text = prefix
        starts: list[int] = []
        indices: list[int] = [FRAME]
        for index, word in enumerate(words):
            if word:
                starts.append(len(text))  # the space before a word counts as its start
                indices.append(index)
                text += f" {word}" if text else word
        texts.append(text)
        owners.append((starts, indices))
    encoding = tokenizer(
        **{"text_target" if as_target else "text": texts},
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # or transformers warns about lengths that are checked later
    )
    sides = []
    for row, (words, (starts, indices)) in enumerate(zip(sentences, owners, strict=True)):
        special_tokens = encoding["special_tokens_mask"][row]
        offsets = encoding["offset_mapping"][row]
        # A piece that stands for the space before a word belongs to that word.
        word_of = [
            FRAME if special else indices[bisect_right(starts, start)]
            for special, (start, _) in zip(special_tokens, offsets, strict=True)
        ]
        sides.append(Side(list(encoding["input_ids"][row]), word_of, len(words)))
    return sides


def _encode_by_words(
    tokenizer: Any, sentences: Sentences, prefix: str, *, as_target: bool
) -> list[Side]:
    """Encode each word by itself, for tokenizers without offsets."""
    if as_target and hasattr(tokenizer, "_switch_to_target_mode"):
        tokenizer._switch_to_target_mode()
    encoded: dict[str, list[int]] = {}

    def pieces(word: str) -> list[int]:
        if word not in encoded:
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))
            encoded[word] = [int(piece) for piece in ids]
        return encoded[word]

    sides = []
    for words in sentences:
        ids = list(pieces(prefix)) if prefix else []
        word_of = [FRAME] * len(ids)
        for index, word in enumerate(words):
            ids += pieces(word)
            word_of += [index] * len(pieces(word))
        framed = [int(piece) for piece in tokenizer.build_inputs_with_special_tokens(list(ids))]
        before = next(
            start
            for start in range(len(framed) - len(ids) + 1)
            if framed[start : start + len(ids)] == ids
        )
        after = len(framed) - len(ids) - before
        sides.append(Side(framed, [FRAME] * before + word_of + [FRAME] * after, len(words)))
    return sides
