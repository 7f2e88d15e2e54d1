"""Words and pieces: whatever a tokenizer does, links carry the indices of the words given."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

from normscope import InputError, MissingExtraError
from normscope.alignment.words import (
    FRAME,
    check_language,
    encode_sides,
    language_codes,
    split,
)
from normscope.text.normalization import Normalization
from tests.helpers import alignment_tokenizers as made
from tests.helpers.tiny import tokenizer as wordpiece

WORDS = [["the", "cats", "sat", "."], ["größer", "été", "12", "%"], ["a"]]
KINDS: dict[str, Any] = {
    "wordpiece": lambda: wordpiece(pair=False),
    "metaspace": made.metaspace,
    "bytelevel": made.bytelevel,
    "slow": made.Slow,
}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_know_their_word(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for side, words in zip(encode_sides(tokenizer, WORDS), WORDS, strict=True):
        assert len(side.ids) == len(side.word_of)
        assert side.words == len(words)
        assert side.dropped == ()
        inside = [word for word in side.word_of if word != FRAME]
        assert inside == sorted(inside)
        assert set(inside) == set(range(len(words)))
        assert (side.word_of[-1], side.ids[-1]) == (FRAME, 2)
        # The pieces of each word, put together, are the word.
        for at, word in enumerate(words):
            ids = [piece for piece, own in zip(side.ids, side.word_of, strict=True) if own == at]
            if 3 not in ids:
                text = tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(ids))
                assert text.replace(" ##", "").replace(" ", "") == word


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_the_whole_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for side, words in zip(encode_sides(tokenizer, WORDS), WORDS, strict=True):
        assert side.ids == tokenizer(" ".join(words))["input_ids"]


def test_word_ids_of_the_tokenizer_agree() -> None:
    tokenizer = wordpiece(pair=False)
    words = [["cats", "was", "raining", ",", "never"]]
    (side,) = encode_sides(tokenizer, words)
    expected = tokenizer(words, is_split_into_words=True).word_ids(0)
    assert side.word_of == [FRAME if word is None else word for word in expected]
    assert len(side.ids) > len(words[0]) + 2


def test_a_mark_of_its_own_belongs_to_the_word_it_begins() -> None:
    tokenizer = made.metaspace()
    words = ["z", "sat", "z"]
    (side,) = encode_sides(tokenizer, [words])
    strings = tokenizer.convert_ids_to_tokens(side.ids)
    assert strings[:2] == ["▁", "<unk>"]
    assert [own for own, piece in zip(side.word_of, strings, strict=True) if piece == "▁"] == [0, 2]


def test_a_prefix_is_no_word() -> None:
    for kind in KINDS:
        tokenizer = KINDS[kind]()
        (plain,) = encode_sides(tokenizer, [["the", "dogs"]])
        (side,) = encode_sides(tokenizer, [["the", "dogs"]], prefix="a mat :")
        assert side.words == 2
        assert side.word_of[0] == FRAME
        assert [word for word in side.word_of if word != FRAME] == [
            word for word in plain.word_of if word != FRAME
        ]


@pytest.mark.parametrize("kind", ["dropping", "slow"])
def test_a_dropped_word_keeps_the_others_indices(kind: str) -> None:
    tokenizer = made.dropping() if kind == "dropping" else made.Slow()
    (side,) = encode_sides(tokenizer, [["the", "\u200b", "cats", "\u200b\u200b"]])
    assert side.dropped == (1, 3)
    assert set(side.word_of) == {0, 2, FRAME}


def test_a_word_that_normalisation_empties_is_dropped() -> None:
    # Two spaces in a row would give it a mark of its own.
    rules = Normalization(replace=(("„", ""),))
    (side,) = encode_sides(made.metaspace(), [["the", "„", "cats", "„"]], normalization=rules)
    assert side.dropped == (1, 3)


def test_a_special_token_in_the_text_is_a_word() -> None:
    (side,) = encode_sides(wordpiece(pair=False), [["the", "</s>", "cat"]])
    assert side.word_of == [FRAME, 0, 1, 2, FRAME]


def test_the_model_s_normalisation_keeps_indices() -> None:
    tokenizer = made.dropping()
    rules = Normalization("NFC", True, (("ö", "oe"), ("„", "")))
    words = [["THE", "„", "Cats", "gro\u0308ßer"]]
    (side,) = encode_sides(tokenizer, words, normalization=rules)
    assert side.dropped == (1,)
    assert tokenizer.convert_ids_to_tokens(side.ids) == ["the", "cats", "<unk>", "</s>"]
    assert rules("Gro\u0308ßer") == "groeßer"
    assert rules("Größer") == "groeßer"


def test_lines_become_words() -> None:
    assert split("  das\u00a0Haus \t ist  klein . ") == ["das\u00a0Haus", "ist", "klein", "."]
    assert split("") == []
    assert split("Das ist z. B. ein Haus.", "moses", "de") == [
        *("Das", "ist", "z.", "B.", "ein", "Haus", "."),
    ]
    assert split("It's 5 & 6.", "moses") == ["It", "'s", "5", "&", "6", "."]
    with pytest.raises(
        InputError, match=r"unknown way to split words 'x'; valid: space, punctuation, moses"
    ):
        split("a", "x")


def test_punctuation_is_split_off_the_ends_of_words() -> None:
    assert split("„Das ist's …“ 3.5% ($5)!! U-Bahn", "punctuation") == [
        *("„", "Das", "ist's", "…", "“", "3.5", "%", "(", "$", "5", ")", "!!", "U-Bahn"),
    ]
    assert split("नमस्ते दुनिया।", "punctuation") == ["नमस्ते", "दुनिया", "।"]
    assert split("  ", "punctuation") == []


def test_moses_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[align\]"):
        split("a", "moses", "de")


# ---- languages


def test_codes_go_beside_the_text_and_the_tokenizer_is_left_alone() -> None:
    from transformers import MBartTokenizer

    pieces = ["▁the", "▁cat", "s", "▁", "sat"]
    vocabulary = [(piece, -float(at)) for at, piece in enumerate([*made.SPECIAL, *pieces])]
    tokenizer: Any = MBartTokenizer(vocab=vocabulary)
    before = tokenizer("the cats")["input_ids"]
    for as_target, code in ((False, "de_DE"), (True, "fr_XX")):
        (side,) = encode_sides(tokenizer, [["the", "cats"]], as_target=as_target, language=code)
        strings = tokenizer.convert_ids_to_tokens(side.ids)
        assert strings == ["▁the", "▁cat", "s", "</s>", code]
        assert side.word_of == [0, 1, 1, FRAME, FRAME]
    assert tokenizer("the cats")["input_ids"] == before
    assert tokenizer.tgt_lang is None
    with pytest.raises(
        InputError, match=r"give the language of the target.*--target-lang.*ar_AR, cs"
    ):
        encode_sides(tokenizer, [["the"]], as_target=True)
    assert len(language_codes(tokenizer)) == 25


def test_codes_without_offsets() -> None:
    tokenizer = made.Slow(codes=True)
    state = copy.copy(vars(tokenizer))
    (side,) = encode_sides(tokenizer, [["the", "cat"]], as_target=True, language="en")
    assert side.ids[0] == tokenizer.lang_code_to_id["en"]
    assert side.word_of == [FRAME, 0, 0, 0, 1, 1, 1, FRAME]
    assert vars(tokenizer) == state


def test_marian_reads_the_target_s_code_before_the_source() -> None:
    tokenizer = made.Slow()
    tokenizer.supported_language_codes = [">>en<<", ">>fr<<"]
    (plain,) = encode_sides(tokenizer, [["the", "cat"]])
    (side,) = encode_sides(tokenizer, [["the", "cat"]], language=">>en<<")
    code: Any = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(">>en<<"))
    assert side.ids == [*code, *plain.ids]
    assert side.word_of == [FRAME] * len(code) + plain.word_of
    check_language(tokenizer, ">>fr<<", "target")


def test_a_wrong_code_is_told_with_the_valid_ones() -> None:
    tokenizer = made.Slow(codes=True)
    check_language(tokenizer, "de", "source")
    check_language(tokenizer, None, "source")
    with pytest.raises(InputError, match=r"unknown target language 'fr'; valid: de, en"):
        check_language(tokenizer, "fr", "target")
    with pytest.raises(InputError, match=r"source_lang='de' was given, but .* no language codes"):
        check_language(made.metaspace(), "de", "source")
