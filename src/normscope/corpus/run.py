"""corpus(): statistics over many sequences, in one pass, resumable, here or on a cluster."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from normscope.corpus.checkpoint import Folder, check_same, differences, held
from normscope.corpus.identity import identify, signature
from normscope.corpus.job import Job, Step, local_steps
from normscope.corpus.memory import Memory, sources_of
from normscope.corpus.output import CorpusResult, from_dict, write
from normscope.corpus.readers import Fields
from normscope.corpus.records import Position
from normscope.corpus.sequences import length_limit
from normscope.corpus.stream import Stream, select
from normscope.corpus.work import Options, Outcome, Progress
from normscope.errors import InputError, UnsupportedModelError
from normscope.measures.statistics import NAMES, Measurer, Settings, Statistic, Table, choose
from normscope.models import load
from normscope.results.arrays import import_tables

BLOCK_ROWS = 256
ENGINES = ("local", "ray")
# Those that cost little beside the forward pass.
DEFAULT_STATISTICS = ("dispersion", "categories", "frequency", "mixing", "preserve_mix")


def corpus(
    model: Any = None,
    data: Any = None,
    statistics: str | Sequence[str | Statistic] = DEFAULT_STATISTICS,
    *,
    tokenizer: Any = None,
    output: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    limit: int | None = None,
    sample: int | float | None = None,
    seed: int | None = None,
    max_length: int | None = None,
    batch_tokens: int = 4096,
    block_rows: int = BLOCK_ROWS,
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
    progress: bool | None = None,
) -> CorpusResult:
    """Measure a corpus: one pass for all statistics, in memory that does not grow with it.

        >>> result = corpus(None, ["The cat sat.", "It slept."], ["mixing"])    # doctest: +SKIP
        >>> result.tables                                                       # doctest: +SKIP

    Args:
        model: a transformers model, a folder, a hub name, or None for the default model.
        data: a file, a list of `pathlib.Path`, a dataset, or an iterable of strings, pairs of
            strings, or dictionaries.
        statistics: names, in a list or with commas between, "all", or statistics of your own.
        tokenizer: for a model that is given as an object.
        output: a folder for tables, report and checkpoints. A run that was interrupted there is
            continued; one that is finished is read.
        settings: of the statistics: categories, masking, bootstrap and so on.
        limit: only the first rows, so many.
        sample: of these a share (0.01) or a number (1000), chosen by a hash of the row's number.
        seed: of the sample, and of masking and resampling; None is that of `settings`.
        max_length: longer sequences are cut to so many tokens. None: as many as the model takes.
        batch_tokens: padded tokens that go through the model at once.
        block_rows: rows among which sequences of like lengths are brought together.
        bad_rows: "skip" counts and lists rows that cannot be used; "error" stops at the first.
        format: of the files: text, jsonl, tsv, parquet, clark. None: by their names.
        text_field: the field or column with the text.
        pair_field: the one with a second text, where there is one.
        dump: also write the maps of every sequence (needs `output`).
        restart: forget what `output` holds and start anew.
        checkpoint_seconds: how often the standing of the run is written.
        engine: "local", or "ray" for more than one machine.
        address: of a Ray cluster, "auto" for the one this machine is part of. None: Ray here.
        workers: models that Ray runs at once. None: one for each GPU, or CPU.
        device: where the model runs. None: cpu.
        dtype: of the model. None: as stored.
        revision: of a model on the hub.
        progress: a bar on standard error. None: on a terminal.
    """
    settings = settings or Settings()
    settings = settings if seed is None else replace(settings, seed=seed)
    chosen = _statistics(statistics, settings)
    _check_choices(engine, address, workers, bad_rows)
    for name, value in (("batch_tokens", batch_tokens), ("block_rows", block_rows)):
        if value < 1:
            raise InputError(f"{name} is a number from 1 on, but was given {value!r}")
    if data is None:
        raise InputError("no data was given: give files, or rows of text")
    if dump and output is None:
        raise InputError("a dump needs a folder to go to: give output=, too (--output DIR)")
    if output is not None:
        import_tables("pyarrow.parquet")  # asked for now, not after hours of work
    with nullcontext() if output is None else held(output) as folder:
        sources = sources_of(data, format, Fields(text_field, pair_field))
        rows = [source.count() for source in sources]
        known = None if None in rows else sum(one for one in rows if one is not None)
        selection, total = select(known, limit, sample, settings.seed)
        # Ray's workers load models of their own; this one is looked at, and does not run.
        loaded, reader, origin = _model(
            model, tokenizer, revision, dtype, "cpu" if engine == "ray" else device
        )
        where = str(device or next(loaded.parameters()).device)  # an object is where it is
        job = Job(
            loaded,
            reader,
            origin,
            where,
            chosen,
            settings,
            Options(length_limit(loaded, reader, max_length), batch_tokens, bad_rows == "skip"),
            Stream(sources, selection, block_rows),
            None if not dump or output is None else Path(output).resolve() / "maps",
        )
        options = {
            "limit": limit,
            "sample": sample,
            "max_length": job.options.max_length,
            "batch_tokens": batch_tokens,
            "block_rows": block_rows,
            "bad_rows": bad_rows,
            # The same file has other texts under other names.
            "text_field": None if text_field == Fields.text else text_field,
            "pair_field": None if pair_field == Fields.pair else pair_field,
            "dump": dump,
        }
        contents = [source.identity() for source in sources]
        identity = identify(loaded, reader, where, chosen, settings, contents, options)
        if folder is not None and restart:
            Measurer(loaded, reader, chosen, settings)  # refuses what is wrong before all is gone
            folder.clear()
        run = _Run(job, identity, total, folder, checkpoint_seconds, progress)
        return run.result(engine, address, workers)


def _statistics(given: str | Sequence[str | Statistic], settings: Settings) -> list[Statistic]:
    if isinstance(given, str):
        given = NAMES if given == "all" else [name.strip() for name in given.split(",")]
    if not given:
        raise InputError(f"no statistic was named; there are: {', '.join(NAMES)}")
    found: list[Statistic] = []
    for one in given:
        if not isinstance(one, (str, Statistic)):
            raise InputError(
                f"a statistic is a name or has name, conditions, observe, measure, merge and "
                f"result, but was given {one!r:.60}; the names are: {', '.join(NAMES)}"
            )
        found += choose([one], settings) if isinstance(one, str) else [one]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"each statistic once, please: {', '.join(twice)} came again")
    return found


def _check_choices(engine: str, address: str | None, workers: int | None, bad_rows: str) -> None:
    if engine not in ENGINES:
        raise InputError(f"engine is one of {', '.join(ENGINES)}, but was given {engine!r}")
    if engine == "local" and (address is not None or workers is not None):
        raise InputError('address and workers go with engine="ray" (--engine ray)')
    if workers is not None and workers < 1:
        raise InputError(f"workers is a number from 1 on, but was given {workers!r}")
    if bad_rows not in ("skip", "error"):
        raise InputError(f'bad_rows is "skip" or "error", but was given {bad_rows!r}')


def _model(
    model: Any, tokenizer: Any, revision: str | None, dtype: Any, device: Any
) -> tuple[Any, Any, tuple[str | None, str | None, Any] | None]:
    """The model, its tokenizer, and where they can be loaded from again."""
    origin = None
    if model is None or isinstance(model, (str, os.PathLike)):
        name = None if model is None else os.fspath(model)
        folder = None if name is None else Path(name).expanduser()
        name = str(folder.resolve()) if folder is not None and folder.is_dir() else name
        model, found = load(name, revision=revision, dtype=dtype, device=device)
        origin = None if tokenizer is not None else (name, revision, dtype)
        tokenizer = found if tokenizer is None else tokenizer
    elif device is not None:
        raise InputError("a model that is loaded already is where it is: leave device out")
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; give tokenizer=, or the model by its folder or name, and "
            "its tokenizer is found with it"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} is an encoder–decoder model; corpus statistics are of models "
            "that read one text at a time (encoders and decoders)"
        )
    return model, tokenizer, origin


class _Run:
    """One run, from where it stands to its result."""

    def __init__(
        self,
        job: Job,
        identity: dict[str, Any],
        total: int | None,
        folder: Folder | None,
        checkpoint_seconds: float,
        bar: bool | None,
    ) -> None:
        self.job, self.identity, self.total, self.folder = job, identity, total, folder
        self.checkpoint_seconds, self.bar = checkpoint_seconds, bar
        self.standing = Progress(), Position()
        self.notes: dict[str, Any] = {"seconds": 0.0, "starts": 0, "tokens": 0}
        self._streams = [s for s in job.stream.sources if isinstance(s, Memory) and not s.sized]

    def result(self, engine: str, address: str | None, workers: int | None) -> CorpusResult:
        """Continue, or begin, or read what is finished."""
        folder = self.folder
        if folder is not None:
            if (told := folder.finished()) is not None:
                self._complete()
                check_same(folder.path, told["identity"], self.identity)
                folder.close_run()
                return from_dict(told, folder.path)
            self._resume(folder)
        self.notes["starts"] += 1
        self._save()  # from now on the folder tells whose it is
        steps = self._steps(engine, address, workers)
        self._go(steps)
        self._save()  # whatever happens to the files, the measuring is done
        made = self._result(engine)
        if folder is not None:
            write(folder, made)
            folder.close_run()
        return made

    def _resume(self, folder: Folder) -> None:
        saved = folder.load()
        if saved is None:
            return
        identity, progress, position, notes = saved
        if not progress.blocks and differences(identity, self.identity):
            folder.clear()  # nothing was measured that could be mixed or lost
            return
        check_same(folder.path, identity, self.identity)
        self.notes = notes
        self.standing = progress, position
        for source in self._streams:
            source.expected = self.notes.get("seen")

    def _complete(self) -> None:
        """Read a stream to its end, so that its rows can be compared."""
        for source in self._streams:
            for _ in self.job.stream.blocks(Position(), 0):
                pass
            self.identity["data"][-1]["sha256"] = source.seen()

    def _steps(self, engine: str, address: str | None, workers: int | None) -> Iterator[Step]:
        progress, position = self.standing
        if engine == "ray":
            from normscope.corpus.cluster import steps

            return steps(self.job, position, progress.blocks, address, workers)
        return local_steps(self.job, position, progress.blocks)

    def _go(self, steps: Iterable[Step]) -> None:
        from tqdm import tqdm

        began = saved = time.monotonic()
        before = self.notes["seconds"]
        done = self.standing[0].all(self.job.statistics)
        tokens, self.notes["tokens"] = 0, done.tokens
        with tqdm(
            total=self.total,
            initial=done.rows,
            unit="row",
            desc="corpus",
            disable=None if self.bar is None else not self.bar,
        ) as bar:
            try:
                for step in steps:
                    progress = self.standing[0].plus(self.job.statistics, step.outcome, step.blocks)
                    self.standing = progress, step.after
                    for source in self._streams:
                        self.notes["seen"] = source.seen()
                    now = time.monotonic()
                    self.notes["seconds"] = before + now - began
                    tokens += step.outcome.tokens
                    bar.set_postfix_str(f"{tokens / (now - began):,.0f} tokens/s", refresh=False)
                    bar.update(step.outcome.rows)
                    if now - saved >= self.checkpoint_seconds:
                        self._save()
                        saved = time.monotonic()
            except KeyboardInterrupt:
                self._save()
                raise

    def _save(self) -> None:
        if self.folder is not None:
            self.folder.save(self.identity, *self.standing, self.notes)

    def _result(self, engine: str) -> CorpusResult:
        outcome = self.standing[0].all(self.job.statistics)
        if not outcome.sequences:
            first = f"; the first: {outcome.problems[0]}" if outcome.problems else ""
            raise InputError(
                f"there is nothing to measure: of {outcome.rows} rows none could be used{first}"
            )
        for source in self._streams:
            self.identity["data"][-1]["sha256"] = source.seen()
        return CorpusResult(
            tables_of(self.job.statistics, outcome),
            signature(self.identity),
            outcome.counts(),
            outcome.problems,
            self.identity,
            self._times(engine, outcome),
            None if self.folder is None else self.folder.path,
        )

    def _times(self, engine: str, outcome: Outcome) -> dict[str, Any]:
        seconds = self.notes["seconds"]
        return {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "tokens_per_second": round(outcome.tokens / seconds, 1) if seconds else None,
            "starts": self.notes["starts"],
            "engine": engine,
            "device": self.job.device,
            "threads": torch.get_num_threads(),
        }


def tables_of(statistics: Sequence[Statistic], outcome: Outcome) -> dict[str, Table]:
    """All tables; each is named after its statistic, so that names never meet."""
    tables: dict[str, Table] = {}
    for statistic in statistics:
        for name, table in statistic.result(dict(outcome.states[statistic.name])).items():
            full = name if name.startswith(statistic.name) else f"{statistic.name}_{name}"
            if full in tables or not re.fullmatch(r"[\w.-]+", full):
                raise InputError(f"the statistic {statistic.name!r} has a bad table name: {full!r}")
            tables[full] = table
    return tables
