"""Language models: does a method find the word that decides, and the tokens that matter?

ALTI-Logit's reciprocal ranks on BLiMP and IOI, and the log-probability drops of Jacobian scopes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from normscope.attribution.api import attribute
from normscope.attribution.options import Question
from normscope.errors import ExactnessError, InputError
from normscope.faithfulness.conventions import Figure, conventions_for
from normscope.faithfulness.evaluation import FaithfulnessMeter, TextRecord
from normscope.faithfulness.evidence import evidence
from normscope.faithfulness.methods import ComparedMethod, calls_of
from normscope.faithfulness.result import MethodFigures
from normscope.foundation.progress import stage
from normscope.models.loading import resolve
from normscope.reproduce.comparisons import (
    MeasuredTables,
    MethodExperiment,
    described,
    files_of,
    long_table,
    mean_over_sets,
    measured_rows,
)
from normscope.reproduce.exhibits import table_of
from normscope.reproduce.lm_exhibits import BLIMP, EXHIBITS, IOI, MRR, PAPER, findings
from normscope.reproduce.options import LM, ReproduceOptions
from normscope.reproduce.prompts import EvidencePrompt, read_passages, read_prompts, tell_apart
from normscope.reproduce.yardsticks import SIZES
from normscope.results.signature import Signature

WHERE = (
    "give --data: sets of prompts with evidence (.csv: BLiMP and IOI as released with ALTI-Logit, "
    "github.com/mt-upc/logit-explanations), passages (.json: LAMBADA, a list of objects with a "
    'field "text"), or folders of them'
)
METHODS = (
    "alti_logit",
    "direct_logit:lens=no",
    "erasure",
    "gradient_norm:l1",
    "input_x_gradient",
    "frozen",
    "attn_lrp",
    "cp_lrp",
    "chefer",
    "rollout:alti",
    "random",
)
DROP_METHODS = (
    "gradient_norm",
    "input_x_gradient, ℓ2",
    "integrated_gradients:steps=5@zero",
    "input_x_gradient",
    "frozen",
    "attn_lrp",
    "alti_logit",
    "random",
)
FIGURES = (
    Figure("mrr", "mean reciprocal rank of the best-ranked evidence", True),
    Figure("mass", "share of the absolute scores that is on the evidence", True),
)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model and its tokenizer."""

    model: Any
    tokenizer: Any

    @cached_property
    def exact(self) -> Any:
        """The model in float64, for differences of logits that float32 does not resolve."""
        return copy.deepcopy(self.model).double()

    @property
    def signature(self) -> str:
        """The signature of the model."""
        return Signature(self.model, self.tokenizer, {}).text()

    def attributions(self, call: ComparedMethod, prompts: Sequence[EvidencePrompt]) -> Any:
        """Return an attribution of the difference of both words' logits for each prompt."""
        texts = [prompt.text for prompt in prompts]
        asked: dict[str, Any] = {
            "answer": [f" {prompt.good}" for prompt in prompts],
            "foil": [f" {prompt.bad}" for prompt in prompts],
        }
        asked |= call.options
        try:
            return attribute(self.model, self.tokenizer, texts, **asked)
        except ExactnessError:
            return attribute(self.exact, self.tokenizer, texts, **asked)


def measure(options: ReproduceOptions) -> MeasuredTables:
    """Measure every method on every set."""
    files = files_of(options.data, (".csv", ".json"), WHERE)
    sets = {path.stem: path for path in files if path.suffix.lower() == ".csv"}
    passages = [path for path in files if path.suffix.lower() == ".json"]
    if len(sets) + len(passages) < len(files) or len(passages) > 1:
        raise InputError(f"two files have the same name, or there are two .json files; {WHERE}")
    where: dict[str, Any] = {"revision": options.revision, "dtype": options.dtype}
    model, tokenizer = resolve(options.model, kind="language", device=options.device, **where)
    given = LanguageModel(model, tokenizer)
    ranks = {name: _ranks(given, name, path, options) for name, path in sets.items()}
    used = {name: figures for name, figures in ranks.items() if figures is not None}
    rows = [row for name, figures in used.items() for row in long_table(figures, set=name)]
    tables = {}
    if rows:
        tables["evidence"] = table_of([*rows, *_means(used, options)])
    drops = None
    if passages:
        drops = _drops(given, passages[0], options)
        tables["drops"] = table_of(long_table(drops))
    if not tables:
        raise InputError(f"no row of {', '.join(sets)} can be used; {WHERE}")
    return MeasuredTables(
        tables, _facts(given, files, used, drops), _warnings(given), given.signature
    )


# ---- evidence


