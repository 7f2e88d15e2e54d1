"""Every layer of every family does what its layout says: each equation, on real hidden states.

Models are tiny, in float64, with all parameters random, and batches are padded. Hooks on the parts
that a layout names record what went in and came out; nothing but the layout says how they connect.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.capture.layers import layer_around, layers_of
from normscope.decomposition.norms import read_norm
from normscope.errors import UnsupportedModelError
from normscope.models import layouts
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.models.layouts import (
    Attention,
    FeedForward,
    Layout,
    Opaque,
    Wiring,
    activation_of,
    factor_at,
    part,
    register_layout,
    registered_layout,
)
from normscope.testing import FullPrecision

BOUND = 1e-12
# Layers that run: 3, or those of both stacks or towers.
LAYERS = {"encoder-decoder": 2 + 3, "vision-text": 2 + 3}
NORMS = ("before", "branch", "after")


class Run:
    """One call of one layer: what it and its named parts were given and made."""

    def __init__(self, path: str, layer: nn.Module, layout: Layout) -> None:
        self.path, self.layer, self.layout = path, layer, layout
        self.given: dict[str, Tensor] = {}
        self.made: dict[str, Tensor] = {}
        self.captures: list[Capture] = []

    def blocks(self) -> dict[str, Wiring]:
        found = {"self": self.layout.attention, "cross": self.layout.cross, "ff": self.layout.ff}
        return {kind: block for kind, block in found.items() if block is not None}

    def norms(self) -> list[tuple[str, str, nn.Module]]:
        """Place, path and module of every norm that the layout names."""
        found = [(n, getattr(b, n)) for b in self.blocks().values() for n in NORMS]
        return [(place, path, part(self.layer, path)) for place, path in found if path]

    @torch.no_grad()
    def check(self) -> None:
        x = self.given[""]
        out = x
        for kind, block in self.blocks().items():
            whole = x if self.layout.parallel else out
            if isinstance(block, Attention):
                core = self.attention(kind, block, whole)
            else:
                core = self.feed_forward(block, whole)
            out = self.end(block, out, core)
        same(out, self.made[""])
        assert Counter(c.kind for c in self.captures) == Counter(self.blocks().keys() - {"ff"})

    def read(self, block: Wiring, x: Tensor) -> Tensor:
        """What the core of a block reads."""
        if block.before is None:
            return x
        same(self.given[block.before], x)
        return self.made[block.before]

    def attention(self, kind: str, block: Attention, x: Tensor) -> Tensor:
        (captured,) = [c for c in self.captures if c.kind == kind]
        assert captured.name == f"{self.path}.{block.module}"
        assert captured.projection.name == f"{self.path}.{block.output}"
        same(self.given[block.module], self.read(block, x))
        same(self.made[block.output], like(captured.output, x))
        assert captured.residual is not None
        same(like(captured.residual, x), x)
        return like(captured.output, x)

    def feed_forward(self, block: Wiring, x: Tensor) -> Tensor:
        h = self.read(block, x)
        if isinstance(block, Opaque):
            assert block.module is not None
            same(self.given[block.module], h)
            return self.made[block.module]
        assert isinstance(block, FeedForward)
        same(self.given[block.first], h)
        act = activation_of(self.layer, block)
        inner = self.made[block.first]
        if block.gate is not None:
            same(self.given[block.gate], h)
            inner = act(self.made[block.gate]) * inner
        elif block.packed is not None:
            gate, inner = inner.chunk(2, dim=-1)
            if block.packed == "gate_last":
                gate, inner = inner, gate
            inner = act(gate) * inner
        else:
            inner = act(inner)
        core = part(self.layer, block.second).forward(inner)
        same(core, self.made[block.second])
        return core

    def end(self, block: Wiring, x: Tensor, core: Tensor) -> Tensor:
        """The end of a block, from what is there already and what its core made."""
        if block.branch is not None:
            same(self.given[block.branch], core)
            core = self.made[block.branch]
        if block.scale is not None:
            core = factor_at(self.layer, block.scale) * core
        if block.normed:
            assert block.before is not None
            x = self.made[block.before]
        if block.carry is not None:
            x = factor_at(self.layer, block.carry) * x
        out = x + core.reshape(x.shape)
        if block.after is not None:
            same(self.given[block.after], out)
            out = self.made[block.after]
        return out


def like(states: Tensor, x: Tensor) -> Tensor:
    """Captures are (batch, query, hidden); in FSMT's layers the query comes first."""
    return states if states.shape == x.shape else states.transpose(0, 1)


