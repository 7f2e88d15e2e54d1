"""Which word of a prompt decides between two next words: a language model's evidence, ranked.

    python -m experiments.attribution.language --data FOLDER --output FILE.json [--limit N]
        [--sets ioi …] [--device cuda]

``FOLDER`` holds ``ioi_dataset.csv`` and BLiMP sets such as ``anaphor_gender_agreement.csv``, as
released with ALTI-Logit (Ferrando et al., 2023; github.com/mt-upc/logit-explanations): a prefix,
the good and the bad next word, and the word of the prefix that decides between them. The model is
the default language model, SmolLM2-135M-Instruct with the dequantised weights of a GGUF file.

What is explained is the logit of the good word minus that of the bad word, at the first token at
which the two differ; tokens that they share before it are appended to the prompt. Rows are left out
if one word continues the other, or if the prefix does not contain the evidence as a whole word. All
other rows count, whichever word the model prefers. Sets that an earlier run wrote to ``FILE.json``
stay there.

Tokens are ranked by signed share, the largest first, with competition ranking (equal scores share
the better rank); the gradient's norm is ranked as it is. All tokens of the prompt are ranked; this
tokenizer adds no special ones. The tokens of the evidence are those that overlap the characters of
its last occurrence; of several, the best counts.

The secant network explains the difference to a baseline: the prompt with the two names exchanged
(IOI; rows whose names have equal numbers of tokens) or the mean of all word embeddings at every
position. With names exchanged only the names can have a share other than 0: a random order of
these alone is the chance level to compare with.

A logit difference of 0.4 between logits of 30 has five digits in float32, which can be too few for
the bound of the proof: such batches are explained again in float64, and counted.

Batches go directly to ``explain``, which is what ``normscope.attribute`` calls for each list of
texts, so that they can be made of equal lengths.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.attribution.faithfulness import Scores, interval, reciprocal_rank, summary
from experiments.attribution.yardsticks import gradient
from normscope.attribution.passes import explain
from normscope.cli.bench_timing import machine
from normscope.errors import ExactnessError
from normscope.linearisation.rules import rules_of
from normscope.models.loading import resolve

SETS = {
    "ioi": "ioi_dataset.csv",
    "anaphor_gender_agreement": "anaphor_gender_agreement.csv",
    "determiner_noun_agreement_1": "determiner_noun_agreement_1.csv",
}


@dataclass(frozen=True)
class Prompt:
    """One row of a set.

    Attributes:
        ids: the tokens of the prompt.
        good: the token of the good word that is explained.
        bad: the token of the bad word.
        evidence: the positions of the evidence.
        exchanged: the tokens of the prompt with good and bad word exchanged, if they have equal
            numbers of tokens and are both in the prompt.
    """

    ids: tuple[int, ...]
    good: int
    bad: int
    evidence: tuple[int, ...]
    exchanged: tuple[int, ...] | None


def whole_word(word: str) -> str:
    """Return the pattern of a word that is not part of another."""
    return rf"(?<!\w){re.escape(word)}(?!\w)"


def exchange(text: str, one: str, other: str) -> str:
    """Return a text with two words exchanged."""
    pattern = f"{whole_word(one)}|{whole_word(other)}"
    return re.sub(pattern, lambda match: other if match.group() == one else one, text)


def read_prompt(tokenizer: Any, row: dict[str, str]) -> Prompt | None:
    """Return a row of a set, or None if it cannot be used."""
    prefix, good, bad = (row[f"one_prefix_{part}"] for part in ("prefix", "word_good", "word_bad"))
    places = [match.span() for match in re.finditer(whole_word(row["target"]), prefix)]
    words = [tokenizer(" " + word)["input_ids"] for word in (good, bad)]
    differing = [i for i, (a, b) in enumerate(zip(*words, strict=False)) if a != b]
    if not places or not differing:
        return None
    first = differing[0]
    shared = tuple(words[0][:first])
    encoded = tokenizer(prefix, return_offsets_mapping=True)
    ids = tuple(encoded["input_ids"])
    begin, end = places[-1]
    evidence = [i for i, (a, b) in enumerate(encoded["offset_mapping"]) if a < end and b > begin]
    exchanged = None
    if all(re.search(whole_word(word), prefix) for word in (good, bad)):
        swapped = tuple(tokenizer(exchange(prefix, good, bad))["input_ids"])
        if len(words[0]) == len(words[1]) and len(swapped) == len(ids):
            exchanged = swapped + shared
    return Prompt(ids + shared, words[0][first], words[1][first], tuple(evidence), exchanged)


def batches(prompts: Sequence[Prompt], size: int) -> Iterator[list[int]]:
    """Yield rows of equal length, so that nothing is padded."""
    by_length = defaultdict(list)
    for row, prompt in enumerate(prompts):
        by_length[len(prompt.ids)].append(row)
    for rows in by_length.values():
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def _double(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value


class Explainer:
    """The methods, as functions from prompts of equal length to scores, (row, token)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.embeddings: Tensor = model.get_input_embeddings().weight.detach()
        self.draw = np.random.default_rng(0)
        self.largest_error: dict[str, float] = {}
        self.repeated = 0  # batches, in float64

    @cached_property
    def exact(self) -> Any:
        """The model in float64."""
        return copy.deepcopy(self.model).double()

    def methods(self) -> dict[str, Callable[[Sequence[Prompt]], Scores]]:
        """Return the methods by name."""
        return {
            "secant, names exchanged": lambda p: self._shares("secant", p, "exchanged"),
            "secant, mean embedding": lambda p: self._shares("secant", p, "mean"),
            "frozen": lambda p: self._shares("frozen", p),
            "attn_lrp": lambda p: self._shares("attn_lrp", p),
            "input_x_gradient": lambda p: self._gradients(p)[0],
            "gradient norm": lambda p: self._gradients(p)[1],
            "random": lambda p: self.draw.random((len(p), len(p[0].ids))),
            "random, names alone": self._random_names,
        }

    def differences(self, prompts: Sequence[Prompt]) -> Scores:
        """Return the model's logit difference for each prompt."""
        with torch.no_grad():
            output = self.model(input_ids=self._ids(prompts), logits_to_keep=1, use_cache=False)
            found: Scores = self._contrast(prompts)(output)[:, 0].double().cpu().numpy()
            return found

    def _ids(self, prompts: Sequence[Prompt]) -> Tensor:
        return torch.tensor([prompt.ids for prompt in prompts], device=self.model.device)

    def _contrast(self, prompts: Sequence[Prompt]) -> Callable[[Any], Tensor]:
        good = torch.tensor([prompt.good for prompt in prompts], device=self.model.device)
        bad = torch.tensor([prompt.bad for prompt in prompts], device=self.model.device)

        def difference(output: Any) -> Tensor:
            logits = output.logits[:, -1]
            times = len(logits) // len(good)  # twice as many rows with baselines
            chosen = [logits.gather(1, ids.repeat(times)[:, None]) for ids in (good, bad)]
            return chosen[0] - chosen[1]

        return difference

    def _shares(self, method: str, prompts: Sequence[Prompt], baseline: str = "") -> Scores:
        ids = self._ids(prompts)
        inputs: dict[str, Any] = {"input_ids": ids}
        other: dict[str, Any] = {}
        if baseline == "exchanged":
            other = {"input_ids": torch.tensor([prompt.exchanged for prompt in prompts]).to(ids)}
        elif baseline == "mean":
            embedded = self.embeddings[ids]
            inputs = {"inputs_embeds": embedded}
            other = {"inputs_embeds": self.embeddings.mean(0).expand_as(embedded)}
        rules, contrast = rules_of(method), self._contrast(prompts)
        given = {**inputs, "logits_to_keep": 1}
        try:
            found = explain(self.model, given, contrast, rules, baseline_inputs=other or None)
        except ExactnessError:
            self.repeated += 1
            given, other = ({k: _double(v) for k, v in part.items()} for part in (given, other))
            found = explain(self.exact, given, contrast, rules, baseline_inputs=other or None)
        name = f"{method} {baseline}".strip()
        self.largest_error[name] = max(self.largest_error.get(name, 0.0), float(found.error.max()))
        total: Scores = sum((s.shares[:, 0] for s in found.sources), np.zeros(ids.shape))
        return total

    def _gradients(self, prompts: Sequence[Prompt]) -> tuple[Scores, Scores]:
        """Return Input×Gradient, and the ℓ2 norm of the gradient."""
        embedded = self.embeddings[self._ids(prompts)]
        rest = {"logits_to_keep": 1, "use_cache": False}
        _, grad = gradient(self.model, embedded, rest, self._contrast(prompts))
        products = (embedded * grad).sum(-1).double().cpu().numpy()
        return products, grad.norm(dim=-1).double().cpu().numpy()

    def _random_names(self, prompts: Sequence[Prompt]) -> Scores:
        changes = [np.array(p.ids) != np.array(p.exchanged) for p in prompts]
        return np.array([self.draw.random(len(c)) * c for c in changes])


