"""Warn of padding on the left where it changes what a model computes.

BERT and GPT-2 count positions from the first column, also over padding; OPT and RoBERTa count from
the first real token, and to models with relative or rotary positions a shift makes no difference.
Which of these a model does is found by running it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.foundation.caching import ModuleCache
from normscope.models.running import accepted_by, evaluating

_LENGTH, _PADDING = 6, 3
_COUNTS: ModuleCache[bool] = ModuleCache()


def warn_of_left_padding(model: Any, inputs: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn if rows are padded on the left, without position ids, and the model counts columns.

    Args:
        model: a transformers model.
        inputs: its keyword arguments.
        stacklevel: as for ``warnings.warn``, counted from the caller of this function.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.ndim != 2:
        return
    if mask.shape != ids.shape or inputs.get("position_ids") is not None:
        return
    rows = rows_padded_left({"attention_mask": mask})
    if not rows or not counts_columns(model):
        return
    positions = "position_ids" in accepted_by(model)
    warnings.warn(
        f"{len(rows)} of {len(ids)} rows are padded on the left (the first is row {rows[0]}), and "
        f"{type(model).__name__} counts positions from the first column, padding included: the "
        "results are those of this pass, and differ from those of the same text without padding. "
        'Pad on the right (tokenizer.padding_side = "right")'
        + (", or give position_ids" if positions else ""),
        UserWarning,
        stacklevel=stacklevel + 1,
    )


def rows_padded_left(inputs: Mapping[str, Any]) -> list[int]:
    """Return the rows that begin with padding, of the model or of its decoder."""
    masks = (inputs.get("attention_mask"), inputs.get("decoder_attention_mask"))
    return sorted(
        {
            row
            for mask in masks
            if isinstance(mask, Tensor) and mask.ndim == 2
            for row in (mask[:, 0] == 0).nonzero().flatten().tolist()
        }
    )


def refuse_nan_of_padding(model: Any, inputs: Mapping[str, Any], values: Tensor) -> None:
    """Raise if a float64 model gives NaN in rows that begin with padding.

    Args:
        model: a transformers model.
        inputs: its keyword arguments.
        values: numbers of its output, (row, ...).
    """
    wrong = values.isnan().flatten(1).any(1)
    rows = [row for row in rows_padded_left(inputs) if wrong[row]]
    if rows:
        raise InputError(
            f"row {rows[0]}: {type(model).__name__} gives NaN, so there is nothing to explain. The "
            "row is padded on the left, where a query has no key to attend to. Attention that "
            "computes its softmax in float32 makes NaN of such a query in a float64 model, because "
            "the lowest number of float64 is -infinity in float32. Pad on the right, explain each "
            "row by itself without padding, or use float32 or, if the model has it, sdpa attention"
        )


def counts_columns(model: Any) -> bool:
    """Return whether padding on the left changes what a model computes of a text."""
    state = (type(model), model.dtype)
    return _COUNTS.get(model, state, lambda: _shift_matters(model))


def _shift_matters(model: Any) -> bool:
    base = getattr(model, "base_model", model)
    if getattr(base.config, "is_encoder_decoder", False):
        base = base.get_encoder()
    config = model.config.get_text_config()
    if not getattr(config, "vocab_size", None):
        return False
    pad = getattr(config, "pad_token_id", None) or 0
    known = [index for index in range(config.vocab_size // 3, config.vocab_size) if index != pad]
    row = torch.tensor([known[:: max(1, len(known) // _LENGTH)][:_LENGTH]], device=model.device)
    padded = torch.cat([torch.full_like(row[:, :_PADDING], pad), row], dim=1)
    mask = (torch.arange(padded.shape[1], device=model.device) >= _PADDING).long()[None]
    try:
        with evaluating(model), torch.no_grad():
            plain = base(input_ids=row, attention_mask=mask[:, _PADDING:])[0]
            moved = base(input_ids=padded, attention_mask=mask)[0][:, _PADDING:]
    except Exception:  # a model that needs more than ids: nothing is known of it
        return False
    rounding = 1e-3 if plain.dtype.itemsize > 2 else 5e-2
    return bool((moved - plain).abs().max() > rounding * plain.abs().max())
