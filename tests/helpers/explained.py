"""What the tests of attribution share: outputs to explain, padding on the left, sums of shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.account import RowShares

OUTPUTS = ("logits", "logits_per_image", "pooler_output", "last_hidden_state")


def last_position(inputs: Mapping[str, Tensor], steps: int = 1) -> Callable[[Any], Tensor]:
    """Explain entries 5, 6, … of the output at the last real position of every row."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))

    def value(output: Any) -> Tensor:
        name = next(name for name in OUTPUTS if getattr(output, name, None) is not None)
        states: Tensor = getattr(output, name)
        if name == "logits_per_image":
            return states.diagonal()[:, None]
        if states.dim() == 2:
            return states[:, -steps:]
        if mask is None or mask.shape[1] != states.shape[1]:
            return states[:, -1, 5 : 5 + steps]
        last = (mask * torch.arange(mask.shape[1])).argmax(1)
        last = last.repeat(len(states) // len(last))  # the baselines follow the inputs
        return states[torch.arange(len(states)), last, 5 : 5 + steps]

    return value


def left_padded(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Move the padding of every row to its left."""
    moved = dict(inputs)
    for prefix in ("", "decoder_"):
        mask = inputs.get(f"{prefix}attention_mask")
        for name in (f"{prefix}input_ids", f"{prefix}attention_mask"):
            if mask is not None and name in inputs:
                pads = (mask == 0).sum(1).tolist()
                rows = zip(inputs[name], pads, strict=True)
                moved[name] = torch.stack([row.roll(pad) for row, pad in rows])
    return moved


def positions(mask: Tensor) -> Tensor:
    """Number the real positions of every row from 0; padding has number 0."""
    return (mask.cumsum(1) - 1).clamp_min(0)


def rows_of(inputs: Mapping[str, Any], *rows: int) -> dict[str, Any]:
    """Return some of the rows, without columns that are padding in all of them."""
    chosen = {name: tensor[list(rows)] for name, tensor in inputs.items()}
    for prefix in ("", "decoder_"):
        mask = chosen.get(f"{prefix}attention_mask")
        if mask is not None:
            real = mask.bool().any(0)
            for name in [n for n in chosen if n.startswith("decoder_") == bool(prefix)]:
                if chosen[name].dim() == 2 and chosen[name].shape == mask.shape:
                    chosen[name] = chosen[name][:, real]
    return chosen


def by_position(result: RowShares, stack: str = "") -> np.ndarray:
    """Return the shares of all parts of one stack, (row, step, position)."""
    found = [source.shares for source in result.sources if source.stack == stack]
    return np.sum(found, axis=0)


def size(result: RowShares) -> np.ndarray:
    """Return Σ|shares| + |bias|, (row, step)."""
    shares = [np.abs(source.shares).sum(-1) for source in result.sources]
    return np.sum(shares, axis=0) + np.abs(result.bias)


def worst_gap(result: RowShares) -> float:
    """Return the largest gap: of the whole, of every cut, of heads and feed-forwards."""
    gaps = [result.error]
    if result.trace is not None:
        gaps += [cut.error for cut in result.trace.cuts]
        for layer in result.trace.layers:
            parts = (layer.heads_error, layer.feed_forward_error)
            gaps += [gap for gap in parts if gap is not None]
    return float(np.concatenate(gaps, axis=1).max())
