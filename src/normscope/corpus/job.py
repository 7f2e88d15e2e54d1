"""The work of a corpus run as an engine receives it, and the engine of this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.corpus.options import CorpusOptions
from normscope.corpus.records import Position
from normscope.corpus.stream import Stream
from normscope.corpus.work import CorpusWorker, Outcome
from normscope.measures.statistics.base import Statistic


@dataclass(frozen=True)
class Step:
    """The outcome of some blocks, their number, and where the next block begins."""

    outcome: Outcome
    blocks: int
    after: Position


@dataclass(frozen=True)
class ModelOrigin:
    """Where a model can be loaded from again; the name None is the default model."""

    name: str | None
    revision: str | None
    dtype: Any
    strict: bool = True


@dataclass(frozen=True)
class CorpusJob:
    """Everything that an engine needs.

    Attributes:
        model: The model; None where workers load it from `origin`.
        tokenizer: The tokenizer; None where workers load it from `origin`.
        origin: Where the model was loaded from; None if it was given as an object.
        device: Where the model runs.
        statistics: What is measured.
        options: The options of the run, with the length that sequences are cut to.
        stream: The rows.
    """

    model: Any
    tokenizer: Any
    origin: ModelOrigin | None
    device: str
    statistics: Sequence[Statistic]
    options: CorpusOptions
    stream: Stream

    def worker(self, model: Any, tokenizer: Any) -> CorpusWorker:
        """Return a worker for this job, with a model that is on the device."""
        return CorpusWorker(model, tokenizer, self.statistics, self.options)


def local_steps(
    job: CorpusJob, start: Position, first: int, done: Callable[[int], Any] = int
) -> Generator[Step, None, None]:
    """Measure one block after the other, in this process.

    Args:
        job: What to measure.
        start: Where to begin.
        first: The number of the block there.
        done: Called with the number of rows of each batch that was measured.
    """
    worker = job.worker(job.model, job.tokenizer)
    for block in job.stream.blocks(start, first):
        yield Step(worker.run(block, done), 1, block.after)
