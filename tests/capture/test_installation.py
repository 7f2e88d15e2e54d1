"""capture() leaves a model as it was, and contexts over one or several models do not mix."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import capture
from normscope.capture.active import ACTIVE
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import (
    captured,
    identical,
    model_of,
    run,
    same_captures,
    state,
    unpadded,
)

# Through the interface; watched; shared layers; three kinds of attention; two sub-configurations.
KINDS = ("llama", "bloom", "albert", "marian", "clip")


# ------------------------------------------------------------------------- the model as it was


class Stop(Exception):
    """Raised on purpose."""


def stop(*_: Any) -> None:
    raise Stop


def ordinarily(model: Any, inputs: Any) -> None:
    with torch.no_grad(), capture(model) as captures:
        model(**inputs)
    assert captures


def failing_in_the_body(model: Any, inputs: Any) -> None:
    def body() -> None:
        with torch.no_grad(), capture(model):
            model(**inputs)
            raise Stop

    with pytest.raises(Stop):
        body()


def failing_in_the_callback(model: Any, inputs: Any) -> None:
    with pytest.raises(Stop), torch.no_grad(), capture(model, stop):
        model(**inputs)


def failing_in_the_forward(model: Any, inputs: Any) -> None:
    last = next(
        m for m in reversed(list(model.modules())) if isinstance(m, nn.LayerNorm | nn.Linear)
    )
    hook = last.register_forward_pre_hook(stop)
    with pytest.raises(Stop), torch.no_grad(), capture(model):
        model(**inputs)
    hook.remove()


def failing_inside_an_attention(model: Any, inputs: Any) -> None:
    inner = next(m for n, m in model.named_modules() if isinstance(m, nn.Linear) and "att" in n)
    hook = inner.register_forward_hook(stop)
    with pytest.raises(Stop), torch.no_grad(), capture(model):
        model(**inputs)
    hook.remove()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "way",
    [ordinarily, failing_in_the_body, failing_in_the_callback, failing_in_the_forward,
     failing_inside_an_attention],
)  # fmt: skip
def test_the_model_is_left_as_it_was(name: str, way: Callable[[Any, Any], None]) -> None:
    model, inputs = model_of(name), tiny_inputs(name)
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))  # a hook of the user's own stays
    before, outputs = state(model), run(model, inputs)
    way(model, inputs)
    assert state(model) == before
    seen.clear()
    assert identical(run(model, inputs), outputs)
    assert seen == [1]
    assert ACTIVE.get() == ()


def test_a_context_goes_on_after_an_exception_in_it() -> None:
    """Also for the user's own softmax and product, which are no attention of the model's."""
    model, inputs = model_of("bloom"), tiny_inputs("bloom")
    expected = captured(model, inputs)
    inner = model.transformer.h[1].self_attention.query_key_value
    with torch.no_grad(), capture(model) as captures:
        hook = inner.register_forward_hook(stop)
        with pytest.raises(Stop):
            model(**inputs)
        hook.remove()
        assert len(captures) == 1
        for _ in range(2):
            torch.rand(2, 3, 3).softmax(-1) @ torch.rand(2, 3, 4)
        captures.clear()
        model(**inputs)
    assert same_captures(captures, expected)
    assert [c.step for c in captures] == [1, 1, 1]


def test_under_capture_the_configuration_still_tells_what_runs() -> None:
    """Models compare the name of their attention, to make masks and to choose formulas."""
    model = model_of("llama")
    assert model.config._attn_implementation == "sdpa"
    with capture(model):
        name = model.config._attn_implementation
        assert name == "eager"
        assert name in ("eager", "sdpa")
        assert name != "sdpa"
        assert "flash" not in name
        copied = copy.deepcopy(model.config)
    assert type(model.config._attn_implementation) is str
    assert copied._attn_implementation == "sdpa"  # a copy made inside runs as the original did
    other = type(model)(copied).to(torch.float64).eval()
    other.load_state_dict(model.state_dict())
    inputs = tiny_inputs("llama")
    assert identical(run(other, inputs), run(model, inputs))
    assert same_captures(captured(other, inputs), captured(model, inputs))
    assert type(copied._attn_implementation) is str
    assert copied._attn_implementation == "sdpa"


# ---------------------------------------------------------------------- several contexts at once


@pytest.mark.parametrize("name", KINDS)
def test_nested_contexts_both_see_everything(name: str) -> None:
    model, inputs = model_of(name), tiny_inputs(name)
    before, expected = state(model), captured(model, inputs)
    with torch.no_grad(), capture(model) as outer:
        with capture(model) as inner:
            model(**inputs)
        assert same_captures(inner, expected)
        assert same_captures(outer, expected)
        outer.clear()
        model(**inputs)
        assert same_captures(outer, expected)
        assert len(inner) == len(expected)
    assert state(model) == before


@pytest.mark.parametrize("names", [("bloom", "mpnet"), ("bloom", "llama")])
@pytest.mark.parametrize("leaving", list(itertools.permutations(range(3))))
def test_contexts_may_be_left_in_any_order(
    names: tuple[str, str], leaving: tuple[int, ...]
) -> None:
    """Three contexts over two models: whoever is still open sees all, whoever has left nothing."""
    models = [model_of(names[0]), model_of(names[1])]
    inputs = [tiny_inputs(names[0]), tiny_inputs(names[1])]
    before = [state(model) for model in models]
    outputs = [run(*pair) for pair in zip(models, inputs, strict=True)]
    owner = [0, 1, 0]  # which model each context is over
    stacks = [ExitStack() for _ in owner]
    kept = [s.enter_context(capture(models[m])) for s, m in zip(stacks, owner, strict=True)]
    open_ones = [0, 1, 2]
    for left in (None, *leaving):
        if left is not None:
            stacks[left].close()
            open_ones.remove(left)
        for captures in kept:
            captures.clear()
        for pair in zip(models, inputs, strict=True):
            run(*pair)
        assert [len(captures) for captures in kept] == [
            3 if i in open_ones else 0 for i in range(3)
        ]
    assert [state(model) for model in models] == before
    assert all(identical(run(m, i), o) for m, i, o in zip(models, inputs, outputs, strict=True))
    assert ACTIVE.get() == ()


def test_two_models_that_share_a_configuration_object() -> None:
    first, inputs = model_of("llama"), unpadded("llama")
    second = type(first)(first.config).to(torch.float64).eval()
    second.load_state_dict(model_of("llama", seed=1).state_dict())
    assert second.config is first.config
    expected, outputs = captured(second, inputs), run(second, inputs)
    before = state(second)
    with capture(first) as of_first:
        assert identical(run(second, inputs), outputs)  # not captured, not changed
        with capture(second) as of_second:
            run(second, inputs)
        assert of_first == []
        assert same_captures(of_second, expected)
        assert first.config._attn_implementation == "eager"
    assert state(second) == before


def test_a_model_and_a_part_of_it() -> None:
    model, inputs = model_of("llama"), tiny_inputs("llama")
    base, layer = model.model, model.model.layers[1]
    with capture(model) as of_whole, capture(base) as of_base, capture(layer) as of_layer:
        for _ in range(2):
            run(model, inputs)
    assert [(c.name, c.layer, c.step) for c in of_whole] == [
        (f"model.layers.{i}.self_attn", i, step) for step in range(2) for i in range(3)
    ]
    assert [(c.name, c.layer, c.step) for c in of_base] == [
        (f"layers.{i}.self_attn", i, step) for step in range(2) for i in range(3)
    ]
    assert [(c.name, c.stack) for c in of_layer] == [("self_attn", "")] * 2
    assert torch.equal(of_layer[0].alpha, of_whole[1].alpha)


def test_layers_called_one_by_one_count_as_a_run() -> None:
    model, inputs = model_of("gpt2"), unpadded("gpt2")
    expected = captured(model, inputs)
    with torch.no_grad(), capture(model) as captures:
        for _ in range(2):
            hidden = expected[0].residual
            for layer in model.transformer.h:
                hidden = layer(hidden)
                hidden = hidden if isinstance(hidden, Tensor) else hidden[0]
    for a, b in zip(captures[:3], expected, strict=True):
        # Causal, as sdpa is when it is given no mask.
        torch.testing.assert_close(a.alpha, b.alpha, rtol=0, atol=1e-14)
    assert [(c.layer, c.step) for c in captures] == [
        (i, step) for step in range(2) for i in range(3)
    ]
    with torch.no_grad(), capture(model) as captures:
        model.transformer.h[1](expected[1].residual)  # or one alone
    torch.testing.assert_close(captures[0].output, expected[1].output, rtol=0, atol=1e-14)


def test_a_task_that_outlives_its_context_records_nothing() -> None:
    model, inputs = model_of("gpt2"), tiny_inputs("gpt2")

    async def work() -> tuple[int, int]:
        left = asyncio.Event()

        async def later() -> None:
            await left.wait()
            run(model, inputs)

        with capture(model) as first:
            task = asyncio.create_task(later())  # copies the context that is open now
            await asyncio.sleep(0)
        left.set()
        with capture(model) as second:
            await task
        return len(first), len(second)

    with ThreadPoolExecutor(1) as thread:  # in this one a browser of other tests may have a loop
        assert thread.submit(asyncio.run, work()).result() == (0, 0)
