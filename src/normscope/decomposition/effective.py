"""Effective attention: weights without the part that changes nothing (Brunner et al., 2020).

Of one head, a row a of weights and the matrix F of the vectors f(x_j) of the keys, anything in a
that lies in the left null space of F leaves aF as it is. The effective weights are the projection
of a on the column space of F. Each query has its own F: the vectors of the keys that it may attend
to, which are those with a weight above zero in some head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.decomposition.cells import TINY, Cells
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import Scope
from normscope.foundation.shapes import Float

if TYPE_CHECKING:
    from normscope.decomposition.layer import LayerView


def effective_map(view: LayerView, scope: Scope, *, each: bool) -> ScopeMap:
    """Compute the effective weights of every head or their mean, and their gaps.

    They must give what the output projection read, and some of them are computed again with a
    pseudo-inverse.
    """
    captured = view.captured
    alpha = captured.scaled_rows(slice(0, captured.shape[2])).double()
    vectors = _Vectors(view)
    values = torch.zeros_like(alpha)
    seen = alpha.ne(0).any(dim=1)
    for row in range(len(alpha)):
        for queries, keys in _groups(seen[row], single=captured.gate is not None):
            basis = vectors.basis(row, keys, queries)
            weights = alpha[row][:, queries][:, :, keys]
            values[row][:, queries[:, None], keys] = (weights @ basis) @ basis.mT
    gap = vectors.gap(alpha, values).masked_fill(~view.positions.queries, 0).amax(dim=1)
    cells = view.cells_to_check()
    if cells is not None:
        gap = torch.maximum(gap, _spot_gap(vectors, alpha, seen, cells, values))
    shown = values if each else values.mean(dim=1)
    return ScopeMap(scope, view.positions.keys, captured.shape[2], values=shown, gaps=gap)


class _Vectors:
    """The vectors f(x_j) of the keys, in coordinates of the rows of W_O, in float64."""

    def __init__(self, view: LayerView) -> None:
        captured = view.captured
        weight = captured.projection.weight.double()
        # ‖vW‖ = ‖vRᵀ‖ with Wᵀ = QR: the columns of vRᵀ span the same space as those of vW.
        self.turned = torch.linalg.qr(weight.transpose(1, 2), mode="r").R.transpose(1, 2)
        heads = len(weight)
        self.value = captured.value.double().repeat_interleave(
            heads // captured.value.shape[1], dim=1
        )
        self.gate = None if captured.gate is None else captured.gate.double()
        self.merged = captured.merged.double().unflatten(2, (heads, -1)).transpose(1, 2)
        eps = torch.finfo(torch.promote_types(captured.value.dtype, torch.float32)).eps
        self.eps, self.hidden = eps, weight.shape[2]

    def of(self, row: int, keys: Tensor, query: int) -> Float[Tensor, "head key size"]:
        """Return the vectors of some keys, as a query sees them."""
        value = self.value[row][:, keys]
        if self.gate is not None:
            value = value * self.gate[row, query].unsqueeze(1)
        return value @ self.turned

    def tolerance(self, keys: int) -> float:
        """Return the smallest singular value that counts, relative to the largest."""
        return max(keys, self.hidden) * self.eps

    def basis(self, row: int, keys: Tensor, queries: Tensor) -> Float[Tensor, "head key rank"]:
        """Return an orthonormal basis of the vectors' column space, with zeros for what lacks."""
        left, values, _ = torch.linalg.svd(self.of(row, keys, int(queries[0])), full_matrices=False)
        largest = values.amax(dim=-1, keepdim=True)
        kept = values > self.tolerance(len(keys)) * largest
        basis: Tensor = left * kept.unsqueeze(-2)
        return basis

    def gap(self, alpha: Tensor, values: Tensor) -> Float[Tensor, "batch query"]:
        """Return the gap of what the effective weights give to what the projection read."""
        gate = None if self.gate is None else self.gate.transpose(1, 2)
        context = values @ self.value
        context = context if gate is None else context * gate
        gap = ((context - self.merged) @ self.turned).norm(dim=-1)
        lengths = (self.value @ self.turned).norm(dim=-1, keepdim=True)
        size = (alpha.abs() @ lengths).squeeze(-1)
        if gate is not None:
            size = size * gate.abs().amax(dim=-1)
        return (gap.sum(dim=1) / size.sum(dim=1).clamp_min(TINY)).double()


def _groups(seen: Tensor, *, single: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the queries that may attend to the same keys, with these keys."""
    if single:
        sets, members = seen, torch.arange(len(seen), device=seen.device)
    else:
        sets, members = torch.unique(seen, dim=0, return_inverse=True)
    every = torch.arange(len(seen), device=seen.device)
    keys = [row.nonzero().flatten() for row in sets]
    return [(every[members == n], own) for n, own in enumerate(keys) if len(own)]


def _spot_gap(
    vectors: _Vectors, alpha: Tensor, seen: Tensor, cells: Cells, values: Tensor
) -> Float[Tensor, " batch"]:
    """Return the gap of some rows to a projection by a pseudo-inverse.

    It is relative to the weights, and to what rounding of the vectors moves the space they span.
    """
    gaps = []
    for row, queries in enumerate(cells.i.tolist()):
        worst = alpha.new_zeros(())
        for query in queries:
            keys = seen[row, query].nonzero().flatten()
            if not len(keys):
                continue
            f = vectors.of(row, keys, query)
            inverse = torch.linalg.pinv(f, rtol=vectors.tolerance(len(keys)))
            weights = alpha[row, :, query][:, keys]
            expected = (weights.unsqueeze(1) @ f @ inverse).squeeze(1)
            difference = values[row, :, query][:, keys] - expected
            lengths = torch.linalg.svdvals(f)
            least = vectors.tolerance(len(keys)) * lengths[:, :1]
            smallest = torch.where(lengths > least, lengths, torch.inf).amin(dim=-1)
            condition = (lengths[:, 0] / smallest).clamp_min(1.0)
            size = weights.norm(dim=-1).clamp_min(TINY) * condition
            worst = torch.maximum(worst, (difference.norm(dim=-1) / size).amax())
        gaps.append(worst)
    return torch.stack(gaps)
