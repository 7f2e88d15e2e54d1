"""Problems are plain words."""

from __future__ import annotations

from normscope.corpus.records import Problem


def test_problems_are_plain_words() -> None:
    assert str(Problem("a.txt, line 3", "empty", "the text is empty")) == (
        "a.txt, line 3: the text is empty"
    )
