"""One experiment over its sequences: measured with `normscope.corpus`, told as a report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normscope.corpus import CorpusResult, corpus
from normscope.corpus.records import Content, Record
from normscope.corpus.sequences import Encoder
from normscope.corpus.stream import select
from normscope.errors import InputError, ModelNotFoundError
from normscope.measures.statistics import Measurer, Row, Settings, Statistic, Table
from normscope.models import load
from normscope.models.default import DEFAULT_MODEL
from normscope.reproduce.data import LONGEST, Sequences, sequences
from normscope.reproduce.exhibits import Exhibit, Finding, Report, from_one, published
from normscope.reproduce.numbers import PointsById
from normscope.results.files import whole_file
from normscope.text.limits import max_length_of

MODEL = "bert-base-uncased"
CLARK = "992 Wikipedia sequences of 121,134 tokens (Clark et al. 2019)"
MEASURED, COST = "measured", "cost.json"
BLOCK_ROWS = 128  # rows between two checkpoints, of experiments that are quick
CHECKPOINT = 10.0  # seconds
TIMED = 3  # sequences whose cost is compared with the forward pass


@dataclass(frozen=True)
class Request:
    """What a user asked for."""

    model: str | None = None
    data: tuple[Path, ...] = ()
    output: Path | None = None
    sequences: int = 992
    sample: int | float | None = None
    ranks: str = "ids"
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    restart: bool = False


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of an experiment, layers and heads counted from 1."""

    tables: Mapping[str, Table]
    model: Any
    tokenizer: Any
    request: Request
    counts: Mapping[str, Any]
    ranks: Mapping[str, str]  # table of frequencies -> where its ranks come from
    cost: Mapping[str, float | int] | None = None

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]


@dataclass(frozen=True)
class Corpus:
    """An experiment that is measured over sequences."""

    experiment: str
    paper: str
    statistics: Callable[[Settings], list[Statistic]]
    exhibits: Callable[[Measured], list[Exhibit]]
    findings: Callable[[Measured], list[Finding]]
    text: str | None = None  # what the paper read; None: Wikipedia text that cannot be had here
    sample: int | None = None  # sequences, where all would take too long
    block_rows: int = BLOCK_ROWS
    timed: bool = False

    def __call__(self, request: Request) -> Report:
        """Measure, or go on, or read what is finished; then tell."""
        rows = sequences(request.data, request.sequences)
        model, tokenizer = _model(request)
        # Without a mask token the mixing ratios are those of the text as it is.
        masking = 0.0 if tokenizer.mask_token is None else Settings.masking
        settings = Settings(ranks=request.ranks, seed=request.seed, masking=masking)
        chosen = self.statistics(settings)
        if request.ranks != "ids" and any(one.name == "frequency" for one in chosen):
            chosen.append(PointsById(settings))
        folder = None if request.output is None else request.output / MEASURED
        sample = self.sample if request.sample is None else request.sample
        if request.output is not None:
            _check_ours(request.output)
        result = corpus(
            request.model or MODEL,
            rows.rows,
            chosen,
            output=folder,
            settings=settings,
            limit=rows.limit,
            sample=sample,
            max_length=longest_of(model, tokenizer),
            block_rows=self.block_rows,
            checkpoint_seconds=CHECKPOINT,
            device=request.device,
            dtype=request.dtype,
            revision=request.revision,
            restart=request.restart,
        )
        cost = None
        if self.timed:
            cost = _cost(result, model, tokenizer, chosen, settings, rows, sample, request)
        measured = Measured(
            {name: from_one(table) for name, table in result.tables.items()},
            model,
            tokenizer,
            request,
            result.counts,
            _ranks(result, request),
            cost,
        )
        return Report(
            self.experiment,
            self.paper,
            _warnings(model, result, rows, self.text),
            _facts(result, rows, sample),
            self.findings(measured),
            self.exhibits(measured),
            result.signature,
            published()["sources"][self.experiment],
        )


def _model(request: Request) -> tuple[Any, Any]:
    try:
        return load(
            request.model or MODEL,
            revision=request.revision,
            dtype=request.dtype,
            device=request.device,
        )
    except ModelNotFoundError as problem:
        if request.model is not None:
            raise
        raise ModelNotFoundError(
            f"the papers' model, {MODEL}, cannot be had from the hub ({problem}). Without a "
            f"network: download google-bert/{MODEL} elsewhere (hf download) and name its folder, "
            "--model FOLDER; or name another model"
        ) from problem


def longest_of(model: Any, tokenizer: Any) -> int:
    """As many tokens as the papers have, or as the model takes."""
    takes = max_length_of(model.config, tokenizer)
    return LONGEST if takes is None else min(LONGEST, takes)


def _check_ours(output: Path) -> None:
    """Refuse a folder with somebody else's files."""
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{str(output)!r} is a file; give a folder for the report")
    names = sorted(entry.name for entry in output.iterdir())
    if names and MEASURED not in names:
        raise InputError(
            f"the folder {str(output)!r} is not empty and holds no reproduction (there is: "
            f"{', '.join(names[:5])}); give a new or an empty folder"
        )


