"""The signature line: one line, from which the entries can be told apart."""

from __future__ import annotations

from pathlib import Path

import normscope
from normscope.models.architectures import tiny_model
from normscope.results.signature import signature_line
from tests.helpers.corpora import SETTINGS, Sums, quick_measuring, save_model, text_file
from tests.helpers.tiny import tokenizer


def test_values_cannot_look_like_entries() -> None:
    line = signature_line({"model": "a|weights:b\n\x1b[31m", "maps": "attn_w"})
    assert line == r"model:a\x7cweights:b\n\x1b[31m|maps:attn_w"
    assert signature_line({"a": "\n"}) != signature_line({"a": r"\n"})


def test_names_of_folders_and_settings_are_escaped(tmp_path: Path) -> None:
    home = save_model(tmp_path / "a|maps:x\n\x1b[31m")
    result = normscope.analyze(home, text="the cat sat")
    assert result.signature.startswith(r"model:a\x7cmaps:x\n\x1b[31m|revision:none|")
    with quick_measuring():
        counted = normscope.corpus(
            home, text_file(tmp_path / "a.txt", 3), [Sums()], settings=SETTINGS
        )
    assert counted.signature.startswith(r"model:a\x7cmaps:x\n\x1b[31m|revision:none|")
    model = tiny_model("bert")
    assert "\n" not in normscope.analyze(model, tokenizer(), "the cat sat").signature
