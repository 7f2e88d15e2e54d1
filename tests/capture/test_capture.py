"""capture(): what it records is the model's own, one attention call at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from normscope.capture import Capture, capture, eager
from normscope.engine.judge import BOUNDS
from normscope.models.architectures import FAMILIES, tiny_inputs
from tests.helpers.captures import captured, drop, gap, model_of, run, unpadded

# ------------------------------------------------------------------------------- one at a time


# BLOOM itself holds on to the weights of a layer while the next one runs, and Marian to those of
# its self-attention while the cross-attention runs.
@pytest.mark.parametrize(("name", "held"), [("llama", 0), ("bert", 0), ("bloom", 1), ("marian", 1)])
def test_captures_are_dropped_before_the_next_layer_begins(name: str, held: int) -> None:
    alive: list[bool] = []
    seen: list[StorageWeakRef] = []  # the memory itself: tensors may share it

    def look(*_: Any) -> None:
        alive.extend(not memory.expired() for memory in seen[: len(seen) - held])

    def note(a: Capture) -> None:
        look()
        seen.append(StorageWeakRef(a.alpha.untyped_storage()))

    model, inputs = model_of(name), tiny_inputs(name)
    for path, module in model.named_modules():
        if path.rpartition(".")[2].isdigit():
            module.register_forward_pre_hook(look)
    with torch.no_grad(), capture(model, note) as kept:
        model(**inputs)
    assert kept == []
    assert len(seen) == len(captured(model, inputs)) >= 3
    assert len(alive) >= 4
    assert not any(alive)


def test_kept_captures_do_not_change_when_the_model_runs_on() -> None:
    """A static cache is written into by every step; kept values are copies."""
    from transformers import StaticCache

    model, ids = model_of("llama"), unpadded("llama", batch=2, length=5)["input_ids"]
    cache = StaticCache(config=model.config, max_cache_len=8)
    with torch.no_grad(), capture(model) as captures:
        model(input_ids=ids[:, :3], past_key_values=cache)
        first = captures[0].value.clone()
        model(input_ids=ids[:, 3:], past_key_values=cache)
    assert torch.equal(captures[0].value, first)
    assert not torch.equal(captures[0].value, captures[3].value)
    assert max(gap(c) for c in captures) < 1e-14


# ----------------------------------------------------------------------------- what is recorded


def test_a_capture_says_what_it_is_of_in_one_line() -> None:
    first = captured(model_of("bert"), tiny_inputs("bert"))[0]
    size = "{} × {} heads × {} queries × {} keys".format(*first.shape)
    assert repr(first) == f"Capture of {first.name}: self-attention, layer 0, {size}"


def test_llama_by_hand() -> None:
    """α, values and W_O against the formulas themselves, with grouped value heads."""
    model, inputs = model_of("llama"), unpadded("llama")
    attention: Any = model.model.layers[0].self_attn
    seen: list[Tensor] = []
    attention.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(kwargs["hidden_states"]), with_kwargs=True
    )
    a = captured(model, inputs)[0]
    with eager(model), torch.no_grad():
        x, weights = seen[0], model(**inputs, output_attentions=True).attentions[0]
    assert torch.equal(a.alpha, weights)
    v = (x @ attention.v_proj.weight.T + attention.v_proj.bias).unflatten(-1, (2, 12))
    w_o = attention.o_proj.weight.T.unflatten(0, (4, 12))
    y = attention.o_proj.bias.expand_as(a.output).clone()
    for head in range(4):
        y += a.alpha[:, head] @ (v[:, :, head // 2] @ w_o[head])
    torch.testing.assert_close(a.value, v.transpose(1, 2), rtol=0, atol=1e-14)
    torch.testing.assert_close(a.output, y, rtol=0, atol=1e-13)
    assert torch.equal(a.projection.weight, w_o)
    assert a.projection.name == "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize("name", ["bert", "gptj", "gpt_neo", "bloom", "mpnet", "t5", "gpt_oss"])
def test_weights_are_those_that_the_model_itself_gives_out(name: str) -> None:
    model, inputs = model_of(name), tiny_inputs(name)
    captures = captured(model, inputs)
    with eager(model):
        outputs = run(model, {**inputs, "output_attentions": True})
    given = [t for place, t in outputs.items() if "attentions" in place]
    assert len(given) == len(captures)
    for a in captures:
        part = {"t5": f".{a.stack.split('.')[0]}_attentions"}.get(name, ".attentions")
        part = ".cross_attentions" if a.kind == "cross" else part
        assert torch.equal(a.alpha, outputs[f"{part}.{a.layer}"])


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "bloom", "t5", "falcon"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_dtype(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype=dtype)
    captures = captured(model, tiny_inputs(name, dtype=dtype))
    for a in captures:
        assert {t.dtype for t in (a.alpha, a.value, a.output, a.projection.weight)} == {dtype}
    # The bound is one of relative size of the parts, this gap one of the output: smaller.
    assert max(gap(a) for a in captures) < BOUNDS[dtype] / 2


def test_autocast() -> None:
    model, inputs = model_of("llama", dtype=torch.float32), tiny_inputs("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captures = captured(model, inputs)
    assert captures[0].output.dtype == torch.bfloat16
    assert 0 < max(gap(a) for a in captures) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("name", ["bert", "llama", "gpt_oss", "bloom", "gpt_neo", "t5", "marian"])
def test_in_training_the_weights_are_those_after_dropout(name: str) -> None:
    model, inputs = model_of(name), tiny_inputs(name)
    whole = captured(model, inputs)
    drop(model, 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        captures = captured(model, inputs)
    for a, undropped in zip(captures, whole, strict=True):
        share = (a.alpha[undropped.alpha > 0] == 0).double().mean()
        assert 0.3 < share < 0.7, a.name
        assert gap(a) < 1e-14, a.name
    assert model.training


@pytest.mark.parametrize("name", FAMILIES)
def test_residual_is_what_enters_the_layer(name: str) -> None:
    """Wherever the norm stands; for cross-attention, what the layer itself adds to its output."""
    model, inputs = model_of(name), tiny_inputs(name)
    entering: list[Tensor] = []  # into elements of layer lists, call by call
    normed: list[Tensor] = []  # into norms
    for path, module in model.named_modules():
        if "norm" in type(module).__name__.lower() and not list(module.children()):
            module.register_forward_pre_hook(lambda m, a: normed.append(a[0].clone()))
        elif path.rpartition(".")[2].isdigit():
            module.register_forward_pre_hook(
                lambda m, a, k: entering.append((*a, k.get("hidden_states"))[0].clone()),
                with_kwargs=True,
            )
    for a in captured(model, inputs):
        assert a.residual is not None, a.name
        if a.kind == "self":
            assert any(_is(a.residual, x) for x in entering), a.name
            first = (name, a.layer) == ("modernbert", 0)  # it alone has no norm of its own
            if FAMILIES[name].norm in ("pre", "sandwich") and not first:
                assert any(_is(a.residual, x) for x in normed), a.name
        else:
            assert any(_is(a.residual + a.output, x) for x in normed), a.name
            assert not any(_is(a.residual, x) for x in entering) or name in ("t5", "mt5", "umt5")


def test_residual_when_the_arguments_come_in_another_order() -> None:
    model, inputs = model_of("llama"), tiny_inputs("llama")
    expected = captured(model, inputs)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda m, a, k: (a, dict(reversed(k.items()))), with_kwargs=True
        )
    for a, b in zip(captured(model, inputs), expected, strict=True):
        assert a.residual is not None
        assert b.residual is not None
        assert torch.equal(a.residual, b.residual)


def _is(states: Tensor, other: Tensor) -> bool:
    """Equal, in either layout (FSMT has queries first)."""
    return torch.equal(states, other) or (
        other.dim() == 3 and torch.equal(states, other.transpose(0, 1))
    )
