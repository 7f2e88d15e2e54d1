"""The tokenizers of a model's two sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope import InputError
from normscope.models.architectures import tiny_model
from normscope.models.sides import folder_of, tokenizers_of
from normscope.text.normalization import Normalization
from tests.helpers import alignment_tokenizers as tokenizers
from tests.helpers.tiny import tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("marian").save_pretrained(tmp_path)
    tokenizer(pair=False).save_pretrained(tmp_path)
    tokenizers.dropping().save_pretrained(tmp_path / "target")
    return tmp_path


def _describe(folder: Path, **fields: Any) -> None:
    (folder / "normscope.json").write_text(json.dumps(fields), encoding="utf-8")


def test_one_tokenizer_is_that_of_both_sides() -> None:
    marian: Any = tiny_model("marian")
    own = tokenizer()
    both = tokenizers_of(marian, own)
    assert both.source is both.target is both.given is own
    assert folder_of(marian) is None
    other = tokenizers.dropping()
    pair = tokenizers_of(marian, (own, other))
    assert pair.given == (own, other)
    assert pair.side(as_target=True) is other


def test_a_folder_has_a_tokenizer_for_the_target(folder: Path) -> None:
    _describe(folder, target_tokenizer="target")
    result = normscope.analyze(str(folder), text="the cats sat", target="the \u200b cats")
    plain = normscope.analyze(
        tiny_model("marian"),
        (tokenizer(pair=False), tokenizers.dropping()),
        "the cats sat",
        target="the \u200b cats",
    )
    assert result.cross.tokens == plain.cross.tokens
    assert result.encoder.tokens == plain.encoder.tokens


@pytest.mark.parametrize("name", ["../other", "/other", "C:\\other", "target/../../other"])
def test_the_targets_tokenizer_is_inside_the_folder(folder: Path, name: str) -> None:
    _describe(folder, target_tokenizer=name)
    with pytest.raises(InputError, match="target_tokenizer must be a folder inside it, not"):
        normscope.analyze(str(folder), text="the cats sat", target="the cats")


def test_text_is_normalized_only_where_the_tokenizer_does_not_do_it(folder: Path) -> None:
    _describe(folder, replace=[["dogs", "cats"]])
    result = normscope.analyze(str(folder), text="the dogs sat", target="dogs")
    assert "cats" in result.encoder.tokens.texts
    assert "cats" in result.decoder.tokens.texts
    lower = tokenizers_of(tiny_model("marian"), tokenizer())
    assert lower.normalization == Normalization()
    _describe(folder, unicode="NFX")
    with pytest.raises(InputError, match=r"cannot use normscope\.json.*NFX"):
        normscope.analyze(str(folder), text="the", target="the")


def test_a_file_that_is_not_an_object_is_an_error(folder: Path) -> None:
    for wrong in ("[]", "{"):
        (folder / "normscope.json").write_text(wrong)
        with pytest.raises(InputError, match=r"cannot use .*normscope\.json"):
            normscope.analyze(str(folder), text="the", target="the")
