"""The linearised network: mistakes in it are noticed, and models of one's own are explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.attribution.passes import explain
from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.linearisation import network
from normscope.linearisation.ledger import Ledger
from normscope.linearisation.network import Network
from normscope.linearisation.rules import GATES, RULES, rules_of
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers.explained import last_position, worst_gap
from tests.helpers.written_out import components, shares

pytestmark = pytest.mark.usefixtures("unchecked_types")


def explain_family(name: str, method: str = "frozen") -> Any:
    model, inputs = tiny_model(name), tiny_inputs(name)
    return explain(model, inputs, last_position(inputs), rules_of(method))


# ---- mistakes that the identity notices


def test_a_norm_whose_scale_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "_norm", Network._unknown)
    network._handlers.cache_clear()
    try:
        with pytest.raises(ExactnessError, match="layer_norm"):
            explain_family("bert")
    finally:
        monkeypatch.undo()
        network._handlers.cache_clear()


def test_a_scale_written_out_that_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "_scale", Network._unknown)
    network._handlers.cache_clear()
    try:
        with pytest.raises(ExactnessError):
            explain_family("llama")
    finally:
        monkeypatch.undo()
        network._handlers.cache_clear()


def without(kind: Callable[[Tensor, Any], bool], count: Any) -> Any:
    """Return `Ledger.count` that forgets some constants."""

    def forgetful(self: Ledger, state: Tensor, constant: Any, cut: int) -> None:
        if not kind(state, constant):
            count(self, state, constant, cut)

    return forgetful


def test_biases_of_norms_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Ledger.count
    model = tiny_model("bert")
    beta = {id(m.bias) for m in model.modules() if isinstance(m, nn.LayerNorm)}
    pointers = {p.data_ptr() for p in model.parameters() if id(p) in beta}

    def is_beta(state: Tensor, constant: Any) -> bool:
        return isinstance(constant, Tensor) and constant.data_ptr() in pointers

    monkeypatch.setattr(Ledger, "count", without(is_beta, counted))
    inputs = tiny_inputs("bert")
    with pytest.raises(ExactnessError):
        explain(model, inputs, last_position(inputs), rules_of("frozen"))


@pytest.mark.parametrize("name", ["gpt2", "marian", "opt"])
def test_positions_that_are_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Network.source

    def without_positions(self: Network, stack: str, part: str, value: Tensor) -> Tensor:
        return value if part == "position" else source(self, stack, part, value)

    monkeypatch.setattr(Network, "source", without_positions)
    monkeypatch.setattr(Ledger, "count_positions", lambda *_: None)
    with pytest.raises(ExactnessError):
        explain_family(name)


def test_biases_of_experts_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_model("gpt_oss"), tiny_inputs("gpt_oss")
    experts = {
        parameter.data_ptr(): parameter.numel() * parameter.element_size()
        for path, parameter in model.named_parameters()
        if "experts" in path and "bias" in path
    }

    def of_expert(state: Tensor, constant: Any) -> bool:
        return isinstance(constant, Tensor) and any(
            start <= constant.data_ptr() < start + size for start, size in experts.items()
        )

    explain(model, inputs, last_position(inputs), rules_of("frozen"))
    monkeypatch.setattr(Ledger, "count", without(of_expert, Ledger.count))
    with pytest.raises(ExactnessError):
        explain(model, inputs, last_position(inputs), rules_of("frozen"))


def test_padding_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that ignores its mask explains rows by their padding; rows alone differ."""
    attention = Network._attention

    def unmasked(self: Network, func: Any, args: Any, kwargs: Any) -> Tensor:
        return attention(self, func, args, {**kwargs, "attn_mask": None})

    monkeypatch.setattr(Network, "_attention", unmasked)
    network._handlers.cache_clear()
    try:
        with pytest.raises(ExactnessError):  # the output is not the model's own
            explain_family("bert")
    finally:
        monkeypatch.undo()
        network._handlers.cache_clear()


# ---- mistakes that the identity is blind to


