"""Run an experiment over sequences with `normscope.corpus`, and make its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.corpus import CorpusResult, corpus
from normscope.corpus.records import Content, Record
from normscope.corpus.sequences import Encoder
from normscope.corpus.stream import select
from normscope.errors import InputError, ModelNotFoundError
from normscope.measures.statistics import Measurer, Row, Statistic, StatisticSettings
from normscope.models import load
from normscope.models.default import DEFAULT_MODEL
from normscope.reproduce.cost import Cost, measure_cost, read_cost, write_cost
from normscope.reproduce.data import LONGEST, Sequences, read_sequences
from normscope.reproduce.exhibits import Finding, Report, count_from_one, published
from normscope.reproduce.measurements import ExhibitPlan, Measurements
from normscope.reproduce.options import SEQUENCES, ReproduceOptions
from normscope.reproduce.statistics import FrequencyPointsById
from normscope.text.limits import max_length_of

MODEL = "bert-base-uncased"
MODEL_SHAPE = {
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "vocab_size": 30522,
}
CLARK = "992 Wikipedia sequences with 121,134 tokens (Clark et al. 2019)"
MEASURED, COST = "measured", "cost.json"  # in the folder of a reproduction
BLOCK_ROWS = 128  # rows between two checkpoints of a fast experiment
CHECKPOINT_SECONDS = 10.0
TIMED = 3  # sequences on which the cost is measured


@dataclass(frozen=True)
class CorpusExperiment:
    """An experiment that is measured over sequences."""

    name: str
    paper: str
    statistics: Callable[[StatisticSettings], list[Statistic]]
    exhibits: tuple[ExhibitPlan, ...]
    findings: Callable[[Measurements], list[Finding]]
    text: str | None = None  # the paper's sequences; None if they are not available
    sample: int | None = None  # default number of sequences, if all would take too long
    block_rows: int = BLOCK_ROWS
    timed: bool = False  # whether the cost is measured

    def __call__(self, options: ReproduceOptions) -> Report:
        """Measure, or continue or read an earlier run in the same folder; return the report."""
        run = self._run(options)
        measurements = Measurements(
            {name: count_from_one(table) for name, table in run.result.tables.items()},
            run.model,
            run.tokenizer,
            run.result.counts,
            _rank_sources(run),
            _cost(run) if self.timed else None,
        )
        plans = [plan for plan in self.exhibits if plan.available(measurements)]
        return Report(
            self.name,
            self.paper,
            _warnings(run, self.text),
            _facts(run),
            self.findings(measurements),
            [plan.make(measurements) for plan in plans],
            run.result.signature,
            published()["sources"][self.name],
        )

    def _run(self, options: ReproduceOptions) -> _ExperimentRun:
        count = SEQUENCES if options.sequences is None else options.sequences
        sequences = read_sequences(options.data, count)
        model, tokenizer = _load_model(options)
        # Mixing ratios are those of the unmasked text if the tokenizer has no mask token.
        masking = 0.0 if tokenizer.mask_token is None else StatisticSettings.masking
        settings = StatisticSettings(ranks=options.ranks, seed=options.seed, masking=masking)
        statistics = self.statistics(settings)
        if options.ranks != "ids" and any(s.name == "frequency" for s in statistics):
            statistics.append(FrequencyPointsById(settings))
        if options.output is not None:
            check_folder(options.output)
        sample = self.sample if options.sample is None else options.sample
        result = corpus(
            model,
            sequences.rows,
            statistics,
            tokenizer=tokenizer,
            output=None if options.output is None else options.output / MEASURED,
            settings=settings,
            limit=sequences.limit,
            sample=sample,
            max_length=longest_sequence(model, tokenizer),
            block_rows=self.block_rows,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            restart=options.restart,
        )
        return _ExperimentRun(
            options, sequences, model, tokenizer, statistics, settings, sample, result
        )


@dataclass(frozen=True, eq=False)
class _ExperimentRun:
    """The inputs of a run and its result."""

    options: ReproduceOptions
    sequences: Sequences
    model: Any
    tokenizer: Any
    statistics: Sequence[Statistic]
    settings: StatisticSettings
    sample: int | float | None
    result: CorpusResult


def _load_model(options: ReproduceOptions) -> tuple[Any, Any]:
    try:
        return load(
            options.model or MODEL,
            revision=options.revision,
            dtype=options.dtype,
            device=options.device,
        )
    except ModelNotFoundError as error:
        if options.model is not None:
            raise
        raise ModelNotFoundError(
            f"cannot load {MODEL}, the model of the papers, from the hub ({error}). Without a "
            f"network connection, download google-bert/{MODEL} on another machine (hf download) "
            "and give its folder with --model FOLDER, or give another model"
        ) from error


def longest_sequence(model: Any, tokenizer: Any) -> int:
    """Return the papers' maximum number of tokens, or the model's if it is smaller."""
    limit = max_length_of(model.config, tokenizer)
    return LONGEST if limit is None else min(LONGEST, limit)


def check_folder(output: Path) -> None:
    """Raise InputError if the folder has files but no reproduction."""
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{str(output)!r} is a file; give a folder for the report")
    names = sorted(entry.name for entry in output.iterdir())
    if names and MEASURED not in names:
        raise InputError(
            f"the folder {str(output)!r} contains other files and no reproduction "
            f"({', '.join(names[:5])}); give a new or an empty folder"
        )


# ------------------------------------------------------------------- description of model and data


def _rank_sources(run: _ExperimentRun) -> dict[str, str]:
    """Return where the ranks of each frequency table come from."""
    ranks = run.options.ranks
    known = {"ids": "tokenizer ids", "corpus": "counts in this text"}
    sources = {
        "frequency": known.get(ranks, f"the file {Path(ranks).name}"),
        "frequency_ids": known["ids"],
    }
    return {table: source for table, source in sources.items() if table in run.result.tables}


def is_papers_model(model: Any) -> bool:
    """Return whether a model has the name and the shape of bert-base-uncased."""
    config = model.config
    name = str(getattr(config, "_name_or_path", "")).rstrip("/").rpartition("/")[2]
    shape = {key: getattr(config, key, None) for key in MODEL_SHAPE}
    return name == MODEL and config.model_type == "bert" and shape == MODEL_SHAPE


def _warnings(run: _ExperimentRun, text: str | None) -> tuple[str, ...]:
    """Return how model and text differ from the paper's."""
    warnings = []
    if not is_papers_model(run.model):
        warnings.append(_model_warning(run))
    paper, counts = published()["emnlp2020"], run.result.counts
    same = (counts["sequences"], counts["tokens"]) == (paper["sequences"], paper["tokens"])
    if text is None or not run.sequences.clark or not same:
        warnings.append(
            f"This is not the paper's text. The paper uses {text or 'other Wikipedia text'}; this "
            f"report uses {counts['sequences']:,} sequences with {counts['tokens']:,} tokens from "
            f"{', '.join(run.sequences.names)}."
        )
    return tuple(warnings)


