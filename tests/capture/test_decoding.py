"""capture() under masks and while decoding: padding, windows, packing, caches, generate()."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.capture import Capture, capture, eager
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import captured, gap, identical, model_of, run

# A softmax in float32, as many families have it, also rounds the weights of a float64 model.
TOLERANCE = 2e-6


def ids_of(name: str, *, batch: int = 2, length: int = 8, seed: int = 0) -> Tensor:
    """Ids without padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 60, (batch, length), generator=generator)


def left_padded(name: str) -> dict[str, Tensor]:
    ids, mask = ids_of(name, length=6), torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    return {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE)


def zero(alpha: Tensor) -> bool:
    return bool((alpha == 0).all())


# ------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bloom", "deberta-v2"])
def test_padding_on_either_side(name: str, side: str) -> None:
    """Padding gets exactly nothing, and a padded row is what the row alone is."""
    model, ids, n = model_of(name), ids_of(name), 5
    real = slice(3, 8) if side == "left" else slice(0, 5)
    mask = torch.ones_like(ids)
    mask[1] = 0
    mask[1, real] = 1
    inputs = {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}
    # Learnt positions are the caller's business; rotary and relative ones do not care.
    if side == "left" and name in ("gpt2", "bert"):
        inputs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp_min(0)
    alone = captured(model, {"input_ids": ids[1:, real], "attention_mask": torch.ones(1, n)})
    for a, b in zip(captured(model, inputs), alone, strict=True):
        rows = a.alpha[1, :, real]
        assert zero(rows[:, :, ~mask[1].bool()]), a.name
        close(rows[:, :, real], b.alpha[0])
        close(a.value[1, :, real], b.value[0])
        close(a.output[1, real], b.output[0])
        assert gap(a) < 1e-14


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_rows_of_padding_do_not_spoil_float64(name: str) -> None:
    """transformers' eager attention makes NaN of them there, then of all; a capture does not."""
    model, inputs = model_of(name), left_padded(name)
    with eager(model):
        assert run(model, inputs)[".logits"][1].isnan().all()
    alone = captured(model, {k: v[1:, 2:] for k, v in inputs.items()})
    for a, b in zip(captured(model, inputs), alone, strict=True):
        blocked = a.blocked()
        assert a.output.isfinite().all()
        assert a.alpha.isfinite().all()
        assert (blocked is None) == (name == "bloom")
        assert blocked is None or blocked.tolist() == [[False] * 6, [True] * 2 + [False] * 4]
        close(a.output[1, 2:], b.output[0])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gptj", "opt"])
def test_causal_weights_are_exactly_zero_above_the_diagonal(name: str) -> None:
    for a in captured(model_of(name), {"input_ids": ids_of(name)}):
        later = torch.ones(8, 8).triu(1).bool()
        assert zero(a.alpha[:, :, later]), a.name
        assert (a.alpha[:, :, ~later] > 0).all(), a.name
        close(a.alpha.sum(-1), torch.ones(2, 4, 8).double())


@pytest.mark.parametrize(
    ("name", "windowed"),
    [("mistral", (0, 1, 2)), ("gemma2", (0, 2)), ("qwen2", (1, 2)), ("gpt_neo", (1,))],
)
def test_nothing_outside_a_sliding_window(name: str, windowed: tuple[int, ...]) -> None:
    for a in captured(model_of(name), {"input_ids": ids_of(name)}):
        back = torch.arange(8)[:, None] - torch.arange(8)
        inside = (back >= 0) & ((back < 4) | (a.layer not in windowed))
        assert zero(a.alpha[:, :, ~inside]), a.name
        assert (a.alpha[:, :, inside] > 0).all(), a.name


def test_a_window_to_both_sides() -> None:
    for a in captured(model_of("modernbert"), {"input_ids": ids_of("modernbert")}):
        back = (torch.arange(8)[:, None] - torch.arange(8)).abs()
        inside = back <= (2 if a.layer else 8)
        assert zero(a.alpha[:, :, ~inside]), a.name
        assert (a.alpha[:, :, inside] > 0).all(), a.name


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2"])
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    """Positions that start again: α is block-diagonal, each block that of its sequence alone."""
    model, ids = model_of(name), ids_of(name, batch=1)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    packed = captured(model, {"input_ids": ids, "position_ids": positions, "use_cache": False})
    blocks = [slice(0, 3), slice(3, 8)]
    parts = [captured(model, {"input_ids": ids[:, block]}) for block in blocks]
    for a, *alone in zip(packed, *parts, strict=True):
        assert zero(a.alpha[:, :, blocks[0], blocks[1]])
        assert zero(a.alpha[:, :, blocks[1], blocks[0]])
        for block, b in zip(blocks, alone, strict=True):
            close(a.alpha[:, :, block, block], b.alpha)
            close(a.output[:, block], b.output)


