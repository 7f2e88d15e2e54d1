"""Measure the blocks of a corpus on a Ray cluster. Needs the extra `ray`.

Ray Data reads the blocks, a pool of actors measures them, and tasks merge the outcomes of each
group of blocks; this process joins the groups. An outcome depends on its block alone, so if a
worker dies, Ray measures its blocks again, and nothing is counted twice or lost. Groups are the
same as on one machine and are joined in the same order, so the numbers are the same too.
"""

from __future__ import annotations

import functools
import json
import logging
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from normscope import errors
from normscope.corpus.checkpoint import pack, unpack
from normscope.corpus.job import CorpusJob, Step
from normscope.corpus.records import Content, Position, Problem, Record
from normscope.corpus.stream import RowBlock, Span
from normscope.corpus.work import GROUP, CorpusWorker, Outcome, join
from normscope.errors import InputError, MissingExtraError, NormscopeError
from normscope.models import load
from normscope.results.signature import weights_hash

LIGHT = 0.5  # CPUs for a task that reads or merges
OBJECTS = 256 << 20  # bytes of shared memory for a Ray that is started here
MOST_PARTS = 10_000  # parts of a dataset, which Ray Data keeps track of


def ray_steps(job: CorpusJob, start: Position, first: int) -> Generator[Step, None, None]:
    """Measure blocks on the cluster; yield outcomes of blocks or whole groups, in order.

    Args:
        job: What to measure.
        start: Where to begin.
        first: The number of the block there.
    """
    spans = list(job.stream.spans(start, first))
    if not spans:
        return
    with _connected_ray(job.options.address, job.options.workers) as ray:
        ends = {span.index: span.after for span in spans}
        pending: dict[int, tuple[int, Outcome]] = {}
        following = first
        for row in _outcomes(ray, job, spans):
            pending[row["block"]] = row["blocks"], _outcome_from(unpack(row["outcome"]))
            while following in pending:
                blocks, outcome = pending.pop(following)
                following += blocks
                yield Step(outcome, blocks, ends[following - 1])


@contextmanager
def _connected_ray(address: str | None, workers: int | None) -> Iterator[Any]:
    """Yield the module ray, connected; a connection that is made here is closed at the end."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    handler = signal.getsignal(signal.SIGTERM)
    if address is None:
        cpus = None if workers is None else workers + 1
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own exits without a checkpoint
        yield ray
    finally:
        ray.shutdown()


def _outcomes(ray: Any, job: CorpusJob, spans: list[Span]) -> Iterator[Any]:
    gpus = int(job.device.startswith("cuda"))
    workers = job.options.workers or _slots(ray.cluster_resources(), gpus)
    size = min(workers, len(spans))
    # Workers load a model that has a name themselves; one given as an object is sent to them.
    sent = replace(job, model=None, tokenizer=None) if job.origin is not None else job
    common = {"shared": [ray.put(sent)]}
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


def _slots(resources: Mapping[str, float], gpus: int) -> int:
    """Return how many models can run at once: one per GPU, or per CPU that reading leaves free."""
    cpus = resources.get("CPU", 1)
    return max(1, int(resources.get("GPU", 0)) if gpus else int(cpus - 1 - cpus / 8))


@contextmanager
def _ordered_and_quiet(ray: Any) -> Iterator[None]:
    """Make Ray Data keep the order of rows and print nothing, for the time of the block."""
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
def _job(reference: Any) -> CorpusJob:
    """Return the job, which each process fetches once."""
    import ray

    job: CorpusJob = ray.get(reference)
    return job


def _read(batch: Mapping[str, Any], shared: list[Any]) -> dict[str, list[Any]]:
    """Read the blocks of a batch of spans."""
    blocks = [_job(shared[0]).stream.read(_span_from(data)) for data in batch["span"]]
    return {"block": [_block_bytes(block) for block in blocks]}


class _Actor:
    """A process with one model, which Ray starts again if it dies."""

    def __init__(self) -> None:
        self.worker: CorpusWorker | None = None  # created with the first rows, which bring the job

    def __call__(
        self, batch: Mapping[str, Any], shared: list[Any], weights: str
    ) -> dict[str, list[Any]]:
        worker = self.worker = self.worker or _worker(_job(shared[0]), weights)
        outcomes = []
        for block in map(_block_from, batch["block"]):
            try:
                outcome = worker.run(block).to_dict()
            except NormscopeError as refusal:
                # As data, because Ray would wrap the error in one of its own types.
                outcome = {"refused": type(refusal).__name__, "because": str(refusal)}
            outcomes.append((block.index, 1, outcome))
        return _rows(outcomes)


def _worker(job: CorpusJob, weights: str) -> CorpusWorker:
    if job.origin is None:
        return job.worker(job.model.to(job.device), job.tokenizer)
    origin = job.origin
    model, tokenizer = load(device=job.device, **vars(origin))
    if weights_hash(model) != weights:
        raise InputError(
            f"the model {origin.name or 'by default'} has other weights on this worker than on the "
            "machine that started the run; give every machine the same files"
        )
    return job.worker(model, tokenizer)


def _merge(batch: Mapping[str, Any], shared: list[Any]) -> dict[str, list[Any]]:
    """Merge the outcomes of a whole group; return other outcomes as they are."""
    indices = [int(index) for index in batch["block"]]
    first = indices[0]
    whole = indices == list(range(first, first + GROUP)) and first % GROUP == 0
    outcomes = [unpack(data) for data in batch["outcome"]] if whole else []
    if not whole or any("refused" in outcome for outcome in outcomes):
        return {name: list(batch[name]) for name in ("block", "blocks", "outcome")}
    merged, statistics = Outcome(), _job(shared[0]).statistics
    for outcome in outcomes:
        merged = join(statistics, merged, _outcome_from(outcome))
    return _rows([(first, GROUP, merged.to_dict())])


def _rows(outcomes: list[tuple[int, int, dict[str, Any]]]) -> dict[str, list[Any]]:
    """Return outcomes, each with its first block and its number of blocks, as Ray Data's rows."""
    return {
        "block": [block for block, _, _ in outcomes],
        "blocks": [count for _, count, _ in outcomes],
        "outcome": [pack(outcome) for _, _, outcome in outcomes],
    }


def _outcome_from(data: Mapping[str, Any]) -> Outcome:
    """Return the outcome, or raise the error that a worker raised."""
    if "refused" in data:
        kind = getattr(errors, data["refused"], NormscopeError)
        raise kind.__new__(kind, data["because"])  # not every error is initialised with its message
    return Outcome.from_dict(data)


def _span_from(data: bytes) -> Span:
    fields = json.loads(data)
    start, after = Position(**fields["start"]), Position(**fields["after"])
    return Span(fields["index"], start, fields["count"], after)


def _block_bytes(block: RowBlock) -> bytes:
    return json.dumps(asdict(block)).encode()


def _block_from(data: bytes) -> RowBlock:
    fields = json.loads(data)
    items = tuple(
        Record(item["key"], item["where"], _content_from(item["content"]))
        if "content" in item
        else Problem(**item)
        for item in fields["items"]
    )
    return RowBlock(fields["index"], items, Position(**fields["after"]))


def _content_from(fields: Mapping[str, Any]) -> Content:
    tokens = fields["tokens"]
    return Content(fields["text"], fields["pair"], None if tokens is None else tuple(tokens))
