"""The German–English model that comes with normscope, on twelve sentences aligned by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import ExactnessError, InputError
from normscope.alignment.aligner import FEW
from normscope.alignment.extract import Choice
from normscope.alignment.metadata import read_metadata
from normscope.alignment.translator import embedded_model_path
from normscope.decomposition import attention
from normscope.kernels import factor_norms
from normscope.models import identity, load
from normscope.models.sides import tokenizers_of

TWELVE = Path(__file__).parents[1] / "helpers" / "data" / "twelve.tsv"
Link = tuple[int, int]


def by_hand() -> list[tuple[str, str, set[Link], set[Link]]]:
    """German, English, sure links and possible ones, the sure among them; from 0."""
    rows = []
    for line in TWELVE.read_text(encoding="utf-8").splitlines():
        source, target, written = line.split("\t")
        sure: set[Link] = set()
        possible: set[Link] = set()
        for link in written.split():
            at, to = link.replace("p", "-").split("-")
            pair = int(at) - 1, int(to) - 1
            assert pair[0] < len(source.split())
            assert pair[1] < len(target.split())
            possible.add(pair)
            if "-" in link:
                sure.add(pair)
        rows.append((source, target, sure, possible))
    return rows


def test_it_aligns_a_dozen_sentences() -> None:
    rows = by_hand()
    assert len(rows) == 12
    alignments = normscope.align([row[0] for row in rows], [row[1] for row in rows])
    count = sure = hits = 0
    for pair, (_, _, certain, possible) in zip(alignments, rows, strict=True):
        links = set(pair.links)
        count, sure = count + len(links), sure + len(certain)
        hits += len(links & certain) + len(links & possible)
    best = (Choice(1, 0, "awi"), Choice(1, None, "awi"), Choice(2, None, "awo"))
    assert alignments.choices == best
    assert alignments.ranking == []  # nothing was guessed from twelve sentences
    assert repr(alignments).startswith("Alignments of 12 pairs: ")
    assert len(repr(alignments)) < 200
    assert 1 - Fraction(hits, count + sure) == Fraction(5, 188)  # AER 2.7: docs/alignment.md
    assert 0 < alignments.error < 1e-5  # cells of every layer that is read are computed again
    assert alignments.signature.startswith(
        "model:normscope-de-en|revision:none|weights:sha256=132d0541"
    )


@pytest.mark.parametrize("layer", ["auto", 0, 1, 2, 3])
def test_a_wrong_map_is_refused_in_every_layer(
    layer: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: Any) -> list[Any]:
        return [1.01 * norms for norms in factor_norms(*given)]

    monkeypatch.setattr(attention, "factor_norms", wrong)
    source, target, *_ = by_hand()[0]
    with pytest.raises(ExactnessError, match="differ from the model's own output"):
        normscope.align(source, target, layer=layer, head="auto" if layer == "auto" else "sum")


def test_more_text_is_looked_at_itself() -> None:
    rows = by_hand()
    many = [rows[i % 12] for i in range(FEW)]
    alignments = normscope.align([row[0] for row in many], [row[1] for row in many])
    assert alignments.ranking != []


def test_a_choice_that_is_left_open_keeps_to_what_was_asked() -> None:
    source, target, *_ = by_hand()[0]
    alignments = normscope.align(source, target, layer=2)
    assert {choice.layer for choice in alignments.choices} == {2}


def test_what_is_asked_for_goes_before_the_model_s_own_choice() -> None:
    source, target, *_ = by_hand()[0]
    by_norm = normscope.align(source, target, criterion="norm")
    assert [candidate.choice for candidate in by_norm.ranking[:3]] == list(by_norm.choices)
    assert len(normscope.align(source, target, combine=6).choices) == 6
    with pytest.raises(InputError, match=r"unknown criterion 'aer'"):
        normscope.align(source, target, criterion="aer")


def test_a_sentence_too_long_to_translate_is_left_out_where_asked() -> None:
    with pytest.raises(InputError, match=r"source sentence 2 has 601 tokens.*--skip-long"):
        normscope.translate_align(["gut .", "gut " * 600])
    alignments = normscope.translate_align(["gut .", "gut " * 600, ""], skip_long=True, beams=1)
    assert [pair.skipped for pair in alignments] == ["", "too long", "empty"]
    assert alignments[0].target
    assert not alignments[1].target


def test_translations_are_aligned_as_they_are_when_given() -> None:
    """With the model's normalization, target tokenizer and stored choices."""
    sources = [
        "Die Kinder bleiben heute zu Hause .",
        "Wir haben keine Zeit .",
        "Das Haus ist groß .",
    ]
    translated = normscope.translate_align(sources, beams=1)
    targets = [" ".join(pair.target) for pair in translated]
    assert all(targets)
    aligned = normscope.align(sources, targets)
    assert translated.links == aligned.links
    assert [pair.links.scores for pair in translated] == [pair.links.scores for pair in aligned]
    assert translated.choices == aligned.choices
    assert translated.signature == aligned.signature
    assert dict(translated[0].links)[1] == targets[0].split().index("children")


