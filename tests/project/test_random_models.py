"""Random configurations of the main families: complete, indifferent to batches, one in all forms.

What is measured in layers, and attribution, whose shares add up to the model's own output.

`make test` tries a few configurations, `make test-deep` many more: see profiles.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor

import normscope
from normscope.attribution.passes import explain
from normscope.capture import Capture, scores
from normscope.capture.interface import why_not_fused
from normscope.decomposition.available import available
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import NAMES
from normscope.engine.judge import BOUNDS
from normscope.linearisation.rules import RULES, rules_of
from normscope.models.architectures import FAMILIES, randomize_, tiny_inputs
from normscope.models.inventory import Inventory
from normscope.testing import FullPrecision
from tests.helpers.captures import captured
from tests.helpers.explained import last_position, left_padded, size, worst_gap
from tests.helpers.profiles import examples

MAIN = (
    *("bert", "roberta", "distilbert", "albert", "electra", "mpnet", "modernbert", "deberta-v2"),
    *("gpt2", "opt", "gpt_neox", "bloom", "falcon (grouped)", "llama", "mistral", "qwen2", "gemma"),
    *("gemma2", "phi3", "olmo2", "granite", "marian", "bart", "mbart", "t5", "vit", "dinov2"),
)
LONGEST = 14
HEADS = (
    "num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads",
)  # fmt: skip
LAYERS = (
    "num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers",
    "encoder_layers", "decoder_layers",
)  # fmt: skip
WIDTHS = (
    "intermediate_size", "hidden_dim", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff",
    "encoder_ffn_dim", "decoder_ffn_dim",
)  # fmt: skip
WHOLE = ("llama", "gemma2")  # whose hidden size has to be a multiple of the heads, whatever theirs
WINDOWED = ("sliding_window", "local_attention")
EAGER_ONLY = ("gemma2",)  # under SDPA it leaves out the cap of its scores


@dataclass(frozen=True)
class Case:
    """One random configuration, one batch for it."""

    family: str
    tiny: dict[str, Any]
    seed: int
    lengths: tuple[int, ...]

    def model(self, dtype: torch.dtype = torch.float64) -> Any:
        import transformers

        family = FAMILIES[self.family]
        config = getattr(transformers, family.config)(**copy.deepcopy(self.tiny))
        with torch.random.fork_rng(devices=[]):
            made = getattr(transformers, family.model)(config)
        made.to(dtype).eval()
        randomize_(made, self.seed)
        return made

    def inputs(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """A padded batch with rows of these lengths, the longest first."""
        batch, longest = len(self.lengths), self.lengths[0]
        made = tiny_inputs(
            self.family, batch=batch, length=longest + 2, seed=self.seed, dtype=dtype
        )
        for prefix in ("", "decoder_"):
            if f"{prefix}input_ids" not in made:
                continue
            ids = made[f"{prefix}input_ids"][:, :longest].clamp_min(0)
            mask = (torch.arange(ids.shape[1]) < torch.tensor(self.lengths)[:, None]).long()
            # The batch of tiny_inputs is padded itself; what is no padding here gets an id.
            ids = torch.where(ids == 1, 4 + (torch.arange(ids.shape[1]) + self.seed) % 50, ids)
            made[f"{prefix}input_ids"] = torch.where(mask.bool(), ids, 1)
            made[f"{prefix}attention_mask"] = mask
        return made

    def row(self, inputs: dict[str, Tensor], at: int) -> dict[str, Tensor]:
        """One row of the batch by itself, its padding cut off."""
        length = self.lengths[at]
        return {
            name: tensor[at : at + 1] if "pixel" in name else tensor[at : at + 1, :length]
            for name, tensor in inputs.items()
        }


@st.composite
def cases(draw: st.DrawFn, families: Sequence[str] = MAIN) -> Case:
    name = draw(st.sampled_from(families))
    tiny = dict(FAMILIES[name].tiny)
    uneven = ("head_dim" in tiny or "d_kv" in tiny) and name not in WHOLE
    for key in HEADS:
        if key in tiny:
            tiny[key] = draw(st.sampled_from([1, 2, 3, 4, 8] if uneven else [1, 2, 4, 8]))
    if "head_dim" in tiny:
        tiny["head_dim"] = draw(st.sampled_from([4, 6, 12]))
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in tiny:
            heads = tiny["num_attention_heads"]
            tiny[key] = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    if "layer_types" not in tiny and "attention_types" not in tiny:
        for key in LAYERS:
            if key in tiny:
                tiny[key] = draw(st.integers(1, 3))
    if "max_window_layers" in tiny:
        tiny["max_window_layers"] = draw(st.integers(0, 1))
    for key in WIDTHS:
        if key in tiny:
            tiny[key] = draw(st.sampled_from([8, 24, 40]))
    longest = draw(st.integers(1, LONGEST))
    # Where a whole window is padding, transformers' eager attention in float64 is NaN.
    shortest = max(1, longest - 2) if any(key in tiny for key in WINDOWED) else 1
    others = draw(st.lists(st.integers(shortest, longest), max_size=3))
    lengths = (longest, *sorted(others, reverse=True))
    case = Case(name, tiny, draw(st.integers(0, 2**16)), lengths)
    note(repr(case))
    return case


def maps_of(model: Any) -> list[str]:
    has = {name for names in available(model).values() for name in names}
    return [name for name in NAMES if name in has]


def parts_of(result: Any) -> list[Any]:
    return list(result.parts.values()) or [result]


def arrays_of(result: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {
        f"{at} {name}": array.values
        for at, part in enumerate(parts_of(result))
        for name, array in part._arrays().items()
    }


def assert_same(first: Any, second: Any, rtol: float) -> None:
    """Two results, every array, relative to the largest number in it; ratios to one."""
    one, other = arrays_of(first), arrays_of(second)
    assert one.keys() == other.keys()
    for name, array in one.items():
        size = 1.0 if "mixing_ratio" in name else float(np.abs(array).max(initial=0.0))
        assert_allclose(other[name], array, rtol=rtol, atol=rtol * size, err_msg=name)


# ---- completeness


@examples(8)
@given(case=cases(), data=st.data())
def test_every_scope_is_complete_in_float64(case: Case, data: st.DataObject) -> None:
    """Parts and bias are the model's own states, to what float64 rounds."""
    model = case.model()
    has = maps_of(model)
    maps = data.draw(st.lists(st.sampled_from(has), min_size=1, unique=True))
    bias = data.draw(st.sampled_from(["path", "fixed"]))
    with FullPrecision():
        results = normscope.analyze_inputs(model, case.inputs(), maps=maps, ff_bias=bias)
    assert len(results) == len(case.lengths)
    for result in results:
        assert set(result.error) == set(maps)
        assert 0 <= max(result.error.values()) < 1e-11
        for part in parts_of(result):
            for name in part:
                assert np.isfinite(part[name].values).all()
                assert (part[name].values >= 0).all()
                assert len(part[name].labels["query"]) == len(part.tokens)


