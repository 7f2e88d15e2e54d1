"""Words in, pieces out, and the word that each piece belongs to, for any tokenizer.

The aligner is given words and answers with their indices, whatever a model's tokenizer makes of
them. Tokenizers that know offsets read the whole sentence; those that do not read it word by word.
A word of which nothing is left (a tokenizer may drop control characters) has no piece, and so
never a link.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import InputError, MissingExtraError
from normscope.text.tokens import choose_side, state_kept

SPLITS = ("space", "moses")
ABOUT = "normscope.json"  # beside a model's weights: how it wants its text
FRAME = -1  # the word of a special token
_SPACE = re.compile(r"[ \t\r\f\v\n]+")
_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # de_DE, deu_Latn


@dataclass(frozen=True)
class Normalization:
    """What a model expects of its text beyond its tokenizer: Unicode form, case, spelling."""

    unicode: str | None = None
    lowercase: bool = False
    replace: tuple[tuple[str, str], ...] = ()

    def __call__(self, word: str) -> str:
        """The word as the model knows it."""
        word = unicodedata.normalize(self.unicode, word) if self.unicode else word  # type: ignore[arg-type]
        word = word.lower() if self.lowercase else word
        for old, new in self.replace:
            word = word.replace(old, new)
        return word


@dataclass(frozen=True)
class About:
    """The file ``normscope.json`` of a model's folder, where there is one."""

    normalization: Normalization = Normalization()
    target_tokenizer: str | None = None  # the folder in it that holds the target's own tokenizer
    languages: tuple[str, ...] = ()
    choices: tuple[tuple[int, int | None, str], ...] = ()  # layer, head (None: all), reading


def about(folder: str | Path) -> About:
    """Read ``normscope.json``, or say that there is none by an `About` without anything."""
    path = Path(folder) / ABOUT
    if not path.is_file():
        return About()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        form = data.get("unicode")
        if form not in (None, "NFC", "NFD", "NFKC", "NFKD"):
            raise ValueError(f"unknown Unicode form {form!r}")
        made = Normalization(
            form,
            bool(data.get("lowercase", False)),
            tuple((str(old), str(new)) for old, new in data.get("replace", ())),
        )
        languages = tuple(str(one) for one in data.get("languages", ()))
        choices = tuple(
            (
                int(one["layer"]),
                None if one["head"] is None else int(one["head"]),
                str(one["reading"]),
            )
            for one in data.get("choices", ())
        )
        return About(made, data.get("target_tokenizer"), languages, choices)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot use {path}: {error}") from None


@dataclass(frozen=True, eq=False)
class Side:
    """One sentence as a model reads or writes it."""

    ids: list[int]
    word_of: list[int]  # one entry an id; FRAME for what the tokenizer put around the sentence
    words: int

    @property
    def dropped(self) -> tuple[int, ...]:
        """The words that the tokenizer left out."""
        there = set(self.word_of)
        return tuple(word for word in range(self.words) if word not in there)


def split(line: str, how: str = "space", language: str | None = None) -> list[str]:
    """The words of a line: parted by spaces, or as Moses tokenises it (extra ``align``)."""
    if how == "space":
        return [word for word in _SPACE.split(line) if word]
    if how != "moses":
        raise InputError(f"unknown way to find words {how!r}; valid: {', '.join(SPLITS)}")
    return [str(word) for word in _moses(language or "en").tokenize(line, escape=False)]


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
    """The language codes that a multilingual tokenizer puts beside a text; none for another."""
    known = getattr(tokenizer, "lang_code_to_id", None)
    if known:
        return sorted(known)
    if known := getattr(tokenizer, "supported_language_codes", None):  # Marian's >>fra<<
        return sorted(known)
    if hasattr(tokenizer, "set_prefix_tokens"):  # Whisper
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        return sorted(LANGUAGES)
    if not hasattr(tokenizer, "src_lang"):
        return []
    added = getattr(tokenizer, "added_tokens_encoder", {})
    return sorted(one for one in {*tokenizer.all_special_tokens, *added} if _CODE.fullmatch(one))


