"""How faithful token scores of a sentiment classifier are: SST-2, MiniLM, three seeds.

    python -m experiments.attribution.sst2 --data SST2 --models MODELS --output FILE.json
        [--seeds 0 1 2] [--limit N] [--model FOLDER] [--device cuda]

``SST2`` holds ``train.tsv``, ``dev.tsv`` and ``test.tsv`` (see finetune.py). Models that are not in
``MODELS`` yet are trained first: about 20 seconds each on a GPU, 20 minutes on one core. All
sentences of the test split are explained, whether the model is right or wrong.

What is explained is the logit of the class that the model predicts. The baseline of the secant
network and of integrated gradients has the same special tokens, and [MASK] (or [PAD], attended to)
in place of every other token. Frozen, AttnLRP and Input×Gradient scores are those of the sum of
word, position and token type embedding. Integrated gradients follow the word embeddings.
faithfulness.py states the conventions of the figures.

Intervals resample sentences, 9,999 times; those of means over seeds resample the means of each
sentence over seeds, so that they say nothing about other seeds. Batches go directly to ``explain``,
which is what ``normscope.attribute`` calls for each list of texts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.attribution.faithfulness import (
    FIGURES,
    HIGHER_IS_BETTER,
    MONOTONE,
    Changed,
    Ids,
    Scores,
    changed,
    figures,
    interval,
    summary,
)
from experiments.attribution.finetune import finetune
from experiments.attribution.yardsticks import gradient, integrated_gradients
from normscope.attribution.passes import explain
from normscope.cli.bench_timing import machine
from normscope.linearisation.rules import rules_of
from normscope.reproduce.finetune import accuracy, padded, read_split, token_ids

CHUNK = 64  # sentences explained at once
ROWS = {"cpu": 64, "cuda": 1024}  # changed sentences classified at once
STEPS = 20
RIVAL = f"integrated gradients, {STEPS} steps"

TITLES = {
    "aopc_most": "AOPC, most important first ↑",
    "aopc_least": "least important first ↓",
    "comprehensiveness": "comprehensiveness ↑",
    "sufficiency": "sufficiency ↓",
}


@dataclass(frozen=True)
class Batch:
    """Sentences with the class that the model predicts for each."""

    rows: list[list[int]]
    inputs: dict[str, Tensor]
    predicted: Tensor

    def answer(self, output: Any) -> Tensor:
        """Return the logit of the predicted class, (row, 1), of one or more copies of the batch."""
        times = len(output.logits) // len(self.rows)
        return output.logits.gather(1, self.predicted.repeat(times)[:, None])

    def cut(self, scores: Any) -> list[Scores]:
        """Return the scores of each row without those of padding."""
        return [scores[i, : len(row)] for i, row in enumerate(self.rows)]


class Scorer:
    """The methods, as functions from a batch to scores of its tokens."""

    def __init__(self, model: Any, tokenizer: Any, seed: int = 0) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.special = torch.tensor(sorted(tokenizer.all_special_ids), device=model.device)
        self.draw = np.random.default_rng(seed)
        self.largest_error: dict[str, float] = {}

    def methods(self) -> dict[str, Callable[[Batch], list[Scores]]]:
        """Return the methods by name."""
        mask, pad = self.tokenizer.mask_token_id, self.tokenizer.pad_token_id
        return {
            "secant": lambda batch: self.shares("secant", batch, mask),
            "secant, [PAD] baseline": lambda batch: self.shares("secant", batch, pad),
            RIVAL: self._integrated,
            "attn_lrp": lambda batch: self.shares("attn_lrp", batch),
            "frozen": lambda batch: self.shares("frozen", batch),
            "input_x_gradient, ℓ2": lambda batch: self._gradients(batch)[1],
            "input_x_gradient, signed": lambda batch: self._gradients(batch)[0],
            "random": lambda batch: batch.cut(self.draw.random(batch.inputs["input_ids"].shape)),
        }

    def batch(self, rows: list[list[int]]) -> Batch:
        """Return sentences as a batch, and what the model predicts."""
        inputs = padded(rows, self.tokenizer.pad_token_id, self.model.device)
        with torch.no_grad():
            return Batch(rows, inputs, self.model(**inputs).logits.argmax(-1))

    def baseline(self, batch: Batch, token: int) -> Tensor:
        """Return the ids of a batch with every token replaced, special ones excepted."""
        ids = batch.inputs["input_ids"]
        return torch.where(torch.isin(ids, self.special), ids, token)

    def shares(self, method: str, batch: Batch, baseline: int | None = None) -> list[Scores]:
        """Return the shares of one of normscope's methods."""
        other = None if baseline is None else {"input_ids": self.baseline(batch, baseline)}
        rules = rules_of(method)
        found = explain(self.model, batch.inputs, batch.answer, rules, baseline_inputs=other)
        self._record(method, float(found.error.max()))
        return batch.cut(sum(source.shares[:, 0] for source in found.sources))

    def _record(self, name: str, error: float) -> None:
        self.largest_error[name] = max(self.largest_error.get(name, 0.0), error)

    def _integrated(self, batch: Batch) -> list[Scores]:
        table = self.model.get_input_embeddings()
        baseline = self.baseline(batch, self.tokenizer.mask_token_id)
        with torch.no_grad():
            start, end = table(baseline), table(batch.inputs["input_ids"])
            first = self.model(**{**batch.inputs, "input_ids": baseline})
            value = batch.answer(self.model(**batch.inputs)) - batch.answer(first)
        mask = {"attention_mask": batch.inputs["attention_mask"]}
        rows = ROWS[self.model.device.type]
        scores = integrated_gradients(
            self.model, (start, end), mask, batch.answer, steps=STEPS, rows=rows
        )
        gap = (scores.sum(-1) - value[:, 0]).abs() / scores.abs().sum(-1).clamp_min(1e-30)
        self._record(RIVAL, float(gap.max()))
        return batch.cut(scores.double().cpu().numpy())

    def _gradients(self, batch: Batch) -> tuple[list[Scores], list[Scores]]:
        """Return Input×Gradient, signed and its ℓ2 norm."""
        ids = batch.inputs["input_ids"]
        embeddings = self.model.bert.embeddings
        with torch.no_grad():
            words = embeddings.word_embeddings(ids)
            positions = embeddings.position_embeddings.weight[: ids.shape[1]]
            whole = words + positions + embeddings.token_type_embeddings.weight[0]
        mask = {"attention_mask": batch.inputs["attention_mask"]}
        products = (whole * gradient(self.model, words, mask, batch.answer)[1]).double().cpu()
        return batch.cut(products.sum(-1).numpy()), batch.cut(products.norm(dim=-1).numpy())