@pytest.mark.parametrize("kind", ["numbers", "truth values"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_of_the_users_own(implementation: str, kind: str) -> None:
    """Four axes, as it stands: here every token sees itself and the first."""
    model, ids = model_of("llama"), ids_of("llama")
    model.set_attn_implementation(implementation)
    allowed = torch.eye(8).bool() | (torch.arange(8) == 0)
    mask = torch.zeros(8, 8).double().masked_fill(~allowed, torch.finfo(torch.float64).min)
    mask = mask if kind == "numbers" else allowed
    inputs = {"input_ids": ids, "attention_mask": mask.expand(2, 1, 8, 8)}
    captures = captured(model, inputs)
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True).hidden_states
    for a in captures:
        close(a.residual, plain[a.layer])
        if (implementation, kind) != ("eager", "truth values"):  # which it adds as 0 and 1
            assert zero(a.alpha[:, :, ~allowed])
            assert (a.alpha[:, :, allowed] > 0).all()


# Not Falcon with ALiBi: in transformers that gives one output under sdpa, another under eager.
@pytest.mark.parametrize(
    "name",
    ["bert", "modernbert", "gpt2", "opt", "falcon", "llama", "mistral", "gemma3", "deepseek_v3",
     "gpt_neox", "bart", "t5", "whisper", "vit", "clip", "wav2vec2"],
)  # fmt: skip
def test_without_any_mask_the_output_is_that_of_the_model_as_it_is_set(name: str) -> None:
    """Also where sdpa leaves the causal mask to its kernel, and eager attention must not."""
    model, inputs = model_of(name), tiny_inputs(name)
    inputs = {k: v for k, v in inputs.items() if not k.endswith("mask")}
    expected = run(model, inputs)
    with capture(model):
        found = run(model, inputs)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "bloom"])
def test_embeddings_instead_of_ids(name: str) -> None:
    model, inputs = model_of(name), tiny_inputs(name)
    embedded = {**inputs, "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"])}
    del embedded["input_ids"]
    for a, b in zip(captured(model, embedded), captured(model, inputs), strict=True):
        assert torch.equal(a.alpha, b.alpha)
        assert torch.equal(a.output, b.output)


def test_inference_mode() -> None:
    model, inputs = model_of("llama"), tiny_inputs("llama")
    with torch.inference_mode(), capture(model) as captures:
        model(**inputs)
    for a, b in zip(captures, captured(model, inputs), strict=True):
        assert torch.equal(a.alpha, b.alpha)
        assert torch.equal(a.output, b.output)


# ------------------------------------------------------------------------------------- caches


def rows_of(full: list[Capture], steps: list[Capture], starts: list[int]) -> None:
    """Every step is so many rows of the one full pass, and nothing where the cache is empty."""
    assert len(steps) == len(full) * len(starts)
    for a in steps:
        whole = next(b for b in full if (b.stack, b.layer, b.kind) == (a.stack, a.layer, a.kind))
        first, count = starts[a.step], a.alpha.shape[2]
        rows = slice(first, first + count)
        seen = a.alpha.shape[-1] if a.kind == "cross" else min(first + count, a.alpha.shape[-1])
        offset = 0 if a.kind == "cross" else first + count - seen  # what a window has let go
        expected = whole.alpha[:, :, rows, offset : offset + seen]
        close(a.alpha[..., :seen], expected)
        assert zero(a.alpha[..., seen:]), a.name
        close(a.output, whole.output[:, rows])
        assert whole.residual is not None
        close(a.residual, whole.residual[:, rows])
        assert gap(a) < 1e-14


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gptj", "mistral", "falcon"])
def test_decoding_with_a_cache_gives_the_rows_of_one_full_pass(name: str) -> None:
    from transformers import DynamicCache

    model, ids = model_of(name), ids_of(name)
    cache, starts = DynamicCache(config=model.config), [0, 4, 5, 6, 7]
    with torch.no_grad(), capture(model) as steps:
        for start, end in zip(starts, [*starts[1:], 8], strict=True):
            model(input_ids=ids[:, start:end], past_key_values=cache, use_cache=True)
    assert [c.step for c in steps] == [step for step in range(5) for _ in range(3)]
    assert [c.layer for c in steps] == [0, 1, 2] * 5
    rows_of(captured(model, {"input_ids": ids}), steps, starts)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_static_cache(name: str) -> None:
    from transformers import StaticCache

    model, ids = model_of(name), ids_of(name)
    cache, starts = StaticCache(config=model.config, max_cache_len=11), [0, 3, 4]
    with torch.no_grad(), capture(model) as steps:
        for start, end in zip(starts, [3, 4, 5], strict=True):
            model(input_ids=ids[:, start:end], past_key_values=cache)
    if name == "gemma2":  # its windows are rings; the layer without one tells
        steps = [c for c in steps if c.layer == 1]
    full = [c for c in captured(model, {"input_ids": ids}) if name != "gemma2" or c.layer == 1]
    assert {c.alpha.shape[-1] for c in steps} == {11}
    rows_of(full, steps, starts)


