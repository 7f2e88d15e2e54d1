"""What an engine is given and what it gives back; and the engine of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.corpus.records import Position
from normscope.corpus.stream import Stream
from normscope.corpus.work import Options, Outcome, Worker
from normscope.measures.statistics import Settings, Statistic


@dataclass(frozen=True)
class Step:
    """Some blocks done: what they gave, how many they are, where the next one begins."""

    outcome: Outcome
    blocks: int
    after: Position


@dataclass(frozen=True)
class Job:
    """All that an engine needs to know."""

    model: Any
    tokenizer: Any
    source: tuple[str | None, str | None, Any] | None  # name, revision, dtype; None: an object
    device: str
    statistics: Sequence[Statistic]
    settings: Settings
    options: Options
    stream: Stream
    dump: Path | None

    def worker(self, model: Any, tokenizer: Any) -> Worker:
        """A worker for this job, with a model that is where it should be."""
        return Worker(model, tokenizer, self.statistics, self.settings, self.options, self.dump)


def local_steps(job: Job, start: Position, first: int) -> Iterator[Step]:
    """One block after the other, in this process."""
    worker = job.worker(job.model, job.tokenizer)
    for block in job.stream.blocks(start, first):
        yield Step(worker.run(block), 1, block.after)
