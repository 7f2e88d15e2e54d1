"""Results of an alignment: word pairs, page data, small pictures for notebooks."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscope import InputError
from normscope.alignment.links import Links
from normscope.alignment.result import Alignment, Alignments
from normscope.show.page import page
from tests.helpers.alignments import SIGNATURE, pair, several


def rows(data: dict[str, Any]) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(data["pairs"])))


def test_word_pairs_and_words_without_a_link() -> None:
    one = pair()
    assert one.word_pairs[1:3] == [("Katze", "cat", 0.84), ("Katze", "slept", 0.32)]
    assert one.unlinked == (("schlief", "heute", "."), (".",))
    assert one.signature == SIGNATURE


def test_the_data_of_the_page() -> None:
    one = pair()
    data = one.page_payload()
    assert (data["format"], data["title"]) == ("normscope.links", "The cat slept well .")
    [[source, target, links, gold, soft, skipped]] = rows(data)
    assert (tuple(source), tuple(target), skipped) == (one.source, one.target, "")
    assert links == [[0, 0, 0.56], [1, 1, 0.84], [1, 2, 0.32], [4, 3, 0.7]]
    assert gold == [[0, 0, 1], [1, 1, 1], [2, 2, 1], [4, 3, 0], [5, 4, 1]]
    np.testing.assert_allclose(np.sum(soft, axis=1), 1000, atol=4)
    assert soft[1][1] == 840
    plain = rows(pair(gold=False, soft=False).page_payload())[0]
    assert plain[3:] == [None, None, ""]
    many = several(3, gold=False)
    assert many.page_payload()["title"] == "3 aligned pairs"
    assert [len(row[0]) for row in rows(many.page_payload())] == [4, 5, 6]


def test_a_page_needs_two_texts() -> None:
    with pytest.raises(InputError, match=r"source of this alignment is audio"):
        Alignment(None, ("a",), Links()).page_payload()
    with pytest.raises(InputError, match=r"at least one sentence pair"):
        Alignments(()).page_payload()


def test_pages_are_written_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(3).to_html(tmp_path / "a.html")
    content = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<title>3 aligned pairs · normscope</title>" in content
    assert ".ns-pairrow" in content
    pair().to_html(tmp_path / "b.html")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    pair().show()
    several(3).show()
    assert len(opened) == 2
    hostile = replace(pair(), target=("</script><script>alert(1)</script>", *"abcd"))
    assert "alert(1)</script>" not in page(hostile)


def test_small_pictures_for_notebooks() -> None:
    drawn = pair()._repr_html_()
    assert drawn.count("<path") == 6
    assert drawn.count("stroke-dasharray") == 2
    assert "AER 37.5%" in drawn
    texts = re.findall(r"fill-opacity=\"([\d.]+)\">([^<]*)</text>", drawn)
    assert [word for opacity, word in texts if opacity == "0.6"] == ["schlief", "heute", ".", "."]
    many = several(9)._repr_html_()
    assert many.count("<svg") == 5
    assert "and 4 more pairs" in many
    escaped = Alignment(("<b>",), ("a",), Links.of({(0, 0)}))._repr_html_()
    assert "<b>a" not in escaped
    assert "&lt;b&gt;" in escaped