def measure(explainer: Explainer, prompts: Sequence[Prompt], size: int) -> dict[str, Any]:
    """Return the mean reciprocal rank of the evidence by every method."""
    differences = np.zeros(len(prompts))
    for rows in batches(prompts, size):
        differences[rows] = explainer.differences([prompts[row] for row in rows])
    found: dict[str, Any] = {
        "rows": len(prompts),
        "tokens": float(np.mean([len(prompt.ids) for prompt in prompts])),
        "model prefers the good word": float((differences > 0).mean()),
        "methods": {},
    }
    swappable = np.array([prompt.exchanged is not None for prompt in prompts])
    for name, method in explainer.methods().items():
        usable = swappable if "names" in name else np.ones(len(prompts), dtype=bool)
        if not usable.any():
            continue
        began, ranks = time.process_time(), np.full(len(prompts), np.nan)
        for rows in batches([p for p, use in zip(prompts, usable, strict=True) if use], size):
            chosen = np.flatnonzero(usable)[rows]
            scores = method([prompts[row] for row in chosen])
            for row, score in zip(chosen, scores, strict=True):
                ranks[row] = reciprocal_rank(score, prompts[row].evidence)
        found["methods"][name] = {
            **summary(ranks[usable]),
            "first": float((ranks[usable] == 1).mean()),
            "processor seconds": round(time.process_time() - began, 1),
        }
        if swappable.any() and not swappable.all() and usable.all():
            found["methods"][name]["of rows with names exchanged"] = {
                "mean": float(ranks[swappable].mean()),
                "interval": interval(ranks[swappable]),
            }
        print(name, found["methods"][name], flush=True)
    return found