@torch.no_grad()
def probabilities(model: Any, questions: Sequence[tuple[Ids, int]], pad: int) -> list[float]:
    """Return the probability of a class for each pair of a sentence and a class."""
    found = np.zeros(len(questions))
    order = sorted(range(len(questions)), key=lambda i: len(questions[i][0]))
    size = ROWS[model.device.type]
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        inputs = padded([list(questions[i][0]) for i in chosen], pad, model.device)
        classes = torch.tensor([questions[i][1] for i in chosen], device=model.device)
        values = model(**inputs).logits.double().softmax(-1).gather(1, classes[:, None])
        found[chosen] = values[:, 0].cpu().numpy()
    return [float(value) for value in found]


def measure(scorer: Scorer, rows: Sequence[list[int]]) -> dict[str, dict[str, Scores]]:
    """Return every figure of every sentence, by method and figure."""
    methods, tokenizer = scorer.methods(), scorer.tokenizer
    special = set(tokenizer.all_special_ids)
    found = {name: {f: np.zeros(len(rows)) for f in (*FIGURES, *MONOTONE)} for name in methods}
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), CHUNK):
        chosen = order[start : start + CHUNK]
        batch = scorer.batch([rows[i] for i in chosen])
        variants: list[dict[str, Changed]] = [{} for _ in chosen]
        for name, method in methods.items():
            for place, scores in enumerate(method(batch)):
                ids = batch.rows[place]
                marks = [token in special for token in ids]
                variants[place][name] = changed(ids, marks, scores, tokenizer.mask_token_id)
        forms = [
            {tuple(row)}.union(*(sentence.forms() for sentence in by_method.values()))
            for row, by_method in zip(batch.rows, variants, strict=True)
        ]
        asked = [
            (ids, predicted)
            for every, predicted in zip(forms, batch.predicted.tolist(), strict=True)
            for ids in every
        ]
        answers = iter(probabilities(scorer.model, asked, tokenizer.pad_token_id))
        for place, by_method in enumerate(variants):
            known = {ids: next(answers) for ids in forms[place]}
            whole = known[tuple(batch.rows[place])]
            for name, sentence in by_method.items():
                for figure, value in figures(whole, sentence, known).items():
                    found[name][figure][chosen[place]] = value
        print(f"{start + len(chosen)} of {len(rows)} sentences", flush=True)
    return found


