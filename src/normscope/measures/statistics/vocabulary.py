"""What a tokenizer's tokens are to a statistic: their categories and their frequency ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.shapes import Int
from normscope.measures.statistics.base import Category, Settings

OTHERS = "others"
COMMA_PERIOD = "comma_period"
RESERVED = (OTHERS, "all", "normal")
_MARKS = "▁Ġ#"  # what tokenizers put before or around a piece of text


class Vocabulary:
    """A tokenizer's tokens, seen once; ids beyond it count as others and have no rank."""

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise InputError(
                f"statistics need the model's tokenizer, but were given {type(tokenizer).__name__}"
            )
        size = max([len(tokenizer) - 1, *tokenizer.get_vocab().values()]) + 1
        found = tokenizer.convert_ids_to_tokens(list(range(size)))
        self.tokens: list[str] = ["" if token is None else str(token) for token in found]
        self.mask_id: int | None = tokenizer.mask_token_id
        self.mask_token: str = str(tokenizer.mask_token)
        self.pad_id: int = 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.special = set(tokenizer.all_special_ids)
        first = tokenizer.cls_token_id, tokenizer.bos_token_id
        last = tokenizer.sep_token_id, tokenizer.eos_token_id
        ends = [next((i for i in pair if i is not None), None) for pair in (first, last)]
        self.framing = list(dict.fromkeys(i for i in ends if i is not None))
        self.commas = [i for i, t in enumerate(self.tokens) if t.strip(_MARKS) == ","]
        self.periods = [i for i, t in enumerate(self.tokens) if t.strip(_MARKS) == "."]
        self.given = settings.categories is not None
        ids = self._default() if settings.categories is None else self._own(settings.categories)
        self.names = (*ids, OTHERS)
        self.categories = self._table(list(ids.values()))

    def categories_of(self, ids: NDArray[np.int64]) -> Int[np.ndarray, "*shape"]:
        """The category of each id, by its number in ``names``."""
        return self.categories[np.minimum(ids, len(self.tokens))]

    def strings(self, ids: NDArray[np.int64]) -> list[str]:
        """Tokens by id."""
        known = len(self.tokens)
        return [self.tokens[i] if i < known else f"id {i}" for i in ids.tolist()]

    def framing_names(self) -> tuple[str, ...]:
        """The tokens that begin and end a text, such as [CLS] and [SEP]."""
        return tuple(self.tokens[i] for i in self.framing)

    # ---- categories

    def _default(self) -> dict[str, list[int]]:
        marks = {COMMA_PERIOD: [*self.commas, *self.periods]}
        return {self.tokens[i]: [i] for i in self.framing} | marks

    def _own(self, categories: Mapping[str, Category]) -> dict[str, list[int]]:
        reserved = [name for name in (*RESERVED, self.mask_token) if name in categories]
        if reserved or not categories:
            raise InputError(
                f"a category may not be called {reserved[0]!r}" if reserved else
                'categories are {"name": …}, one at least; leave them out for the usual ones'
            )  # fmt: skip
        return {name: self._ids(name, what) for name, what in categories.items()}

    def _ids(self, name: str, what: Category) -> list[int]:
        """The ids that a category means."""
        if isinstance(what, str | re.Pattern):
            try:
                matches = re.compile(what).fullmatch
            except re.error as problem:
                raise InputError(
                    f"category {name!r}: {what!r} is no regular expression ({problem}); a list of "
                    'tokens is written ["a", "b"]'
                ) from problem
            return self._where(name, lambda token: matches(token) is not None)
        if callable(what):
            return self._where(name, what)
        if not isinstance(what, Sequence):
            raise InputError(
                f"category {name!r} is tokens, ids, a regular expression or a function of a token, "
                f"but was given {type(what).__name__}"
            )
        known = {token: i for i, token in enumerate(self.tokens)}
        ids: list[int] = []
        for one in what:
            if isinstance(one, str) and one in known:
                ids.append(known[one])
            elif not isinstance(one, str) and 0 <= int(one) < len(self.tokens):
                ids.append(int(one))
            else:
                raise InputError(
                    f"category {name!r}: {one!r} is not in the tokenizer's vocabulary of "
                    f"{len(self.tokens)} tokens; give tokens as the tokenizer writes them"
                )
        return ids

    def _where(self, name: str, belongs: Callable[[str], bool]) -> list[int]:
        found = [i for i, token in enumerate(self.tokens) if belongs(token)]
        if not found:
            raise InputError(
                f"category {name!r}: no token of the tokenizer's vocabulary belongs to it; an "
                "expression has to match a whole token, as the tokenizer writes it"
            )
        return found

    def _table(self, ids: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        table = np.full(len(self.tokens) + 1, len(ids))
        for number, members in reversed(list(enumerate(ids))):  # the first that names it has it
            table[list(members)] = number
        return table

    # ---- ranks

    def ranks(self, source: str) -> Int[np.ndarray, " id"]:
        """The frequency rank of each id, from 1; 0: it has none, and is left out."""
        return self._ranks_by_id() if source == "ids" else self._ranks_from_file(Path(source))

    def _ranks_by_id(self) -> NDArray[np.int64]:
        """Ids in their order, as vocabularies are written most frequent first.

        Special tokens and single characters are left out, whose ids say nothing; comma, period,
        and the tokens that end and begin a text come first.
        """
        first = [*self.commas[:1], *self.periods[:1], *reversed(self.framing)]
        rest = [
            i
            for i, token in enumerate(self.tokens)
            if i not in self.special and len(token.strip(_MARKS)) > 1
        ]
        ranks = np.zeros(len(self.tokens) + 1, dtype=np.int64)
        order = list(dict.fromkeys([*first, *rest]))
        ranks[order] = np.arange(1, len(order) + 1)
        return ranks

    def _ranks_from_file(self, path: Path) -> NDArray[np.int64]:
        ranks = np.zeros(len(self.tokens) + 1, dtype=np.int64)
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise InputError(
                'ranks is "ids", "corpus", or a file of `rank count token_id` lines; '
                f"{path} cannot be read: {problem}"
            ) from problem
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rank, _, token = (int(part) for part in line.split())
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: {line!r:.60} is not `rank count token_id`"
                ) from None
            if rank < 1 or not 0 <= token < len(self.tokens):
                raise InputError(
                    f"{path}, line {number}: rank {rank} of token {token}; ranks count from 1, and "
                    f"the tokenizer has the ids 0 to {len(self.tokens) - 1}"
                )
            ranks[token] = rank
        if not ranks.any():
            raise InputError(f"{path} has no ranks: one `rank count token_id` line for each token")
        return ranks