def table(result: dict[str, Any]) -> str:
    """Return the ranks as a table in markdown."""
    sets = result["sets"]
    names = list(dict.fromkeys(name for found in sets.values() for name in found["methods"]))
    lines = ["| | " + " | ".join(f"{name} ({sets[name]['rows']})" for name in sets) + " |"]
    lines.append("|---|" + "---|" * len(sets))
    for name in names:
        cells = []
        for found in sets.values():
            entry = found["methods"].get(name)
            low, high = entry["interval"] if entry else (0, 0)
            cells.append(f"{entry['mean']:.3f} [{low:.3f}, {high:.3f}]" if entry else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the sets, and write numbers and a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--sets", nargs="+", default=list(SETS), help="names, or names of files")
    options.add_argument("--limit", type=int, help="only the first rows of every set")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    model, tokenizer = resolve(None, kind="language", device=given.device)
    explainer = Explainer(model)
    result: dict[str, Any] = {"machine": machine(given.device), "sets": {}}
    if given.output.exists():
        result["sets"] = json.loads(given.output.read_text(encoding="utf-8"))["sets"]
    result["model"] = {"name": model.config._name_or_path, "dtype": str(model.dtype)[6:]}
    for name in given.sets:
        with (given.data / SETS.get(name, f"{name}.csv")).open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))[: given.limit]
        prompts = [prompt for row in rows if (prompt := read_prompt(tokenizer, row))]
        print(f"{name}: {len(prompts)} of {len(rows)} rows", flush=True)
        result["sets"][name] = {
            "left out": len(rows) - len(prompts),
            **measure(explainer, prompts, given.batch),
        }
        result["largest error"] = explainer.largest_error
        result["batches repeated in float64"] = explainer.repeated
        given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(table(result), encoding="utf-8")


if __name__ == "__main__":
    main()
