"""The table of methods, what it accepts, and what results say of themselves."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from normscope import Attribution, attribute, attribute_inputs, load, methods
from normscope.attribution.methods.table import TABLE, method_of
from normscope.attribution.options import AttributionOptions, Question
from normscope.errors import InputError
from normscope.models.architectures import tiny_model
from normscope.show.shares import report
from normscope.show.wording import proof
from tests.helpers.tiny import tokenizer

pytestmark = pytest.mark.usefixtures("unchecked_types")

TEXT = "the cat sat on the mat"
# Every method, quick; the gradient rules of single passes and their options.
EVERY = [
    "frozen",
    "attn_lrp",
    "cp_lrp",
    "input_x_gradient",
    "decompx",
    "decompx_norm:equal",
    "alti_logit",
    "direct_logit",
    "gradient_norm:l1",
    "integrated_gradients:steps=4",
    "smoothgrad:samples=3,norm=l1",
    "chefer",
    "erasure",
    "blank_out",
    "rollout:attn_res_n",
    "random",
]


def test_the_table_says_what_every_method_is() -> None:
    listed = methods()
    assert len(listed) == len(TABLE) == len({method.name for method in listed})
    assert listed["chefer"].signed is False
    assert listed["frozen"].complete
    text = repr(listed)
    for method in listed:
        assert method.name in text
        assert method.reference in text
        assert method.title
        assert method.cost
        assert method.unit
    assert {method_of(name).name for name in EVERY} == {*TABLE} - {"secant"}
    with pytest.raises(InputError, match="method must be one of frozen, secant"):
        listed["lime"]


def test_the_table_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, normscope; print(normscope.methods()); "
        "assert not {'torch', 'numpy', 'transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_options_are_written_behind_a_colon() -> None:
    chosen = method_of("smoothgrad:10,noise=0.2, seed=3")
    assert (chosen["samples"], chosen["noise"], chosen["seed"], chosen["norm"]) == (
        10,
        0.2,
        3,
        "l2",
    )
    assert chosen.describe("half") == {
        "method": "smoothgrad",
        "samples": "10",
        "noise": "0.2",
        "seed": "3",
        "norm": "l2",
        "signed": "no",
        "complete": "no",
        "unit": "value per unit of embedding",
    }
    assert method_of("frozen").describe("up") == {"method": "frozen", "gate": "up"}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("lime", "method must be one of frozen, secant, .*, not 'lime'"),
        ("frozen:half", "\"frozen\" has no option for 'half'; write name=value with one of: none"),
        ("gradient_norm:l3", "norm of gradient_norm must be one of l2, l1, sum, not 'l3'"),
        ("gradient_norm:steps=3", "has no option 'steps'; its options: norm"),
        ("integrated_gradients:0", "steps of integrated_gradients is a whole number from 1, not"),
        ("integrated_gradients:2.5", "is a whole number from 1, not '2.5'"),
        ("smoothgrad:3,nan", "has no option for 'nan'; write name=value"),
        ("smoothgrad:noise=nan", "noise of smoothgrad is a number from 0, not 'nan'"),
        ("smoothgrad:noise=-1", "is a number from 0, not '-1'"),
        ("rollout", "give the map of rollout"),
    ],
)
def test_wrong_options_are_explained(method: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttributionOptions(method=method).checked()


def test_combinations_that_do_not_exist_name_those_that_do() -> None:
    with pytest.raises(InputError, match=r"chefer.*trace=True.*work: frozen, secant, attn_lrp"):
        AttributionOptions(method="chefer", trace=True).checked()
    with pytest.raises(InputError, match="gate='up' does not apply; methods that work: frozen"):
        AttributionOptions(method="erasure", gate="up").checked()
    with pytest.raises(InputError, match="does not recompute activations"):
        AttributionOptions(method="erasure", recompute=True).checked()
    question = Question(baseline="zero").checked()
    with pytest.raises(InputError, match="the two; methods that work: secant, integrated_g"):
        AttributionOptions(method="frozen").method_for(question)
    with pytest.raises(InputError, match="explains a difference: give baseline="):
        AttributionOptions(method="secant").method_for(Question().checked())


@pytest.mark.parametrize("method", EVERY)
def test_results_say_what_they_are(method: str, tmp_path: Path) -> None:
    model, reader = tiny_model("llama"), tokenizer()
    result = attribute(model, reader, TEXT, answer=" dog", method=method)
    row = method_of(method).method
    assert (result.signed, result.complete) == (row.signed, row.complete)
    assert result.unit == ("logit" if row.unit == "value" else row.unit)
    assert result.method == row.name
    for name, value in method_of(method).values:
        assert f"|{name}:{value}|" in result.signature
    assert result.scores.signed is row.signed
    assert row.signed or (result.scores.values >= 0).all()
    assert math.isnan(result.error) == (not row.signed)
    _check_files(result, tmp_path)
    # With the same seed, and in any order, the numbers are the same.
    assert attribute(model, reader, TEXT, answer=" dog", method=method) == result


def _check_files(result: Attribution, folder: Path) -> None:
    """Save, read back and show a result."""
    path = folder / "r.safetensors"
    result.save(path)
    assert load(path) == result
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (plain["error"] is None) == math.isnan(result.error)
    result.to_csv(folder / "r.csv")
    rows = (folder / "r.csv").read_text().splitlines()
    assert len(rows) == len(result.tokens) + 1 + result.complete
    if result.method in ("chefer", "erasure", "direct_logit"):
        result.to_html(folder / "r.html")
    words = result.words()
    assert (words.signed, words.complete) == (result.signed, result.complete)
    sentence = proof(result)
    if not result.signed:
        assert "sizes" in sentence
    elif not result.complete:
        assert "need not add up" in sentence
    else:
        assert sentence.startswith("shares")
    console = Console(record=True, width=80, file=io.StringIO())
    report(result, console)
    assert ("sum  " in console.export_text()) is result.complete


@pytest.mark.parametrize("method", EVERY)
def test_a_batch_gives_what_single_texts_give(method: str) -> None:
    model, reader = tiny_model("llama"), tokenizer()
    texts = [TEXT, "a dog"]
    together = attribute(model, reader, texts, answer=" dog", method=method)
    for text, result in zip(texts, together, strict=True):
        alone = attribute(model, reader, text, answer=" dog", method=method)
        size = np.abs(alone.scores.values).sum()
        # Llama's own norms are computed in float32.
        np.testing.assert_allclose(result.scores, alone.scores, rtol=0, atol=2e-6 * size)
        assert result.value == pytest.approx(alone.value, rel=1e-6)


@pytest.mark.parametrize("method", EVERY)
def test_left_padding_changes_nothing(method: str) -> None:
    model = tiny_model("gpt2")
    ids = torch.tensor([[7, 21, 9, 33], [5, 14, 50, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    right = attribute_inputs(
        model, {"input_ids": ids, "attention_mask": mask}, answer=5, method=method
    )
    moved, shifted = ids.clone(), mask.clone()
    moved[1], shifted[1] = ids[1].roll(1), mask[1].roll(1)
    numbers = (shifted.cumsum(1) - 1).clamp_min(0)
    left = attribute_inputs(
        model,
        {"input_ids": moved, "attention_mask": shifted, "position_ids": numbers},
        answer=5,
        method=method,
    )
    for a, b in zip(right, left, strict=True):
        size = np.abs(a.scores.values).sum()
        np.testing.assert_allclose(a.scores, b.scores, rtol=0, atol=1e-9 * size)


SEES_ATTENTION = ("frozen", "decompx", "alti_logit", "chefer", "gradient_norm", "erasure")


@pytest.mark.parametrize("method", SEES_ATTENTION)
def test_eager_attention_gives_what_sdpa_gives(method: str) -> None:
    model = tiny_model("gpt2")
    inputs = {"input_ids": torch.tensor([[7, 21, 9, 33, 14]])}
    try:
        model.set_attn_implementation("sdpa")
        (fused,) = attribute_inputs(model, inputs, answer=5, method=method)
        model.set_attn_implementation("eager")
        (eager,) = attribute_inputs(model, inputs, answer=5, method=method)
    finally:
        model.set_attn_implementation("sdpa")
    size = np.abs(fused.scores.values).sum()
    np.testing.assert_allclose(eager.scores, fused.scores, rtol=0, atol=1e-10 * size)


@pytest.mark.parametrize("method", [m for m in EVERY if not m.startswith("decompx")])
def test_every_token_of_a_continuation_is_explained(method: str) -> None:
    model, reader = tiny_model("gpt2"), tokenizer()
    result = attribute(model, reader, "the cat sat", continuation=" on the", method=method)
    assert result.scores.shape[0] == 2
    # The first step does not see what comes after it.
    text = result.tokens.strings.index("on") if "on" in result.tokens.strings else None
    if text is not None and method not in ("random",) and not method.startswith("blank"):
        np.testing.assert_allclose(result.scores.values[0, text:], 0, atol=1e-15)
    span: Any = result.span(0, 2)
    assert span.complete == result.complete


def test_methods_of_text_refuse_pixels() -> None:
    model = tiny_model("vit")
    pixels = torch.randn(1, 3, model.config.image_size, model.config.image_size).double()
    for method in ("erasure", "chefer", "rollout:attn_w", "random", "decompx"):
        with pytest.raises(InputError, match="these inputs have none"):
            attribute_inputs(
                model,
                {"pixel_values": pixels},
                answer=lambda o: o.last_hidden_state[0, 0, 3],
                method=method,
            )
    (result,) = attribute_inputs(
        model,
        {"pixel_values": pixels},
        answer=lambda o: o.last_hidden_state[0, 0, 3],
        method="gradient_norm",
    )
    assert (result.scores.values > 0).all()


def test_the_documentation_has_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attribution.md").read_text()
    for name, title, signed, complete, unit, cost, reference in methods().table():
        kind = f"{signed}, {complete}" if complete == "complete" else signed
        assert f"| `{name}` | {title} | {kind} | {unit} | {cost} | {reference} |" in page