@examples(8)
@given(
    case=cases(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    heads=st.sampled_from(["sum", "each"]),
)  # fmt: skip
def test_completeness_is_within_the_bound_of_the_dtype(
    case: Case, dtype: torch.dtype, heads: str
) -> None:
    results = normscope.analyze_inputs(case.model(dtype), case.inputs(dtype), heads=heads)
    for result in results:
        assert 0 <= max(result.error.values()) <= BOUNDS[dtype]
        for part in parts_of(result):
            # Weights of a query add up to one; those of a dtype to what it can say of one.
            sums = part["attn_w"].values.sum(axis=-1)
            assert_allclose(sums, np.ones_like(sums), atol=40 * torch.finfo(dtype).eps)


# ---- batches and padding


@pytest.mark.slow
@examples(6)
@given(case=cases(), data=st.data())
def test_a_row_is_the_same_in_any_batch(case: Case, data: st.DataObject) -> None:
    """Alone and unpadded, in a batch of all, and in a batch of some in another order."""
    model, inputs = case.model(), case.inputs()
    maps = data.draw(st.lists(st.sampled_from(maps_of(model)), min_size=1, max_size=3, unique=True))
    rows = data.draw(st.permutations(range(len(case.lengths))))
    cut = data.draw(st.integers(1, len(rows)))
    with FullPrecision():
        together = normscope.analyze_inputs(model, inputs, maps=maps)
        for some in (rows[:cut], rows[cut:]):
            if some:
                batch = {name: tensor[list(some)] for name, tensor in inputs.items()}
                split = normscope.analyze_inputs(model, batch, maps=maps)
                for row, found in zip(some, split, strict=True):
                    assert_same(together[row], found, 1e-9)
        row = data.draw(st.sampled_from(rows))
        (alone,) = normscope.analyze_inputs(model, case.row(inputs, row), maps=maps)
    assert_same(together[row], alone, 1e-9)


# ---- forms


def dense_norms(a: Capture) -> Tensor:
    """‖Σ_h αf‖ with every vector built."""
    value = a.value.double()
    groups = a.alpha.shape[1] // value.shape[1]
    f = torch.einsum(
        "bhje,hed->bhjd", value.repeat_interleave(groups, dim=1), a.projection.weight.double()
    )
    return torch.einsum("bhij,bhjd->bijd", a.alpha.double(), f).norm(dim=-1)


@examples(8)
@given(case=cases())
def test_the_fast_form_is_the_dense_one(case: Case) -> None:
    for a in captured(case.model(), case.inputs()):
        made = LayerView(a).maps(["attn_n"])["attn_n"]
        assert made.values is not None
        expected = dense_norms(a)
        # Squares of cancelling heads keep half of the digits at worst.
        torch.testing.assert_close(made.values, expected, rtol=1e-9, atol=1e-9)


@examples(8)
@given(case=cases(), block=st.sampled_from([60, 250, 2**20]))
def test_the_fused_form_is_the_eager_one(case: Case, block: int) -> None:
    model, inputs = case.model(), case.inputs()
    factored = [name for name in maps_of(model) if "_ff" not in name]
    if why_not_fused(Inventory(model)) is not None:
        with pytest.raises(normscope.UnsupportedModelError, match="not possible here"):
            normscope.analyze_inputs(model, inputs, attention="fused")
        return
    with pytest.MonkeyPatch.context() as patch, FullPrecision():
        patch.setitem(scores.BLOCK, "cpu", block)
        eager = normscope.analyze_inputs(model, inputs, maps=factored, attention="eager")
        fused = normscope.analyze_inputs(model, inputs, maps=factored, attention="fused")
    for one, other in zip(eager, fused, strict=True):
        assert_same(one, other, 1e-8)


# ---- attribution


@examples(8)
@given(
    case=cases(),
    method=st.sampled_from(sorted(RULES)),
    attention=st.sampled_from(["eager", "sdpa"]),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
    side=st.sampled_from(["left", "right"]),
    steps=st.integers(1, 3),
    trace=st.booleans(),
)
def test_shares_of_attribution_add_up(
    case: Case, method: str, attention: str, dtype: torch.dtype, side: str, steps: int, trace: bool
) -> None:
    """To the model's own output, at every cut; explain() itself replays each of these batches."""
    model, inputs = case.model(dtype), case.inputs(dtype)
    model.set_attn_implementation("eager" if case.family in EAGER_ONLY else attention)
    moved = not any(key in case.tiny for key in WINDOWED) and side == "left"
    inputs = left_padded(inputs) if moved else inputs
    read = last_position(inputs, steps)
    other = None
    if RULES[method].difference:
        changed = replace(case, seed=case.seed + 1).inputs(dtype)
        changed = left_padded(changed) if moved else changed
        other = {name: tensor for name, tensor in changed.items() if "mask" not in name}
    # Tangents of softmax in a model's own eager code are taken of what it rounded to float32.
    rounds = dtype == torch.float32 or "tangent" in vars(RULES[method]).values()
    with nullcontext() if rounds else FullPrecision():
        with torch.no_grad():
            own = read(model(**inputs)).double().numpy()
        if moved and rounds and dtype == torch.float64 and np.isnan(own).any():
            # The softmax is in float32, where the mask of float64 leaves padding without a key.
            with pytest.raises(normscope.InputError, match="The row is padded on the left"):
                explain(model, inputs, read, rules_of(method), baseline_inputs=other, trace=trace)
            return
        found = explain(model, inputs, read, rules_of(method), baseline_inputs=other, trace=trace)
    assert worst_gap(found) < (1e-5 if rounds else 1e-10)
    assert found.value.shape == own.shape
    if other is None:
        assert (np.abs(found.value - own) / size(found)).max() < (1e-5 if rounds else 1e-10)


# ---- the error tells of what is wrong


@examples(8)
@given(case=cases(), data=st.data())
def test_the_error_grows_with_what_is_wrong(case: Case, data: st.DataObject) -> None:
    """Values that differ from those the model used, by more and more."""
    captures = captured(case.model(), case.inputs())
    a = data.draw(st.sampled_from(captures))
    draw = torch.Generator().manual_seed(case.seed)
    noise = torch.randn(a.value.shape, generator=draw, dtype=torch.float64)
    noise *= a.value.double().norm() / noise.norm()
    gaps = []
    for scale in (0.0, 1e-8, 1e-6, 1e-4, 1e-2):
        changed = replace(a, value=a.value + scale * noise)
        gap = LayerView(changed).maps(["attn_n"])["attn_n"].gap()
        gaps.append(float(gap.max()))
    assert gaps[0] < BOUNDS[torch.float64]
    assert all(math.isfinite(gap) for gap in gaps)
    for smaller, larger in pairwise(gaps):
        assert larger > 10 * smaller
    assert gaps[-1] > BOUNDS[torch.float32]
