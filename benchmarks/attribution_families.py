"""The worst gap of attributions, for every tested family and head, as a table in Markdown.

python benchmarks/attribution_families.py                  # all of them
python benchmarks/attribution_families.py bert llama       # some families

Tiny models in float64 with all parameters random, three rows of different lengths, padding on both
sides, sdpa and eager attention, every cut of the trace. Where the model's own code rounds to
float32 (norms, eager softmax), a second figure is the gap with that rounding.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from normscope.attribution.passes import RowShares, explain
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.linearisation.rules import RULES, rules_of
from normscope.models.architectures import FAMILIES, randomize_, tiny_inputs, tiny_model
from normscope.testing import FullPrecision

FLOAT32 = ("fsmt", "nllb-moe")  # masks that overflow in float64, or both dtypes in one product
EAGER = ("bloom",)  # whatever is asked for
OUTPUTS = ("logits", "logits_per_image", "pooler_output", "last_hidden_state")
HEADS = {
    "BertForSequenceClassification": "bert",
    "BertForTokenClassification": "bert",
    "BertForMaskedLM": "bert",
    "BertForQuestionAnswering": "bert",
    "BertForMultipleChoice": "bert",
    "RobertaForSequenceClassification": "roberta",
    "DistilBertForSequenceClassification": "distilbert",
    "AlbertForSequenceClassification": "albert",
    "ElectraForSequenceClassification": "electra",
    "ModernBertForSequenceClassification": "modernbert",
    "MPNetForSequenceClassification": "mpnet",
    "DebertaV2ForSequenceClassification": "deberta-v2",
    "GPT2ForSequenceClassification": "gpt2",
    "LlamaForSequenceClassification": "llama",
    "ViTForImageClassification": "vit",
    "DeiTForImageClassification": "deit",
    "Dinov2ForImageClassification": "dinov2",
    "Wav2Vec2ForSequenceClassification": "wav2vec2",
    "Wav2Vec2ForCTC": "wav2vec2",
}


def value_of(inputs: dict[str, Tensor]) -> Any:
    """Explain one entry of the output, at the last real position where it has positions."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))

    def value(output: Any) -> Tensor:
        if hasattr(output, "start_logits"):
            start: Tensor = output.start_logits
            return start[:, 2:3]
        name = next(name for name in OUTPUTS if getattr(output, name, None) is not None)
        states: Tensor = getattr(output, name)
        if name == "logits_per_image":
            return states.diagonal()[:, None]
        if states.dim() == 2:
            return states[:, 1:2]
        if mask is None or mask.shape != states.shape[:2]:
            last = torch.full((len(states),), states.shape[1] - 1)
        else:
            last = (mask * torch.arange(mask.shape[1])).argmax(1)
        return states[torch.arange(len(states)), last][:, 1:2]

    def of_pairs(output: Any) -> Tensor:
        nonlocal mask
        rows = next(iter(inputs.values())).shape[0]
        first = next(tensor for tensor in output.values() if isinstance(tensor, Tensor))
        if mask is not None and len(first) == 2 * rows and len(mask) == rows:
            mask = mask.repeat(2, *[1] * (mask.dim() - 1))
        return value(output)

    return of_pairs


