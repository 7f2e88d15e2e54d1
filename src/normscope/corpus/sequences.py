"""From a row of a corpus to a sequence for the model, and from sequences to batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from normscope.corpus.records import Problem, Record
from normscope.errors import InputError
from normscope.measures.statistics import Row
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import Encoded, Tokens, encode


class Encoder:
    """A tokenizer with a limit, for one model."""

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.limit = length_limit(model, tokenizer, max_length)
        check_fits(tokenizer, model)
        roles = tokenizer.special_tokens_map
        standing = {roles.get("unk_token"), roles.get("mask_token")}
        frame = {one for role, one in roles.items() if role not in ("unk_token", "mask_token")}
        self._special = set(tokenizer.all_special_tokens) - (standing - frame)

    def encode(self, record: Record) -> tuple[Row, bool] | Problem:
        """The sequence, and whether it had to be cut; or why there is none."""
        try:
            if record.content.tokens is not None:
                encoded, cut = self._ready(record.content.tokens)
            else:
                encoded, cut = self._text(record.content.text, record.content.pair)
            check_fits(self.tokenizer, self.model, encoded)
        except InputError as problem:
            return Problem(record.where, "tokens", str(problem))
        types = encoded.extra.get("token_type_ids")
        kinds = None if types is None else tuple(types)
        return Row(record.key, tuple(encoded.ids), kinds, encoded.tokens.special), cut

    def _text(self, text: str, pair: str | None) -> tuple[Encoded, bool]:
        whole = encode(self.tokenizer, text, pair, max_length=None, truncate=False)
        if self.limit is None or len(whole) <= self.limit:
            return whole, False
        return encode(self.tokenizer, text, pair, max_length=self.limit, truncate=True), True

    def _ready(self, tokens: tuple[str, ...]) -> tuple[Encoded, bool]:
        """Tokens that are ready, special ones included; too many lose those before the last."""
        cut = self.limit is not None and len(tokens) > self.limit
        if cut and self.limit is not None:
            tail = tokens[-1:] if tokens[-1] in self._special else ()
            tokens = (*tokens[: self.limit - len(tail)], *tail)
        ids = [int(one) for one in self.tokenizer.convert_tokens_to_ids(list(tokens))]
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
        """0 up to the first separator, 1 after it, for tokenizers that tell two texts apart."""
        if "token_type_ids" not in self.tokenizer.model_input_names:
            return {}
        separator = self.tokenizer.sep_token or self.tokenizer.eos_token
        first = tokens.index(separator) if separator in tokens else len(tokens)
        return {"token_type_ids": [int(at > first) for at in range(len(tokens))]}


def length_limit(model: Any, tokenizer: Any, max_length: int | None) -> int | None:
    """The most tokens of a sequence: what the model takes, or fewer if that is asked for."""
    takes = max_length_of(model.config, tokenizer)
    if max_length is None:
        return takes
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if max_length < least:
        raise InputError(
            f"a max_length of {max_length} tokens leaves no room for text beside the special "
            f"tokens; it must be at least {least}"
        )
    if takes is not None and max_length > takes:
        raise InputError(f"max_length is {max_length}, and the model takes at most {takes} tokens")
    return max_length


def batches(rows: Sequence[Row], batch_tokens: int) -> Iterator[list[Row]]:
    """Rows of like lengths, longest first, so many padded tokens at a time; always the same."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: (-len(row.ids), row.key)):
        if batch and (len(batch) + 1) * len(batch[0].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
