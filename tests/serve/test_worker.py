"""The worker's tasks, in this process."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope import InputError
from normscope.decomposition.scopes import SCOPES
from normscope.models.architectures import tiny_model
from normscope.serve.worker import ServedModel, analyse, convert, explain, load_models
from tests.helpers.heads import classifier, language_model, masked_tokenizer, tiny_head, translator
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


def written(folder: Path, kind: str) -> str:
    """Return the text of a result's file, which is converted if it is JSON or CSV."""
    if kind in ("json", "csv"):
        assert convert(kind, str(folder)) == {}
    return (folder / f"normscope.{kind}").read_text(encoding="utf-8")


def test_analyse_and_convert(models: dict[str, ServedModel], tmp_path: Path) -> None:
    folder = tmp_path / "result"
    answer = analyse(REQUEST | {"folder": str(folder)}, models, 10_000)
    assert 0 <= answer["reconstruction_error"] < 1e-5
    assert sorted(path.name for path in folder.iterdir()) == [
        "normscope.html",
        "normscope.safetensors",
    ]
    assert written(folder, "html").startswith("<!doctype html>")
    values = json.loads(written(folder, "json"))["maps"]["attn_n"]
    rows = list(csv.DictReader(io.StringIO(written(folder, "csv"))))
    column = [float(row["value"]) for row in rows if row["map"] == "attn_n"]
    assert column == [value for layer in values for query in layer for value in query]


def test_limits(models: dict[str, ServedModel], tmp_path: Path) -> None:
    tokens, layers, heads = 8, 3, 4  # six words, <s> and </s>
    cells = layers * len(REQUEST["maps"]) * tokens**2
    analyse(REQUEST | {"folder": str(tmp_path / "result")}, models, cells)
    with pytest.raises(InputError, match=f"would have {cells} numbers, .* {cells - 1}; select"):
        analyse(REQUEST, models, cells - 1)
    with pytest.raises(InputError, match=f"would have {heads * cells:,} numbers"):
        analyse(REQUEST | {"heads": "each"}, models, cells)
    with pytest.raises(InputError, match=r"the text has 22 tokens .* at most 12; shorten it"):
        analyse(REQUEST | {"text": "cat " * 20}, models, cells)
    with pytest.raises(InputError, match=r"the target has \d+ tokens .* at most 12; shorten it"):
        analyse(REQUEST | {"model": "bart", "target": "cat " * 20}, models, cells)


# ---- attributions

TEXT = "the cat sat on the mat"
ASKED: dict[str, list[dict[str, Any]]] = {
    "gpt2": [
        {"question": "next"},
        {"question": "next", "answer": "dog", "foil": "cat", "trace": True},
        {"question": "next", "answer": "dog", "baseline": "the dog sat on the mat"},
        {"question": "continue", "continuation": "and looked at it"},
        {"question": "write", "generate": 3},
    ],
    "classifier": [
        {"question": "label"},
        {"question": "label", "answer": "positive", "foil": "negative", "text_pair": "it ran"},
    ],
    "masked": [{"question": "mask", "text": "the sun sat", "answer": "dog", "foil": "cat"}],
    "translator": [
        {"question": "target", "target": "the dog ran"},
        {"question": "write", "generate": 3},
    ],
    "encoder": [{"question": "similar", "similar_to": "the dog ran", "baseline": "zero"}],
}


@pytest.fixture(scope="module")
def asked_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedModel]:
    path = tmp_path_factory.mktemp("asked")
    models = {
        "gpt2": (language_model(), tokenizer(pair=False)),
        "classifier": (classifier(), tokenizer()),
        "masked": (tiny_head("bert", "BertForMaskedLM"), masked_tokenizer()),
        "translator": (translator(), tokenizer(pair=False)),
        "encoder": (tiny_model("bert"), tokenizer()),
    }
    for name, (model, its_tokenizer) in models.items():
        model.save_pretrained(path / name)
        its_tokenizer.save_pretrained(path / name)
    return load_models([str(path / name) for name in models], None, None, 20)


@pytest.mark.parametrize("name", ASKED)
def test_explain_gives_the_shares_of_attribute(
    asked_models: dict[str, ServedModel], name: str, tmp_path: Path
) -> None:
    served = asked_models[name]
    for number, asked in enumerate(ASKED[name]):
        request: dict[str, Any] = {"text": TEXT, **asked}
        folder = tmp_path / str(number)
        answer = explain({"model": name, "folder": str(folder), **request}, asked_models, 100_000)
        text = request.pop("text")
        del request["question"]
        expected = normscope.attribute(served.model, served.tokenizer, text, **request)
        loaded = normscope.load(folder / "normscope.safetensors")
        assert loaded == expected
        assert answer["signature"] == expected.signature
        assert answer["reconstruction_error"] == expected.error < 1e-5
        assert written(folder, "html").startswith("<!doctype html>")
        plain = json.loads(written(folder, "json"))
        assert plain["scores"] == expected.scores.values.tolist()
        rows = written(folder, "csv").splitlines()
        assert len(rows) > len(expected.tokens)


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("gpt2", {"text": "cat " * 30}, r"the text has 32 tokens .* at most 20; shorten it"),
        (
            "gpt2",
            {"question": "write", "generate": 15},
            r"the prompt has 8 tokens and 15 may follow, and this server accepts at most 20 in all",
        ),
        ("gpt2", {"answer": "cat " * 14}, r"the prompt has 8 tokens and 14 may follow"),
        (
            "gpt2",
            {"question": "continue", "continuation": "cat " * 14},
            r"the prompt has 8 tokens and 14 may follow",
        ),
        (
            "gpt2",
            {"question": "write", "generate": 12, "trace": True},
            r"would have 2,400 numbers, .* 1,000; leave out the layers, or shorten the text",
        ),
        (
            "encoder",
            {"question": "similar", "similar_to": "cat " * 30},
            r"the text to be similar to has 32 tokens .* at most 20",
        ),
        (
            "translator",
            {"question": "target", "target": "cat " * 30},
            r"the target has 32 tokens .* at most 20",
        ),
        (
            "masked",
            {"question": "mask", "text": "the sun sat", "answer": "big dog"},
            r"the answer 'big dog' is 2 tokens .* a masked model predicts one token",
        ),
        ("classifier", {"question": "label", "answer": "good"}, "no label 'good'"),
        ("gpt2", {"baseline": "the dog"}, r"the text has 7 tokens and the baseline 3"),
    ],
)
def test_explain_says_what_is_wrong(
    asked_models: dict[str, ServedModel], name: str, asked: dict[str, Any], message: str
) -> None:
    request = {"model": name, "question": "next", "text": TEXT, **asked}
    with pytest.raises(InputError, match=message):
        explain(request, asked_models, 1000)
