"""Every family of the table: shares add up, at every cut, for every method and kind of padding."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from normscope.attribution.account import RowShares
from normscope.attribution.passes import explain
from normscope.errors import UnsupportedModelError
from normscope.linearisation.rules import RULES, rules_of
from normscope.models.architectures import FAMILIES, randomize_, tiny_inputs, tiny_model
from normscope.models.running import accepted_by
from normscope.testing import FullPrecision
from tests.helpers.explained import last_position, left_padded, size, worst_gap

pytestmark = pytest.mark.usefixtures("unchecked_types")

TIGHT = 1e-10
LOOSE = 1e-5  # where the model's own code rounds to float32

FLOAT32 = [
    *(("fsmt", method) for method in RULES),  # its masks overflow in float64
    ("nllb-moe", "attn_lrp"),  # mixes float32 with float64 outside of FullPrecision
    ("nllb-moe", "input_x_gradient"),
]
EAGER_ONLY = ("gemma2", "gpt_oss", "nllb-moe")
# Their attention is eager at all times, and its softmax in float32 is repeated going back, where
# FullPrecision is off.
ROUNDED_TANGENTS = ("bloom",)
TOWERS = "multiplies rows of the batch"
EXPERTS = "experts of a mixture"
REFUSED = {
    ("mixtral", "secant"): EXPERTS,
    ("gpt_oss", "secant"): EXPERTS,
    ("deepseek_v3", "secant"): EXPERTS,
    ("nllb-moe", "secant"): EXPERTS,
    ("fsmt", "secant"): "positions before rows",
    ("clip", "secant"): TOWERS,
    ("siglip", "secant"): TOWERS,
}


build = cache(tiny_model)


def dtype_of(name: str, method: str) -> torch.dtype:
    return torch.float32 if (name, method) in FLOAT32 else torch.float64


def precision(name: str, method: str, attention: str) -> AbstractContextManager[Any]:
    """Return FullPrecision where it holds, in the backward pass too."""
    tangents = "tangent" in vars(RULES[method]).values()
    rounds = name in ROUNDED_TANGENTS or attention == "eager"
    exact = (name, method) not in FLOAT32 and not (tangents and rounds)
    return FullPrecision() if exact else nullcontext()


def inputs_of(name: str, method: str, side: str, seed: int = 0) -> dict[str, Tensor]:
    inputs = tiny_inputs(name, seed=seed, dtype=dtype_of(name, method))
    return left_padded(inputs) if side == "left" else inputs


def explained(name: str, method: str, side: str, attention: str) -> RowShares:
    model: Any = build(name, dtype=dtype_of(name, method))
    inputs = inputs_of(name, method, side)
    model.set_attn_implementation(attention)
    baseline = None
    if method == "secant":
        other = inputs_of(name, method, side, seed=1)
        baseline = {key: tensor for key, tensor in other.items() if "mask" not in key}
    result = explain(
        model,
        inputs,
        last_position(inputs),
        rules_of(method),
        baseline_inputs=baseline,
        trace=method in ("frozen", "secant"),
    )
    if method == "frozen":
        options = {"use_cache": False} if "use_cache" in accepted_by(model) else {}
        with torch.no_grad():
            own = last_position(inputs)(model(**inputs, **options))
        gap = np.abs(result.value - own.double().numpy()) / size(result)
        assert gap.max() < (LOOSE if own.dtype == torch.float32 else TIGHT)
    return result


# The same code as another family, or a variant of it: enough to see the two methods that differ
# most. `benchmarks/attribution_families.py` runs all.
VARIANTS = (
    *(
        "xlm-roberta",
        "camembert",
        "opt (post-norm)",
        "falcon (grouped)",
        "qwen2",
        "phi3",
        "granite",
    ),
    *("gemma", "mistral", "mbart", "m2m_100", "pegasus", "mt5", "umt5", "deit", "siglip"),
)
CASES = [
    (name, method)
    for name in FAMILIES
    for method in RULES
    if name not in VARIANTS or method in ("frozen", "secant")
]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_shares_add_up(name: str, method: str) -> None:
    attention = "eager" if name in EAGER_ONLY else "sdpa"
    with precision(name, method, attention) as mode:
        if (name, method) in REFUSED:
            with pytest.raises(UnsupportedModelError, match=REFUSED[name, method]):
                explained(name, method, "right", attention)
            return
        result = explained(name, method, "right", attention)
    assert worst_gap(result) < (LOOSE if mode is None else TIGHT)
    for source in result.sources:
        same = method == "secant" and source.part in ("position", "token_type")
        assert (np.abs(source.shares).max() > 0) != same


PADDED = [
    name
    for name, family in FAMILIES.items()
    if family.inputs in ("ids", "seq2seq") and name not in VARIANTS
]


@pytest.mark.parametrize("name", PADDED)
def test_padding_on_the_left_under_eager_attention(name: str) -> None:
    with precision(name, "frozen", "eager") as mode:
        result = explained(name, "frozen", "left", "eager")
    assert worst_gap(result) < (LOOSE if mode is None else TIGHT)


PARTS = {
    "bert": {("", "word"), ("", "token_type"), ("", "position")},
    "gpt2": {("", "word"), ("", "position")},
    "llama": {("", "word")},
    "marian": {(side, part) for side in ("encoder", "decoder") for part in ("word", "position")},
    "t5": {("encoder", "word"), ("decoder", "word")},
    "whisper": {("encoder", "state"), ("decoder", "word"), ("decoder", "position")},
    "vit": {("", "state")},
    "clip": {("vision_model", "state"), ("text_model", "word"), ("text_model", "position")},
    "wav2vec2": {("", "state")},
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    model, inputs = build(name, dtype=torch.float64), tiny_inputs(name)
    result = explain(model, inputs, last_position(inputs), rules_of("frozen"))
    assert {(source.stack, source.part) for source in result.sources} == PARTS[name]


# Heads: a class of transformers, and options of its config beside those of the family.
HEADS = {
    "BertForSequenceClassification": ("bert", {"num_labels": 7}),
    "BertForTokenClassification": ("bert", {"num_labels": 7}),
    "BertForQuestionAnswering": ("bert", {}),
    "BertForMaskedLM": ("bert", {}),
    "BertForMultipleChoice": ("bert", {}),
    "RobertaForSequenceClassification": ("roberta", {"num_labels": 7}),
    "DistilBertForSequenceClassification": ("distilbert", {"num_labels": 7}),
    "AlbertForSequenceClassification": ("albert", {"num_labels": 7}),
    "ModernBertForSequenceClassification": ("modernbert", {"num_labels": 7}),
    "EsmForMaskedLM": ("esm", {}),
    "MPNetForSequenceClassification": ("mpnet", {"num_labels": 7}),
    "DebertaV2ForSequenceClassification": ("deberta-v2", {"num_labels": 7}),
    "GPT2ForSequenceClassification": ("gpt2", {"num_labels": 7}),
    "LlamaForSequenceClassification": ("llama", {"num_labels": 7}),
    "BartForSequenceClassification": ("bart", {"num_labels": 7}),
    "T5ForSequenceClassification": ("t5", {"num_labels": 7}),
    "ViTForImageClassification": ("vit", {"num_labels": 7}),
    "DeiTForImageClassification": ("deit", {"num_labels": 7}),
    "Dinov2ForImageClassification": ("dinov2", {"num_labels": 7}),
    "Wav2Vec2ForSequenceClassification": ("wav2vec2", {"num_labels": 7}),
    "WhisperForAudioClassification": ("whisper", {"num_labels": 7}),
    "CLIPForImageClassification": ("clip", {"num_labels": 7}),
}


def head(kind: str) -> tuple[Any, dict[str, Tensor]]:
    """Return a model with a head, and inputs for it."""
    name, options = HEADS[kind]
    family = FAMILIES[name]
    config = getattr(transformers, family.config)(**copy.deepcopy(dict(family.tiny)), **options)
    with torch.random.fork_rng(devices=[]):
        model: Any = getattr(transformers, kind)(config)
    model.double().eval()
    randomize_(model)
    inputs = tiny_inputs(name)
    if name == "clip":
        inputs = {"pixel_values": inputs["pixel_values"]}
    if kind == "WhisperForAudioClassification":
        inputs = {"input_features": inputs["input_features"]}
    if "input_ids" in inputs and family.group == "encoder-decoder":
        last = inputs["attention_mask"].sum(1) - 1
        inputs["input_ids"][torch.arange(3), last] = config.eos_token_id
        inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    if kind == "BertForMultipleChoice":  # two choices a row
        inputs = {key: torch.stack([tensor, tensor.flip(0)], 1) for key, tensor in inputs.items()}
        inputs["input_ids"][:, 1, 2] = 9
    return model, inputs


def head_value(output: Any) -> Tensor:
    """Return two scalars of every row, whatever the head gives."""
    if hasattr(output, "start_logits"):
        return torch.stack([output.start_logits[:, 2], output.end_logits[:, 3]], 1)
    logits: Tensor = output.logits
    return logits[:, 2, :2] if logits.dim() == 3 else logits[:, :2]


def changed(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a baseline: one token is another, or the images and sounds of other rows."""
    if "input_ids" in inputs:
        ids = inputs["input_ids"].clone()
        ids[..., 1] = 11
        return {"input_ids": ids}
    return {key: tensor.flip(0) for key, tensor in inputs.items() if tensor.is_floating_point()}


@pytest.mark.parametrize("kind", HEADS)
def test_heads(kind: str) -> None:
    model, inputs = head(kind)
    methods = RULES if kind.startswith(("Bert", "T5", "ViT", "Wav2Vec2")) else ("frozen", "secant")
    for method in methods:
        baseline = changed(inputs) if method == "secant" else None
        with FullPrecision():
            result = explain(
                model, inputs, head_value, rules_of(method), baseline_inputs=baseline, trace=True
            )
        assert worst_gap(result) < TIGHT, method
