"""Encode the rows of a corpus for the model, and group them into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from normscope.corpus.records import Problem, Record
from normscope.engine.batches import by_length
from normscope.errors import InputError
from normscope.measures.statistics.base import Row
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import Encoded, Tokens, encode


class Encoder:
    """A tokenizer with a limit of length, for one model."""

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.limit = length_limit(model, tokenizer, max_length)
        check_fits(tokenizer, model)
        roles = dict(tokenizer.special_tokens_map)
        # Unknown and masked tokens stand for text, unless the same token also frames a text.
        text = {roles.pop("unk_token", None), roles.pop("mask_token", None)}
        self._special = set(tokenizer.all_special_tokens) - (text - set(roles.values()))

    def encode(self, record: Record) -> tuple[Row, bool] | Problem:
        """Return the sequence and whether it was cut, or the problem of a row without tokens."""
        try:
            if record.content.tokens is not None:
                encoded, cut = self._encode_tokens(record.content.tokens)
            else:
                encoded, cut = self._encode_text(record.content.text, record.content.pair)
            check_fits(self.tokenizer, self.model, encoded)
        except InputError as problem:
            return Problem(record.where, "tokens", str(problem))
        types = encoded.extra.get("token_type_ids")
        kinds = None if types is None else tuple(types)
        return Row(record.key, tuple(encoded.ids), kinds, encoded.tokens.special), cut

    def _encode_text(self, text: str, pair: str | None) -> tuple[Encoded, bool]:
        whole = encode(self.tokenizer, text, pair, max_length=None, truncate=False)
        if self.limit is None or len(whole) <= self.limit:
            return whole, False
        return encode(self.tokenizer, text, pair, max_length=self.limit, truncate=True), True

    def _encode_tokens(self, tokens: tuple[str, ...]) -> tuple[Encoded, bool]:
        """Encode tokens, special ones included; a special token at the end survives a cut."""
        cut = self.limit is not None and len(tokens) > self.limit
        if cut and self.limit is not None:
            tail = tokens[-1:] if tokens[-1] in self._special else ()
            tokens = (*tokens[: self.limit - len(tail)], *tail)
        ids = [int(token_id) for token_id in self.tokenizer.convert_tokens_to_ids(list(tokens))]
        unknown = self.tokenizer.unk_token
        for token, back in zip(tokens, self.tokenizer.convert_ids_to_tokens(ids), strict=True):
            if token != back:
                raise InputError(
                    f"the token {token!r:.40} is not in the tokenizer's vocabulary"
                    + ("" if back == unknown else f" (it would become {back!r:.40})")
                )
        special = tuple(token in self._special for token in tokens)
        if all(special):
            raise InputError(f"only special tokens: {' '.join(tokens):.60}")
        labels = Tokens(strings=tokens, ids=tuple(ids), special=special, texts=tokens)
        return Encoded(ids, self._types(tokens), labels), cut

    def _types(self, tokens: tuple[str, ...]) -> dict[str, list[int]]:
        """Return token type ids if the tokenizer has them: 0 up to the first separator, then 1."""
        if "token_type_ids" not in self.tokenizer.model_input_names:
            return {}
        separator = self.tokenizer.sep_token or self.tokenizer.eos_token
        first = tokens.index(separator) if separator in tokens else len(tokens)
        return {"token_type_ids": [int(place > first) for place in range(len(tokens))]}


def length_limit(model: Any, tokenizer: Any, max_length: int | None) -> int | None:
    """Return the largest length of a sequence: `max_length`, or what the model accepts."""
    accepted = max_length_of(model.config, tokenizer)
    if max_length is None:
        return accepted
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if max_length < least:
        raise InputError(
            f"max_length is {max_length}, which leaves no room for text beside the special "
            f"tokens; it must be at least {least}"
        )
    if accepted is not None and max_length > accepted:
        raise InputError(
            f"max_length is {max_length}, but the model accepts at most {accepted} tokens"
        )
    return max_length


def batches(rows: Sequence[Row], batch_tokens: int) -> Iterator[list[Row]]:
    """Group rows of similar lengths into batches of at most `batch_tokens` padded tokens.

    The batches depend on the rows alone: longest first, and rows of one length in their order.
    """
    for indices in by_length([(len(row.ids),) for row in rows], batch_tokens):
        yield [rows[index] for index in indices]
