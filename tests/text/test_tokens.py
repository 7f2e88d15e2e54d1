"""Text to tokens: encoding with every kind of tokenizer, targets, truncation, padding, refusals."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from normscope.errors import InputError
from normscope.text.tokens import Tokens, encode, encode_many, pad
from tests.helpers.tiny import tokenizer as tiny_tokenizer
from tests.helpers.tokenizers import SeparateMarian, SlowWordPiece, TwoVocabularies, read

# ---- Tokens


def test_tokens_survive_json() -> None:
    tokens = Tokens(
        strings=("[CLS]", "un", "##do"),
        ids=(2, 8, 9),
        special=(True, False, False),
        texts=("[CLS]", "un", "do"),
        word_of=(0, 1, 1),
        words=("[CLS]", "undo"),
    )
    assert len(tokens) == 3
    assert Tokens.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens


def test_positions_label_what_has_no_tokenizer() -> None:
    tokens = Tokens.positions(3)
    assert tokens.strings == tokens.texts == ("position 0", "position 1", "position 2")
    assert [tokens.ids, tokens.word_of, tokens.words] == [None] * 3
    assert not any(tokens.special)
    assert Tokens.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"texts": ("a",)}, "one entry per position"), ({"word_of": (0, 0)}, "word_of and words")],
)
def test_tokens_refuse_fields_that_disagree(fields: dict[str, Any], message: str) -> None:
    good = {"strings": ("a", "b"), "ids": None, "special": (False, False), "texts": ("a", "b")}
    with pytest.raises(InputError, match=message):
        Tokens(**{**good, **fields})


# ---- targets


def test_a_target_has_its_own_language_code(nllb: Any) -> None:
    source, target = read(nllb, "a cat"), read(nllb, "un chat", as_target=True)
    assert source.tokens.strings[0] == "eng_Latn"
    assert target.tokens.strings[0] == "fra_Latn"
    assert target.tokens.words == ("fra_Latn", "un", "chat", "</s>")
    assert target.tokens.special[0]
    assert target.tokens.special[-1]


def test_a_plain_tokenizer_encodes_a_target_like_a_source(t5_like: Any) -> None:
    assert read(t5_like, "the cats", as_target=True) == read(t5_like, "the cats")
    assert read(t5_like, "the", "cat", as_target=True) == read(t5_like, "the", "cat")


@pytest.mark.parametrize("kind", [TwoVocabularies, SeparateMarian])
def test_two_vocabularies_are_not_mixed(kind: type[TwoVocabularies]) -> None:
    tokenizer = kind()
    before = dict(vars(tokenizer))
    source = read(tokenizer, "cat dog")
    assert source.ids == [4, 5, 2]
    assert source.tokens.strings == ("cat", "dog", "</s>")
    target = read(tokenizer, "chat chien", as_target=True)
    assert target.ids == [5, 4, 2]
    assert target.tokens.strings == ("chat", "chien", "</s>")
    if kind is TwoVocabularies:  # FSMT splits words by the rules of a language
        assert read(tokenizer, "l'chat", as_target=True).tokens.strings == ("l'", "chat", "</s>")
        assert read(tokenizer, "l'chat").tokens.strings == ("<unk>", "</s>")
    cut = read(tokenizer, "chat chien", as_target=True, max_length=2, truncate=True)
    assert cut.tokens.strings == ("chat", "</s>")
    assert vars(tokenizer) == before


# ---- the tokenizer's state


def state(tokenizer: Any) -> tuple[Any, ...]:
    backend = tokenizer.backend_tokenizer
    return backend.to_str(), backend.encode_special_tokens, dict(vars(tokenizer))


@pytest.mark.parametrize("as_target", [False, True])
def test_the_tokenizer_is_left_as_it_was(nllb: Any, as_target: bool) -> None:
    # As a user may have left it: made for a batch, and in the middle of a target.
    nllb.backend_tokenizer.enable_truncation(7, stride=2, strategy="only_second", direction="left")
    nllb.backend_tokenizer.enable_padding(
        length=9, pad_id=1, pad_token="<pad>", direction="left", pad_to_multiple_of=4
    )
    nllb.backend_tokenizer.encode_special_tokens = True
    nllb._switch_to_target_mode()
    before = state(nllb)
    read(nllb, "a cat", as_target=as_target)
    assert state(nllb) == before
    read(nllb, "a longer text", as_target=as_target, max_length=5, truncate=True)
    assert state(nllb) == before
    with pytest.raises(InputError):
        read(nllb, "a longer text", as_target=as_target, max_length=5)
    assert state(nllb) == before
    nllb(text="a", text_target="b")
    assert state(nllb) != before, "a plain call changes all this, or the test proves nothing"


def test_the_length_in_tokenizer_json_is_neither_obeyed_nor_lost(bert_like: Any) -> None:
    # The default model's file says so: cut to 128 tokens, and fill up to 128.
    backend = bert_like.backend_tokenizer
    backend.enable_truncation(128)
    backend.enable_padding(length=128)
    before = backend.to_str()
    assert len(read(bert_like, "cat " * 200)) == 202
    assert len(read(bert_like, "cat")) == 3
    assert backend.to_str() == before


def test_two_threads_do_not_get_each_others_language(nllb: Any) -> None:
    wrong: list[str] = []

    def work(as_target: bool, code: str) -> None:
        for _ in range(100):
            found = read(nllb, "a cat", as_target=as_target).tokens.strings[0]
            if found != code:
                wrong.append(found)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in [(False, "eng_Latn"), (True, "fra_Latn")]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- limits


def test_a_long_text_is_refused_with_the_numbers(minilm: Any, messages: list[str]) -> None:
    with pytest.raises(InputError, match=r"602 tokens.*at most 512.*truncate=True.*--truncate"):
        read(minilm, "cat " * 600, max_length=512)
    with pytest.raises(InputError, match=r"text and text_pair give 603 tokens.*512"):
        read(minilm, "cat " * 300, "dog " * 300, max_length=512)
    assert len(read(minilm, "cat " * 510, max_length=512)) == 512
    assert messages == []


def test_truncation_keeps_the_frame(bert_like: Any) -> None:
    encoded = read(bert_like, "the cats sat", max_length=5, truncate=True)
    assert encoded.tokens.strings == ("[CLS]", "the", "cat", "##s", "[SEP]")
    assert encoded.tokens.words == ("[CLS]", "the", "cats", "[SEP]")
    assert read(bert_like, "the cat", max_length=5, truncate=True) == read(bert_like, "the cat")


@pytest.mark.parametrize("make", [SlowWordPiece, None], ids=["slow", "fast"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("limit", [5, 6, 7, 9, 12])
@pytest.mark.parametrize(
    ("text", "pair"),
    [("abcdefghij", None), ("abcdefgh", "xyz"), ("abc", "tuvwxyz"), ("abc", "xyz")],
)
def test_truncation_drops_what_the_tokenizer_would(
    make: Callable[[], Any] | None,
    side: str,
    limit: int,
    text: str,
    pair: str | None,
    bert_like: Any,
    messages: list[str],
) -> None:
    tokenizer = bert_like if make is None else make()
    if make is None:  # words instead of letters
        text, pair = " ".join(text), None if pair is None else " ".join(pair)
    tokenizer.truncation_side = side
    encoded = read(tokenizer, text, pair, max_length=limit, truncate=True)
    assert messages == []
    own = tokenizer(text, pair, truncation="longest_first", max_length=limit)
    assert encoded.ids == own["input_ids"]
    assert encoded.extra["token_type_ids"] == own["token_type_ids"]


@pytest.mark.parametrize("make", [SlowWordPiece, None], ids=["slow", "fast"])
def test_a_limit_without_room_for_text_is_refused(
    make: Callable[[], Any] | None, bert_like: Any
) -> None:
    tokenizer = bert_like if make is None else make()
    with pytest.raises(InputError, match=r"limit of 2 .* 2 special tokens; .* at least 3"):
        read(tokenizer, "the cat", max_length=2, truncate=True)
    with pytest.raises(InputError, match=r"limit of 4 .* 3 special tokens; .* at least 5"):
        read(tokenizer, "the cat", "cat", max_length=4, truncate=True)


# ---- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text is empty"),
        (" \n\t ", "only whitespace"),
        (None, "must be a string, not NoneType"),
        (["a", "b"], "must be a string, not list"),
        (b"bytes", "must be a string, not bytes"),
        ("a\ud83d", "not valid Unicode: character 1"),
    ],
)
def test_bad_texts(bert_like: Any, text: Any, message: str) -> None:
    # The tests check annotations at run time; a user's call does not, so neither does this one.
    unchecked = inspect.unwrap(encode)
    with pytest.raises(InputError, match=message):
        unchecked(bert_like, text, max_length=None, truncate=False)
    if text is not None:
        with pytest.raises(InputError, match=message.replace("text is", "text_pair is")):
            unchecked(bert_like, "cat", text, max_length=None, truncate=False)


def test_a_text_of_nothing_but_special_tokens(bert_like: Any, gpt2_like: Any) -> None:
    with pytest.raises(InputError, match=r"only special tokens: \[CLS\] \[SEP\], for"):
        read(bert_like, "[SEP]")
    with pytest.raises(InputError, match=r"only special tokens: \[CLS\] \[SEP\]"):
        read(bert_like, "\u200b\u0000")  # characters that its normalizer removes
    with pytest.raises(InputError, match="only special tokens"):
        read(gpt2_like, "<|endoftext|>")


def test_a_text_without_tokens(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.normalizer = normalizers.Replace("x", "")
    with pytest.raises(InputError, match="no tokens at all, for the text 'x'"):
        read(PreTrainedTokenizerFast(tokenizer_object=backend), "x")


def test_what_is_not_a_tokenizer(bert_like: Any) -> None:
    class Processor:
        tokenizer = bert_like

    unchecked = inspect.unwrap(encode)
    with pytest.raises(InputError, match=r"not Processor; pass its \.tokenizer"):
        unchecked(Processor(), "cat", max_length=None, truncate=False)
    with pytest.raises(InputError, match=r"must be a transformers tokenizer.*not Tokenizer$"):
        unchecked(bert_like.backend_tokenizer, "cat", max_length=None, truncate=False)


# ---- batches


def test_padding_is_on_the_right(bert_like: Any) -> None:
    bert_like.padding_side = "left"
    batch = pad([read(bert_like, "cat"), read(bert_like, "cat", "cats")], pad_id=7)
    assert batch["input_ids"].tolist() == [[2, 6, 3, 7, 7, 7], [2, 6, 3, 6, 7, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]
    assert batch["input_ids"].dtype == batch["token_type_ids"].dtype == torch.int64


def test_padding_brings_only_what_the_tokenizer_gave(gpt2_like: Any) -> None:
    assert pad([read(gpt2_like, "the")], 0).keys() == {"input_ids", "attention_mask"}


def test_padding_leaves_out_what_only_some_texts_have(bert_like: Any, gpt2_like: Any) -> None:
    mixed = [read(bert_like, "the"), read(gpt2_like, "the")]
    assert pad(mixed, 0).keys() == {"input_ids", "attention_mask"}


def test_nothing_to_pad() -> None:
    with pytest.raises(InputError, match="at least one"):
        pad([], 0)


def test_a_text_that_has_its_special_tokens_already() -> None:
    tiny = tiny_tokenizer()
    plain = encode(tiny, "the cat", max_length=None, truncate=False, framed=False)
    assert plain.tokens.strings == ("the", "cat")
    cut = encode(tiny, "the cat sat", max_length=2, truncate=True, framed=False)
    assert cut.tokens.strings == ("the", "cat")
    slow = encode(SlowWordPiece(), "ab cd", max_length=3, truncate=True, framed=False)
    assert slow.tokens.strings == ("a", "##b", "c")


# ---- many texts


MANY = ["the cat sat on the mat .", "the", "cats looked at it , and sat [MASK] xyzzy"]


@pytest.mark.parametrize("pairs", [[None] * 3, ["it sat", "the mat", "cat"], [None, "cat", None]])
@pytest.mark.parametrize("as_target", [False, True])
@pytest.mark.parametrize("make", [tiny_tokenizer, SlowWordPiece])
def test_many_texts_as_each_by_itself(
    make: Callable[[], Any], as_target: bool, pairs: list[str | None]
) -> None:
    tokenizer = make()
    how: dict[str, Any] = {"max_length": 12, "truncate": True, "as_target": as_target}
    together = encode_many(tokenizer, MANY, pairs, **how)
    assert together == [
        encode(tokenizer, text, pair, **how) for text, pair in zip(MANY, pairs, strict=True)
    ]


def test_the_first_text_that_is_refused_is_named() -> None:
    how: dict[str, Any] = {"max_length": 5, "truncate": False}
    tokenizer: Any = tiny_tokenizer()
    with pytest.raises(InputError, match="the text gives 9 tokens"):
        encode_many(tokenizer, ["the cat", MANY[0], "cat"], [None] * 3, **how)
    with pytest.raises(InputError, match="text is empty"):
        encode_many(tokenizer, ["the cat", "", MANY[0]], [None] * 3, **how)


def test_many_texts_leave_the_tokenizer_as_it_was() -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    before = tokenizer.backend_tokenizer.to_str()
    rows = encode_many(tokenizer, MANY, [None] * 3, max_length=None, truncate=False)
    assert len(rows[0]) == 9
    assert tokenizer.backend_tokenizer.to_str() == before


# ---- words, found when they are read


def test_words_are_found_when_they_are_read() -> None:
    calls = []

    def group() -> tuple[list[str], list[int], list[str]]:
        calls.append(1)
        return ["un", "do"], [0, 0], ["undo"]

    known = Tokens(("un", "##do"), (8, 9), (False, False), ("un", "do"), (0, 0), ("undo",))

    def tokens() -> Tokens:
        return Tokens.grouped_later(["un", "##do"], [8, 9], [False, False], group)

    assert len(tokens()) == 2
    assert tokens().special == (False, False)
    assert not calls
    lazy = tokens()
    assert lazy.words == ("undo",)
    assert (lazy.word_of, lazy.texts) == ((0, 0), ("un", "do"))
    assert len(calls) == 1  # all three were found at once, and kept
    for same in (copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), lambda t: t):
        assert same(tokens()) == known
        assert hash(same(tokens())) == hash(known)
        assert same(tokens()).to_dict() == known.to_dict()
        assert repr(same(tokens())) == repr(known)
    assert dataclasses.replace(tokens(), words=("redo",)).words == ("redo",)
    with pytest.raises(AttributeError, match="no attribute 'word'"):
        _ = tokens().word  # type: ignore[attr-defined]


def test_words_may_be_read_by_several_threads() -> None:
    def group() -> tuple[list[str], list[int], list[str]]:
        time.sleep(0.01)
        return ["un", "do"], [0, 0], ["undo"]

    tokens = Tokens.grouped_later(["un", "##do"], [8, 9], [False, False], group)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: tokens.words, range(8))) == {("undo",)}


# ---- special tokens that are typed


@pytest.mark.parametrize("make", [tiny_tokenizer, SlowWordPiece])
def test_a_frame_that_is_typed_is_not_doubled(make: Callable[[], Any]) -> None:
    tokenizer = make()
    first, last = (
        tokenizer.convert_ids_to_tokens(tokenizer("a")["input_ids"])[at] for at in (0, 2)
    )
    plain = read(tokenizer, "a")
    for text in (f"{first} a", f"a {last}", f"{first} a {last}"):
        encoded = read(tokenizer, text)
        assert encoded.ids == plain.ids
        assert encoded.extra == plain.extra
        assert encoded.tokens.special == plain.tokens.special
        assert encoded.tokens.words == plain.tokens.words
    # Inside the text they are the caller's own, and so are more than the tokenizer adds.
    assert len(read(tokenizer, f"a {last} a")) == 5
    assert len(read(tokenizer, f"{first} {first} a")) == 4
    with pytest.raises(InputError, match="only special tokens"):
        read(tokenizer, first)


def test_a_typed_frame_counts_once_for_the_limit() -> None:
    tokenizer = tiny_tokenizer()
    texts = ["<s> the cat sat </s>", "the cat sat"]
    assert read(tokenizer, texts[0], max_length=5).ids == read(tokenizer, texts[1]).ids
    rows = encode_many(tokenizer, texts, [None, None], max_length=5, truncate=False)
    assert rows[0].ids == rows[1].ids
    with pytest.raises(InputError, match="gives 5 tokens"):
        read(tokenizer, texts[0], max_length=4)
    cut = read(tokenizer, texts[0], max_length=4, truncate=True)
    assert cut.tokens.strings.count("<s>") == 1


def test_typed_tokens_of_a_pair_and_of_a_language_model(llama_like: Any, nllb: Any) -> None:
    tokenizer = tiny_tokenizer()
    pair = read(tokenizer, "<s> the", "cat </s>")
    assert pair.ids == read(tokenizer, "the", "cat").ids
    assert pair.extra["token_type_ids"] == [0, 0, 0, 1, 1]
    strings = read(llama_like, "<s>the cat").tokens.strings
    assert strings.count("<s>") == 1
    target = read(nllb, "fra_Latn un chat</s>", as_target=True).tokens.strings
    assert (target.count("fra_Latn"), target.count("</s>")) == (1, 1)
