"""Text read back from tokens, and its sentences."""

from __future__ import annotations

import pytest

from normscope.results.passages import piece_texts, sentences
from normscope.text.tokens import Tokens
from tests.helpers.tokenizers import read


def tokens(
    *pieces: str, texts: tuple[str, ...] | None = None, special: tuple[int, ...] = ()
) -> Tokens:
    plain = texts or tuple(piece.lstrip("Ġ▁").removeprefix("##") for piece in pieces)
    return Tokens(pieces, None, tuple(at in special for at in range(len(pieces))), plain)


def joined(found: Tokens) -> str:
    return "".join(space + text for space, text in piece_texts(found))


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("The", "Ġcat", "s", "Ġsat", "."), "The cats sat."),
        (("▁The", "▁cat", "s", "▁sat", "."), "The cats sat."),
        (("the", "cat", "##s", "(", "two", ")", "don", "'", "t", "."), "the cats (two) don't."),
        (("it", "costs", "3", ".", "5", "%", "!"), "it costs 3.5%!"),
        (("say", '"', "yes", '"', ",", "e", ".", "g", ".", "now"), 'say "yes", e.g. now'),
        (("机", "器", "。"), "机器。"),
    ],
)
def test_spaces_are_where_the_tokenizer_or_the_language_puts_them(
    pieces: tuple[str, ...], text: str
) -> None:
    assert joined(tokens(*pieces)) == text


def test_word_ends_special_tokens_and_bytes_of_one_character() -> None:
    ended = tokens("the</w>", "cat", "s</w>", texts=("the", "cat", "s"))
    assert joined(ended) == "the cats"
    assert joined(tokens("[CLS]", "a", "[SEP]", special=(0, 2))) == "[CLS] a [SEP]"
    emoji = tokens("Ġhi", "ĠðŁĺ", "Ģ", "!", texts=("hi", "😀", "😀", "!"))
    assert joined(emoji) == "hi 😀!"
    fallback = tokens("▁", *("<0xE5>", "<0x93>", "<0x88>") * 2, texts=("▁", *("哈",) * 6))
    assert joined(fallback) == "哈哈"
    assert joined(tokens("ĠåĵĪ", "åĵĪ", texts=("哈", "哈"))) == "哈哈"


def test_bytes_of_any_text_come_back_as_they_were() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = 'Dr. Smith\'s tea (12%) "cost" $3.50!\n\n  Schöne Grüße 猫猫が好き。 😀😀\tend'
    bytes_of = pre_tokenizers.ByteLevel
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = bytes_of(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=bytes_of.alphabet(), show_progress=False
    )
    made.train_from_iterator([text], trainer)
    read_back = read(PreTrainedTokenizerFast(tokenizer_object=made), text).tokens
    assert joined(read_back) == text


def split(text: str) -> list[str]:
    pieces, found = [], []
    for line in text.replace("\n", " \n ").split(" "):
        for end in (".", "!", "?"):
            line = line.replace(end, f" {end}")
        pieces += [
            ("" if at or line == "\n" else "Ġ") + p for at, p in enumerate(line.split(" ")) if p
        ]
    row = tokens(*pieces)
    whole = piece_texts(row)
    for a, b in sentences(row):
        found.append("".join(space + text for space, text in whole[a:b]).strip())
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith saw J. Doe. He left.", ["Dr. Smith saw J. Doe.", "He left."]),
        ("Use e.g. this one. Or that", ["Use e.g. this one.", "Or that"]),
        ("It is 3.5 cm. Good", ["It is 3.5 cm.", "Good"]),
        ("He said etc. and left. Then", ["He said etc. and left.", "Then"]),
        ("a title\nthe text. more text", ["a title", "the text.", "more text"]),
        ("Really?! Yes... Maybe", ["Really?!", "Yes...", "Maybe"]),
        ("one two", ["one two"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert split(text) == expected


def test_sentences_cover_every_token_and_break_at_sides_and_special_tokens() -> None:
    row = tokens("[CLS]", "a", "dog", ".", "C", "[SEP]", "d", "[SEP]", special=(0, 5, 7))
    sides = ("text",) * 6 + ("pair",) * 2
    assert sentences(row, sides) == [(0, 1), (1, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    lines = tokens("a", ".", "Ċ", "Ċ", "b", texts=("a", ".", "\n", "\n", "b"))
    assert sentences(lines) == [(0, 4), (4, 5)]
