"""What acts on the heads before their projection, against a loop over queries and keys.

Every form is a module between the heads and W_O of a llama's first layer. A slow loop builds the
vector of each cell from the weights and values of the same model without that module: the factors
that the module computes from the heads of a query are held, and applied to α v of one key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.capture import Capture
from normscope.engine.run import look
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import tiny_inputs
from tests.helpers.captures import Around, captured, model_of, replaced

HEADS, SIZE, FEATURES = 4, 12, 48
GAMMA = torch.linspace(0.5, 1.5, FEATURES, dtype=torch.float64)
BETA = torch.linspace(-1, 1, FEATURES, dtype=torch.float64)
Cell = Callable[[Tensor, Tensor], Tensor]  # (heads of the query, α v of one key) -> what W_O reads


def by_head(states: Tensor) -> Tensor:
    return states.unflatten(-1, (HEADS, SIZE))


class HeadGate(Around):
    def forward(self, heads: Tensor) -> Any:
        gate = torch.sigmoid(by_head(heads).mean(dim=-1, keepdim=True))
        return self.inner((by_head(heads) * gate).flatten(-2))


def head_gate(query: Tensor, key: Tensor) -> Tensor:
    return (by_head(key) / (1 + (-by_head(query).mean(-1, keepdim=True)).exp())).flatten(-2)


class ElementGate(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(torch.sigmoid(heads) * heads)


def element_gate(query: Tensor, key: Tensor) -> Tensor:
    return key / (1 + (-query).exp())


class InPlace(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(heads.mul_(0.5).neg().div(4))


def in_place(query: Tensor, key: Tensor) -> Tensor:
    return -key / 8


class RMS(Around):
    def forward(self, heads: Tensor) -> Any:
        scale = torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.inner(GAMMA * (heads * scale))


def rms(query: Tensor, key: Tensor) -> Tensor:
    return GAMMA * key / (query.square().mean() + 1e-6).sqrt()


class HeadRMS(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(F.rms_norm(by_head(heads), (SIZE,), GAMMA[:SIZE], 1e-6).flatten(-2))


def head_rms(query: Tensor, key: Tensor) -> Tensor:
    mean = by_head(query).square().mean(-1, keepdim=True)
    return (GAMMA[:SIZE] * by_head(key) / (mean + 1e-6).sqrt()).flatten()


class Normed(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(F.layer_norm(heads, (FEATURES,), GAMMA, BETA, 1e-5))


def normed(query: Tensor, key: Tensor) -> Tensor:
    deviation = (query - query.mean()).square().mean()
    return GAMMA * (key - key.mean()) / (deviation + 1e-5).sqrt()


class Difference(Around):
    """Half of the heads less the other half, which are followed by zeros."""

    def forward(self, heads: Tensor) -> Any:
        first, second = by_head(heads).chunk(2, dim=-2)
        return self.inner(torch.cat([first - 0.3 * second, second], dim=-2).flatten(-2))


def difference(query: Tensor, key: Tensor) -> Tensor:
    first, second = by_head(key).chunk(2, dim=-2)
    return torch.cat([first - 0.3 * second, second], dim=-2).flatten()


FORMS: list[tuple[type[Around], Cell]] = [
    (HeadGate, head_gate),
    (ElementGate, element_gate),
    (InPlace, in_place),
    (RMS, rms),
    (HeadRMS, head_rms),
    (Normed, normed),
]


def first_call(kind: type[Around]) -> tuple[Capture, Capture, Tensor]:
    """The first attention without and with the module, and W_O."""
    plain = captured(model_of("llama"), tiny_inputs("llama"))[0]
    model = replaced(kind, (0,))
    acted = captured(model, tiny_inputs("llama"))[0]
    return plain, acted, model.model.layers[0].self_attn.o_proj.inner.weight.detach().T


def slow(plain: Capture, weight: Tensor, cell: Cell) -> Tensor:
    """The vectors of all cells, (batch, query, key, hidden)."""
    batch, heads, queries, keys = plain.shape
    value = plain.value.repeat_interleave(heads // plain.value.shape[1], dim=1)
    vectors = torch.zeros(batch, queries, keys, weight.shape[1], dtype=torch.float64)
    for b in range(batch):
        for i in range(queries):
            parts = [plain.alpha[b, :, i, j, None] * value[b, :, j] for j in range(keys)]
            query = torch.stack(parts).sum(dim=0).flatten()
            for j in range(keys):
                vectors[b, i, j] = cell(query, parts[j].flatten()) @ weight
    return vectors


@pytest.mark.parametrize(("kind", "cell"), FORMS)
def test_cells_are_those_of_the_definition(kind: type[Around], cell: Cell) -> None:
    plain, acted, weight = first_call(kind)
    vectors = slow(plain, weight, cell)
    lengths: list[Tensor] = []
    model = replaced(kind, (0,))
    look(model, tiny_inputs("llama"), lambda view: lengths.append(values_of(view)))
    torch.testing.assert_close(lengths[0], vectors.norm(dim=-1), rtol=1e-6, atol=1e-9)
    total = vectors.sum(dim=2)
    bias = acted.projection.bias
    total = total if bias is None else total + bias
    torch.testing.assert_close(total, acted.output, rtol=1e-6, atol=1e-7)
    real = tiny_inputs("llama")["attention_mask"].bool()
    assert float(acted.context_gap()[real].max()) < 1e-6


def values_of(view: Any) -> Tensor:
    values: Tensor = view.maps(["attn_n"])["attn_n"].values
    return values


@pytest.mark.parametrize(
    ("kind", "scale", "gate"),
    [(HeadGate, True, False), (ElementGate, False, True), (InPlace, False, False),
     (RMS, True, False), (Normed, True, False)],
)  # fmt: skip
def test_factors_of_heads_multiply_the_weights(kind: type[Around], scale: bool, gate: bool) -> None:
    """One factor for a head is a scale of α; others are a gate; those of no query are in W_O."""
    _, acted, weight = first_call(kind)
    assert acted.held is not None
    assert (acted.held.scale is not None, acted.held.gate is not None) == (scale, gate)
    assert ("scale-held" in acted.held.conventions, "gate-held" in acted.held.conventions) == (
        scale,
        gate,
    )
    if kind is InPlace:
        torch.testing.assert_close(acted.projection.weight.flatten(0, 1), -weight / 8)


class TwoNorms(Around):
    def forward(self, heads: Tensor) -> Any:
        once = F.layer_norm(heads, (FEATURES,), GAMMA, BETA)
        return self.inner(F.layer_norm(once, (FEATURES,), GAMMA, BETA))


class OtherPositions(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(heads.roll(1, 1))


class Mixed(Around):
    """Positions of the next query."""

    def forward(self, heads: Tensor) -> Any:
        return self.inner(torch.cat([heads[:, 1:], heads[:, :1]], dim=1))


class Activation(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(torch.tanh(heads))


@pytest.mark.parametrize("kind", [TwoNorms, OtherPositions, Mixed, Activation, Difference])
def test_what_has_no_such_form_is_refused(kind: type[Around]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^model\.layers\.0\.self_attn: the output of"):
        first_call(kind)


def test_a_difference_of_softmaxes_is_one_head_with_a_signed_weight() -> None:
    """DiffLlama: α¹ − λ α² over the same values, a norm of it, and 1 − λ_init."""
    from transformers import DiffLlamaConfig, DiffLlamaModel

    from normscope.models.architectures import randomize_

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 40}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model: Any = DiffLlamaModel(DiffLlamaConfig(vocab_size=60, pad_token_id=1, **sizes, **heads))
    model = model.to(torch.float64).eval()
    randomize_(model)
    inputs = tiny_inputs("llama")
    noted: list[Tensor] = []
    attention = model.layers[0].self_attn
    attention.o_proj.register_forward_pre_hook(lambda _, args: noted.append(args[0].detach()))
    made = captured(model, inputs)[0]
    assert made.held is not None
    assert "alpha=difference" in made.held.conventions
    alpha = made.alpha
    real = inputs["attention_mask"].bool()
    value = made.value.repeat_interleave(alpha.shape[1] // made.value.shape[1], dim=1)
    assert (alpha < 0).any()
    # What is held is the same number for all that a head gives, so the directions are α v's.
    for b, i in real.nonzero().tolist():
        for h in range(alpha.shape[1]):
            mixed = sum(alpha[b, h, i, j] * value[b, h, j] for j in range(alpha.shape[3]))
            read = noted[0][b, i].unflatten(0, (alpha.shape[1], -1))[h]
            cosine = torch.cosine_similarity(torch.as_tensor(mixed), read, dim=0).abs()
            assert abs(float(cosine) - 1) < 1e-6


def test_a_grouped_projection_reads_its_own_features() -> None:
    """SqueezeBERT: W_O as a convolution of one position, with groups."""
    from normscope.capture.projection import projection_of

    convolution = nn.Conv1d(8, 12, 1, groups=2).to(torch.float64)
    states = torch.randn(2, 8, 5, dtype=torch.float64)
    try:
        projection = projection_of(convolution, "o", 4, states)
    except UnsupportedModelError:
        projection = projection_of(convolution, "o", 4, states.transpose(1, 2))
    expected = convolution(states).transpose(1, 2)
    weight = projection.weight.flatten(0, 1)
    assert projection.bias is not None
    for b in range(2):
        for i in range(5):
            row = projection.bias.clone()
            for f in range(8):
                row = row + states[b, f, i] * weight[f]
            torch.testing.assert_close(row, expected[b, i])
    assert not weight[:4, 6:].any()
    assert not weight[4:, :6].any()
