"""Text for files and people: surrogates, formulas, control characters, long names."""

from __future__ import annotations

import csv
import io
import json

import pytest

from normscope.foundation.texts import (
    csv_lines,
    json_line,
    printable,
    quoted,
    shortened,
    to_json,
    utf8,
)


def test_json_is_read_back_with_its_half_surrogates() -> None:
    value = {"α\ud800": ["\udfff", "a\\ud800", "é", None, 0.1]}
    assert json.loads(json_line(value)) == value
    assert json_line("α") == '"α"\n'.encode()
    assert to_json([1, {"a": 2}], compact=True) == '[1,{"a":2}]'
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json(float("nan"))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "-"]
)
def test_what_a_spreadsheet_takes_for_a_formula_gets_an_apostrophe(text: str) -> None:
    assert list(csv.reader(io.StringIO("".join(csv_lines([[text]])), newline=""))) == [[f"'{text}"]]


def test_other_cells_are_written_as_they_are() -> None:
    row = ["it's", "'s", "a=b", "", -1, -0.1, 1e-300, None, True, "−1", "a,b"]
    assert list(csv_lines([row])) == ["it's,'s,a=b,,-1,-0.1,1e-300,,True,−1,\"a,b\"\n"]
    assert utf8("".join(csv_lines([["\ud800"]]))) == b"\\ud800\n"


def test_what_is_shown_is_one_line_without_control_characters() -> None:
    assert printable("a\x1b[31m\n\ud800é") == "a\\x1b[31m\\n\\ud800é"
    assert quoted("a\n'b") == '"a\\n\'b"'
    assert len(quoted("x" * 5000)) < 210
    assert shortened("abcdefghi", 6) == "abcd…hi"
