"""Let a model write, greedily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from normscope.errors import InputError
from normscope.models.running import accepted_by, evaluating
from normscope.text.limits import max_length_of
from normscope.text.tokens import Encoded


def write(
    model: Any,
    tokenizer: Any,
    text: Encoded,
    count: int,
    inputs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the tokens that a model writes after a prompt, or those of its decoder.

    The most probable token is taken at each step. An end token is the last one. The tokens of an
    encoder–decoder model begin with the one that its decoder starts with, which is not counted.

    Args:
        model: a transformers model.
        tokenizer: the tokenizer of what it writes.
        text: the prompt.
        count: the number of tokens.
        inputs: all that the model reads, if that is more than the prompt.
    """
    if not getattr(model, "can_generate", lambda: False)():
        raise InputError(f"{type(model).__name__} cannot generate: give continuation= or target=")
    two_sided = bool(model.config.is_encoder_decoder)
    prompt = torch.tensor([text.ids], device=model.device)
    accepted = accepted_by(model)
    # What else the tokenizer gives, such as token types, is read when the tokens are explained too.
    given = inputs or {
        "input_ids": prompt,
        "attention_mask": torch.ones_like(prompt),
        **{
            name: torch.tensor([values], device=model.device)
            for name, values in text.extra.items()
            if name in accepted
        },
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
            **given,
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


def start_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the ids that the decoder of a model of speech or images begins with."""
    start = getattr(model.config, "decoder_start_token_id", None)
    prefix = getattr(tokenizer, "prefix_tokens", None) or ([] if start is None else [start])
    if not prefix:
        raise InputError("the model's config has no decoder_start_token_id: give target=")
    return [int(index) for index in prefix]


def greedy_ids(model: Any, tokenizer: Any, inputs: Mapping[str, Any], count: int) -> list[int]:
    """Return what the decoder of a model writes that reads no ids, the tokens before it included.

    Args:
        model: an encoder–decoder model, such as one of speech.
        tokenizer: the tokenizer of what it writes.
        inputs: what its encoder reads.
        count: the number of tokens; an end token is the last one.
    """
    own = model.generation_config.eos_token_id
    ends = set(own if isinstance(own, list) else [own])
    ids = start_ids(model, tokenizer)
    with evaluating(model), torch.no_grad():
        for _ in range(count):
            read = torch.tensor([ids], device=model.device)
            logits = model(**inputs, decoder_input_ids=read).logits
            ids.append(int(logits[0, -1].argmax()))
            if ids[-1] in ends:
                break
    return ids
