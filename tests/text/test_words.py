"""Pieces, words and special tokens, for every kind of tokenizer."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from tests.helpers.tokenizers import LETTERS, SlowWordPiece, read


def test_minilm_pieces_and_words(minilm: Any) -> None:
    tokens = read(minilm, "The cats sat unbelievably.").tokens
    assert tokens.strings == (
        *("[CLS]", "the", "cats", "sat"),
        *("un", "##bel", "##ie", "##va", "##bly", ".", "[SEP]"),
    )
    assert tokens.texts[1] == "The"  # as written, where the piece is lower-cased
    assert tokens.texts[4:9] == ("un", "bel", "ie", "va", "bly")
    assert tokens.words == ("[CLS]", "The", "cats", "sat", "unbelievably", ".", "[SEP]")
    assert tokens.word_of == (0, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6)
    assert [*tokens.special] == [True, *[False] * 9, True]
    assert tokens.ids == tuple(read(minilm, "The cats sat unbelievably.").ids)


def test_a_pair_keeps_its_texts_apart(bert_like: Any) -> None:
    encoded = read(bert_like, "Unlikely cat", "cats sat.")
    assert encoded.tokens.strings == (
        *("[CLS]", "un", "##like", "##ly", "cat", "[SEP]"),
        *("cat", "##s", "sat", ".", "[SEP]"),
    )
    assert encoded.tokens.words == (
        *("[CLS]", "Unlikely", "cat", "[SEP]"),
        *("cats", "sat", ".", "[SEP]"),
    )
    assert encoded.tokens.texts[6:10] == ("cat", "s", "sat", ".")
    assert encoded.extra == {"token_type_ids": [0] * 6 + [1] * 5}


def test_a_pair_without_a_separator_is_still_two_words(gpt2_like: Any) -> None:
    # Both texts are word 0 of their own, and nothing stands between them.
    tokens = read(gpt2_like, "the", "the").tokens
    assert tokens.strings == ("the", "the")
    assert tokens.words == ("the", "the")


def test_byte_level_words(gpt2_like: Any) -> None:
    tokens = read(gpt2_like, "the cats 🙂\nthe").tokens
    assert tokens.strings[:3] == ("the", "Ġcat", "s")
    assert tokens.texts[:3] == ("the", "cat", "s")
    assert tokens.words == ("the", "cats", "🙂", "\n", "the")
    # The space and the four bytes of one character are five pieces here, and one word.
    assert tokens.word_of == (0, 1, 1, 2, 2, 2, 2, 2, 3, 4)
    assert tokens.texts[4:] == (*("🙂",) * 4, "\n", "the")


def test_whitespace_makes_words_where_one_word_id_covers_the_text(llama_like: Any) -> None:
    encoding = llama_like("the cats")
    assert set(encoding.word_ids()) == {None, 0}, "the fixture must not split words itself"
    tokens = read(llama_like, "the cats 🙂 xs", "the cat").tokens
    assert tokens.strings[:4] == ("<s>", "▁the", "▁cat", "s")
    assert tokens.texts[:4] == ("<s>", "the", "cat", "s")
    assert tokens.words == ("<s>", "the", "cats", "🙂", "xs", "<s>", "the", "cat")


def whole_text(merges: list[tuple[str, str]], *, byte_level: bool) -> Any:
    """A tokenizer that never splits before it merges: one word id for the whole text."""
    letters = {letter: index for index, letter in enumerate([*LETTERS, "Ġ", " "])}
    pieces = {"".join(pair): len(letters) + index for index, pair in enumerate(merges)}
    backend = Tokenizer(models.BPE({**letters, **pieces}, merges))
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_whitespace_that_no_piece_covers_still_parts_words() -> None:
    tokenizer = whole_text([("Ġ", "c"), ("a", "t")], byte_level=True)
    encoding = tokenizer("a cat", return_offsets_mapping=True)
    assert set(encoding.word_ids()) == {0}
    assert encoding["offset_mapping"] == [(0, 1), (2, 3), (3, 5)]  # nothing covers the space
    assert read(tokenizer, "a cat").tokens.words == ("a", "cat")


def test_whitespace_at_the_end_of_a_piece_parts_words() -> None:
    tokens = read(whole_text([("a", " "), ("a", "t")], byte_level=False), "a cat").tokens
    assert tokens.strings == ("a ", "c", "at")
    assert tokens.texts == ("a", "c", "at")
    assert tokens.words == ("a", "cat")


def test_a_lone_space_mark_belongs_to_the_word_after_it(t5_like: Any) -> None:
    tokens = read(t5_like, "the xs cats").tokens
    assert tokens.strings == ("▁the", "▁", "x", "s", "▁cat", "s", "</s>")
    assert tokens.word_of == (0, 1, 1, 1, 2, 2, 3)
    assert tokens.words == ("the", "xs", "cats", "</s>")


def test_space_around_the_words_changes_nothing(llama_like: Any) -> None:
    assert read(llama_like, "the  cat ").tokens.words == ("<s>", "the", " ", "cat", " ")


def test_unknown_and_masked_pieces_are_text(bert_like: Any, t5_like: Any) -> None:
    tokens = read(bert_like, "the [MASK] zebra [SEP] cat").tokens
    assert tokens.strings == ("[CLS]", "the", "[MASK]", "[UNK]", "[SEP]", "cat", "[SEP]")
    assert tokens.special == (True, False, False, False, True, False, True)
    assert tokens.texts[3] == "zebra"
    assert read(t5_like, "zebra").tokens.texts[-2:] == ("zebra", "</s>")


def test_a_special_token_inside_a_text_is_special(gpt2_like: Any) -> None:
    tokens = read(gpt2_like, "the<|endoftext|>the").tokens
    assert tokens.special == (False, True, False)
    assert tokens.words == ("the", "<|endoftext|>", "the")


def test_special_tokens_side_by_side_stay_apart(t5_like: Any) -> None:
    t5_like.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokens = read(t5_like, "cat", "cats").tokens
    assert tokens.words == ("cat", "</s>", "</s>", "cats", "</s>")


def test_what_a_tokenizer_adds_is_special_also_when_it_has_no_name(t5_like: Any) -> None:
    unnamed = PreTrainedTokenizerFast(tokenizer_object=t5_like.backend_tokenizer)
    assert "</s>" not in unnamed.all_special_tokens
    assert read(unnamed, "cat").tokens.special == (False, True)


def test_slow_tokenizers_have_texts_and_no_words(slow_esm: Any) -> None:
    tokens = read(slow_esm, "LAGL").tokens
    assert tokens.strings == tokens.texts == ("<cls>", "L", "A", "G", "L", "<eos>")
    assert tokens.special == (True, False, False, False, False, True)
    assert [tokens.word_of, tokens.words] == [None] * 2
    assert read(ByT5Tokenizer(), "hi").tokens.texts == ("h", "i", "</s>")


def test_slow_tokenizers_lose_the_marks_of_their_pieces() -> None:
    tokens = read(SlowWordPiece(), "no so").tokens
    assert tokens.strings == ("[CLS]", "n", "##o", "s", "##o", "[SEP]")
    assert tokens.texts == ("[CLS]", "n", "o", "s", "o", "[SEP]")