def cost(scorer: Scorer, rows: Sequence[list[int]], size: int, rounds: int = 15) -> dict[str, Any]:
    """Return the time of one pass of each kind over a batch of sentences, in milliseconds.

    The passes take turns, so that a busy machine slows all of them; medians over the rounds.
    """
    middle = sorted(rows, key=len)[max(0, (len(rows) - size) // 2) :][:size]
    batch = scorer.batch(middle)
    mask = scorer.tokenizer.mask_token_id
    twice = {name: torch.cat([tensor, tensor]) for name, tensor in batch.inputs.items()}
    twice["input_ids"][len(middle) :] = scorer.baseline(batch, mask)

    def forward(inputs: dict[str, Tensor]) -> None:
        with torch.no_grad():
            scorer.model(**inputs)

    works: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(batch.inputs),
        "forward, two rows": lambda: forward(twice),
        "secant": lambda: scorer.shares("secant", batch, mask),
        "frozen": lambda: scorer.shares("frozen", batch),
        "attn_lrp": lambda: scorer.shares("attn_lrp", batch),
        "input_x_gradient": lambda: scorer._gradients(batch),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 2):
        for name, work in works.items():
            if scorer.model.device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            if scorer.model.device.type == "cuda":
                torch.cuda.synchronize()
            if turn > 1:  # the first two warm up
                times[name].append(1000 * (time.perf_counter() - began))
    median = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "sentences": len(middle),
        "tokens": batch.inputs["input_ids"].shape[1],
        "milliseconds": {name: round(value, 2) for name, value in median.items()},
        "secant / forward of two rows": median["secant"] / median["forward, two rows"],
        "frozen / forward": median["frozen"] / median["forward"],
    }


def compared(found: dict[str, dict[str, Scores]], name: str, figure: str) -> dict[str, Any]:
    """Return the paired difference of a method and integrated gradients, and what it says."""
    difference = found[name][figure] - found[RIVAL][figure]
    low, high = interval(difference)
    worse = high < 0 if figure in HIGHER_IS_BETTER else low > 0
    better = low > 0 if figure in HIGHER_IS_BETTER else high < 0
    verdict = "worse" if worse else "better" if better else "equal"
    return {"mean": float(difference.mean()), "interval": [low, high], "verdict": verdict}


def summarised(found: dict[str, dict[str, Scores]]) -> dict[str, Any]:
    """Return means with intervals, and the differences from integrated gradients."""
    return {
        "figures": {n: {f: summary(v) for f, v in by.items()} for n, by in found.items()},
        "minus integrated gradients": {
            name: {figure: compared(found, name, figure) for figure in found[name]}
            for name in found
            if name not in (RIVAL, "random")
        },
    }


def table(result: dict[str, Any]) -> str:
    """Return the figures as tables in markdown."""

    def cell(entry: dict[str, Any], digits: int = 3) -> str:
        low, high = entry["interval"]
        return f"{entry['mean']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    mean = result["mean over seeds"]
    lines = ["| | " + " | ".join(TITLES.values()) + " |", "|---|" + "---|" * len(TITLES)]
    for name, by in mean["figures"].items():
        lines.append(f"| {name} | " + " | ".join(cell(by[f]) for f in FIGURES) + " |")
    lines += ["", f"Secant minus {RIVAL}:", ""]
    lines += ["| | " + " | ".join(TITLES.values()) + " |", "|---|" + "---|" * len(TITLES)]
    runs = {f"seed {seed}": run for seed, run in result["seeds"].items()}
    for name, run in {**runs, "mean over seeds": mean}.items():
        by = run["minus integrated gradients"]["secant"]
        cells = [f"{cell(by[f], 4)} {by[f]['verdict']}" for f in FIGURES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| sentences × tokens | secant / forward of two rows | frozen / forward |"]
    lines.append("|---|---|---|")
    for entry in result["cost"]:
        ratios = [entry["secant / forward of two rows"], entry["frozen / forward"]]
        size = f"{entry['sentences']} × {entry['tokens']}"
        lines.append(f"| {size} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return "\n".join(lines) + "\n"


def trained(given: argparse.Namespace, seed: int) -> tuple[Any, Any]:
    """Return the model of a seed, trained now if it is not there yet."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = given.models / f"seed-{seed}"
    if not folder.exists():
        model, tokenizer = finetune(given.data, seed, torch.device(given.device), given.model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return model.to(given.device).eval(), AutoTokenizer.from_pretrained(folder)


def main() -> None:
    """Train, explain, measure; write numbers and tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--models", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--limit", type=int, help="only the first sentences of the test split")
    options.add_argument("--model", help="a folder with another BERT to train; default: MiniLM")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    sentences, labels = read_split(given.data / "test.tsv")
    sentences, labels = sentences[: given.limit], labels[: given.limit]
    result: dict[str, Any] = {"machine": machine(given.device), "seeds": {}, "cost": []}
    runs = []
    for seed in given.seeds:
        model, tokenizer = trained(given, seed)
        rows = token_ids(tokenizer, sentences)
        scorer = Scorer(model, tokenizer, seed)
        runs.append(measure(scorer, rows))
        result["seeds"][str(seed)] = {
            "test accuracy": accuracy(model, rows, labels, tokenizer.pad_token_id),
            "largest error": scorer.largest_error,
            **summarised(runs[-1]),
        }
    mean = {
        name: {f: np.mean([run[name][f] for run in runs], axis=0) for f in runs[0][name]}
        for name in runs[0]
    }
    result["mean over seeds"] = summarised(mean)
    sizes = (1, 32) if given.device == "cpu" else (1, 32, 512)
    result["cost"] = [cost(scorer, rows, size) for size in sizes if size <= len(rows)]
    given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
