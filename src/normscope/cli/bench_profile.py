"""What the operations of a call cost, by torch's profiler, as the text of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from normscope.cli.bench_works import Work
from normscope.errors import NormscopeError
from normscope.foundation.progress import stage

ROWS = 60  # operations in a table


def profiles(works: Iterable[Work], model: Any, title: str) -> list[str]:
    """Profile one call of every work that gives results in hand; return a table for each."""
    return [
        f"{work.name}, {title}\n{_profile(work, model)}\n"
        for work in works
        if work.in_hand and work.call is not None
    ]


def _profile(work: Work, model: Any) -> str:
    """Return the operations of one call, those with the most time on the device first."""
    assert work.call is not None
    stage(f"profiling {work.name}")
    model.set_attn_implementation(work.attention)
    cuda = next(model.parameters()).is_cuda
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    try:
        work.call()
        with profile(activities=activities) as profiler:
            work.call()
            if cuda:
                torch.cuda.synchronize()
    except (torch.OutOfMemoryError, NormscopeError) as error:
        return f"{type(error).__name__}: {error}"
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    averages: Any = profiler.key_averages()
    table: str = averages.table(sort_by=order, row_limit=ROWS, max_name_column_width=80)
    return table
