"""Shares of the single edges of an attention call, ⟨α f(x_j), g⟩ = α ⟨v_j, ḡ⟩."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from normscope.linearisation.attention import Call, blocks, repeated
from normscope.linearisation.operators import inner


@dataclass(eq=False)
class EdgeFactors:
    """One attention call: its weights (or what they are computed from), values and cotangents."""

    values: Tensor
    context: Tensor  # (row, head, query, size), or rows and heads in one
    rows: int
    pairs: bool
    alpha: Tensor | None = None
    scores: tuple[Tensor, Tensor, Call] | None = None
    cotangents: dict[int, Tensor] = field(default_factory=dict)  # by step

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self._of_row(self.context, 0).shape[0]

    def shares(self, step: int) -> Tensor:
        """Return the share of each head, (row, head)."""
        g = self.cotangents[step].reshape(self.rows, -1, *self.context.shape[-2:])
        context = self.context.reshape(g.shape)
        if self.pairs:
            half = self.rows // 2
            context, g = context[:half].double() - context[half:].double(), g[:half]
        return inner(context, g).sum((-1, -2))

    def _weights(self, row: int, queries: slice) -> Tensor:
        if self.alpha is not None:
            return self._of_row(self.alpha, row)[:, queries].double()
        assert self.scores is not None
        q, k, call = self.scores
        at = slice(row, row + 1)
        if call.mask is not None and call.mask.shape[0] > 1:
            call = Call(call.mask[at], call.causal, call.scale)
        scores = call.scores(q[at], repeated(k[at], q.shape[1]), queries)
        return torch.softmax(scores.double(), -1).nan_to_num(0.0)[0]

    def _of_row(self, tensor: Tensor, row: int) -> Tensor:
        return tensor.reshape(self.rows, -1, *tensor.shape[-2:])[row]

    def _block(self, row: int, step: int, queries: slice) -> Tensor:
        """Return the edges of some queries, (head, query, key)."""
        g = self._of_row(self.cotangents[step], row)[:, queries].double()
        values = repeated(self._of_row(self.values, row)[None], self.heads)[0].double()
        if not self.pairs:
            return self._weights(row, queries) * (g @ values.mT)
        other = row + self.rows // 2
        start = repeated(self._of_row(self.values, other)[None], self.heads)[0].double()
        mean = (self._weights(row, queries) + self._weights(other, queries)) / 2
        step_alpha = self._weights(row, queries) - self._weights(other, queries)
        return mean * (g @ (values - start).mT) + step_alpha * (g @ ((values + start) / 2).mT)

    def whole(self, row: int, step: int) -> np.ndarray:
        """Return all edges, (head, query, key)."""
        return self._block(row, step, slice(None)).cpu().numpy()

    def largest(self, row: int, step: int, count: int) -> list[tuple[int, int, int, float]]:
        """Return the largest edges by size; no array of all queries and keys is built."""
        best: list[tuple[int, int, int, float]] = []
        for queries in blocks(self._of_row(self.context, row), self._of_row(self.values, row)):
            block = self._block(row, step, queries)
            top = block.abs().flatten().topk(min(count, block.numel())).indices
            places = torch.stack(torch.unravel_index(top, block.shape), 1).tolist()
            values = block.flatten()[top].tolist()
            best += [
                (h, q + (queries.start or 0), k, value)
                for (h, q, k), value in zip(places, values, strict=True)
            ]
        return sorted(best, key=lambda edge: -abs(edge[3]))[:count]