def check_language(tokenizer: Any, given: str | None, side: str) -> None:
    """Refuse a code that the tokenizer does not know, naming those it knows."""
    if given is None:
        return
    codes = language_codes(tokenizer)
    if not codes:
        raise InputError(
            f"{side}_lang={given!r} was given, but this model's tokenizer writes no language code: "
            "leave it out"
        )
    if given not in codes:
        raise InputError(f"unknown {side} language {given!r}; valid: {', '.join(codes)}")


def _set_language(tokenizer: Any, language: str | None, *, as_target: bool) -> None:
    """Choose the code that goes with a text; `state_kept` undoes it."""
    if language is None:
        if as_target and hasattr(tokenizer, "tgt_lang") and not tokenizer.tgt_lang:
            codes = language_codes(tokenizer)
            if codes:
                raise InputError(
                    "this model writes many languages: say which one the target is with "
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
    sentences: Sequence[Sequence[str]],
    *,
    as_target: bool = False,
    language: str | None = None,
    prefix: str = "",
    normalization: Normalization = Normalization(),  # noqa: B008
) -> list[Side]:
    """Encode sentences of given words, with the tokenizer's own special tokens.

    Args:
        tokenizer: any transformers tokenizer; its state is the same after as before.
        sentences: the words of each; none may be without words.
        as_target: encode as the text that the model writes.
        language: the code of a multilingual tokenizer.
        prefix: a text before each sentence that is no part of it ("translate German to English:").
        normalization: what the model expects of its text beyond that.
    """
    codes = getattr(tokenizer, "supported_language_codes", None)
    if codes and language is not None:  # Marian reads the code of the target before the source
        prefix = f"{language} {prefix}".strip()
    ready = [[normalization(word) for word in words] for words in sentences]
    with state_kept(tokenizer):
        choose_side(tokenizer, as_target=as_target)
        _set_language(tokenizer, language, as_target=as_target)
        if tokenizer.is_fast:
            return _by_offsets(tokenizer, ready, prefix, as_target=as_target)
        return _by_words(tokenizer, ready, prefix, as_target=as_target)


def _by_offsets(
    tokenizer: Any, sentences: Sequence[Sequence[str]], prefix: str, *, as_target: bool
) -> list[Side]:
    texts, begins = [], []  # where each word of a text begins, the space before it included
    for words in sentences:
        there = [(at, word) for at, word in enumerate(words) if word]
        text = prefix
        starts = []
        for _, word in there:
            starts.append(len(text))
            text += f" {word}" if text else word
        texts.append(text)
        begins.append((starts, [FRAME, *(at for at, _ in there)]))
    encoding = tokenizer(
        **{"text_target" if as_target else "text": texts},
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # or transformers warns of lengths that are checked later
    )
    sides = []
    for row, (words, (starts, owners)) in enumerate(zip(sentences, begins, strict=True)):
        framing = encoding["special_tokens_mask"][row]
        # A mark that stands for the space before a word begins where that word does.
        word_of = [
            FRAME if special else owners[bisect_right(starts, start)]
            for special, (start, _) in zip(framing, encoding["offset_mapping"][row], strict=True)
        ]
        sides.append(Side(list(encoding["input_ids"][row]), word_of, len(words)))
    return sides


def _by_words(
    tokenizer: Any, sentences: Sequence[Sequence[str]], prefix: str, *, as_target: bool
) -> list[Side]:
    if as_target and hasattr(tokenizer, "_switch_to_target_mode"):
        tokenizer._switch_to_target_mode()
    known: dict[str, list[int]] = {}

    def pieces(word: str) -> list[int]:
        if word not in known:
            made = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))
            known[word] = [int(one) for one in made]
        return known[word]

    sides = []
    for words in sentences:
        ids = list(pieces(prefix)) if prefix else []
        word_of = [FRAME] * len(ids)
        for at, word in enumerate(words):
            ids += pieces(word)
            word_of += [at] * len(pieces(word))
        framed = [int(one) for one in tokenizer.build_inputs_with_special_tokens(list(ids))]
        before = next(
            k for k in range(len(framed) - len(ids) + 1) if framed[k : k + len(ids)] == ids
        )
        after = len(framed) - len(ids) - before
        sides.append(Side(framed, [FRAME] * before + word_of + [FRAME] * after, len(words)))
    return sides
