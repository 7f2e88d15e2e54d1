"""`attribution-sst2` on a tiny classifier, against loops over changed sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import normscope
from normscope.errors import InputError
from normscope.faithfulness.evaluation import FaithfulnessMeter
from normscope.foundation.ranks import spearman
from normscope.models.loading import load
from normscope.reproduce import Report, ReproduceOptions, reproduce
from normscope.reproduce import attribution_sst2 as sst2
from normscope.reproduce.finetune import read_split
from normscope.reproduce.yardsticks import embedding_module, l2, products
from tests.helpers.figures import assert_fit_for_print
from tests.helpers.reproductions import rows_of
from tests.helpers.sentiment import save_encoder, split

METHODS = ("frozen", "decompx", "random", "rollout:alti", "rollout:globenc,normalize=no")
COUNT = 5


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ReproduceOptions:
    folder = tmp_path_factory.mktemp("sst2")
    return ReproduceOptions(
        str(save_encoder(folder / "encoder")),
        (split(folder / "train.tsv", 24, seed=1, header=True),),
        folder / "out",
        sequences=COUNT,
        valid=(split(folder / "dev.tsv", 9, seed=2),),
        steps=3,
        method=METHODS,
    )


@pytest.fixture(scope="module")
def report(options: ReproduceOptions) -> Report:
    return reproduce("attribution-sst2", options)


@pytest.fixture(scope="module")
def classifier(report: Report, options: ReproduceOptions) -> tuple[Any, Any]:
    assert options.output is not None
    return load(options.output / "model")


def test_the_report(report: Report, options: ReproduceOptions) -> None:
    assert [e.name for e in report.exhibits] == ["DecompX Table 1", "ALTI Table", "GlobEnc Table"]
    assert "3 updates on 24 sentences" in report.facts["classifier"]
    assert report.facts["sentences"].startswith(f"{COUNT} with ")
    assert "not the papers' model" in report.warnings[0]
    for exhibit in report.exhibits:
        assert exhibit.draw is not None
        assert_fit_for_print(exhibit.draw())
    rows = {row["method"]: row for row in rows_of(report, "DecompX Table 1")}
    assert tuple(rows) == METHODS
    assert rows["decompx"]["AOPC ↑ published"] == 0.627
    assert rows["random"]["AOPC ↑ published"] is None
    for finding in report.findings:
        numbers = {name: row["AOPC ↑ measured"] for name, row in rows.items()}
        if finding.statement.startswith("ALTI has a larger AOPC"):
            better = numbers["rollout:alti"] > numbers["rollout:globenc,normalize=no"]
            assert finding.agrees == better


def probability(model: Any, ids: list[int], label: int) -> float:
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)[label])


def in_loops(model: Any, tokenizer: Any, text: str, gold: int, method: str) -> list[float]:
    """Accuracy, both AOPC, comprehensiveness and sufficiency of one sentence."""
    ids = tokenizer(text)["input_ids"]
    with torch.no_grad():
        label = int(model(input_ids=torch.tensor([ids])).logits[0].argmax())
    scores = normscope.attribute(model, tokenizer, text, answer=label, method=method).scores
    values = np.atleast_2d(scores.values)[0]
    places = list(range(1, len(ids) - 1))
    n, whole = len(places), probability(model, ids, label)
    most = sorted(places, key=lambda at: -values[at])
    least = sorted(places, key=lambda at: values[at])
    right, losses = [], {"most": [], "least": []}  # type: ignore[var-annotated]
    for percent in range(10, 100, 10):
        for name, order in (("most", most), ("least", least)):
            gone = order[: n * percent // 100]
            masked = [tokenizer.mask_token_id if at in gone else t for at, t in enumerate(ids)]
            p = probability(model, masked, label)
            losses[name].append(whole - p)
            if name == "most":
                right.append((label if p > 0.5 else 1 - label) == gold)
    smallest, largest, lost = 1.0, 0.0, [0.0, 0.0]
    for percent in (1, 5, 10, 20, 50):
        count = -(-n * percent // 100)
        without = [t for at, t in enumerate(ids) if at not in most[:count]]
        only = [t for at, t in enumerate(ids) if at not in most[count:]]
        smallest = min(smallest, probability(model, without, label))
        largest = max(largest, probability(model, only, label))
        lost[0] += (whole - smallest) / 6
        lost[1] += (whole - largest) / 6
    means = [float(np.mean(losses[name])) for name in ("most", "least")]
    return [100 * float(np.mean(right)), *means, *lost]


@pytest.mark.parametrize("method", ["frozen", "random", "rollout:alti"])
def test_the_figures_equal_those_of_loops(
    method: str, report: Report, options: ReproduceOptions, classifier: tuple[Any, Any]
) -> None:
    sentences, labels = read_split(options.valid[0])
    expected = np.mean(
        [
            in_loops(*classifier, text, int(gold), method)
            for text, gold in zip(sentences[:COUNT], labels[:COUNT], strict=True)
        ],
        axis=0,
    )
    (masked,) = [r for r in rows_of(report, "DecompX Table 1") if r["method"] == method]
    (deleted,) = [r for r in rows_of(report, "ALTI Table") if r["method"] == method]
    found = [
        *(masked["accuracy ↓ measured"], masked["AOPC ↑ measured"]),
        masked["AOPC, least important first ↓ measured"],
        *(deleted["comprehensiveness ↑ measured"], deleted["sufficiency ↓ measured"]),
    ]
    assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_products_are_directional_derivatives(classifier: tuple[Any, Any]) -> None:
    model, tokenizer = classifier
    model = model.double()
    text = "the cat sat on a mat"
    try:
        (product, _) = products(model, tokenizer, [text, "a dog"], [1, 0])
        step = 1e-6
        encoded = tokenizer(text, return_tensors="pt")
        for place in range(product.shape[0]):
            logits = []
            for sign in (1, -1):

                def stretch(module: Any, given: Any, output: Any, sign: int = sign) -> Any:
                    changed = output.clone()
                    changed[0, place] *= 1 + sign * step  # noqa: B023
                    return changed

                hook = embedding_module(model).register_forward_hook(stretch)
                with torch.no_grad():
                    logits.append(float(model(**encoded).logits[0, 1]))
                hook.remove()
            slope = (logits[0] - logits[1]) / (2 * step)
            assert product[place].sum() == pytest.approx(slope, rel=1e-5, abs=1e-8)
    finally:
        model.float()


def test_rollouts_and_gradients_in_loops(
    report: Report, options: ReproduceOptions, classifier: tuple[Any, Any]
) -> None:
    model, tokenizer = classifier
    sentences, labels = read_split(options.valid[0])
    found: dict[str, list[float]] = {"W": [], "W-FixedRes": [], "N-Res": [], "N-FixedRes": []}
    for text, label in zip(sentences[:COUNT], labels[:COUNT], strict=True):
        size = l2(products(model, tokenizer, [text], [int(label)])[0])
        maps = normscope.analyze(model, tokenizer, text, maps=["attn_w", "attn_n", "attn_res_n"])
        w, n, res = (maps[name].values.astype(float) for name in ("attn_w", "attn_n", "attn_res_n"))
        eye = np.eye(w.shape[1])
        fixed = [w / 2 + eye / 2, n / n.sum(-1, keepdims=True) / 2 + eye / 2]
        layers = {"W": w, "W-FixedRes": fixed[0], "N-FixedRes": fixed[1], "N-Res": res}
        for name, values in layers.items():
            product = values[0]
            for layer in values[1:]:
                product = layer @ product
            found[name].append(spearman(product[0], size))
    rows = {row["map"]: row["ρ measured"] for row in rows_of(report, "GlobEnc Table")}
    for name, each in found.items():
        assert rows[name] == pytest.approx(np.mean(each), abs=1e-6), name


def test_a_finished_run_is_read(
    options: ReproduceOptions, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(sst2, "train", fail)
    monkeypatch.setattr(FaithfulnessMeter, "records", fail)
    again = reproduce("attribution-sst2", options)
    for name in ("DecompX Table 1", "ALTI Table", "GlobEnc Table"):
        assert rows_of(again, name) == rows_of(report, name)
    with pytest.raises(InputError, match="trained in another way"):
        reproduce("attribution-sst2", replace(options, steps=4))


def test_a_classifier_is_used_as_it_is(report: Report, options: ReproduceOptions) -> None:
    assert options.output is not None
    given = replace(
        options, model=str(options.output / "model"), output=None, data=(), steps=None, sequences=2
    )
    found = reproduce("attribution-sst2", replace(given, method=("random",)))
    assert "used as it is" in found.facts["classifier"]
    assert [row["method"] for row in rows_of(found, "DecompX Table 1")] == ["random"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valid": ()}, "--valid dev.tsv"),
        ({"data": ()}, "one file to fine-tune on"),
        ({"sample": 3}, "attribution-sst2 has no --sample"),
        ({"gold": (Path("a"),)}, "has no --gold"),
        ({"method": ("nonsense",)}, "nonsense"),
    ],
)
def test_wrong_options(change: dict[str, Any], message: str, options: ReproduceOptions) -> None:
    with pytest.raises(InputError, match=message):
        reproduce("attribution-sst2", replace(options, output=None, **change))