@pytest.mark.parametrize("name", ["marian", "t5", "bart", "fsmt"])
def test_teacher_forcing_gives_what_decoding_step_by_step_gives(name: str) -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    model, source, target = model_of(name), ids_of(name), ids_of(name, length=5, seed=1)
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    if name == "fsmt":  # makes the mask itself; its start of a cache is like no other
        forced = captured(model, {**inputs, "decoder_input_ids": target})
        assert Counter(c.kind for c in forced) == {"self": 5, "cross": 3}
        assert max(gap(c) for c in forced) < 1e-14
        return
    forced = captured(model, {**inputs, "decoder_input_ids": target})
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.no_grad(), capture(model) as steps:
        encoded = model.get_encoder()(**inputs)
        for t in range(5):
            model(encoder_outputs=encoded, attention_mask=inputs["attention_mask"],
                  decoder_input_ids=target[:, t : t + 1], past_key_values=cache)  # fmt: skip
    assert len([c for c in steps if "encoder" in c.stack]) == 2
    rows_of([c for c in forced if "decoder" in c.stack],
            [c for c in steps if "decoder" in c.stack], [0, 1, 2, 3, 4])  # fmt: skip


# ----------------------------------------------------------------------------------- generate


def generate(model: Any, inputs: dict[str, Tensor], **how: Any) -> Tensor:
    given = {k: v for k, v in inputs.items() if not k.startswith("decoder")}
    made: Tensor = model.generate(
        **given, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=1, **how
    )
    return made


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"cache_implementation": "static"},
                                 {"use_cache": False}], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    # BLOOM by itself gives NaN in float64 with padding on the left (see the test below).
    ("name", "dtype"),
    [("llama", torch.float64), ("bloom", torch.float32)],
)
def test_generate(name: str, dtype: torch.dtype, how: dict[str, Any]) -> None:
    model, inputs = model_of(name, dtype=dtype), left_padded(name)
    expected = generate(model, inputs, **how)
    with capture(model) as captures:
        assert torch.equal(generate(model, inputs, **how), expected)
    assert [(c.step, c.layer) for c in captures] == [(s, i) for s in range(5) for i in range(3)]
    for a in captures:
        assert a.kind == "self"
        assert a.alpha.shape[0] == 2 * how.get("num_beams", 1)
        assert gap(a) < {torch.float64: 1e-14, torch.float32: 1e-6}[dtype]
        padded = a.alpha.unflatten(0, (2, -1))[1]  # beams of the second row
        assert zero(padded[..., -1, :2])
        assert (padded[..., -1, 2:6] > 0).all()
    lengths = [c.alpha.shape[2] for c in captures if c.layer == 0]
    assert lengths == ([6, 7, 8, 9, 10] if how.get("use_cache") is False else [6, 1, 1, 1, 1])
    assert model.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["marian", "whisper", "fsmt"])
def test_generate_with_cross_attention_twice_in_one_context(name: str, beams: int) -> None:
    """The second time everything is as the first time, a run of the encoder later."""
    model, inputs = model_of(name), tiny_inputs(name, batch=2)
    expected = generate(model, inputs, num_beams=beams)
    with capture(model) as captures:
        assert torch.equal(generate(model, inputs, num_beams=beams), expected)
        count = len(captures)
        assert torch.equal(generate(model, inputs, num_beams=beams), expected)
    assert count == 2 + 5 * (3 + 3)
    once, again = captures[:count], captures[count:]
    assert [(c.stack, c.kind, c.layer) for c in once] == [(c.stack, c.kind, c.layer) for c in again]
    steps = {True: [0] * count, False: [0] * count}
    for a, b in zip(once, again, strict=True):
        encoder = "encoder" in a.stack
        assert b.step == a.step + (1 if encoder else 5)
        steps[encoder][a.step] += 1
        assert torch.equal(a.alpha, b.alpha)
        assert torch.equal(a.output, b.output)
        assert a.alpha.shape[0] == 2 * (1 if encoder else beams)
        assert gap(a) < 1e-14
    assert steps[True][:2] == [2, 0]
    assert steps[False][:6] == [6, 6, 6, 6, 6, 0]
    sources = {c.alpha.shape[-1] for c in once if c.kind == "cross"}
    assert sources == {once[0].alpha.shape[-1]}


def test_generated_steps_are_those_of_the_whole_text() -> None:
    """Greedy decoding, captured as it happens, is the full pass over what was generated."""
    model, inputs = model_of("llama"), {"input_ids": ids_of("llama", length=6)}
    with capture(model) as steps:
        made = generate(model, {**inputs, "attention_mask": torch.ones(2, 6).long()})
    full = captured(model, {"input_ids": made[:, :-1]})
    rows_of(full, steps, [0, 6, 7, 8, 9])
    assert identical(run(model, inputs), run(model, inputs))
