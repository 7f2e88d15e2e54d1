"""Links: files read and written, AER by hand, symmetrisation against the published loops."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from normscope import InputError
from normscope.alignment.aer import counts_of, score
from normscope.alignment.files import read_lines, read_links, write_links
from normscope.alignment.links import Link, Links
from normscope.alignment.symmetrize import SYMMETRIZATIONS, symmetrize, symmetrize_links


def file(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


# ---- formats


def test_pharaoh_counts_from_0(tmp_path: Path) -> None:
    links = read_links(file(tmp_path / "a.pharaoh", "0-0 1-2 1-2\n\n10-3 \r\n"))
    assert links == [Links.of({(0, 0), (1, 2)}), Links(), Links.of({(10, 3)})]


def test_talp_counts_from_1_and_has_possible_links(tmp_path: Path) -> None:
    (links,) = read_links(file(tmp_path / "a.talp", "9-8 2p3 2-3 5p1"))
    assert links.sure == {(8, 7), (1, 2)}
    assert links.possible == {(8, 7), (1, 2), (4, 0)}  # what is sure somewhere is sure


def test_jsonl_has_scores(tmp_path: Path) -> None:
    line = {"links": [[0, 1, 0.5], [2, 2]], "possible": [[1, 1, 3]], "source": ["a", "b", "c"]}
    (links,) = read_links(file(tmp_path / "a.jsonl", json.dumps(line) + "\n"))
    assert links == Links.of({(0, 1), (2, 2)}, {(1, 1)})
    assert links.scores == {(0, 1): 0.5, (1, 1): 3.0}


def test_giza_is_read(tmp_path: Path) -> None:
    text = (
        "# Sentence pair (1) source length 3 target length 4 alignment score : 1e-5\n"
        "the house is small\n"
        "NULL ({ 3 }) das ({ 1 }) haus ({ 2 4 }) ! ({ })\n"
    )
    assert read_links(file(tmp_path / "a.A3.final", text)) == [Links.of({(0, 0), (1, 1), (1, 3)})]
    with pytest.raises(InputError, match=r"line 3: not of the form NULL"):
        read_links(file(tmp_path / "b.A3.final", text.replace("NULL", "das")))
    with pytest.raises(InputError, match=r"has 2 lines; GIZA\+\+ writes three"):
        read_links(file(tmp_path / "c.A3.final", "# a\nb\n"))


@pytest.mark.parametrize("suffix", [".talp", ".jsonl", ".pharaoh"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    draw = random.Random(0)
    links = []
    for _ in range(30):
        some = [(draw.randrange(9), draw.randrange(9)) for _ in range(draw.randrange(8))]
        possible = [] if suffix == ".pharaoh" else some[::3]
        sure = frozenset(some) - frozenset(possible)
        links.append(Links(sure, frozenset(some) if possible else sure, dict.fromkeys(some, 0.25)))
    path = tmp_path / f"x{suffix}"
    write_links(path, links)
    again = read_links(path)
    assert again == links
    if suffix == ".jsonl":
        assert [one.scores for one in again] == [one.scores for one in links]
    assert list(tmp_path.iterdir()) == [path]  # nothing half-written beside it


def test_each_line_as_text(tmp_path: Path) -> None:
    links = [Links.of({(1, 0), (0, 2)}), Links()]
    for suffix, text in ((".pharaoh", "0-2 1-0\n\n"), (".talp", "1-3 2-1\n\n")):
        write_links(tmp_path / f"x{suffix}", links)
        assert (tmp_path / f"x{suffix}").read_text() == text
    write_links(tmp_path / "x.jsonl", links, fields=[{"source": ["ä"]}, {}])
    first, second = (tmp_path / "x.jsonl").read_text().splitlines()
    assert first == '{"source": ["ä"], "links": [[0, 2], [1, 0]]}'
    assert json.loads(second) == {"links": []}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.pharaoh", "0-0\n0:1\n", r"a.pharaoh, line 2: '0:1' is no link of a Pharaoh file"),
        ("a.pharaoh", "0-0\n1p1\n", r"line 2: '1p1'.*only talp has possible links"),
        ("a.pharaoh", "-1-0\n", r"line 1: '-1-0'"),
        ("a.talp", "1-1\n\n1-0\n", r"a.talp, line 3: '1-0' has an index 0, and talp.*from 1"),
        ("a.talp", "1x1\n", r"line 1: '1x1' is no link of a talp file"),
        ("a.jsonl", '{"links": []}\n[]\n', r'line 2: a line is an object with "links"'),
        ("a.jsonl", "{\n", r"line 1: no JSON object"),
        ("a.jsonl", '{"links": [[0, -1]]}', r"line 1: a link's indices.*\[0, -1\]"),
        ("a.jsonl", '{"links": [[0, true]]}', r"indices are whole numbers"),
        ("a.jsonl", '{"links": [[0, 1, NaN]]}', r"score is a number, not nan"),
        ("a.jsonl", f'{{"links": [[0, 1, {"9" * 400}]]}}', r"line 1: .*score is a number, not 999"),
        ("a.jsonl", "[" * 100_000, r"line 1: no JSON object"),
        ("a.pharaoh", f"0-0\n{'9' * 5000}-0\n", r"line 2: '999.*is no link"),
        ("a.jsonl", '{"links": [[0]]}', r"a link is \[source, target\]"),
        ("a.jsonl", '{"links": 3}', r"links are a list"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_links(file(tmp_path / name, text))


def test_indices_beyond_the_text_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path / "a.pharaoh", "0-0\n1-3 2-0\n")
    assert len(read_links(path, source=[1, 3], target=[1, 4])) == 2
    with pytest.raises(InputError, match=r"a.pharaoh, line 2: the link 2-0.*source word 2.*has 2"):
        read_links(path, source=[1, 2])
    with pytest.raises(InputError, match=r"line 2: the link 1-3.*target word 3.*3 words.*from 1"):
        read_links(path, target=[1, 3])
    with pytest.raises(InputError, match=r"has 2 lines, but the target text has 3"):
        read_links(path, target=[1, 3, 1])


def test_a_file_that_counts_from_1_under_a_pharaoh_name_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path / "a.align", "1-1 2-2\n" * 60)
    with pytest.raises(InputError, match=r"a.align, line 1 to 60.*seems to count from 1"):
        read_links(path)
    assert read_links(path, "pharaoh")[0] == Links.of({(1, 1), (2, 2)})
    assert read_links(path, "talp")[0] == Links.of({(0, 0), (1, 1)})
    assert len(read_links(file(path, "1-1 2-2\n" * 59 + "0-0"))) == 60
    with pytest.raises(InputError, match=r"10 lines have links and none has an index 0"):
        read_links(file(path, "\n" + "1-1 2-2\n" * 10))
    assert len(read_links(file(path, "1-1 2-2\n" * 9))) == 9  # too few to tell


def test_what_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sentence 2.*Pharaoh cannot say"):
        write_links(tmp_path / "a", [Links(), Links.of((), {(0, 0)})])
    with pytest.raises(InputError, match=r"read, not written"):
        write_links(tmp_path / "a.final", [])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"unknown format 'moses'; valid: auto, pharaoh"):
        read_links(tmp_path / "a", "moses")
    with pytest.raises(InputError, match=r"cannot read .*none: No such file"):
        read_links(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(InputError, match=r"latin is not UTF-8"):
        read_lines(tmp_path / "latin")


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = file(tmp_path / "a", "a\u2028b c\r\nd\x85\n")
    assert read_lines(path) == ["a\u2028b c", "d\x85"]


# ---- AER


def test_a_worked_example() -> None:
    # S = {00, 11}, P = S + {12, 21}; A = {00, 12, 30}: |A∩S| = 1, |A∩P| = 2.
    gold = [Links.of({(0, 0), (1, 1)}, {(1, 2), (2, 1)})]
    made = score(gold, [Links.of({(0, 0), (1, 2), (3, 0)})])
    assert made.precision == float(Fraction(2, 3))
    assert made.recall == float(Fraction(1, 2))
    assert made.aer == float(Fraction(2, 5))  # 1 − (2 + 1) / (3 + 2)
    assert made.f1 == float(Fraction(4, 7))  # 2·⅔·½ / (⅔ + ½)
    assert vars(made.counts) == {
        "sentences": 1, "links": 3, "sure": 2, "possible": 4, "sure_hits": 1, "possible_hits": 2,
    }  # fmt: skip


def test_the_corpus_counts_as_one() -> None:
    gold = [Links.of({(0, 0)}), Links.of({(0, 1), (1, 0)}, {(2, 2)}), Links()]
    made = [Links.of({(0, 0)}), Links.of({(0, 1), (2, 2), (3, 3), (4, 4)}), Links.of({(0, 0)})]
    found = score(gold, made)
    assert found.aer == float(1 - Fraction(1 + 2 + 0 + 1 + 1 + 0, 6 + 3))
    assert found.precision == float(Fraction(3, 6))
    assert found.recall == float(Fraction(2, 3))
    # Not the mean of the sentences' own: 0, 1 − 3/6 and 1.
    assert found.aer != pytest.approx((0 + 0.5 + 1) / 3)


def test_perfect_and_none() -> None:
    gold = [Links.of({(0, 0)}, {(1, 1)})]
    assert (score(gold, gold).aer, score(gold, gold).f1) == (0.0, 1.0)
    nothing = score(gold, [Links()])
    assert (nothing.precision, nothing.recall, nothing.aer, nothing.f1) == (0.0, 0.0, 1.0, 0.0)
    with pytest.raises(InputError, match=r"no sure link at all"):
        score([Links()], [Links()])
    with pytest.raises(InputError, match=r"gold has 1 sentences and the hypothesis 2"):
        score(gold, [Links(), Links()])


def corpora(seed: int, size: int = 40) -> tuple[list[Links], list[Links]]:
    draw = random.Random(seed)

    def some(most: int) -> set[Link]:
        return {(draw.randrange(6), draw.randrange(6)) for _ in range(1 + draw.randrange(most))}

    return [Links.of(some(7), some(4)) for _ in range(size)], [
        Links.of(some(9)) for _ in range(size)
    ]


def test_intervals_are_those_of_resampled_sentences() -> None:
    gold, made = corpora(1)
    found = score(gold, made, resamples=300, seed=7)
    draw = np.random.default_rng(7)
    rates = []
    for _ in range(300):
        picked = draw.integers(len(gold), size=len(gold))
        rates.append(score([gold[i] for i in picked], [made[i] for i in picked]).aer)
    low, high = np.quantile(rates, [0.025, 0.975])
    assert found.intervals["aer"] == pytest.approx((low, high), abs=1e-15)
    assert low < found.aer < high
    assert found == score(gold, made, resamples=300, seed=7)
    assert found.intervals != score(gold, made, resamples=300, seed=8).intervals
    narrow = score(gold, made, resamples=300, seed=7, confidence=0.5).intervals
    assert all(
        found.intervals[k][0] < narrow[k][0] < narrow[k][1] < found.intervals[k][1] for k in narrow
    )
    assert score(gold, made).intervals == {}
    for wrong in (95.0, 0.0, 1.0):
        with pytest.raises(InputError, match=r"between 0 and 1"):
            score(gold, made, resamples=2, confidence=wrong)


def test_counts_by_sentence() -> None:
    gold, made = corpora(2)
    for row, g, a in zip(counts_of(gold, made), gold, made, strict=True):
        both = [x for x in a.sure if x in g.sure], [x for x in a.sure if x in g.possible]
        assert row.tolist() == [
            len(a.sure), len(g.sure), len(g.possible), len(both[0]), len(both[1]),
        ]  # fmt: skip


# ---- symmetrisation


def published(forward: set[Link], reverse: set[Link], method: str) -> set[Link]:
    """The published pseudo-code over whole matrices, word for word: e target, f source."""
    size = 1 + max((max(link) for link in forward | reverse), default=0)
    union = forward | reverse
    alignment = forward & reverse
    if method == "intersection":
        return alignment
    if method == "union":
        return union
    neighbouring = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]

    def e_aligned(e: int) -> bool:
        return any((f, e) in alignment for f in range(size))

    def f_aligned(f: int) -> bool:
        return any((f, e) in alignment for e in range(size))

    added = True
    while added:
        added = False
        for e in range(size):
            for f in range(size):
                if (f, e) not in alignment:
                    continue
                for step_e, step_f in neighbouring:
                    new_e, new_f = e + step_e, f + step_f
                    free = not e_aligned(new_e) or not f_aligned(new_f)
                    new = new_f, new_e
                    if free and new in union and new not in alignment:
                        alignment = alignment | {new}
                        added = True
    if method == "grow-diag":
        return alignment
    for direction in (forward, reverse):
        for e in range(size):
            for f in range(size):
                both = [not e_aligned(e), not f_aligned(f)]
                wanted = all(both) if method.endswith("and") else any(both)
                if wanted and (f, e) in direction:
                    alignment = alignment | {(f, e)}
    return alignment


def test_a_worked_symmetrization() -> None:
    # Intersection {00, 22}. 11 touches 00 across the corner: both its words are free, so it grows,
    # and 12 (source 1, target 2) then joins two words that are linked. 44 touches nothing.
    forward = {(0, 0), (2, 2), (1, 1), (4, 4), (3, 2)}
    reverse = {(0, 0), (2, 2), (1, 2), (0, 4), (5, 5)}
    expected = {
        "intersection": {(0, 0), (2, 2)},
        "union": forward | reverse,
        # From 00: 11 is free on both sides. From 22: 32 has a free source word; 12 has none then.
        "grow-diag": {(0, 0), (2, 2), (1, 1), (3, 2)},
        # Forward adds 44; reverse: target 4 and source 0 are linked, 55 is free.
        "grow-diag-final": {(0, 0), (2, 2), (1, 1), (3, 2), (4, 4), (5, 5)},
        "grow-diag-final-and": {(0, 0), (2, 2), (1, 1), (3, 2), (4, 4), (5, 5)},
    }
    for method, links in expected.items():
        assert symmetrize(forward, reverse, method) == links, method


def test_final_takes_what_final_and_leaves() -> None:
    forward, reverse = {(0, 0), (5, 0)}, {(0, 0), (0, 7)}
    assert symmetrize(forward, reverse, "grow-diag") == {(0, 0)}
    assert symmetrize(forward, reverse, "grow-diag-final-and") == {(0, 0)}
    assert symmetrize(forward, reverse, "grow-diag-final") == {(0, 0), (5, 0), (0, 7)}


def test_forward_comes_before_reverse() -> None:
    forward, reverse = {(3, 3)}, {(3, 5)}
    assert symmetrize(forward, reverse, "grow-diag-final-and") == {(3, 3)}
    assert symmetrize(reverse, forward, "grow-diag-final-and") == {(3, 5)}


@pytest.mark.parametrize("method", SYMMETRIZATIONS)
def test_symmetrization_equals_the_published_loops(method: str) -> None:
    draw = random.Random(method)
    for _ in range(400):
        words = draw.randrange(1, 9)
        some = [
            {
                (draw.randrange(words), draw.randrange(words))
                for _ in range(draw.randrange(2 * words))
            }
            for _ in range(3)
        ]
        forward, reverse = some[0] | some[2], some[1] | some[2]
        assert symmetrize(forward, reverse, method) == published(forward, reverse, method)


def test_an_order_other_than_the_published_one_would_show() -> None:
    """Which link grows first decides which others still may: so the order is really tested."""
    draw = random.Random(3)
    differ = 0
    for _ in range(300):
        a, b = ({(draw.randrange(6), draw.randrange(6)) for _ in range(10)} for _ in range(2))
        flipped = published({(t, s) for s, t in a}, {(t, s) for s, t in b}, "grow-diag")
        differ += published(a, b, "grow-diag") != {(s, t) for t, s in flipped}
    assert differ > 0


def test_scores_are_the_mean_of_both() -> None:
    a = Links(frozenset({(0, 0), (1, 1)}), scores={(0, 0): 0.5, (1, 1): 1.0})
    b = Links(frozenset({(0, 0)}), scores={(0, 0): 0.25})
    made = symmetrize_links(a, b, "union")
    assert made.scores == {(0, 0): 0.375, (1, 1): 0.5}
    assert symmetrize_links(Links.of({(0, 0)}), Links.of({(0, 0)}), "union").scores == {}
    assert math.isclose(sum(b.flipped().scores.values()), 0.25)


def test_scores_of_one_direction_count_half() -> None:
    links = frozenset({(0, 0), (1, 2)})
    told, silent = Links(links, links, {(0, 0): 0.5, (1, 2): 1.0}), Links(links, links, {})
    for pair in ((told, silent), (silent, told)):
        assert symmetrize_links(*pair, "union").scores == {(0, 0): 0.25, (1, 2): 0.5}
    assert symmetrize_links(silent, silent, "union").scores == {}


def test_an_unknown_symmetrization_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown symmetrization 'grow'; valid: intersection"):
        symmetrize((), (), "grow")
