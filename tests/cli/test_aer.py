"""`normscope aer`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.commands import fail, succeed


def test_aer_by_hand(tmp_path: Path) -> None:
    # S = {00, 11}, P = S + {12, 21}; A = {00, 12, 30}: AER 2/5, P 2/3, R 1/2, F1 4/7.
    (tmp_path / "gold.talp").write_text("1-1 2-2 2p3 3p2\n")
    (tmp_path / "links").write_text("0-0 1-2 3-0\n")
    files = "--gold", str(tmp_path / "gold.talp"), "--hypothesis", str(tmp_path / "links")
    printed = succeed("aer", *files).stdout
    row = next(line for line in printed.splitlines() if line.startswith(str(tmp_path / "links")))
    for value in ("40.0", "66.7", "50.0", "57.1"):
        assert f" {value} [{value}, {value}]" in row  # one sentence: all resamples are equal
    assert "1 sentences, 3 links; gold 2 sure, 4 possible; hits 1 sure, 2 possible" in printed
    figures = json.loads(succeed("aer", *files, "--json").stdout)[str(tmp_path / "links")]
    assert figures["aer"] == 2 / 5
    assert figures["counts"]["possible_hits"] == 2
    assert figures["intervals"]["aer"] == [0.4, 0.4]
    assert "[" not in succeed("aer", *files, "--resamples", "0").stdout


def test_mistakes_of_aer(tmp_path: Path) -> None:
    (tmp_path / "gold.talp").write_text("1-1\n1-1\n")
    (tmp_path / "short").write_text("0-0\n")
    (tmp_path / "mixed.talp").write_text("1-1\n0-1\n")
    (tmp_path / "far").write_text("0-0\n5-0\n")
    (tmp_path / "text").write_text("a b\nc\n")

    def message(name: str, *more: str) -> str:
        links = str(tmp_path / name)
        return fail("aer", "--gold", str(tmp_path / "gold.talp"), "--hypothesis", links, *more)

    assert "gold.talp has 2 lines" in message("short")
    assert "mixed.talp, line 2: '0-1' has an index 0" in message("mixed.talp")
    text = "--source", str(tmp_path / "text"), "--target", str(tmp_path / "text")
    assert "far, line 2: the link 5-0" in message("far", *text)
    assert "unknown format 'x'" in message("far", "--hypothesis-format", "x")
