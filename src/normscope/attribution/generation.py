"""Let a model write, greedily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normscope.errors import InputError
from normscope.models.running import evaluating


def write(model: Any, tokenizer: Any, ids: Sequence[int], count: int) -> list[int]:
    """Return the tokens that a model writes after a prompt, or those of its decoder.

    The most probable token is taken at each step. An end token is the last one. The tokens of an
    encoder–decoder model begin with the one that its decoder starts with, which is not counted.
    """
    if not getattr(model, "can_generate", lambda: False)():
        raise InputError(f"{type(model).__name__} cannot generate: give continuation= or target=")
    prompt = torch.tensor([list(ids)], device=model.device)
    own = model.generation_config
    padding = next((p for p in (own.pad_token_id, tokenizer.pad_token_id) if p is not None), 0)
    with evaluating(model), torch.no_grad():
        written = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            max_length=None,
            min_length=0,
            do_sample=False,
            num_beams=1,
            temperature=None,
            top_p=None,
            top_k=None,
            repetition_penalty=1.0,
            pad_token_id=padding,
            return_dict_in_generate=False,
        )[0].tolist()
    start = 0 if model.config.is_encoder_decoder else len(ids)
    tokens: list[int] = written[start:]
    return tokens
