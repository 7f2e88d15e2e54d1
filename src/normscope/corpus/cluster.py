"""The same work on many machines, with Ray. Needs the extra `ray`.

Ray Data reads the blocks, a pool of actors runs the model on them, and tasks merge the outcomes of
each group of blocks; whole groups are joined here. An outcome depends on its block alone, so when a
worker dies Ray does its blocks again, and nothing can be counted twice or lost. Groups are the same
as on one machine and are joined in the same order, so the numbers are too.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from normscope import errors
from normscope.corpus.checkpoint import pack, unpack
from normscope.corpus.job import Job, Step
from normscope.corpus.records import Content, Position, Problem, Record
from normscope.corpus.stream import Block, Span
from normscope.corpus.work import GROUP, Outcome, Worker, join
from normscope.errors import InputError, MissingExtraError, NormscopeError
from normscope.models import load
from normscope.results.signature import weights_hash

LIGHT = 0.5  # of a CPU, for a task that reads or merges
OBJECTS = 256 << 20  # bytes of shared memory for a Ray that is started here
MOST_PARTS = 10_000  # pieces that Ray Data keeps books on


def steps(
    job: Job, start: Position, first: int, address: str | None, workers: int | None
) -> Iterator[Step]:
    """The outcomes of blocks, or of whole groups of them, in order."""
    spans = list(job.stream.spans(start, first))
    if not spans:
        return
    with _ray(address, workers) as ray:
        ends = {span.index: span.after for span in spans}
        pending: dict[int, tuple[int, Outcome]] = {}
        following = first
        for row in _outcomes(ray, job, spans, workers):
            pending[row["block"]] = row["blocks"], _outcome(unpack(row["outcome"]))
            while following in pending:
                blocks, outcome = pending.pop(following)
                following += blocks
                yield Step(outcome, blocks, ends[following - 1])


@contextmanager
def _ray(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected; a connection made here is closed again."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        cpus = None if workers is None else workers + 1
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _outcomes(ray: Any, job: Job, spans: list[Span], workers: int | None) -> Iterator[Any]:
    gpus = int(job.device.startswith("cuda"))
    size = min(workers or _slots(ray.cluster_resources(), gpus), len(spans))
    # A model with a name is loaded where it runs; one that is only here travels.
    shared = ray.put(replace(job, model=None, tokenizer=None) if job.source is not None else job)
    common = {"shared": [shared]}
    light: dict[str, Any] = {"num_cpus": LIGHT, "concurrency": 1 + size // 8}
    with _ordered_and_quiet(ray):
        rows = ray.data.from_items(
            [{"span": json.dumps(asdict(span)).encode()} for span in spans],
            override_num_blocks=min(len(spans), MOST_PARTS),
        )
        read = rows.map_batches(_read, batch_size=1, fn_kwargs=common, **light)
        measured = read.map_batches(
            _Actor,
            batch_size=1,
            fn_kwargs={**common, "weights": weights_hash(job.model)},
            compute=ray.data.ActorPoolStrategy(size=size),
            num_cpus=None if gpus else 1,
            num_gpus=gpus or None,
        )
        merged = measured.map_batches(_merge, batch_size=GROUP, fn_kwargs=common, **light)
        yield from merged.iter_rows()


def _slots(there: Mapping[str, float], gpus: int) -> int:
    """How many models can run at once: one a GPU; or one a CPU, with some left to read."""
    cpus = there.get("CPU", 1)
    return max(1, int(there.get("GPU", 0)) if gpus else int(cpus - 1 - cpus / 8))


@contextmanager
def _ordered_and_quiet(ray: Any) -> Iterator[None]:
    """Rows in order, and no bars, remarks or advice from Ray Data; as before afterwards."""
    context = ray.data.DataContext.get_current()
    logger = logging.getLogger("ray.data")
    before = context.execution_options.preserve_order, context.enable_progress_bars
    level, detectors = logger.level, context.issue_detectors_config.detectors
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.issue_detectors_config.detectors = []
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.execution_options.preserve_order, context.enable_progress_bars = before
        context.issue_detectors_config.detectors = detectors
        logger.setLevel(level)


# ------------------------------------------------------------------ what runs on the workers


@functools.lru_cache(maxsize=2)
def _job(reference: Any) -> Job:
    """The job, fetched once by each process."""
    import ray

    job: Job = ray.get(reference)
    return job


def _read(batch: Mapping[str, Any], shared: list[Any]) -> dict[str, list[Any]]:
    """Spans in, their rows out."""
    blocks = [_job(shared[0]).stream.read(_span(one)) for one in batch["span"]]
    return {"block": [_block_bytes(one) for one in blocks]}


class _Actor:
    """One model; Ray starts it anew when its process dies."""

    def __init__(self) -> None:
        self.worker: Worker | None = None  # made with the first rows, when the job is known

    def __call__(
        self, batch: Mapping[str, Any], shared: list[Any], weights: str
    ) -> dict[str, list[Any]]:
        worker = self.worker = self.worker or _worker(_job(shared[0]), weights)
        rows = []
        for block in map(_block_of, batch["block"]):
            try:
                told = worker.run(block).to_dict()
            except NormscopeError as refusal:
                # As data: an error that Ray carries across loses what it was.
                told = {"refused": type(refusal).__name__, "because": str(refusal)}
            rows.append((block.index, 1, told))
        return _rows(rows)


def _worker(job: Job, weights: str) -> Worker:
    if job.source is None:
        return job.worker(job.model.to(job.device), job.tokenizer)
    name, revision, dtype = job.source
    model, tokenizer = load(name, revision=revision, dtype=dtype, device=job.device)
    if weights_hash(model) != weights:
        raise InputError(
            f"the model {name or 'by default'} has other weights on this worker than where the run "
            "was started; give every machine the same files"
        )
    return job.worker(model, tokenizer)


def _merge(batch: Mapping[str, Any], shared: list[Any]) -> dict[str, list[Any]]:
    """The blocks of a whole group as one; others as they came, to be joined further on."""
    firsts = [int(one) for one in batch["block"]]
    whole = firsts == list(range(firsts[0], firsts[0] + GROUP)) and firsts[0] % GROUP == 0
    found = [unpack(data) for data in batch["outcome"]] if whole else []
    if not whole or any("refused" in one for one in found):
        return {name: list(batch[name]) for name in ("block", "blocks", "outcome")}
    outcome, statistics = Outcome(), _job(shared[0]).statistics
    for told in found:
        outcome = join(statistics, outcome, _outcome(told))
    return _rows([(firsts[0], GROUP, outcome.to_dict())])


def _rows(outcomes: list[tuple[int, int, dict[str, Any]]]) -> dict[str, list[Any]]:
    return {
        "block": [block for block, _, _ in outcomes],
        "blocks": [count for _, count, _ in outcomes],
        "outcome": [pack(told) for _, _, told in outcomes],
    }


def _outcome(told: Mapping[str, Any]) -> Outcome:
    """The outcome, or the refusal that a worker met with."""
    if "refused" in told:
        raise getattr(errors, told["refused"], NormscopeError)(told["because"])
    return Outcome.from_dict(told)


def _span(data: bytes) -> Span:
    told = json.loads(data)
    start, after = Position(**told["start"]), Position(**told["after"])
    return Span(told["index"], start, told["count"], after)


def _block_bytes(block: Block) -> bytes:
    return json.dumps(asdict(block)).encode()


def _block_of(data: bytes) -> Block:
    told = json.loads(data)
    items = tuple(
        Record(one["key"], one["where"], _content(one["content"]))
        if "content" in one
        else Problem(**one)
        for one in told["items"]
    )
    return Block(told["index"], items, Position(**told["after"]))


def _content(told: Mapping[str, Any]) -> Content:
    tokens = told["tokens"]
    return Content(told["text"], told["pair"], None if tokens is None else tuple(tokens))
