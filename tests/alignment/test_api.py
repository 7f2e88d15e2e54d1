"""align() and translate_align(): what goes in, what comes out, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import normscope
from normscope import InputError, align, translate_align
from normscope.alignment.aer import score
from normscope.alignment.api import sentences
from normscope.alignment.files import write_links
from normscope.alignment.links import Links
from normscope.alignment.options import AlignOptions
from normscope.alignment.symmetrize import symmetrize_links
from normscope.models.architectures import tiny_model
from tests.helpers import alignment_tokenizers as tokenizers
from tests.helpers.alignment_pairs import FIXED, SOURCE, TARGET, linked
from tests.helpers.tiny import tokenizer


def test_sentences_in_every_form(marian: Any) -> None:
    expected = linked(SOURCE, TARGET, marian)
    words = [line.split() for line in SOURCE], [line.split() for line in TARGET]
    assert linked(*words, marian) == expected
    assert linked(SOURCE[0], TARGET[0], marian) == expected[:1]
    assert any(expected)
    alignments = align(SOURCE, TARGET, marian, tokenizer(pair=False), **FIXED)
    assert alignments[0].source == ("the", "cats", "sat", ".")
    assert alignments[1].target == ("the", "dogs", "jumped", "over", "it", ".")
    assert len(alignments) == len(list(alignments)) == 3
    assert alignments[0].soft is None
    assert alignments.ranking == []
    assert [str(choice) for choice in alignments.choices] == ["layer 1, head sum, awi"]
    assert "|choice:1.sum.awi|" in alignments.signature
    assert "|map:attn_n|" in alignments.signature
    assert "|weights:sha256=" in alignments.signature
    assert normscope.align is align


def test_an_empty_line_has_no_links(marian: Any) -> None:
    expected = linked(SOURCE, TARGET, marian)
    alignments = align(
        [SOURCE[0], "", SOURCE[1], "a"], [TARGET[0], "rain", TARGET[1], " "],
        marian, tokenizer(pair=False), **FIXED,
    )  # fmt: skip
    assert [set(pair.links) for pair in alignments] == [expected[0], set(), expected[1], set()]
    assert [pair.skipped for pair in alignments] == ["", "empty", "", "empty"]
    nothing = align([""], ["a"], marian, tokenizer(pair=False))
    assert (len(nothing[0].links), nothing.choices) == (0, ())


def test_different_numbers_of_sentences_are_refused(marian: Any) -> None:
    with pytest.raises(InputError, match=r"source has 3 sentences and the target 2"):
        linked(SOURCE, TARGET[:2], marian)
    with pytest.raises(InputError, match=r"no sentences were given"):
        linked([], [], marian)
    with pytest.raises(InputError, match=r"a string or a list of words, not \[1\]"):
        sentences([[1]], ["a"], AlignOptions())


def test_a_sentence_beyond_the_limit(marian: Any) -> None:
    long = "the " * 70
    with pytest.raises(InputError, match=r"source sentence 2 has 72 tokens.*at most 64.*--skip"):
        linked([SOURCE[0], long], TARGET[:2], marian)
    with pytest.raises(InputError, match=r"target sentence 1 has 72 tokens"):
        linked(SOURCE[:1], [long], marian)
    alignments = align(
        [SOURCE[0], long], TARGET[:2], marian, tokenizer(pair=False), skip_long=True, **FIXED
    )
    assert [pair.skipped for pair in alignments] == ["", "too long"]
    assert set(alignments[0].links) == linked(SOURCE[:1], TARGET[:1], marian)[0]
    assert len(alignments[1].links) == 0


def test_a_dropped_word_has_no_link(marian: Any) -> None:
    words = tokenizers.dropping()
    clean = align(["the cats sat"], ["the mat"], marian, words, soft=True, **FIXED)
    alignments = align(
        [["the", "\u200b", "cats", "sat"]], [["\u200b", "the", "mat"]],
        marian, words, soft=True, **FIXED,
    )  # fmt: skip
    assert alignments[0].dropped == ((1,), (0,))
    moved = {0: 0, 1: 2, 2: 3}
    assert set(alignments[0].links) == {(moved[s], t + 1) for s, t in clean[0].links}
    assert alignments[0].soft is not None
    assert alignments[0].soft.shape == (3, 5)
    assert not alignments[0].soft[0].any()
    assert not alignments[0].soft[:, 1].any()


@pytest.mark.parametrize("how", ["intersection", "grow-diag-final-and", None])
def test_both_directions(marian: Any, reverse_marian: Any, how: str | None) -> None:
    mine = tokenizer(pair=False)
    ahead = align(SOURCE, TARGET, marian, mine, **FIXED)
    other = align(TARGET, SOURCE, reverse_marian, mine, **FIXED)
    alignments = align(
        SOURCE, TARGET, marian, mine,
        reverse_model=reverse_marian, reverse_tokenizer=mine, symmetrize=how, **FIXED,
    )  # fmt: skip
    for pair, a, b in zip(alignments, ahead, other, strict=True):
        expected = symmetrize_links(a.links, b.links.flipped(), how or "grow-diag-final-and")
        assert pair.links == expected
        assert pair.links.scores == pytest.approx(expected.scores)
    assert alignments.reverse_choices == alignments.choices
    assert f"|symmetrize:{how or 'grow-diag-final-and'}|" in alignments.signature


def test_a_gold_without_sure_links_is_refused_before_the_work() -> None:
    with pytest.raises(InputError, match=r"the gold has no sure links"):
        align("a b", "a b", "no/such-model", gold=[Links.of((), {(0, 0)})])


def test_gold_gives_a_score(marian: Any, tmp_path: Path) -> None:
    gold = [Links.of({(0, 0), (1, 2)}), Links.of({(1, 1)}, {(0, 5)}), Links()]
    write_links(tmp_path / "gold.talp", gold)
    alignments = align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=gold, **FIXED)
    assert alignments.score == score(gold, alignments.links, resamples=1000)
    again = align(
        SOURCE, TARGET, marian, tokenizer(pair=False), gold=tmp_path / "gold.talp", **FIXED
    )
    assert again.score == alignments.score
    with pytest.raises(InputError, match=r"the gold, line 3: .* target word 1.* has 1 words"):
        align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=[*gold[:2], Links.of({(0, 1)})])
    with pytest.raises(InputError, match=r"the gold has 2 lines, but the source text has 3"):
        align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=gold[:2])


def test_translate_align() -> None:
    model: Any = tiny_model("bart", dtype=torch.float32)
    mine = tokenizer(pair=False)
    how: Any = {"max_length": 9, "do_sample": False, "num_beams": 1, "early_stopping": None}
    model.generation_config.update(**how, forced_bos_token_id=None, no_repeat_ngram_size=None)
    alignments = translate_align([*SOURCE, ""], model, mine, **FIXED)
    for pair, text in zip(alignments, SOURCE, strict=False):
        ids = model.generate(**mine(text, return_tensors="pt"))
        assert list(pair.target) == mine.decode(ids[0], skip_special_tokens=True).split()
        assert pair.source == tuple(text.split())
    assert (alignments[3].target, alignments[3].skipped) == ((), "empty")
    targets = [" ".join(pair.target) for pair in alignments[:3]]
    assert [set(pair.links) for pair in alignments[:3]] == [
        set(pair.links) for pair in align(SOURCE, targets, model, mine, **FIXED)
    ]


def test_the_signature_tells_what_the_links_were_made_with(marian: Any) -> None:
    how: Any = {"copies": 2, "noise": 0.25, "seed": 3, "method": "smoothgrad"}
    smooth = align("the cats", "a dog", marian, tokenizer(pair=False), **how).signature
    assert "|copies:2|noise:0.25|seed:3|" in smooth
    assert "|map:" not in smooth
    plain = align("the cats", "a dog", marian, tokenizer(pair=False), method="saliency").signature
    assert "|copies:" not in plain
    fixed = align("the cats", "a dog", marian, tokenizer(pair=False), **FIXED).signature
    assert "|map:attn_n|choice:1.sum.awi|" in fixed
    assert "|criterion:" not in fixed
    assert "|words:" not in fixed
    mine = tokenizer(pair=False)
    changes: list[dict[str, Any]] = [{"words": "moses"}, {"prefix": "the"}]
    for more in changes:
        changed = align("the cats", "a dog", marian, mine, **FIXED, **more).signature
        assert changed.replace('"', "") == fixed.replace(
            "|map:", f"|{next(iter(more))}:{next(iter(more.values()))}|map:"
        )


def test_the_signature_tells_the_other_direction_s_model(marian: Any, reverse_marian: Any) -> None:
    mine = tokenizer(pair=False)
    two = [
        align(SOURCE, TARGET, marian, mine, reverse_model=reverse, reverse_tokenizer=mine, **FIXED)
        for reverse in (reverse_marian, marian)
    ]
    assert two[0].signature != two[1].signature
    assert re.search(r"\|reverse_model:[^|]*/sha256=[0-9a-f]{64}\|", two[0].signature)