def _ranks(
    given: LanguageModel, name: str, path: Path, options: ReproduceOptions
) -> MethodFigures | None:
    """Return reciprocal rank and mass of the evidence of a set by every method."""
    read = read_prompts(path, options.sequences)
    prompts = [p for p in read if p is not None and tell_apart(given.tokenizer, p)]
    if not prompts:
        return None
    calls = calls_of(options.method or METHODS, given.tokenizer, options.seed)
    header = {
        "signature": given.signature,
        "methods": [call.text() for call in calls],
        "prompts": described([path]),
    }

    def work(chunk: list[int], count: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        part = [prompts[at] for at in chunk]
        found = _figures(given, calls, part)
        count(len(chunk))
        for place, at in enumerate(chunk):
            yield at, {method: values[place].tolist() for method, values in found.items()}

    stage(f"measuring {name}")
    rows = measured_rows(options, name, header, len(prompts), work)
    values = {call.name: np.array([row[call.name] for row in rows], dtype=float) for call in calls}
    left_out = [f"row {at}" for at, prompt in enumerate(read) if prompt not in prompts]
    return MethodFigures(FIGURES, values, problems=left_out)


def _figures(
    given: LanguageModel, calls: Sequence[ComparedMethod], prompts: Sequence[EvidencePrompt]
) -> dict[str, np.ndarray]:
    results = {call.name: given.attributions(call, prompts) for call in calls}
    figures = evidence(
        results,
        [prompt.span for prompt in prompts],
        texts=[prompt.text for prompt in prompts],
        resamples=0,
    )
    return {
        call.name: np.stack([figures.each(call.name, figure.name) for figure in FIGURES], axis=-1)
        for call in calls
    }


def _means(ranks: Mapping[str, MethodFigures], options: ReproduceOptions) -> list[dict[str, Any]]:
    """Return the rows of the mean over the sets that are not of indirect objects."""
    groups = {name: figures for name, figures in ranks.items() if not name.startswith(IOI)}
    if not groups:
        return []
    methods = next(iter(groups.values())).methods
    rows = []
    for method in methods:
        mean, low, high = mean_over_sets(groups, method, MRR, options.seed)
        count = sum(len(figures) for figures in groups.values())
        numbers = {"mean": mean, "low": low, "high": high, "texts": count}
        rows.append({"set": BLIMP, "method": method, "figure": MRR, **numbers})
    return rows


# ---- drops


def _drops(given: LanguageModel, path: Path, options: ReproduceOptions) -> MethodFigures:
    """Return the loss of log-probability when tokens are removed, by every method."""
    texts = read_passages(path, options.sequences)
    names = options.method or DROP_METHODS
    calls = calls_of({name: SIZES.get(name, name) for name in names}, given.tokenizer, options.seed)
    conventions = conventions_for(("logprob_drop",), "jacobian")
    meter = FaithfulnessMeter(given.model, given.tokenizer, calls, conventions)
    header = {
        "signature": meter.signature.with_settings(meter.settings()).text(),
        "passages": described([path]),
    }
    question = Question().checked()

    def work(chunk: list[int], count: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at in chunk:  # one at a time: passages are long, and some tokenizers have no padding
            yield at, meter.records([texts[at]], [question])[0].to_dict()
            count(1)

    stage(f"measuring {path.stem}")
    rows = measured_rows(options, path.stem, header, len(texts), work)
    records = [TextRecord.from_dict(row) for row in rows]
    values = {call.name: np.array([r.figures[call.name] for r in records]) for call in calls}
    return MethodFigures(meter.figures, values)


# ---- about the run


def _facts(
    given: LanguageModel,
    files: Sequence[Path],
    ranks: Mapping[str, MethodFigures],
    drops: MethodFigures | None,
) -> dict[str, str]:
    config = given.model.config
    facts = {
        "model": f"{config._name_or_path or type(given.model).__name__}, "
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{str(given.model.dtype).removeprefix('torch.')}",
        "data": described(files),
        "prompts": ", ".join(
            f"{name} {len(figures)} ({len(figures.problems)} left out)"
            for name, figures in ranks.items()
        )
        or "none",
    }
    return facts if drops is None else {**facts, "passages": f"{len(drops)}"}


def _warnings(given: LanguageModel) -> tuple[str, ...]:
    config = given.model.config
    return (
        "This is not the papers' model. ALTI-Logit's numbers are those of GPT-2 small, the "
        "log-probability drops those of Llama-3.2-1B and Qwen2.5-1.5B; this report uses "
        f"{config._name_or_path or config.model_type} ({config.num_hidden_layers} layers). Its "
        "numbers show whether the order of the methods holds for another model, and do not "
        "replace the papers' numbers.",
    )


EXPERIMENT = MethodExperiment(LM, PAPER, measure, EXHIBITS, findings, used=("data", "method"))