def _ranks(result: CorpusResult, request: Request) -> dict[str, str]:
    name = request.ranks if request.ranks in ("ids", "corpus") else Path(request.ranks).name
    told = {"ids": "tokenizer ids", "corpus": "counts in this text"}.get(name, f"the file {name}")
    found = {"frequency": told, "frequency_ids": "tokenizer ids"}
    return {table: where for table, where in found.items() if table in result.tables}


# ------------------------------------------------------------------------- what it was made from


def is_papers_model(model: Any) -> bool:
    """Whether it is called bert-base-uncased, and has that model's shape."""
    config = model.config
    shape = [
        getattr(config, name, None)
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
    ]
    called = str(getattr(config, "_name_or_path", "")).rstrip("/").rpartition("/")[2]
    return called == MODEL and config.model_type == "bert" and shape == [12, 12, 768, 30522]


def _warnings(
    model: Any, result: CorpusResult, rows: Sequences, text: str | None
) -> tuple[str, ...]:
    told = []
    name = result.identity["model"]["name"]
    if not is_papers_model(model):
        config = model.config
        layers, heads, size = (
            getattr(config, name, "?")
            for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        )
        kind = ", a sentence-embedding fine-tune" if name == DEFAULT_MODEL else ""
        told.append(
            f"This is not the paper's model. The paper has {MODEL} (12 layers, 12 heads, hidden "
            f"size 768); these are the numbers of {name} ({layers} layers, {heads} heads, hidden "
            f"size {size}{kind}). They show where the paper's findings hold elsewhere, and do not "
            "replace its numbers."
        )
    paper, counts = published()["emnlp2020"], result.counts
    same = (counts["sequences"], counts["tokens"]) == (paper["sequences"], paper["tokens"])
    if text is None or not rows.clark or not same:
        told.append(
            f"This is not the paper's text. The paper has {text or 'other Wikipedia text'}; these "
            f"are {counts['sequences']:,} sequences of {counts['tokens']:,} tokens of "
            f"{', '.join(rows.names)}."
        )
    return tuple(told)


def _facts(result: CorpusResult, rows: Sequences, sample: int | float | None) -> dict[str, str]:
    model, counts = result.identity["model"], result.counts
    hashes = ", ".join(
        f"{name} (sha256 {digest[:16]}…)"
        for name, digest in zip(rows.names, rows.sha256, strict=True)
    )
    told = {
        "model": f"{model['name']}, revision {model['revision'] or 'none'}, weights sha256 "
        f"{model['weights'][:16]}…, {model['dtype']} on {model['device']}",
        "data": hashes,
        "sequences": f"{counts['sequences']:,}, of {counts['tokens']:,} tokens; "
        f"{counts['cut']:,} were cut, {sum(counts['bad'].values()):,} left out as bad",
        "made of": rows.made,
    }
    if sample is not None:
        told["sample"] = f"{sample} of the sequences, chosen by a hash of their number and the seed"
    return told


# ------------------------------------------------------------------------------------- its cost


def _cost(
    result: CorpusResult,
    model: Any,
    tokenizer: Any,
    chosen: Sequence[Statistic],
    settings: Settings,
    rows: Sequences,
    sample: int | float | None,
    request: Request,
) -> dict[str, float | int] | None:
    """Seconds for each sequence, and how many forward passes that is; measured once."""
    file = None if request.output is None else request.output / COST
    if file is not None and file.is_file() and not request.restart:
        known: dict[str, float | int] = json.loads(file.read_text(encoding="utf-8"))
        return known
    told = result.run
    if not told and result.folder is not None:  # finished before
        told = json.loads((result.folder / "run.json").read_text(encoding="utf-8"))
    seconds = told.get("seconds")
    if rows.clark or model.device.type != "cpu" or not seconds:
        return None
    some = _some(model, tokenizer, rows, sample, settings.seed)
    measurer = Measurer(model, tokenizer, chosen, settings)
    forward = min(_forward(model, some) for _ in range(3))
    began = time.process_time()
    for row in some:
        measurer.measure([row])
    whole = time.process_time() - began
    made = {
        "timed_sequences": len(some),
        "forward_cpu_seconds": round(forward / len(some), 4),
        "measured_cpu_seconds": round(whole / len(some), 4),
        "ratio": round(whole / forward, 1),
        "run_wall_seconds": round(seconds / result.counts["sequences"], 3),
    }
    if file is not None:
        with whole_file(file) as opened:
            opened.write((json.dumps(made, indent=1) + "\n").encode())
    return made


def _some(
    model: Any, tokenizer: Any, rows: Sequences, sample: int | float | None, seed: int
) -> list[Row]:
    encoder = Encoder(model, tokenizer, longest_of(model, tokenizer))
    selection, _ = select(len(rows.rows), rows.limit, sample, seed)
    keys = [key for key in range(len(rows.rows)) if key in selection][:TIMED]
    made = [encoder.encode(Record(key, "", Content(*rows.rows[key]))) for key in keys]
    return [one[0] for one in made if isinstance(one, tuple)]


def _forward(model: Any, rows: Sequence[Row]) -> float:
    """CPU seconds of the plain forward pass over the sequences, one at a time."""
    began = time.process_time()
    with torch.no_grad():
        for row in rows:
            inputs = {"input_ids": torch.tensor([row.ids])}
            if row.types is not None:
                inputs["token_type_ids"] = torch.tensor([row.types])
            model(**{name: one.to(model.device) for name, one in inputs.items()})
    return time.process_time() - began
