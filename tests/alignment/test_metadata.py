"""The file normscope.json beside a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normscope import InputError
from normscope.alignment.extract import Choice
from normscope.alignment.metadata import ModelMetadata, read_metadata
from normscope.text.normalization import Normalization


def test_the_file_beside_a_model(tmp_path: Path) -> None:
    assert read_metadata(tmp_path).normalization == Normalization()
    content = {
        "unicode": "NFC",
        "lowercase": True,
        "replace": [["ß", "ss"]],
        "target_tokenizer": "target",
        "languages": ["de", "en"],
    }
    (tmp_path / "normscope.json").write_text(json.dumps(content), encoding="utf-8")
    metadata = read_metadata(tmp_path)
    assert metadata.normalization == Normalization("NFC", True, (("ß", "ss"),))
    assert (metadata.target_tokenizer, metadata.languages) == ("target", ("de", "en"))
    assert metadata.normalization("DAẞ") == "dass"
    for wrong in ('{"unicode": "UTF"}', '{"replace": [["a"]]}', "[]", "{"):
        (tmp_path / "normscope.json").write_text(wrong, encoding="utf-8")
        with pytest.raises(InputError, match=r"cannot use .*normscope\.json"):
            read_metadata(tmp_path)


def test_a_choice_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "normscope.json").write_text(json.dumps({"choices": [{"layer": 1}]}))
    with pytest.raises(InputError, match=r"normscope\.json"):
        read_metadata(tmp_path)


def test_stored_choices_are_read_in_order(tmp_path: Path) -> None:
    entries = [
        {"layer": 2, "head": None, "reading": "awo"},
        {"layer": 0, "head": 3, "reading": "awi"},
    ]
    (tmp_path / "normscope.json").write_text(json.dumps({"choices": entries}))
    expected = (Choice(2, None, "awo"), Choice(0, 3, "awi"))
    assert read_metadata(tmp_path) == ModelMetadata(choices=expected)
