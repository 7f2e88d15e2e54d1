"""The worker's tasks, in this process."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from normscope import InputError
from normscope.decomposition.scopes import SCOPES
from normscope.models.architectures import tiny_model
from normscope.serve.worker import ServedModel, analyse, convert, load_models
from tests.helpers.tiny import tokenizer

REQUEST: dict[str, Any] = {
    "model": "bert",
    "text": "the cat sat on the mat",
    "text_pair": None,
    "target": None,
    "maps": ["attn_w", "attn_n"],
    "heads": "sum",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A post-norm model, a pre-norm model and an encoder–decoder model."""
    path = tmp_path_factory.mktemp("models")
    for name in ("bert", "gpt2", "bart"):
        tiny_model(name).save_pretrained(path / name)
        tokenizer(pair=name == "bert").save_pretrained(path / name)
    return path


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, ServedModel]:
    names: list[str | None] = [str(folder / name) for name in ("bert", "gpt2", "bart")]
    return load_models(names, None, None, 12)


def test_descriptions(models: dict[str, ServedModel]) -> None:
    descriptions = {name: served.describe() for name, served in models.items()}
    assert list(descriptions) == ["bert", "gpt2", "bart"]
    for name, description in descriptions.items():
        assert description["name"] == name
        assert description["max_length"] == 12
        assert description["per_head"] == ["attn_w", "attn_n"]
        assert description["titles"] == {m: SCOPES[m].title for m in description["maps"]}
        assert description["target"] == (name == "bart")
    weights_and_norms = ["attn_w", "attn_n"]
    assert {name: described["suggested"] for name, described in descriptions.items()} == {
        "bert": [*weights_and_norms, "attn_res_ln_n", "atb_ff_res_ln"],
        "gpt2": [*weights_and_norms, "atb_ln_ff_res"],
        "bart": [*weights_and_norms, "attn_res_ln_n", "atb_ff_res_ln"],
    }


def test_two_models_with_the_same_name(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "bert"
    tiny_model("bert").save_pretrained(copy)
    tokenizer().save_pretrained(copy)
    with pytest.raises(InputError, match="two of the models are named 'bert'"):
        load_models([str(folder / "bert"), str(copy)], None, None, 12)


def test_analyse_and_convert(models: dict[str, ServedModel]) -> None:
    frame = analyse(REQUEST, models, 10_000)
    assert 0 <= frame.header["reconstruction_error"] < 1e-5
    assert frame.blobs["html"].startswith(b"<!doctype html>")
    saved = frame.blobs["safetensors"]
    values = json.loads(convert("json", saved).blobs["json"])["maps"]["attn_n"]
    rows = list(csv.DictReader(io.StringIO(convert("csv", saved).blobs["csv"].decode())))
    column = [float(row["value"]) for row in rows if row["map"] == "attn_n"]
    assert column == [value for layer in values for query in layer for value in query]


def test_limits(models: dict[str, ServedModel]) -> None:
    tokens, layers, heads = 8, 3, 4  # six words, <s> and </s>
    cells = layers * len(REQUEST["maps"]) * tokens**2
    analyse(REQUEST, models, cells)
    with pytest.raises(InputError, match=f"would have {cells} numbers, .* {cells - 1}; select"):
        analyse(REQUEST, models, cells - 1)
    with pytest.raises(InputError, match=f"would have {heads * cells:,} numbers"):
        analyse(REQUEST | {"heads": "each"}, models, cells)
    with pytest.raises(InputError, match=r"the text has 22 tokens .* at most 12; shorten it"):
        analyse(REQUEST | {"text": "cat " * 20}, models, cells)
    with pytest.raises(InputError, match=r"the target has \d+ tokens .* at most 12; shorten it"):
        analyse(REQUEST | {"model": "bart", "target": "cat " * 20}, models, cells)