def _model_warning(run: _ExperimentRun) -> str:
    config, name = run.model.config, run.result.identity["model"]["name"]
    layers, heads, size = (
        getattr(config, key, "?")
        for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    kind = ", fine-tuned for sentence embeddings" if name == DEFAULT_MODEL else ""
    return (
        f"This is not the paper's model. The paper uses {MODEL} (12 layers, 12 heads, hidden size "
        f"768); the measured numbers are those of {name} ({layers} layers, {heads} heads, hidden "
        f"size {size}{kind}). They show whether the paper's findings hold for another model, and "
        "do not replace its numbers."
    )


def _facts(run: _ExperimentRun) -> dict[str, str]:
    model, counts = run.result.identity["model"], run.result.counts
    files = zip(run.sequences.names, run.sequences.sha256, strict=True)
    facts = {
        "model": f"{model['name']}, revision {model['revision'] or 'none'}, weights sha256 "
        f"{model['weights'][:16]}…, {model['dtype']} on {model['device']}",
        "data": ", ".join(f"{name} (sha256 {digest[:16]}…)" for name, digest in files),
        "sequences": f"{counts['sequences']:,} with {counts['tokens']:,} tokens; "
        f"{counts['cut']:,} truncated, {sum(counts['bad'].values()):,} skipped as invalid",
        "composition": run.sequences.description,
    }
    if run.sample is not None:
        facts["sample"] = f"{run.sample} of the sequences, selected by a hash of number and seed"
    return facts


# ------------------------------------------------------------------------------------------- cost


def _cost(run: _ExperimentRun) -> Cost | None:
    """Return the cost per sequence; measure it only once for a folder.

    It is None on a GPU, for Clark et al.'s file, and where the duration of the run is not known.
    """
    options, result = run.options, run.result
    file = None if options.output is None else options.output / COST
    if file is not None and file.is_file() and not options.restart:
        return read_cost(file)
    notes = result.run
    if not notes and result.folder is not None:  # the run was finished earlier
        notes = json.loads((result.folder / "run.json").read_text(encoding="utf-8"))
    seconds = notes.get("seconds")
    if run.sequences.clark or run.model.device.type != "cpu" or not seconds:
        return None
    measurer = Measurer(run.model, run.tokenizer, run.statistics, run.settings)
    cost = measure_cost(measurer, _timed_rows(run), seconds / result.counts["sequences"])
    if file is not None:
        write_cost(cost, file)
    return cost


def _timed_rows(run: _ExperimentRun) -> list[Row]:
    """Return the first encoded sequences of the sample."""
    rows = run.sequences.rows
    encoder = Encoder(run.model, run.tokenizer, longest_sequence(run.model, run.tokenizer))
    selection, _ = select(len(rows), run.sequences.limit, run.sample, run.settings.seed)
    keys = [key for key in range(len(rows)) if key in selection][:TIMED]
    encoded = [encoder.encode(Record(key, "", Content(*rows[key]))) for key in keys]
    return [outcome[0] for outcome in encoded if isinstance(outcome, tuple)]
