"""Random inputs for any text model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError


def random_inputs(
    model: Any, *, batch: int = 3, length: int = 9, seed: int = 0
) -> dict[str, Tensor]:
    """Return random ids for a text model, padded on the right, and decoder ids if it takes them."""
    if model.main_input_name not in ("input_ids", "decoder_input_ids"):
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, not ids; give "
            "check_architecture a batch of your own as inputs="
        )
    config = model.config.get_text_config()
    draw = torch.Generator().manual_seed(seed)
    lengths = (length - 2 * torch.arange(batch)).clamp_min(2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    pad = config.pad_token_id or 0
    # The lowest ids are where most vocabularies keep their special tokens.
    ids = torch.randint(
        min(10, config.vocab_size // 2), config.vocab_size, mask.shape, generator=draw
    )
    ids = torch.where(mask.bool(), ids, pad)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, 1:]
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}
