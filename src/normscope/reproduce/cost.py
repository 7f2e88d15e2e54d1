"""The cost of statistics, compared with a forward pass."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from normscope.foundation.files import write_file
from normscope.foundation.texts import json_line
from normscope.measures.statistics import Measurer, Row


@dataclass(frozen=True)
class Cost:
    """Seconds per sequence, and their ratio."""

    timed_sequences: int
    forward_cpu_seconds: float
    measured_cpu_seconds: float
    ratio: float
    run_wall_seconds: float


def read_cost(file: Path) -> Cost:
    """Read a cost from a file."""
    return Cost(**json.loads(file.read_text(encoding="utf-8")))


def write_cost(cost: Cost, file: Path) -> None:
    """Write a cost to a file."""
    write_file(file, json_line(asdict(cost), indent=1))


def measure_cost(measurer: Measurer, rows: Sequence[Row], run_wall_seconds: float) -> Cost:
    """Time the statistics and the forward pass on a few sequences, one at a time."""
    forward = min(_time_forward(measurer.model, rows) for _ in range(3))
    start = time.process_time()
    for row in rows:
        measurer.measure([row])
    measured = time.process_time() - start
    return Cost(
        timed_sequences=len(rows),
        forward_cpu_seconds=round(forward / len(rows), 4),
        measured_cpu_seconds=round(measured / len(rows), 4),
        ratio=round(measured / forward, 1),
        run_wall_seconds=round(run_wall_seconds, 3),
    )


def _time_forward(model: Any, rows: Sequence[Row]) -> float:
    """Return the CPU seconds of a forward pass over the sequences."""
    start = time.process_time()
    with torch.no_grad():
        for row in rows:
            inputs = {"input_ids": torch.tensor([row.ids])}
            if row.types is not None:
                inputs["token_type_ids"] = torch.tensor([row.types])
            model(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    return time.process_time() - start
