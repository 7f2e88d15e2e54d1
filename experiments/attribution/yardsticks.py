"""Scores that are computed plainly with autograd, to compare with: gradients along a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Answer = Callable[[Any], Tensor]  # the model's output -> one scalar a row


def gradient(
    model: Any, embedded: Tensor, inputs: Mapping[str, Any], answer: Answer
) -> tuple[Tensor, Tensor]:
    """Return the answer of every row, and its gradient with respect to the word embeddings."""
    leaf = embedded.detach().requires_grad_()
    values = answer(model(inputs_embeds=leaf, **inputs))
    return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]


def integrated_gradients(
    model: Any,
    ends: tuple[Tensor, Tensor],
    inputs: Mapping[str, Tensor],
    answer: Answer,
    *,
    steps: int = 20,
    rows: int = 256,
) -> Tensor:
    """Return integrated gradients of the word embeddings, summed over the hidden axis.

    The path is straight from the baseline's embeddings to the sentence's, ``ends``; its integral
    is taken by Gauss–Legendre quadrature. ``answer`` must not depend on the row.
    """
    start, end = ends
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    places = torch.tensor((nodes + 1) / 2, dtype=start.dtype, device=start.device)
    total = torch.zeros_like(start)
    at_once = max(1, rows // len(start))
    for first in range(0, steps, at_once):
        part = places[first : first + at_once]
        path = start[None] + part[:, None, None, None] * (end - start)[None]
        given = {name: tensor.repeat(len(part), 1) for name, tensor in inputs.items()}
        _, grad = gradient(model, path.flatten(0, 1), given, answer)
        share = torch.tensor(weights[first : first + at_once] / 2).to(grad)
        total += torch.einsum("s,srth->rth", share, grad.unflatten(0, path.shape[:2]))
    return ((end - start) * total).sum(-1)