def share_gap(name: str, method: str, gate: str = "half") -> float:
    """Return the gap to components by hand, relative to the shares."""
    result = shares(name, method, gate)
    _, parts = components(name, method, gate)
    by_hand = parts[:-1].reshape(-1, result.sources[0].shares.shape[-1]).sum(0).numpy()
    found = np.sum([source.shares[0, 0] for source in result.sources], axis=0)
    return float(np.abs(found - by_hand).max() / np.abs(by_hand).sum())


@pytest.mark.parametrize("gate", ["gate", "up", "ig"])
def test_the_wrong_factor_of_a_gate(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Network._gate_parts
    monkeypatch.setattr(Network, "_gate_parts", lambda self, a, b: parts(self, a, b)[::-1])
    assert share_gap("llama", "frozen", gate) > 1e-3
    monkeypatch.undo()
    assert share_gap("llama", "frozen", gate) < 1e-13


def test_wrong_parts_of_queries_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(RULES["attn_lrp"], attention=(0.5, 0.0, 0.5))
    monkeypatch.setitem(RULES, "attn_lrp", rules)
    assert share_gap("bert", "attn_lrp") > 1e-3


def test_live_attention_is_found_by_components_pushed_forwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores of degree zero, behind norms of queries and keys, leave Euler's identity intact."""
    model = CosineAttention().double()
    ids = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
    value = partial(entry, index=1)
    held = explain(model, ids, value, rules_of("frozen"))

    def live(func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    monkeypatch.setattr(network, "_held", live)
    with pytest.raises(ExactnessError):
        explain(CosineAttention().double(), ids, value, rules_of("frozen"))
    assert held.error.max() < 1e-14


def entry(output: Tensor, index: int) -> Tensor:
    """Explain one entry of the last position."""
    return output[:, -1, index][:, None]


class CosineAttention(nn.Module):
    """One attention whose queries and keys have length one; no biases at all."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embeddings = nn.Embedding(9, 6)
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6, bias=False) for _ in range(4))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embeddings(input_ids)
        q, k = (y / y.square().sum(-1, keepdim=True).sqrt() for y in (self.q(x), self.k(x)))
        alpha = torch.softmax(3 * q @ k.mT, -1)
        output: Tensor = self.out(alpha @ self.v(x))
        return output


# ---- models of one's own


class Own(nn.Module):
    """Embeddings, a function of them, and a sum over positions."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(9, 6)
        self.first = nn.Linear(6, 8)
        self.middle = Middle(inner)
        self.last = nn.Linear(8, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).double()

    def forward(self, input_ids: Tensor) -> Tensor:
        output: Tensor = self.last(self.middle(self.first(self.embed(input_ids))))
        return output


class Middle(nn.Module):
    """A function as a module."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.ones(8))  # a parameter, so that it is no activation

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


IDS = {"input_ids": torch.tensor([[1, 5, 2], [7, 3, 3]])}
OTHER = {"input_ids": torch.tensor([[1, 8, 4], [7, 3, 6]])}


def explain_own(model: nn.Module, method: str) -> Any:
    baseline = OTHER if method == "secant" else None
    return explain(model, IDS, partial(entry, index=2), rules_of(method), baseline_inputs=baseline)


_SQUARE: Tensor = torch.linspace(-1, 1, 64, dtype=torch.float64).view(8, 8)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu of tanh": partial(functional.gelu, approximate="tanh"),
    "relu in place": lambda x: functional.relu(x * 1, inplace=True),
    "relu_": lambda x: (x * 1).relu_(),
    "leaky relu": functional.leaky_relu,
    "elu": functional.elu,
    "softplus": functional.softplus,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "logsigmoid": functional.logsigmoid,
    "square": torch.square,
    "pow": lambda x: x**3,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp above zero": lambda x: x.clamp(min=0.4),
    "clamp by keyword": lambda x: torch.clamp(x, max=0.2),
    "clamp by states": lambda x: torch.clamp(x, x.roll(1, -1) - 0.2, x.roll(1, -1) + 0.3),
    "clamp by a state": lambda x: x.clamp_max(x.mean(-1, keepdim=True)),
    "swish written out": lambda x: x * torch.sigmoid(1.7 * x),
    "tanh times itself": lambda x: torch.tanh(x) * x,
    "quotient": lambda x: x / (1 + x.abs()),
    "reciprocal": lambda x: x + 1 / (2 + x.square()),
    "constants": lambda x: 3 - 2 * (x + 1) / 4,
    "in place": lambda x: (x * 1).add_(2).mul_(x).div_(3).sub_(1),
    "set": lambda x: _set(x),
    "set in a projection": lambda x: _set_here(x),
    "scaled sum": lambda x: torch.sub(torch.add(x, torch.ones(8), alpha=2), 3.0, alpha=0.5),
    "scaled product": lambda x: torch.addmm(
        torch.ones(8, dtype=x.dtype), x.flatten(0, 1), _SQUARE, beta=3, alpha=2
    ).view_as(x),
    "reversed difference": lambda x: torch.rsub(x, 3.0, alpha=2),
    "constant queries": lambda x: functional.scaled_dot_product_attention(
        torch.ones(len(x), 3, 8, dtype=x.dtype), x, x
    ),
    "constant keys": lambda x: functional.scaled_dot_product_attention(
        x, _SQUARE[None, :3].expand(len(x), 3, 8), x
    ),
    "fill": lambda x: x.masked_fill(torch.arange(8) > 5, 0.3),
    "where": lambda x: torch.where(torch.arange(8) > 5, x, x.new_full((), 0.2)),
    "concatenate": lambda x: torch.cat([x[..., :4], torch.ones_like(x[..., :4])], -1),
    "max": lambda x: x - x.max(-1, keepdim=True).values,
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x * torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    "normalize": lambda x: functional.normalize(x, dim=-1),
    "layer norm": lambda x: functional.layer_norm(x, (8,), eps=1e-3),
    "rms norm": lambda x: functional.rms_norm(x, (8,)),
    "group norm": lambda x: functional.group_norm(x.flatten(0, 1), 2).view_as(x),
    "variance": lambda x: x / (x.var(-1, keepdim=True) + 1).sqrt(),
    "standard deviation": lambda x: x / (x.std(-1, keepdim=True, correction=0) + 1),
    "glu": lambda x: functional.glu(torch.cat([x, 2 * x], -1)),
    "einsum": lambda x: torch.einsum("btd,bsd->bts", x, x).sum(-1, keepdim=True) * x,
    "baddbmm": lambda x: torch.baddbmm(torch.ones(8, dtype=x.dtype), x @ x.mT, x),
    "three factors": lambda x: x * (x + 1) * (x - 2),
    "soft cap": lambda x: 2 * torch.tanh(x / 2),
    "erf": lambda x: x * torch.erf(x),
    "cosine": lambda x: torch.cos(x) * x,
    "attention": lambda x: functional.scaled_dot_product_attention(x, 2 * x, x),
    "scores in a mask": lambda x: functional.scaled_dot_product_attention(
        x, 2 * x, x, attn_mask=x @ _SQUARE @ x.mT / 9
    ),
    "triangular system": lambda x: torch.linalg.solve_triangular(_system(x), x, upper=False),
    "unit triangular system": lambda x: torch.linalg.solve_triangular(
        _system(x), x, upper=True, unitriangular=True
    ),
    "system from the right": lambda x: (
        torch.linalg.solve_triangular(_system(x), x.mT, upper=True, left=False).mT
    ),
    "constant system": lambda x: torch.linalg.solve_triangular(_SQUARE[:3, :3] + 3, x, upper=False),
    "constant places": lambda x: _sampled(x, torch.zeros_like(x)),
    "mean squares": lambda x: x * functional.mse_loss(x, 2 + x @ _SQUARE, reduction="none"),
    "arc cosine": lambda x: x * torch.acos(torch.tanh(x)),
    "distances": lambda x: x * torch.cdist(x, _SQUARE),
    "activation changed in place": lambda x: functional.silu(x * 1).mul_(2).add_(x),
    "einsum changed in place": lambda x: torch.einsum("btd,de->bet", x, _SQUARE).add_(1).mT,
    "without gradients": lambda x: torch.cat([x[..., :4], _without_gradients(x[..., 4:])], -1),
    "an autograd function": lambda x: _Swish.apply(x),
    "an autograd function with a context": lambda x: _Half.apply(x),
}


def _system(x: Tensor) -> Tensor:
    """Return a triangular system, full above or below, which is not read."""
    return x @ x.mT / 4 + 3 * torch.eye(x.shape[1], dtype=x.dtype)


def _sampled(x: Tensor, places: Tensor) -> Tensor:
    """Sample states, laid out as maps of one channel, at places (row, position, 2 · 4)."""
    grid = torch.tanh(places).unflatten(-1, (4, 2))
    value = functional.grid_sample(x[:, None], grid, align_corners=False)
    return torch.cat([value[:, 0], x[..., :4]], -1)


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 2 * x


class _Swish(torch.autograd.Function):
    """A function with a derivative of its own, which is no rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable()
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise AssertionError("the derivative was asked for")


class _Half(torch.autograd.Function):
    """A function in the form in which its context is set up apart."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square() / 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise AssertionError("the derivative was asked for")


def _set_here(x: Tensor) -> Tensor:
    """Change the output of a projection itself, which is a view for autograd."""
    x[..., 2] = 0.7
    x[:, 0] *= 2
    return x


def _set(x: Tensor) -> Tensor:
    y = x * 1
    y[..., 2] = 0.7
    y[:, 0] = 2 * x[:, 1]
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("method", RULES)
def test_functions_of_torch(name: str, method: str) -> None:
    result = explain_own(Own(FUNCTIONS[name]), method)
    assert worst_gap(result) < 1e-12
    assert np.abs(result.value).min() > 0


CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.3),
    "where": lambda x: torch.where(x > 0, x, x.new_full((), 0.2)),
    "topk": lambda x: x.topk(3, -1).values.sum(-1, keepdim=True) * x,
    "sort": lambda x: x.sort(-1).values,
    "argmax": lambda x: x * functional.one_hot(x.argmax(-1), 8),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_by_value(name: str) -> None:
    """Held for one input; refused by name where two inputs choose differently."""
    for method in ("frozen", "attn_lrp", "input_x_gradient"):
        assert worst_gap(explain_own(Own(CHOICES[name]), method)) < 1e-12
    with pytest.raises(UnsupportedModelError, match=f"Own chooses by {name}"):
        explain_own(Own(CHOICES[name]), "secant")


@pytest.mark.parametrize("method", ["frozen", "attn_lrp", "input_x_gradient"])
def test_maps_sampled_at_places_that_depend_on_the_input(method: str) -> None:
    model = Own(lambda x: _sampled(x, x @ _SQUARE))
    assert worst_gap(explain_own(model, method)) < 1e-12
    with pytest.raises(UnsupportedModelError, match="at places that it computes"):
        explain_own(model, "secant")


def _substituted(x: Tensor) -> Tensor:
    """Solve a triangular system, held, one equation after another."""
    system, rows = _system(x).detach(), list[Tensor]()
    for i in range(x.shape[1]):
        rest = x[:, i]
        for j, known in enumerate(rows):
            rest = rest - system[:, i, j, None] * known
        rows.append(rest / system[:, i, i, None])
    return torch.stack(rows, 1)


def _interpolated(x: Tensor) -> Tensor:
    """Sample maps at held places, each the mean of its four neighbours, weighted by hand."""
    grid = torch.tanh(x @ _SQUARE).detach().unflatten(-1, (4, 2))
    height, width = x.shape[1:]
    across, down = (((grid[..., at] + 1) * size - 1) / 2 for at, size in ((0, width), (1, height)))
    rows = []
    for row in range(len(x)):
        sampled = torch.zeros_like(across[row])
        for i in range(height):
            for j in range(width):
                near = (1 - (across[row] - j).abs()).clamp(0) * (1 - (down[row] - i).abs()).clamp(0)
                sampled = sampled + near * x[row, i, j]
        rows.append(sampled)
    return torch.cat([torch.stack(rows), x[..., :4]], -1)


@pytest.mark.parametrize(
    ("function", "slow"),
    [
        (FUNCTIONS["triangular system"], _substituted),
        (lambda x: _sampled(x, x @ _SQUARE), _interpolated),
        (
            FUNCTIONS["scores in a mask"],
            lambda x: (
                torch.softmax(2 * x @ x.mT / 8**0.5 + x @ _SQUARE @ x.mT / 9, -1).detach() @ x
            ),
        ),
        (FUNCTIONS["an autograd function"], functional.silu),
        (lambda x: torch.cat([x[..., :4], _without_gradients(x[..., 4:])], -1),
         lambda x: torch.cat([x[..., :4], 2 * x[..., 4:]], -1)),
    ],
)  # fmt: skip
def test_what_is_held_is_what_the_equations_say(
    function: Callable[[Tensor], Tensor], slow: Callable[[Tensor], Tensor]
) -> None:
    result, expected = explain_own(Own(function), "frozen"), explain_own(Own(slow), "frozen")
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-12)
    np.testing.assert_allclose(result.bias, expected.bias, rtol=1e-11)
    for source, other in zip(result.sources, expected.sources, strict=True):
        np.testing.assert_allclose(source.shares, other.shares, rtol=1e-10, atol=1e-13)


def test_an_output_that_is_held_as_a_whole() -> None:
    model = Own(lambda x: torch.sigmoid(x))
    with pytest.raises(UnsupportedModelError, match="only through what the method"):
        explain_own(model, "frozen")
    assert worst_gap(explain_own(model, "secant")) < 1e-12


@pytest.mark.parametrize("gate", GATES)
def test_the_gate_may_be_either_factor(gate: str) -> None:
    first, second = (
        explain(
            Own(function), IDS, partial(entry, index=2), rules_of("frozen", gate)
        ).sources[0].shares
        for function in (
            lambda x: functional.silu(x) * (x @ _SQUARE),
            lambda x: (x @ _SQUARE) * functional.silu(x),
        )
    )  # fmt: skip
    np.testing.assert_allclose(first, second, rtol=1e-13)


class LowRank(nn.Module):
    """A projection with an adapter: W x + b + s · B A x."""

    def __init__(self, base: nn.Module, size: int, rank: int = 2) -> None:
        super().__init__()
        self.base, self.dropout = base, nn.Dropout(0.1)
        generator = torch.Generator().manual_seed(3)
        self.down = nn.Linear(size, rank, bias=False)
        self.up = nn.Linear(rank, size, bias=False)
        for parameter in (self.down.weight, self.up.weight):
            parameter.data = torch.randn(parameter.shape, generator=generator).double() / 4

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + 1.5 * self.up(self.down(self.dropout(x)))
        return output


@pytest.mark.parametrize("method", RULES)
def test_adapters(method: str) -> None:
    model: Any = tiny_model("bert")
    for layer in model.encoder.layer:
        attention = layer.attention.self
        attention.value = LowRank(attention.value, 32)
        attention.query = LowRank(attention.query, 32)
        layer.intermediate.dense = nn.Sequential(layer.intermediate.dense)
    inputs = tiny_inputs("bert")
    other = {"input_ids": inputs["input_ids"].flip(1)}
    with FullPrecision():
        result = explain(
            model,
            inputs,
            last_position(inputs),
            rules_of(method),
            baseline_inputs=other if method == "secant" else None,
            trace=True,
        )
    assert worst_gap(result) < 1e-12


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_quantised_projections_are_refused_by_name() -> None:
    model: Any = tiny_model("bert", dtype=torch.float32)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    inputs = tiny_inputs("bert")
    with pytest.raises(UnsupportedModelError, match=r"query is a quantised Linear, which rounds"):
        explain(quantised, inputs, last_position(inputs), rules_of("frozen"))
