"""Word pairs as text."""

from __future__ import annotations

from dataclasses import replace

from normscope.alignment.links import Links
from normscope.alignment.result import Alignment
from normscope.show.plots.style import letters
from tests.helpers.alignments import links, pair


def test_a_table_of_word_pairs() -> None:
    assert str(pair(gold=False)).splitlines() == [
        "Die Katze schlief heute gut .",
        "The cat slept well .",
        "",
        "  source  target  score",
        "  Die     The       56%  ██████",
        "  Katze   cat       84%  ████████",
        "  Katze   slept     32%  ███",
        "  gut     well      70%  ███████",
        "",
        "Not linked: source “schlief”, “heute”, “.”; target “.”.",
        "4 of 5 target words are linked; “Katze” – “cat” is the surest link (84%).",
    ]


def test_gold_links_are_marked() -> None:
    rows = [line.split() for line in str(pair()).splitlines()[4:10]]
    assert rows == [
        ["Die", "The", "56%", "sure"],
        ["Katze", "cat", "84%", "sure"],
        ["Katze", "slept", "32%", "wrong"],
        ["schlief", "slept", "–", "missing"],
        ["gut", "well", "70%", "possible"],
        [".", ".", "–", "missing"],
    ]


def test_no_line_is_wider_than_a_terminal() -> None:
    long = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
    one = Alignment((long,) * 9, ("水" * 40, *[long] * 8), links({(0, 0): 1.0, (1, 1): 0.5}))
    lines = str(one).splitlines()
    assert max(map(letters, lines)) <= 79
    table = [line for line in lines if line.startswith("  ")]
    assert max(map(letters, table)) <= 79
    assert len({line.index("%") for line in table[2:]}) == 1


def test_a_pair_that_was_not_aligned_and_audio() -> None:
    skipped = replace(pair(), links=Links(), skipped="too long")
    assert str(skipped).splitlines()[-1] == "not aligned: too long"
    spoken = Alignment(None, ("the", "house"), Links.of({(62, 1)}))
    assert spoken.word_pairs == [("1.24 s", "house", None)]
    assert "  1.24 s  house       –" in str(spoken)
    assert spoken.unlinked == ((), ("the",))
