"""The linear map of a projection to a whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.linearisation.operators import Cotangents, Operator, Saved

WIDE = 8192  # outputs from which on cotangents are summed in blocks
BLOCK = 1024


class WideProjection(Operator):
    """A projection to many outputs, whose cotangents are added up in blocks.

    The cotangent of a mean over a vocabulary has many tiny entries. Added one by one in float32,
    as a CPU does it, most of them are lost.

    Args:
        project: computes the projection, bias included.
        weight: its weight, (output, input).
    """

    def __init__(self, project: Callable[[Tensor], Tensor], weight: Tensor) -> None:
        self.project, self.weight = project, weight

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self.project(x), ()

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        flat = cotangent.reshape(-1, cotangent.shape[-1])
        total = torch.zeros(len(flat), self.weight.shape[1], dtype=torch.float64)
        for start in range(0, len(self.weight), BLOCK):
            block = slice(start, start + BLOCK)
            total += flat[:, block] @ self.weight[block]
        return (total.to(cotangent.dtype).reshape(*cotangent.shape[:-1], -1),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        return torch.nn.functional.linear(component, self.weight)


def is_wide(weight: Tensor) -> bool:
    """Return whether a projection has so many outputs that float32 on a CPU needs blocks."""
    dense = type(weight) in (Tensor, torch.nn.Parameter) and weight.dim() == 2
    return dense and weight.is_cpu and weight.dtype == torch.float32 and len(weight) >= WIDE
