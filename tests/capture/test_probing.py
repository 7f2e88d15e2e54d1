"""Attention of any form, read by probes, against loops over windows and chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import capture
from normscope.capture.follow import NotFollowed
from normscope.capture.probing import probe
from normscope.models.architectures import randomize_

HIDDEN, HEADS, SIZE = 12, 3, 4


class Chunked(nn.Module):
    """Attention within chunks of three positions, with its projection inside or not."""

    head_dim = SIZE

    def __init__(self, *, inside: bool = True, act: str = "") -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.o = nn.Linear(HIDDEN, 7) if inside else None
        self.act = act
        self.to(torch.float64)

    def forward(self, states: Tensor) -> tuple[Tensor]:
        batch, length, _ = states.shape
        q, k, v = (
            p(states).view(batch, length // 3, 3, HEADS, SIZE) for p in (self.q, self.k, self.v)
        )
        scores = torch.einsum("bcihe,bcjhe->bchij", q, k) / 2
        mixed = torch.einsum("bchij,bcjhe->bcihe", scores.softmax(dim=-1), v)
        mixed = mixed.reshape(batch, length, HIDDEN)
        if self.act == "tanh":
            mixed = mixed.tanh()
        if self.act == "random":
            mixed = mixed * torch.rand(())
        return (mixed if self.o is None else self.o(mixed),)


def states(length: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, length, HIDDEN, generator=generator, dtype=torch.float64)


def weights_in_chunks(module: Chunked, x: Tensor) -> Tensor:
    """α by a loop over heads and pairs of positions of the same chunk."""
    q, k = module.q(x).detach(), module.k(x).detach()
    alpha = torch.zeros(len(x), HEADS, x.shape[1], x.shape[1], dtype=torch.float64)
    for b in range(len(x)):
        for h in range(HEADS):
            own = slice(h * SIZE, (h + 1) * SIZE)
            for i in range(x.shape[1]):
                chunk = [j for j in range(x.shape[1]) if j // 3 == i // 3]
                scores = torch.stack([q[b, i, own] @ k[b, j, own] / 2 for j in chunk]).exp()
                alpha[b, h, i, chunk] = scores / scores.sum()
    return alpha


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("length", [6, 15])  # fewer and more keys than two runs can tell apart
def test_attention_in_chunks(inside: bool, length: int) -> None:
    module, x = Chunked(inside=inside), states(length)
    with torch.no_grad():
        probed = probe(module, (x,), {}, module(x))
        torch.testing.assert_close(probed.weights, weights_in_chunks(module, x))
        value = module.v(x).view(2, length, HEADS, SIZE).transpose(1, 2)
        torch.testing.assert_close(probed.value, value)
        mixed = (probed.weights @ probed.value).transpose(1, 2)
        torch.testing.assert_close(probed.mixed, mixed)
        if module.o is None:
            assert probed.output is None
            return
        assert probed.weight is not None
        assert probed.bias is not None
        assert probed.output is not None
        assert probed.projection == "o"
        torch.testing.assert_close(probed.weight, module.o.weight.T)
        torch.testing.assert_close(probed.bias, module.o.bias)
        torch.testing.assert_close(mixed.flatten(2) @ probed.weight + probed.bias, probed.output)


@pytest.mark.parametrize("act", ["tanh", "random"])
def test_what_is_not_linear_in_its_values_is_not_read(act: str) -> None:
    """An activation behind the heads, and a module that changes from call to call."""
    module, x = Chunked(inside=False, act=act), states()
    with torch.no_grad(), pytest.raises(NotFollowed):
        probe(module, (x,), {}, module(x))


def test_longformers_windows() -> None:
    """Each token attends to two before it and two behind it; against a loop over pairs."""
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=60, hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=HEADS,
        intermediate_size=16, attention_window=4, pad_token_id=1, max_position_embeddings=40,
    )  # fmt: skip
    model: Any = LongformerModel(config)
    model = model.to(torch.float64).eval()
    randomize_(model)
    ids = torch.arange(8).view(1, 8) + 12
    noted: list[Tensor] = []
    attention = model.encoder.layer[0].attention.self
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: noted.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    with torch.no_grad(), capture(model) as captures:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    (made,) = captures
    assert made.path == "probed"
    x = noted[0]
    with torch.no_grad():
        q, k = (p(x).view(1, 8, HEADS, SIZE) for p in (attention.query, attention.key))
    for h in range(HEADS):
        for i in range(8):
            window = [j for j in range(8) if abs(i - j) <= 2]
            scores = torch.stack([q[0, i, h] @ k[0, j, h] / SIZE**0.5 for j in window]).exp()
            row = torch.zeros(8, dtype=torch.float64)
            row[window] = scores / scores.sum()
            torch.testing.assert_close(made.alpha[0, h, i], row, rtol=1e-6, atol=1e-9)
    assert float((made.reconstruct(torch.float64) - made.output).abs().max()) < 1e-9
