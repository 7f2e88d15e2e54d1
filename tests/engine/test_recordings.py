"""When a recorded pass may be replayed in a later call, and how long it is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import normscope
from normscope.capture import capture
from normscope.engine import recordings as module
from normscope.engine.batch import Batch
from normscope.engine.passes import Pass, RecordedPass
from normscope.engine.recordings import (
    KEPT,
    SEEN,
    Recordings,
    free_recordings,
    recordings_of,
    watched,
)
from normscope.engine.run import Engine, run
from normscope.foundation.caching import ModuleCache, values_used
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results.state import ModelState


def recorded(model: nn.Module, inputs: Any) -> RecordedPass:
    """A real pass on the CPU, as if it had been recorded."""
    graph = Mock(spec=torch.cuda.CUDAGraph)
    return RecordedPass(graph, inputs, Pass(Batch(model, inputs), 1))


def small() -> RecordedPass:
    return recorded(tiny_model("bert"), tiny_inputs("bert"))


@pytest.fixture(autouse=True)
def _large_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_largest", lambda: 2**30)


def write_in_place(model: Any) -> None:
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight.mul_(2)


def test_a_graph_would_not_report_to_an_open_capture() -> None:
    assert not watched()
    with capture(tiny_model("bert")):
        assert watched()


# --------------------------------------------------------------------------- how long they stay


def test_a_shape_is_recorded_when_it_has_occurred_repeatedly() -> None:
    recordings, graph = Recordings(KEPT), small()
    calls: list[int] = []

    def record() -> RecordedPass:
        calls.append(1)
        return graph

    results = [recordings.graph("shape", record) for _ in range(SEEN + 3)]
    assert results == [None] * SEEN + [graph] * 3
    assert calls == [1]


def test_the_least_recently_used_is_dropped() -> None:
    recordings, failed = Recordings(2), []
    for key in ("a", "b", "impossible", "a", "c"):
        for _ in range(SEEN + 1):
            recordings.graph(key, lambda key=key: failed.append(1) if key[1:] else small())  # type: ignore[misc]
    assert [key for key, graph in recordings.graphs.items() if graph is not None] == ["a", "c"]
    assert failed == [1]  # it is not tried again
    assert "b" not in recordings.seen  # nor recorded again at once
    unlimited = Recordings()
    for number in range(20):
        for _ in range(SEEN + 1):
            unlimited.graph(number, small)
    assert len(unlimited.graphs) == 20


def test_a_graph_that_needs_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_largest", lambda: 10)
    recordings, large = Recordings(KEPT), small()
    large.size = 11
    assert [recordings.graph("shape", lambda: large) for _ in range(SEEN + 2)] == [None] * 4
    assert recordings.graphs == {"shape": None}
    for key in ("a", "b"):  # together too large
        half = small()
        half.size = 6
        for _ in range(SEEN + 1):
            recordings.graph(key, lambda half=half: half)  # type: ignore[misc]
    assert list(recordings.graphs) == ["shape", "b"]


def test_a_change_of_the_model_drops_its_graphs() -> None:
    model = tiny_model("bert")
    recordings = Recordings(KEPT)
    for expected in (SEEN + 1, 1):
        for _ in range(SEEN + 1):
            recordings.renew(ModelState(model))
            recordings.graph("shape", small)
            if expected == 1:
                break
        assert recordings.seen["shape"] == expected
        write_in_place(model)
    assert not recordings.graphs


def test_a_model_is_freed_with_its_graphs() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    normscope.analyze_inputs(model, inputs)
    recordings = recordings_of(model)
    assert recordings is recordings_of(model)
    recordings.renew(ModelState(model))
    with values_used() as held:
        normscope.analyze_inputs(model, inputs, maps=["attn_res_ln_n"])
    assert held
    graph = recorded(model, inputs)
    graph.held = held
    for _ in range(SEEN + 1):
        recordings.graph("shape", lambda: graph)
    of_model, of_graph = weakref.ref(model), weakref.ref(graph)
    del model, recordings, graph, held
    gc.collect()
    assert of_model() is None
    assert of_graph() is None


def test_values_of_caches_are_collected() -> None:
    cache: ModuleCache[list[int]] = ModuleCache()
    owner = nn.Identity()
    first = cache.get(owner, 1, lambda: [1])
    with values_used() as used:
        assert cache.get(owner, 1, lambda: [2]) is first
        second = cache.get(owner, 2, lambda: [2])
    cache.get(owner, 3, lambda: [3])
    assert used == [first, second]


def test_graphs_are_dropped_before_a_batch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    for _ in range(SEEN + 1):
        recordings_of(model).graph("shape", small)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    right, fails = Engine.start, iter([True, False])

    def start(self: Engine, batch: Batch) -> Pass:
        if next(fails):
            raise torch.OutOfMemoryError("no memory")
        return right(self, batch)

    monkeypatch.setattr(Engine, "start", start)
    batches: Iterator[Batch] = iter([Batch(model, inputs)])
    assert len(list(run(model, batches, [], recorded_as="x"))) == 1
    assert not recordings_of(model).graphs
    assert not free_recordings()
