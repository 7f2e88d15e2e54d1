"""A report as Markdown, as a page, and in a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from normscope.errors import InputError
from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import Exhibit, Finding, Report
from normscope.reproduce.report import markdown, page, show, write


def test_text_is_escaped(tmp_path: Path) -> None:
    table = Table({"token": ["<script>|*", "\x1b[31m"], "published": [0.34, None]})
    report = Report(
        "x",
        "A paper",
        (),
        {"data": "a|b <i>"},
        [Finding("f", "1", "2", False)],
        [Exhibit("Table 1", "T <b>", "C", table)],
        "s",
    )
    text, document = markdown(report), page(report, {})
    assert r"&lt;script&gt;\|\*" in text
    assert "<script" not in text
    assert "<script" not in document
    assert "&lt;script&gt;" in document
    assert "<b>" not in text + document
    assert "<i>" not in text + document
    assert "\x1b" not in text + document
    write(report, tmp_path)
    assert (tmp_path / "report.md").read_text() == text
    assert (tmp_path / "report.html").read_text() == document


def test_a_page_needs_no_other_file() -> None:
    picture = b"\x89PNG"
    report = Report("x", "A paper", ("W",), {}, [], [Exhibit("Figure 1", "T", "C")], "s", ["S"])
    document = page(report, {"figure-1": picture})
    assert '<section id="figure-1">' in document
    assert 'alt="Figure 1: T" src="data:image/png;base64,iVBORw=="' in document
    assert "default-src 'none'" in document.replace("&#39;", "'")
    assert "http://" not in document
    assert "https://" not in document


def test_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file")
    report = Report("x", "P", (), {}, [], [Exhibit("T", "T", "C", Table({"a": [1]}))], "s")
    with pytest.raises(InputError, match=r"cannot write .*choose a folder"):
        write(report, tmp_path)


def test_no_number_is_cut_in_a_narrow_terminal() -> None:
    columns: dict[str, Any] = {"analysis": ["AttnRes-N", "AttnResLn-N"]}
    columns |= {f"number {i}": [1234.56789 + i, 0.000123456 + i] for i in range(9)}
    exhibit = Exhibit("Table 1", "Many numbers", "", Table(columns, "many"))
    report = Report("emnlp2021", "A paper", (), {}, [], [exhibit], "")
    wide, narrow = io.StringIO(), io.StringIO()
    for width, file in ((300, wide), (40, narrow)):
        show(report, Console(file=file, width=width))
    numbers = re.findall(r"\d+\.\d+", wide.getvalue())
    assert len(numbers) == 18
    assert re.findall(r"\d+\.\d+", narrow.getvalue()) == numbers
    assert "AttnResLn-N" in narrow.getvalue()
