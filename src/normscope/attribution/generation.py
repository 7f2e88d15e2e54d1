"""Let a model write, greedily."""

from __future__ import annotations

from typing import Any

import torch

from normscope.errors import InputError
from normscope.models.running import accepted_by, evaluating
from normscope.text.limits import max_length_of
from normscope.text.tokens import Encoded


def write(model: Any, tokenizer: Any, text: Encoded, count: int) -> list[int]:
    """Return the tokens that a model writes after a prompt, or those of its decoder.

    The most probable token is taken at each step. An end token is the last one. The tokens of an
    encoder–decoder model begin with the one that its decoder starts with, which is not counted.
    """
    if not getattr(model, "can_generate", lambda: False)():
        raise InputError(f"{type(model).__name__} cannot generate: give continuation= or target=")
    two_sided = bool(model.config.is_encoder_decoder)
    prompt = torch.tensor([text.ids], device=model.device)
    accepted = accepted_by(model)
    # What else the tokenizer gives, such as token types, is read when the tokens are explained too.
    others = {
        name: torch.tensor([values], device=model.device)
        for name, values in text.extra.items()
        if name in accepted
    }
    limit = max_length_of(model.config, tokenizer, as_target=two_sided)
    longest = count if two_sided else len(text.ids) + count
    if limit is not None and longest > limit:
        raise InputError(
            f"the text has {len(text.ids)} tokens, and {count} more exceed the {limit} that "
            f"{type(model).__name__} accepts; give a smaller generate= or a shorter text"
        )
    own = model.generation_config
    padding = next((p for p in (own.pad_token_id, tokenizer.pad_token_id) if p is not None), 0)
    with evaluating(model), torch.no_grad():
        written = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            **others,
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
    start = 0 if two_sided else len(text.ids)
    tokens: list[int] = written[start:]
    return tokens
