"""Small models beside the same written out by hand, in float64."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from normscope.attribution.account import RowShares
from normscope.attribution.passes import explain
from normscope.linearisation.rules import rules_of
from normscope.models.architectures import FAMILIES, randomize_, tiny_model
from normscope.testing import FullPrecision
from tests.helpers import component_reference as reference

IDS = torch.tensor([[7, 21, 9, 33, 14, 50]])
BASELINE = torch.tensor([[7, 40, 9, 12, 14, 8]])


class Written(NamedTuple):
    """A model, and the same written out by hand."""

    model: Any
    run: Any
    embeddings: Any
    answer: int

    def value(self, output: Any) -> Tensor:
        logits: Tensor = output.logits
        return logits[:, self.answer][:, None] if logits.dim() == 2 else logits[:, -1, [5]]


@cache
def written(name: str) -> Written:
    if name == "llama":
        model = tiny_model("llama")
        return Written(model, reference.llama, reference.llama_embeddings, 5)
    tiny = FAMILIES["bert"].tiny
    config = transformers.BertConfig(**{**tiny, "num_labels": 3})
    with torch.random.fork_rng(devices=[]):
        classifier: Any = transformers.BertForSequenceClassification(config)
    classifier.double().eval()
    randomize_(classifier)
    return Written(classifier, reference.bert, reference.bert_embeddings, 2)


def shares(
    name: str, method: str, gate: str = "half", attention: str = "sdpa", **options: Any
) -> RowShares:
    """Explain one row of a written-out model, in float64 throughout where that is possible."""
    by_hand = written(name)
    by_hand.model.set_attn_implementation(attention)
    # Modes are off in a backward pass, where tangents repeat a softmax in float32.
    rounded = attention == "eager" and "tangent" in vars(rules_of(method)).values()
    baseline = {"input_ids": BASELINE} if method == "secant" else None
    with nullcontext() if rounded else FullPrecision():
        return explain(
            by_hand.model,
            {"input_ids": IDS},
            by_hand.value,
            rules_of(method, gate),
            baseline_inputs=baseline,
            **options,
        )


def components(name: str, method: str, gate: str = "half") -> tuple[float, Tensor]:
    """Return the value and its components, by hand."""
    by_hand = written(name)
    embeddings = by_hand.embeddings(by_hand.model, IDS[0])
    baseline = by_hand.embeddings(by_hand.model, BASELINE[0]) if method == "secant" else None
    state = by_hand.run(
        by_hand.model,
        reference.sources_of(embeddings, baseline),
        reference.Components(method, gate),
    )
    values = state.value[:, by_hand.answer]
    return float(values[0] - values[1:].sum()), state.parts[:, by_hand.answer]