def left_padded(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move the padding of every row to its left."""
    moved = dict(inputs)
    for prefix in ("", "decoder_"):
        mask = inputs.get(f"{prefix}attention_mask")
        for name in (f"{prefix}input_ids", f"{prefix}attention_mask"):
            if mask is not None and name in inputs and mask.dim() == 2:
                pads = (mask == 0).sum(1).tolist()
                rows = zip(inputs[name], pads, strict=True)
                moved[name] = torch.stack([row.roll(pad) for row, pad in rows])
    return moved


def worst(result: RowShares) -> float:
    """Return the largest gap, of the whole and at every cut."""
    gaps = [result.error]
    if result.trace is not None:
        gaps += [cut.error for cut in result.trace.cuts]
        for layer in result.trace.layers:
            found = (layer.heads_error, layer.feed_forward_error)
            gaps += [gap for gap in found if gap is not None]
    return float(np.concatenate(gaps, axis=1).max())


def configurations(name: str, method: str) -> list[tuple[str, str, bool]]:
    """Return (attention, side, whether the model is kept in float64) of all runs.

    Under eager attention with padding on the left, many families overflow in float64 by their own
    code; and where tangents are taken, the backward pass repeats a softmax in float32.
    """
    family = FAMILIES[HEADS.get(name, name)]
    sides = ["right"]
    if family.inputs in ("ids", "seq2seq") and (name not in HEADS or family.group != "encoder"):
        sides.append("left")
    tangents = "tangent" in vars(RULES[method]).values()
    runs = [("sdpa", side, False) for side in sides] + [("eager", "right", False)]
    runs += [("sdpa", side, True) for side in sides]
    runs += [] if tangents else [("eager", side, True) for side in sides]
    if family.name in FLOAT32:
        return [(attention, side, full) for attention, side, full in runs if not full]
    if family.name in EAGER:
        return [run for run in runs if run[0] == "eager"]
    return runs


def baseline_of(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return another token where the mask is set last, or other images and sounds."""
    if "input_ids" not in inputs:
        return {k: t.flip(0) for k, t in inputs.items() if t.is_floating_point()}
    ids = inputs["input_ids"].clone()
    ids[..., 3] = 11
    return {"input_ids": ids}


def gap_of(model: Any, inputs: dict[str, Tensor], method: str) -> float | str:
    """Return the worst gap of one run, or why there is none."""
    baseline = baseline_of(inputs) if method == "secant" else None
    value, rules = value_of(inputs), rules_of(method)
    try:
        return worst(explain(model, inputs, value, rules, baseline_inputs=baseline, trace=True))
    except UnsupportedModelError as error:
        return "refused: " + str(error).partition(",")[0].partition(" (")[0]
    except (InputError, ExactnessError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error)[:90]}"


def cell(model: Any, name: str, inputs: dict[str, Tensor], method: str) -> str:
    """Return the worst gaps of one method: in float64, and as the model's own code rounds."""
    exact: list[float] = []
    rounded: list[float] = []
    reasons: set[str] = set()
    for attention, side, full in configurations(name, method):
        try:
            model.set_attn_implementation(attention)
        except ValueError:
            continue
        given = left_padded(inputs) if side == "left" else inputs
        with FullPrecision() if full else nullcontext():
            gap = gap_of(model, given, method)
        if isinstance(gap, str):
            reasons.add(gap if not gap[0].isupper() else f"{gap} ({attention}, {side}, {full})")
        else:
            (exact if full else rounded).append(gap)
    texts = [f"{max(exact):.0e}"] if exact else []
    if rounded and (not exact or max(rounded) > 1e-10):
        texts.append(f"{max(rounded):.0e} as it rounds")
    return "; ".join(texts + sorted(reasons))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="families; all of them by default")
    chosen = parser.parse_args().families or [*FAMILIES, *HEADS]
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print("| model | " + " | ".join(RULES) + " |")
    print("|---" * (len(RULES) + 1) + "|")
    for name in chosen:
        family = HEADS.get(name, name)
        dtype = torch.float32 if family in FLOAT32 else torch.float64
        inputs = tiny_inputs(family, dtype=dtype)
        model: Any = tiny_model(family, dtype=dtype)
        if name in HEADS:
            config = copy.deepcopy(model.config)
            with torch.random.fork_rng(devices=[]):
                model = getattr(transformers, name)(config)
            model.to(dtype).eval()
            randomize_(model)
        if name == "BertForMultipleChoice":
            inputs = {k: torch.stack([t, t.flip(0)], 1) for k, t in inputs.items()}
        cells = [cell(model, name, inputs, method) for method in RULES]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