def same(found: Tensor, expected: Tensor) -> None:
    gap = (found.reshape(expected.shape) - expected).norm() / expected.norm()
    assert gap <= BOUND, f"differs by {gap:.1e}"


def first(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.clone()  # Falcon adds the attention to its feed-forward's output in place
    return next(value.clone() for value in values if isinstance(value, Tensor))


@torch.no_grad()
def runs_of(model: nn.Module, inputs: Mapping[str, Any]) -> list[Run]:
    """Every call of every layer of a model on one batch."""
    layers = layers_of(model, inputs)
    running: list[Run] = []
    finished: list[Run] = []

    def begin(path: str, layout: Layout) -> Any:
        def hook(layer: nn.Module, args: Any, kwargs: Any) -> None:
            running.append(Run(path, layer, layout))
            running[-1].given[""] = first((*args, *kwargs.values()))

        return hook

    def finish(layer: nn.Module, args: Any, made: Any) -> None:
        running[-1].made[""] = first(made)
        finished.append(running.pop())

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
            # The first call counts: capture may try the output projection on a row of its own.
            running[-1].given.setdefault(path, first((*args, *kwargs.values())))
            running[-1].made.setdefault(path, first(made))

        return hook

    hooks = []
    for path, (layer, layout) in layers.items():
        hooks.append(layer.register_forward_pre_hook(begin(path, layout), with_kwargs=True))
        hooks.append(layer.register_forward_hook(finish))
        for block in Run(path, layer, layout).blocks().values():
            for name in {n for n in vars(block).values() if isinstance(n, str)}:
                if isinstance(module := part(layer, name), nn.Module):
                    hooks.append(module.register_forward_hook(note(name), with_kwargs=True))
    try:
        with capture(model, lambda captured: running[-1].captures.append(captured)):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return finished


@functools.cache
def plain_runs(name: str) -> list[Run]:
    return runs_of(tiny_model(name), tiny_inputs(name))


def prove(name: str, **more: Any) -> list[Run]:
    runs = runs_of(tiny_model(name), tiny_inputs(name) | more)
    for run in runs:
        run.check()
    return runs


@pytest.mark.parametrize("name", FAMILIES)
def test_every_block_of_every_family(name: str) -> None:
    family = FAMILIES[name]
    runs = plain_runs(name)
    for run in runs:
        run.check()
    assert len(runs) == LAYERS.get(family.group, 3)
    assert any(run.layout.cross for run in runs) == (family.group == "encoder-decoder")
    listed = {"pre": {"before"}, "post": {"after"}, "branch": {"branch"}}
    for run in runs[1:]:  # the first norm of ModernBERT does nothing
        places = {place for place, _, _ in run.norms()}
        assert places == listed.get(family.norm, {"before", "branch"})


@pytest.mark.parametrize("name", FAMILIES)
def test_every_norm_of_every_family(name: str) -> None:
    """What is read off a norm is the norm; also where the model rounds in the middle of it."""
    with FullPrecision():
        exact = runs_of(tiny_model(name), tiny_inputs(name))
    for run, rounded in zip(exact, plain_runs(name), strict=True):
        for _, path, module in run.norms():
            norm = read_norm(module, run.given[path], run.made[path])
            same(norm.apply(run.given[path]), run.made[path])
            assert norm.dtype == torch.float64
            again = read_norm(module, rounded.given[path], rounded.made[path])
            assert (again.centred, again.eps) == (norm.centred, norm.eps)
            assert norm.centred == (family_of(module) == "LayerNorm")
            for one, other in ((norm.scale, again.scale), (norm.bias, again.bias)):
                assert (one is None) == (other is None)
                assert one is None or other is None or torch.equal(one, other)


def family_of(module: nn.Module) -> str:
    """ "RMSNorm" or "LayerNorm", by name: T5 calls its norms LayerNorm, but takes no mean."""
    kind = type(module).__name__
    return "RMSNorm" if "RMSNorm" in kind or "T5LayerNorm" in kind else "LayerNorm"


# ------------------------------------------------------- what a configuration or a release changes


def vary(monkeypatch: pytest.MonkeyPatch, base: str, **changes: Any) -> str:
    """Add a family like ``base``, but for some of its fields or some values of its config."""
    family, fields = (
        FAMILIES[base],
        {k: changes.pop(k) for k in ("model", "config") if k in changes},
    )
    name = f"{base} (varied)"
    varied = replace(family, name=name, tiny={**family.tiny, **changes}, **fields)
    monkeypatch.setitem(FAMILIES, name, varied)
    return name


@pytest.mark.parametrize(("base", "changes"), [
    ("gpt_neox", {"use_parallel_residual": False}),
    ("stablelm", {"use_parallel_residual": True}),
    ("falcon (grouped)", {"num_ln_in_parallel_attn": 1}),
    ("dinov2", {"use_swiglu_ffn": True}),
    ("t5", {"feed_forward_proj": "gated-gelu"}),
    ("mt5", {"feed_forward_proj": "relu"}),
    ("deberta-v2", {"conv_kernel_size": 3}),
    ("albert", {"num_hidden_groups": 3}),
    ("modernbert", {"norm_bias": False, "mlp_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False, "enable_bias": False}),
])  # fmt: skip
def test_configurations(monkeypatch: pytest.MonkeyPatch, base: str, changes: Any) -> None:
    prove(vary(monkeypatch, base, **changes))


@pytest.mark.parametrize("base", ["bert", "roberta", "electra", "gpt2"])
def test_decoders_with_cross_attention_of_their_own(
    monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    name = vary(monkeypatch, base, is_decoder=True, add_cross_attention=True)
    source = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for run in prove(name, encoder_hidden_states=source):
        assert [c.kind for c in run.captures] == ["self", "cross"]


# ---------------------------------------------------------------------------------------- refusals


class Sandwich(nn.Module):
    """A layer with names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.top = nn.LayerNorm(4)
        self.squash = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(x)
        made: Tensor = self.top(x + self.down(self.squash(self.up(x))))
        return made


def test_register_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LAYOUTS", {})
    layer = Sandwich()
    assert registered_layout(layer) is None
    layout = Layout(
        Attention(module="mixer", output="mixer"),
        FeedForward(first="up", second="down", activation="squash", after="top"),
    )
    register_layout("Sandwich", layout)
    assert registered_layout(layer) == layout

    class Derived(Sandwich):
        pass

    assert registered_layout(Derived()) == layout
    other = replace(layout, ff=replace(layout.ff, before="bottom"))
    register_layout("Sandwich", other, layout)
    assert registered_layout(layer) == layout
    register_layout("Sandwich", other)
    with pytest.raises(UnsupportedModelError, match=r"not wired as was registered: it has no bott"):
        registered_layout(layer)
    register_layout("Sandwich", replace(layout, ff=replace(layout.ff, after=None)))
    with pytest.raises(UnsupportedModelError, match=r"it has top\.weight too"):
        registered_layout(layer)


def test_a_registered_layout_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LAYOUTS", {})
    model = tiny_model("marian")
    _, right = layers_of(model)["model.decoder.layers.0"]
    register_layout("MarianDecoderLayer", replace(right, parallel=True))
    assert layers_of(model)["model.decoder.layers.0"][1].parallel
    register_layout("MarianDecoderLayer", replace(right, cross=None))
    with pytest.raises(UnsupportedModelError, match=r"it has encoder_attn\.\S+ too"):
        layer_around(model, "model.decoder.layers.0.self_attn")


# --------------------------------------------------------------------------- the proof itself bites


def norms_moved(layout: Layout, old: str, new: str) -> Layout:
    def moved(block: Any) -> Any:
        return replace(block, **{old: getattr(block, new), new: getattr(block, old)})

    cross = layout.cross and moved(layout.cross)
    return Layout(moved(layout.attention), moved(layout.ff), cross, layout.parallel)


def changed(which: str, **changes: Any) -> Callable[[Layout], Layout]:
    """One block of a layout with other parts; a change may name another field of the block."""

    def change(layout: Layout) -> Layout:
        block = getattr(layout, which)
        values = {k: getattr(block, v) if hasattr(block, str(v)) else v for k, v in changes.items()}
        return replace(layout, **{which: replace(block, **values)})

    return change


MISTAKES: dict[str, tuple[str, Callable[[Layout], Layout]]] = {
    "pre-norm for post-norm": ("marian", lambda right: norms_moved(right, "after", "before")),
    "post-norm for pre-norm": ("mbart", lambda right: norms_moved(right, "before", "after")),
    "norm of the sum for the branch's": ("olmo2", changed("ff", branch=None, after="branch")),
    "norm of the branch for the sum's": ("bert", changed("ff", branch="after", after=None)),
    "norms swapped": ("gemma2", changed("ff", before="branch", branch="before")),
    "another norm": ("gpt2", changed("ff", before="ln_1")),
    "sequential for parallel": ("gptj", lambda right: replace(right, parallel=False)),
    "parallel for sequential": ("gpt_neo", lambda right: replace(right, parallel=True)),
    "no scale": ("dinov2", changed("attention", scale=None)),
    "another scale": ("dinov2", changed("ff", scale="layer_scale1.lambda1")),
    "no multiplier": ("granite", changed("ff", scale=None)),
    "gate and first swapped": ("llama", changed("ff", first="gate", gate="first")),
    "halves swapped": ("phi3", changed("ff", packed="gate_last")),
    "another activation": ("esm", changed("ff", activation="gelu_new")),
    "no cross-attention": ("t5", lambda right: replace(right, cross=None)),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_layout_is_seen(mistake: str) -> None:
    """What was recorded is the same; the layout alone is another."""
    name, change = MISTAKES[mistake]
    right = plain_runs(name)[-1]
    wrong = copy.copy(right)
    wrong.layout = change(right.layout)
    right.check()
    with pytest.raises(AssertionError, match="differs by"):
        wrong.check()


# ------------------------------------------------------------------------------------ reading norms


def drawn(*shape: int, mean: float = 0.4, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) + mean).to(dtype)


class Shifted(nn.LayerNorm):
    """A LayerNorm with a unit offset."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.layer_norm(input, (16,), 1 + self.weight, self.bias, self.eps)


class Unaware(nn.Module):
    """An RMSNorm that has its ε and its scale in its code."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()


class Squash(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.tanh()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "centred", "offset", "eps"), [
    (nn.LayerNorm(16, eps=1e-3), True, 0, 1e-3),
    (nn.LayerNorm(16, elementwise_affine=False), True, 0, 1e-5),
    (nn.LayerNorm(16, bias=False), True, 0, 1e-5),
    (nn.RMSNorm(16, eps=1e-4), False, 0, 1e-4),
    (Shifted(16), True, 1, 1e-5),
    (Unaware(), False, 0, None),
])  # fmt: skip
def test_read_norm(
    norm: nn.Module, centred: bool, offset: int, eps: float | None, dtype: torch.dtype
) -> None:
    for parameter in norm.parameters():
        parameter.data = drawn(16).to(parameter.dtype)
    norm = norm.to(dtype)
    x = drawn(5, 7, 16, dtype=dtype)
    found = read_norm(norm, x, norm(x))
    assert found.centred == centred
    assert eps is None or found.eps == eps
    own = {"weight": found.scale, "bias": found.bias}
    assert {name for name, tensor in own.items() if tensor is not None} == {
        name for name, _ in norm.named_parameters()
    }
    for name, parameter in norm.named_parameters():
        tensor = own[name]
        assert tensor is not None
        assert tensor.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(tensor, parameter.to(tensor.dtype) + offset * (name == "weight"))


def test_read_norm_finds_an_epsilon_that_is_not_named() -> None:
    x = 1e-3 * drawn(5, 16)
    for norm, eps in ((Unaware(), 1e-6), (nn.RMSNorm(16).double(), torch.finfo(x.dtype).eps)):
        assert read_norm(norm, x, norm(x)).eps == eps


def test_read_norm_of_single_heads() -> None:
    """Cohere's norms of queries and keys have a scale for each head."""
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm

    norm = CohereLayerNorm((4, 8))
    norm.weight.data = drawn(4, 8)
    x = drawn(2, 5, 4, 8)
    found = read_norm(norm, x, norm(x))
    assert found.scale is not None
    assert found.scale.shape == (4, 8)
    assert (found.centred, found.dtype) == (True, torch.float32)


def test_read_norm_ignores_rows_that_are_not_numbers() -> None:
    norm, x = nn.LayerNorm(16).double(), drawn(300, 16)
    x[::2] = torch.nan
    assert read_norm(norm, x, norm(x)).centred


def test_read_norm_refuses_what_is_no_norm() -> None:
    x, squash = drawn(5, 16), Squash().double()
    with pytest.raises(UnsupportedModelError, match=r"h\.0\.ln_1 \(Squash\) is not a LayerNorm"):
        read_norm(squash, x, squash(x), "h.0.ln_1")
    norm = nn.LayerNorm(16, eps=1e-5).double()
    made = norm(x)
    norm.eps = 1e-3  # not what it ran with
    with pytest.raises(UnsupportedModelError, match="a norm"):
        read_norm(norm, x, made)
