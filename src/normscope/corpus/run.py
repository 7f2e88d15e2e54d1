"""Measure statistics over a corpus in one pass, on one machine or a cluster, resumably."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from normscope.corpus.checkpoint import Checkpoint, Folder, check_same, differences, locked_folder
from normscope.corpus.identity import identify, signature
from normscope.corpus.job import CorpusJob, ModelOrigin, Step, local_steps
from normscope.corpus.memory import Memory, sources_of
from normscope.corpus.options import DEFAULT_STATISTICS, CorpusOptions
from normscope.corpus.output import CorpusResult, from_dict, write
from normscope.corpus.records import Position
from normscope.corpus.sequences import length_limit
from normscope.corpus.stream import Stream, select
from normscope.corpus.work import Outcome, Progress
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.progress import progress_bar, stage
from normscope.measures.statistics.base import NAMES, Statistic, Table, choose
from normscope.measures.statistics.measurer import Measurer
from normscope.measures.statistics.settings import StatisticSettings
from normscope.models import load, resolve
from normscope.models.running import check_reads_text
from normscope.results.arrays import import_tables


def corpus(
    model: Any = None,
    data: Any = None,
    statistics: str | Sequence[str | Statistic] = DEFAULT_STATISTICS,
    *,
    tokenizer: Any = None,
    output: str | os.PathLike[str] | None = None,
    settings: StatisticSettings | None = None,
    limit: int | None = None,
    sample: int | float | None = None,
    seed: int | None = None,
    max_length: int | None = None,
    batch_tokens: int = 4096,
    block_rows: int = 256,
    bad_rows: str = "skip",
    format: str | None = None,
    text_field: str = "text",
    pair_field: str = "text_pair",
    dump: bool = False,
    restart: bool = False,
    checkpoint_seconds: float = 60.0,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
    progress: bool | None = None,
) -> CorpusResult:
    """Measure a corpus: one pass for all statistics, in memory that does not grow with it.

        >>> result = corpus(None, ["The cat sat.", "It slept."], ["mixing"])    # doctest: +SKIP
        >>> result.tables                                                       # doctest: +SKIP

    Args:
        model: A transformers model, a folder, a hub name, or None for the default model.
        data: A file, a list of `pathlib.Path`, a dataset, or an iterable of strings, pairs of
            strings, or dictionaries.
        statistics: Names, in a list or separated by commas, "all", or statistics of your own.
        tokenizer: The tokenizer of a model that is given as an object.
        output: A folder for tables, figures, report and checkpoints. An interrupted run is
            continued there, and a finished one is read.
        settings: Settings of the statistics: categories, masking, bootstrap and so on.
        limit: Use only this many rows, from the first.
        sample: Use a share (0.01) or a number (1000) of these rows, chosen by a hash of the row's
            number.
        seed: The seed of the sample, the masking and the bootstrap; None takes that of `settings`.
        max_length: Cut longer sequences to this many tokens. None: as many as the model accepts.
        batch_tokens: The number of tokens in a batch, padding included.
        block_rows: The number of rows in a block, within which sequences of similar lengths are
            batched.
        bad_rows: "skip" counts and lists rows that cannot be used; "error" stops at the first.
        format: The format of the files: text, jsonl, tsv, parquet, clark. None: by their names.
        text_field: The field or column with the text.
        pair_field: The field or column with the second text, if any.
        dump: Also write the maps of every sequence (needs `output`).
        restart: Delete the run that `output` holds and start a new one.
        checkpoint_seconds: The time between two checkpoints.
        engine: "local", or "ray" for more than one machine.
        address: The address of a Ray cluster, "auto" for the one of this machine. None: start Ray
            on this machine.
        workers: The number of models that Ray runs at once. None: one for each GPU, or CPU.
        device: Where the model runs. None: on the CPU.
        dtype: The dtype of the model. None: as stored.
        revision: The commit, tag or branch of a model on the hub.
        strict: Refuse a model given by name that is not loaded whole (see
            :func:`normscope.models.load`).
        progress: Show a progress bar on standard error. None: if that is a terminal.
    """
    options = CorpusOptions(
        output=output,
        settings=settings or StatisticSettings(),
        limit=limit,
        sample=sample,
        seed=seed,
        max_length=max_length,
        batch_tokens=batch_tokens,
        block_rows=block_rows,
        bad_rows=bad_rows,
        format=format,
        text_field=text_field,
        pair_field=pair_field,
        dump=dump,
        restart=restart,
        checkpoint_seconds=checkpoint_seconds,
        engine=engine,
        address=address,
        workers=workers,
        device=device,
        dtype=dtype,
        revision=revision,
        strict=strict,
        progress=progress,
    )
    return run_corpus(model, data, statistics, options, tokenizer)


def run_corpus(
    model: Any,
    data: Any,
    statistics: str | Sequence[str | Statistic],
    options: CorpusOptions,
    tokenizer: Any = None,
) -> CorpusResult:
    """Measure a corpus as `corpus` does, with its keyword arguments in one object."""
    settings = options.statistic_settings
    chosen = _choose(statistics, settings)
    if data is None:
        raise InputError("no data was given: give files, or rows of text")
    if options.output is not None:
        import_tables("pyarrow.parquet")  # raise an error now rather than after hours of work
    with nullcontext() if options.output is None else locked_folder(options.output) as folder:
        sources = sources_of(data, options.format, options.row_fields)
        counts = [count for source in sources if (count := source.count()) is not None]
        known = sum(counts) if len(counts) == len(sources) else None
        selection, total = select(known, options.limit, options.sample, settings.seed)
        loaded, tokenizer, origin = _load(model, tokenizer, options)
        job = CorpusJob(
            loaded,
            tokenizer,
            origin,
            str(options.device or next(loaded.parameters()).device),
            chosen,
            replace(
                options,
                max_length=length_limit(loaded, tokenizer, options.max_length),
                # Absolute, since workers may run in another folder.
                output=None if options.output is None else Path(options.output).resolve(),
            ),
            Stream(sources, selection, options.block_rows),
        )
        identity = identify(job)
        if folder is not None and options.restart:
            Measurer(loaded, tokenizer, chosen, settings)  # finds errors before anything is deleted
            folder.clear()
        return _Run(job, identity, total, folder).result()


def _choose(
    statistics: str | Sequence[str | Statistic], settings: StatisticSettings
) -> list[Statistic]:
    if isinstance(statistics, str):
        listed = [name.strip() for name in statistics.split(",")]
        statistics = NAMES if statistics == "all" else listed
    if not statistics:
        raise InputError(f"no statistic was named; valid are: {', '.join(NAMES)}")
    chosen: list[Statistic] = []
    for item in statistics:
        if not isinstance(item, (str, Statistic)):
            raise InputError(
                "a statistic must be a name, or an object with name, conditions, observe, measure, "
                f"merge and result, but is {item!r:.60}; the names are: {', '.join(NAMES)}"
            )
        chosen += choose([item], settings) if isinstance(item, str) else [item]
    names = [statistic.name for statistic in chosen]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"name each statistic once; named several times: {', '.join(repeated)}")
    return chosen


def _load(
    model: Any, tokenizer: Any, options: CorpusOptions
) -> tuple[Any, Any, ModelOrigin | None]:
    """Return the model, its tokenizer, and where workers can load them from."""
    origin = None
    if model is None or isinstance(model, (str, os.PathLike)):
        name = None if model is None else os.fspath(model)
        path = None if name is None else Path(name).expanduser()
        name = str(path.resolve()) if path is not None and path.exists() else name
        # Ray's workers load models of their own; the one loaded here is only inspected.
        device = "cpu" if options.engine == "ray" else options.device
        origin = ModelOrigin(name, options.revision, options.dtype, options.strict)
        model, own = load(device=device, **vars(origin))
        if tokenizer is None:
            tokenizer = own
        else:
            origin = None
    elif options.device is not None:
        raise InputError(
            "device is for a model that is loaded by its name, but the model is loaded already; "
            "leave device out, and the model runs where it is"
        )
    else:
        model, tokenizer = resolve(model, tokenizer)
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; give tokenizer=, or give the model by its folder or name, and "
            "its tokenizer is loaded with it"
        )
    check_reads_text(model, "corpus statistics are defined for texts; see analyze_inputs()")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} is an encoder–decoder model; corpus statistics are defined "
            "for models that read one text at a time (encoders and decoders)"
        )
    return model, tokenizer, origin


class _Run:
    """One run, from its last checkpoint to its result."""

    def __init__(
        self, job: CorpusJob, identity: dict[str, Any], total: int | None, folder: Folder | None
    ) -> None:
        self.job, self.identity, self.total, self.folder = job, identity, total, folder
        self.progress, self.position = Progress(), Position()
        self.notes: dict[str, Any] = {"seconds": 0.0, "starts": 0, "tokens": 0}
        self._streams = [s for s in job.stream.sources if isinstance(s, Memory) and not s.sized]

    def result(self) -> CorpusResult:
        """Begin or continue the run, or read the result of a finished one."""
        folder = self.folder
        if folder is not None:
            if (content := folder.finished()) is not None:
                self._read_streams()
                check_same(folder.path, content["identity"], self.identity)
                folder.close_run()
                return from_dict(content, folder.path)
            self._resume(folder)
        self.notes["starts"] += 1
        self._save()  # marks the folder as this run's
        self._measure()
        stage("making the tables")
        self._save()  # keeps what was measured, even if writing the results fails
        result = self._result()
        if folder is not None:
            write(folder, result)
            folder.close_run()
        return result

    def _resume(self, folder: Folder) -> None:
        saved = folder.load()
        if saved is None:
            return
        if not saved.progress.blocks and differences(saved.identity, self.identity):
            folder.clear()  # nothing was measured yet, so nothing is lost
            return
        check_same(folder.path, saved.identity, self.identity)
        self.progress, self.position, self.notes = saved.progress, saved.position, saved.notes
        for source in self._streams:
            source.expected = self.notes.get("seen")

    def _read_streams(self) -> None:
        """Read streams to their end, so that their rows can be compared."""
        for source in self._streams:
            for _ in self.job.stream.blocks(Position(), 0):
                pass
            self.identity["data"][-1]["sha256"] = source.seen()

    def _steps(self, done: Callable[[int], Any]) -> Generator[Step, None, None]:
        if self.job.options.engine == "ray":
            from normscope.corpus.cluster import ray_steps

            return ray_steps(self.job, self.position, self.progress.blocks)
        return local_steps(self.job, self.position, self.progress.blocks, done)

    def _measure(self) -> None:
        options, statistics = self.job.options, self.job.statistics
        began = saved = time.monotonic()
        seconds_before = self.notes["seconds"]
        finished = self.progress.all(statistics)
        rows, tokens, self.notes["tokens"] = finished.rows, 0, finished.tokens
        shown: dict[str, Any] = {"description": "corpus", "done": rows, "shown": options.progress}
        with (
            progress_bar(self.total, unit="row", **shown) as bar,
            closing(self._steps(bar.update)) as steps,  # ends the workers, also after an interrupt
        ):
            try:
                for step in steps:
                    self._advance(step)
                    now = time.monotonic()
                    self.notes["seconds"] = seconds_before + now - began
                    tokens += step.outcome.tokens
                    bar.set_postfix_str(f"{tokens / (now - began):,.0f} tokens/s", refresh=False)
                    rows += step.outcome.rows
                    bar.update(rows - bar.n)  # rows that were not counted batch by batch
                    if now - saved >= options.checkpoint_seconds:
                        self._save()
                        saved = time.monotonic()
            except KeyboardInterrupt:
                self._save()
                raise

    def _advance(self, step: Step) -> None:
        """Add what a step has measured."""
        progress = self.progress.plus(self.job.statistics, step.outcome, step.blocks)
        notes = dict(self.notes)
        for source in self._streams:
            notes["seen"] = source.seen()
        # No function is called from here on: an interrupt comes before or after these three.
        self.progress, self.position, self.notes = progress, step.after, notes

    def _save(self) -> None:
        if self.folder is not None:
            self.folder.save(Checkpoint(self.identity, self.progress, self.position, self.notes))

    def _result(self) -> CorpusResult:
        outcome = self.progress.all(self.job.statistics)
        if not outcome.sequences:
            first = f"; the first: {outcome.problems[0]}" if outcome.problems else ""
            raise InputError(
                f"there is nothing to measure: none of the {outcome.rows} rows could be used{first}"
            )
        for source in self._streams:
            self.identity["data"][-1]["sha256"] = source.seen()
        return CorpusResult(
            tables_of(self.job.statistics, outcome),
            signature(self.identity),
            outcome.counts(),
            outcome.problems,
            self.identity,
            self._times(outcome),
            None if self.folder is None else self.folder.path,
        )

    def _times(self, outcome: Outcome) -> dict[str, Any]:
        seconds = self.notes["seconds"]
        return {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "tokens_per_second": round(outcome.tokens / seconds, 1) if seconds else None,
            "starts": self.notes["starts"],
            "engine": self.job.options.engine,
            "device": self.job.device,
            "threads": torch.get_num_threads(),
        }


def tables_of(statistics: Sequence[Statistic], outcome: Outcome) -> dict[str, Table]:
    """Return all tables; their names begin with that of their statistic, so that none collide."""
    tables: dict[str, Table] = {}
    for statistic in statistics:
        for name, table in statistic.result(dict(outcome.states[statistic.name])).items():
            full = name if name.startswith(statistic.name) else f"{statistic.name}_{name}"
            if full in tables or not re.fullmatch(r"[\w.-]+", full):
                raise InputError(
                    f"the statistic {statistic.name!r} has a table {full!r}; names of tables must "
                    "be different, and of letters, digits, '_', '.' and '-'"
                )
            tables[full] = table
    return tables
