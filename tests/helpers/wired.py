"""Layers that are wired by hand: one attention, and parts for whatever surrounds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.testing import randomize_

WIDTH = 16


class HandmadeAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).unbind(-3)
        alpha = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).softmax(-1)
        mixed: Tensor = self.out((alpha @ v.transpose(1, 2)).transpose(1, 2).flatten(2))
        return mixed


class Bench(nn.Module):
    """Parts from which the layers below are wired."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.attention = HandmadeAttention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.norm3, self.norm4 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.gate = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.down = nn.Linear(24, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, WIDTH)
        self.act, self.dropout = nn.SiLU(), nn.Dropout(0.5)
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.factor = 0.3
        self.wired = forward

    def forward(self, x: Tensor, scores: Tensor | None = None) -> Any:
        return self.wired(self, x)


class Stack(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bench(forward) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            made = layer(x)
            x = made if isinstance(made, Tensor) else made[0]
        return x


def stack(forward: Callable[[Any, Tensor], Any]) -> tuple[Any, dict[str, Tensor]]:
    model = Stack(forward).double()
    randomize_(model)
    return model, {"x": torch.randn(2, 5, WIDTH, dtype=torch.float64)}


def attend(m: Any, x: Tensor) -> Tensor:
    """The attention block of a pre-norm layer."""
    block: Tensor = x + m.attention(m.norm1(x))
    return block


def carried(m: Any, x: Tensor) -> Tensor:
    h = m.gamma * x + m.attention(m.norm1(x))
    return m.norm3(m.down(m.act(m.up(m.norm2(h)))) + 0.3 * h)


def residual_after_norms(m: Any, x: Tensor) -> Tensor:
    h = m.norm1(x)
    h = m.norm2(m.attention(h) + 2 * h)
    return h + m.down(m.act(m.up(h)))
