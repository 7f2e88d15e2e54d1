"""capture() in several threads: each gets its own captures, and who does not capture sees nothing.

Threads are made to meet (a barrier) and to be switched often, so that they do run side by side.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.capture import Capture, capture
from normscope.capture.interface import NAME
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import (
    captured,
    checkpoint,
    identical,
    model_of,
    run,
    same_captures,
    state,
)

ROUNDS = 4
# Where sdpa is asked for by name in the model itself, or another function is called for it.
OWN_WAYS = ("bert", "llama", "gpt2", "falcon", "falcon (alibi)", "gemma2", "t5", "bart", "bloom")


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def side_by_side(*works: Callable[[], Any]) -> list[Any]:
    """What each work gives, all started at the same moment in threads of their own."""
    barrier = threading.Barrier(len(works))

    def start(work: Callable[[], Any]) -> Any:
        barrier.wait(timeout=30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(start, w) for w in works]]


def elsewhere(work: Callable[[], Any]) -> Any:
    """What a work gives in another thread, while this one waits."""
    return side_by_side(work)[0]


def some_inputs(name: str) -> list[dict[str, Tensor]]:
    return [tiny_inputs(name, seed=seed, length=length) for seed, length in ((1, 9), (2, 12))]


@pytest.mark.parametrize("name", ["llama", "bloom", "marian", "albert"])
def test_two_threads_capture_one_model(name: str) -> None:
    model = model_of(name)
    before, inputs = state(model), some_inputs(name)
    expected = [captured(model, i) for i in inputs]

    def work(i: dict[str, Tensor]) -> list[list[Capture]]:
        return [captured(model, i) for _ in range(ROUNDS)]

    found = side_by_side(*(lambda i=i: work(i) for i in inputs))
    for rounds, single in zip(found, expected, strict=True):
        assert len(rounds) == ROUNDS
        assert all(same_captures(captures, single) for captures in rounds)
        assert all({c.step for c in captures} == {0} for captures in rounds)
    assert state(model) == before


@pytest.mark.parametrize("names", [("bloom", "mpnet"), ("bert", "bloom")])
def test_two_threads_capture_two_models(names: tuple[str, str]) -> None:
    models, inputs = [model_of(n) for n in names], [tiny_inputs(n) for n in names]
    before = [state(model) for model in models]
    pairs = list(zip(models, inputs, strict=True))
    expected = [captured(*pair) for pair in pairs]

    def work(pair: Any) -> list[list[Capture]]:
        return [captured(*pair) for _ in range(ROUNDS)]

    for rounds, single in zip(
        side_by_side(*(lambda p=p: work(p) for p in pairs)), expected, strict=True
    ):
        assert all(same_captures(captures, single) for captures in rounds)
    assert [state(model) for model in models] == before


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", OWN_WAYS)
def test_a_thread_that_does_not_capture_is_not_touched(name: str, masked: bool) -> None:
    """It gets the attention function, the mask and the formulas that the model is set to."""
    model, inputs = model_of(name), tiny_inputs(name)
    if not masked:
        inputs = {k: v for k, v in inputs.items() if not k.endswith("mask")}
    outputs, named = run(model, inputs), model.config._attn_implementation
    with capture(model) as captures:
        assert identical(elsewhere(lambda: run(model, inputs)), outputs)
        assert elsewhere(lambda: model.config._attn_implementation == named)
    assert captures == []


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_contexts_come_and_go_while_another_thread_runs(name: str) -> None:
    model = model_of(name)
    mine, theirs = some_inputs(name)
    before, outputs, expected = state(model), run(model, mine), captured(model, theirs)
    done = threading.Event()

    def run_on() -> int:
        wrong = 0
        while not done.is_set():
            wrong += not identical(run(model, mine), outputs)
        return wrong

    def come_and_go() -> bool:
        try:
            return all(same_captures(captured(model, theirs), expected) for _ in range(2 * ROUNDS))
        finally:
            done.set()

    assert side_by_side(run_on, come_and_go) == [0, True]
    assert state(model) == before


def test_one_thread_leaves_while_another_stays() -> None:
    """The first to come is the first to go; the other's context is whole until its own end."""
    model, inputs = model_of("llama"), tiny_inputs("llama")
    expected, before = captured(model, inputs), state(model)
    inside, left = threading.Event(), threading.Event()

    def first() -> bool:
        with capture(model) as captures:
            run(model, inputs)
            inside.wait(timeout=30)
        left.set()
        return same_captures(captures, expected)

    def second() -> bool:
        with capture(model) as captures:
            inside.set()
            left.wait(timeout=30)
            run(model, inputs)
        return same_captures(captures, expected)

    assert side_by_side(first, second) == [True, True]
    assert state(model) == before


def test_another_thread_trains_on_while_this_one_captures() -> None:
    """With gradient checkpointing its layers are run again, with the function of the first time."""
    model, inputs = model_of("llama"), {**tiny_inputs("llama"), "use_cache": False}
    model.train()
    checkpoint(model, reentrant=False)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(**inputs).logits.pow(2).sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    with capture(model) as captures:
        found = elsewhere(gradients)
    assert identical(found, expected)
    assert captures == []


def test_a_mask_function_is_not_invented_for_an_attention_without_one() -> None:
    """An attention of the user's own gets no mask, as before, in a thread that captures nothing."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    masks: list[Tensor | None] = []

    def own(module: Any, query: Any, key: Any, value: Any, mask: Tensor | None, **kw: Any) -> Any:
        masks.append(mask)
        return sdpa_attention_forward(module, query, key, value, mask, **kw)

    AttentionInterface.register("tests_own_attention", own)
    model, inputs = model_of("llama"), tiny_inputs("llama")
    model.set_attn_implementation("tests_own_attention")
    outputs = run(model, inputs)
    assert masks == [None] * 3
    with capture(model) as captures:
        assert identical(elsewhere(lambda: run(model, inputs)), outputs)
        run(model, inputs)
    assert masks == [None] * 6
    assert len(captures) == 3
    assert captures[0].mask is not None
    assert model.config._attn_implementation == "tests_own_attention"
    # A model that shares the configuration is not captured, but gets the mask of one that is: then
    # it gets the function that goes with it, too.
    other = type(model)(model.config).to(torch.float64).eval()
    with capture(model):
        run(other, inputs)
    assert masks == [None] * 6
    assert torch.equal(captures[0].alpha.triu(1), torch.zeros_like(captures[0].alpha))


def test_what_stays_behind_is_one_entry_in_each_table() -> None:
    """Which no model uses, unless its configuration names it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    tables: list[Any] = [AttentionInterface(), AttentionMaskInterface()]
    model, inputs = model_of("llama"), tiny_inputs("llama")
    captured(model, inputs)
    kept = [dict(table) for table in tables]
    assert all(NAME in table for table in kept)
    for name in ("llama", "bloom", "marian"):
        captured(model_of(name), tiny_inputs(name))
    assert [dict(table) for table in tables] == kept
    assert model.config._attn_implementation == "sdpa"