@pytest.mark.parametrize("name", ["de-en", "normscope-de-en", "folder"])
def test_analyze_names_the_tokens_of_both_sides(name: str) -> None:
    model = str(embedded_model_path()) if name == "folder" else name
    dtype = "float32" if name == "folder" else None
    result = normscope.analyze(
        model, text="Das Haus ist groß .", target="The house is big .", dtype=dtype
    )
    assert list(result.parts) == ["encoder", "decoder", "cross"]
    source = ("Das", "Haus", "ist", "groß", ".", "</s>")
    assert result.encoder.tokens.texts == source
    assert result.cross.key_tokens.texts == source
    written = ("</s>", "The", "house", "is", "big", ".")
    assert result.decoder.tokens.texts == result.cross.tokens.texts == written
    assert result.cross.tokens.strings[1:] == ("▁the", "▁house", "▁is", "▁big", "▁.")
    assert result.cross["attn_n"].shape == (4, 6, 6)
    assert max(part.error["attn_n"] for part in result.parts.values()) < 1e-5
    assert "+TokenizersBackend/" in result.signature


def test_it_is_loaded_by_its_short_name_and_as_a_pair_of_tokenizers() -> None:
    model, tokenizer = load("de-en")
    assert model.dtype == torch.float32
    assert identity(model)["name"] == "normscope-de-en"
    both = tokenizers_of(model, tokenizer)
    assert both.two
    texts: dict[str, Any] = {"text": "das haus .", "target": "the house ."}
    first = normscope.analyze(model, tokenizer, **texts)
    model.config._name_or_path = ""  # no folder to find the second tokenizer in
    second = normscope.analyze(model, both.given, **texts)
    assert first.cross.tokens == second.cross.tokens
    np.testing.assert_array_equal(first.cross["attn_n"].values, second.cross["attn_n"].values)
    with pytest.raises(InputError, match=r"one tokenizer, or two \(source, target\), not 3"):
        normscope.analyze(model, [tokenizer] * 3, **texts)


def test_attribute_explains_its_translation() -> None:
    result = normscope.attribute("de-en", text="Das Haus ist groß .", target="the house is big .")
    assert result.steps is not None
    assert result.steps.texts == ("the", "house", "is", "big", ".", "</s>")
    assert result.top(1, step=1)[0][0] == "Haus"
    written = normscope.attribute("de-en", text="das haus .", generate=3)
    assert written.steps is not None
    assert written.steps.texts[:2] == ("the", "house")
    answer = normscope.attribute("de-en", text="das haus .", answer="the", foil="that")
    assert "' the' rather than ' that'" in answer.question


def test_its_choice_stands_in_its_folder() -> None:
    assert read_metadata(embedded_model_path()).choices[0] == Choice(1, 0, "awi")
