"""Attention that a module computes in pieces of its sequence, as one call.

Encoders of images attend within each image, or within each of its windows: they divide the sequence
into pieces, call their attention for one piece after another, and put the outputs in a row. As one
call, the weights are block-diagonal:

    α = diag(α_1, …, α_n),    v = (v_1, …, v_n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.capture.scores import Scores
from normscope.foundation.shapes import Bool, Float
from normscope.foundation.torch_settings import without_grad

if TYPE_CHECKING:
    from normscope.capture.recorder import Pending


@without_grad
def in_a_row(calls: Sequence[Pending]) -> Pending | None:
    """Return attention calls of one module as a single one, on the pieces one after another.

    None if they are not of one shape but for their positions, or if what they recorded has no
    such form. Whether the model puts the outputs in a row is for the caller to see: it is where the
    output projection reads what :attr:`Pending.mixed` says.
    """
    last = calls[-1]
    if any(call.path == "watched" or not call.untouched() for call in calls):
        return None  # what multiplies values by hand may do so in any layout
    if len({_fixed(call.mixed, 1) for call in calls}) > 1:
        return None
    if len({_fixed(call.value, 2) for call in calls}) > 1:
        return None
    sizes = [call.mixed.shape[1] for call in calls]
    scale = None
    if any(call.scale is not None for call in calls):
        scale = torch.cat([_scale(call) for call in calls], dim=2)
    joined = type(last)(
        last.module,
        last.path,
        _weights([call.weights for call in calls], sizes),
        torch.cat([call.value.detach() for call in calls], dim=2),
        torch.cat([call.mixed.detach() for call in calls], dim=1),
        None,
    )
    joined.scale = scale
    return joined


def _fixed(states: Tensor, axis: int) -> tuple[object, ...]:
    """What pieces have in common: all but the number of positions."""
    return states.dtype, *(size for at, size in enumerate(states.shape) if at != axis)


def _scale(call: Pending) -> Float[Tensor, "batch head query"]:
    if call.scale is not None:
        return call.scale
    batch, query, heads, _ = call.mixed.shape
    wide = torch.promote_types(call.mixed.dtype, torch.float32)
    return call.mixed.new_ones((batch, heads, query), dtype=wide)


def _weights(pieces: Sequence[Tensor | Scores], sizes: Sequence[int]) -> Tensor | Scores:
    scores = [piece for piece in pieces if isinstance(piece, Scores)]
    first = scores[0] if scores else None
    if first is not None and len(scores) == len(pieces):
        plain = all(s.mask is None and not s.causal and s.scaling == first.scaling for s in scores)
        if plain:
            return _scores(scores, sizes)
    return block_diagonal(
        [p.rows(slice(0, p.shape[2])) if isinstance(p, Scores) else p.detach() for p in pieces]
    )


def _scores(pieces: Sequence[Scores], sizes: Sequence[int]) -> Scores:
    """Join what weights are computed from: a mask keeps each query to its own piece."""
    keys = [piece.shape[3] for piece in pieces]
    return replace(
        pieces[0],
        query=torch.cat([piece.query for piece in pieces], dim=2),
        key=torch.cat([piece.key for piece in pieces], dim=2),
        mask=_own_piece(sizes, keys, pieces[0].device)[None, None],
        context=torch.cat([piece.context for piece in pieces], dim=1),
    )


def _own_piece(
    sizes: Sequence[int], keys: Sequence[int], device: torch.device
) -> Bool[Tensor, "query key"]:
    number = torch.arange(len(sizes), device=device)
    query, key = (
        number.repeat_interleave(torch.tensor(counts, device=device)) for counts in (sizes, keys)
    )
    return query.unsqueeze(1) == key


def block_diagonal(
    pieces: Sequence[Float[Tensor, "batch head _query _key"]],
) -> Float[Tensor, "batch head query key"]:
    """Return the weights of pieces of a sequence, which attend within themselves, as one map."""
    queries, keys = (sum(piece.shape[axis] for piece in pieces) for axis in (2, 3))
    alpha = pieces[0].new_zeros((*pieces[0].shape[:2], queries, keys))
    row = column = 0
    for piece in pieces:
        _, _, high, wide = piece.shape
        alpha[:, :, row : row + high, column : column + wide] = piece
        row, column = row + high, column + wide
    return alpha
