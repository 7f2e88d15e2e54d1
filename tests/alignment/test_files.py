"""Files of links and of text: what is read, written and refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from normscope import InputError
from normscope.alignment.files import read_lines, read_links, write_links
from normscope.alignment.links import Links


def file(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


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
        assert [pair_links.scores for pair_links in again] == [
            pair_links.scores for pair_links in links
        ]
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
        ("a.pharaoh", "0-0\n0:1\n", r"a.pharaoh, line 2: '0:1' is not a Pharaoh link"),
        ("a.pharaoh", "0-0\n1p1\n", r"line 2: '1p1'.*only talp files have possible"),
        ("a.pharaoh", "-1-0\n", r"line 1: '-1-0'"),
        ("a.talp", "1-1\n\n1-0\n", r"a.talp, line 3: '1-0' has an index 0, but talp.*from 1"),
        ("a.talp", "1x1\n", r"line 1: '1x1' is not a talp link"),
        ("a.jsonl", '{"links": []}\n[]\n', r'line 2: a line must be an object with "links"'),
        ("a.jsonl", "{\n", r"line 1: not a JSON object"),
        ("a.jsonl", '{"links": [[0, -1]]}', r"line 1: the indices of a link.*\[0, -1\]"),
        ("a.jsonl", '{"links": [[0, true]]}', r"indices of a link must be integers"),
        (
            "a.jsonl",
            '{"links": [[0, 1, NaN]]}',
            r"score of a link must be a finite number, not nan",
        ),
        (
            "a.jsonl",
            f'{{"links": [[0, 1, {"9" * 400}]]}}',
            r"line 1: .*must be a finite number, not 999",
        ),
        ("a.jsonl", "[" * 100_000, r"line 1: not a JSON object"),
        ("a.pharaoh", f"0-0\n{'9' * 5000}-0\n", r"line 2: '999.*is not a Pharaoh link"),
        ("a.jsonl", '{"links": [[0]]}', r"a link must be \[source, target\]"),
        ("a.jsonl", '{"links": 3}', r"links must be a list"),
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
    with pytest.raises(InputError, match=r"a.align, lines 1 to 60.*seems to count from 1"):
        read_links(path)
    assert read_links(path, "pharaoh")[0] == Links.of({(1, 1), (2, 2)})
    assert read_links(path, "talp")[0] == Links.of({(0, 0), (1, 1)})
    assert len(read_links(file(path, "1-1 2-2\n" * 59 + "0-0"))) == 60
    with pytest.raises(InputError, match=r"10 lines have links, but none has an index 0"):
        read_links(file(path, "\n" + "1-1 2-2\n" * 10))
    assert len(read_links(file(path, "1-1 2-2\n" * 9))) == 9  # too few to tell


def test_what_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sentence 2.*Pharaoh file cannot hold"):
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
