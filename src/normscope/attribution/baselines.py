"""The inputs that a difference is taken to: other tokens, other texts, other embeddings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.attribution.heads import CAUSAL, head_of, is_index, writes
from normscope.attribution.options import MEAN, ZERO, Question
from normscope.attribution.reading import Reader, replaced, side_by_side
from normscope.attribution.rows import AskedRow, with_decoder
from normscope.errors import InputError
from normscope.models.running import accepted_by
from normscope.models.walk import modules
from normscope.text.limits import embedding_table
from normscope.text.tokens import Encoded

EMBEDDINGS = {"input_ids": "inputs_embeds", "decoder_input_ids": "decoder_inputs_embeds"}
SAME = 1e-3  # relative difference of a value that is computed from ids and from their embeddings


@dataclass(frozen=True)
class Baseline:
    """What takes the place of a row's tokens: a row of other tokens, or kinds of embeddings.

    Attributes:
        name: what was asked for.
        row: the other tokens, as many as the row has; None for embeddings.
        embedding: "zero" or "mean", or "" for tokens.
    """

    name: str
    row: AskedRow | None
    embedding: str = ""


def default_baseline(method: str, mask: str | int | None) -> str | int:
    """Return the baseline of a method that has a choice: a mask if it replaces single tokens."""
    return ZERO if mask is None or method != "blank_out" else mask


def baseline_of(
    reader: Reader, row: AskedRow, text: Any, question: Question, given: Any
) -> Baseline:
    """Return one of the baselines of a question; raise InputError if it does not fit the row."""
    if given in (ZERO, MEAN):
        return Baseline(given, None, given)
    if isinstance(given, Mapping):
        raise InputError("a baseline of a text is a token, a text, zero or mean, not tensors")
    index = _token_named(reader, given)
    if index is None:
        return Baseline(str(given), _other_text(reader, row, text, question, given))
    flags, written = row.replaceable(writes(reader.model))
    texts = tuple(map(replaced, row.texts, flags, itertools.repeat(index)))
    decoder = None if row.decoder is None else replaced(row.decoder, written, index)
    return Baseline(str(given), replace(row, texts=texts, decoder=decoder))


def _token_named(reader: Reader, given: Any) -> int | None:
    """Return the id of a token that is given by its name or id; None for a text."""
    if is_index(given):
        return reader.checked_ids(given)[0]
    if not isinstance(given, str):
        return None
    vocabulary = reader.tokenizer.get_vocab()
    if given in vocabulary:
        return int(vocabulary[given])
    if re.fullmatch(r"\[[A-Z]+\]|<\|?[A-Za-z_/]+\|?>", given):
        special = ", ".join(reader.tokenizer.all_special_tokens)
        raise InputError(f"the tokenizer has no token {given!r}; its special tokens: {special}")
    return None


def _other_text(
    reader: Reader, row: AskedRow, text: Any, question: Question, given: Any
) -> AskedRow:
    """Return a row with another text, which must have as many tokens."""
    if head_of(reader.model) == CAUSAL:
        prompt, _ = reader.prompt(given)
        count = row.sides.count("text")
        _check_equal(row.text, count, prompt)
        ids = [*prompt.ids, *row.text.ids[count:]]
        return replace(row, texts=(replace(row.text, ids=ids),))
    pairs = question.text_pair
    each = [pairs] if pairs is None or isinstance(pairs, str) else list(pairs)
    texts = tuple(reader.text(given, pair) for pair in each)
    for encoded, other in zip(row.texts, texts, strict=True):
        _check_equal(encoded, len(encoded), other)
    decoder = row.decoder
    if decoder is not None and row.explained is None and not writes(reader.model):
        decoder, _ = with_decoder(reader, texts[0], ())
    return replace(row, texts=texts, decoder=decoder)


def _check_equal(encoded: Encoded, count: int, other: Encoded) -> None:
    if count != len(other):
        from normscope.results.arrays import take

        tokens = take(encoded.tokens, range(count))
        raise InputError(
            f"the text has {count} tokens and the baseline {len(other)}; the difference is "
            "computed token by token, so give a text with as many:\n"
            f"{side_by_side(tokens, other.tokens)}"
        )


# ---- embeddings


def embedded(
    model: Any,
    inputs: Mapping[str, Any],
    value: Callable[[Any], Tensor],
    replace_with: Mapping[str, str | Tensor],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and baseline as embeddings, after checking that the model reads them alike.

    Args:
        model: the model.
        inputs: its inputs, with ids.
        value: what is explained.
        replace_with: "zero" or "mean" under "kind", and under the names of ids a mask (row,
            position) of the tokens that are replaced.
    """
    ids = [name for name in EMBEDDINGS if name in inputs]
    lacking = [EMBEDDINGS[n] for n in ids if EMBEDDINGS[n] not in accepted_by(model)]
    if lacking:
        raise InputError(
            f"{type(model).__name__} does not accept {lacking[0]}, so it has no baseline of "
            "embeddings: give a token or a text as the baseline"
        )
    expected = _plain_value(model, inputs, value)
    # Marian's encoder scales the embeddings that it looks up, and not those that it is given.
    for scales in itertools.product(_scales(model), repeat=len(ids)):
        real, other = dict(inputs), dict(inputs)
        for name, scale in zip(ids, scales, strict=True):
            vectors = _embed(model, name, inputs[name], scale)
            table = embedding_table(model, as_target=name.startswith("decoder"))
            assert table is not None
            mean = table.detach().mean(dim=0) * scale
            filler = torch.zeros_like(mean) if replace_with["kind"] == ZERO else mean
            mask = replace_with[name]
            assert isinstance(mask, Tensor)
            del real[name], other[name]
            real[EMBEDDINGS[name]] = vectors
            other[EMBEDDINGS[name]] = torch.where(mask[..., None], filler.to(vectors), vectors)
        gap = (_plain_value(model, real, value) - expected).abs().max()
        if gap <= SAME * expected.abs().max().clamp_min(1.0):
            return real, other
    raise InputError(
        f"{type(model).__name__} gives another output for the embeddings of its tokens than for "
        "their ids, so a baseline of embeddings is not defined: give a token or a text"
    )


def _scales(model: Any) -> list[float]:
    """Return the factors by which a model may scale embeddings that it looks up itself."""
    found = (getattr(module, "embed_scale", None) for module in modules(model))
    return list(dict.fromkeys([1.0, *(scale for scale in found if isinstance(scale, float))]))


def _embed(model: Any, name: str, ids: Tensor, scale: float) -> Tensor:
    part = model.get_decoder() if name.startswith("decoder") else model
    with torch.no_grad():
        vectors: Tensor = part.get_input_embeddings()(ids) * scale
    return vectors


def _plain_value(model: Any, inputs: Mapping[str, Any], value: Callable[[Any], Tensor]) -> Tensor:
    with torch.no_grad():
        return value(model(**inputs)).double()
