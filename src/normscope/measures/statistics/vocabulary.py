"""A tokenizer's tokens, their categories and their frequency ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.shapes import Int
from normscope.measures.statistics.settings import Category, StatisticSettings

OTHERS = "others"
COMMA_PERIOD = "comma_period"
RESERVED = (OTHERS, "all", "normal")
_MARKS = "▁Ġ#"  # what tokenizers put before or around a piece of text


class Vocabulary:
    """The tokens of a tokenizer, with the categories of the settings.

    Ids beyond the vocabulary belong to the category `others` and have no rank.

    Attributes:
        tokens: The tokens by id.
        names: The names of the categories; the last is `others`.
        custom: Whether the categories are the user's.
        framing: The ids that begin and end a text, such as [CLS] and [SEP].
        special: The ids of all special tokens.
        mask_id: The id of the mask token, or None.
        mask_token: The mask token.
        pad_id: The id that pads a batch.
    """

    def __init__(self, tokenizer: Any, settings: StatisticSettings) -> None:
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise InputError(
                "statistics need the model's tokenizer, but tokenizer is of type "
                f"{type(tokenizer).__name__}"
            )
        size = max([len(tokenizer) - 1, *tokenizer.get_vocab().values()]) + 1
        tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
        self.tokens: list[str] = ["" if token is None else str(token) for token in tokens]
        self.mask_id: int | None = tokenizer.mask_token_id
        self.mask_token: str = str(tokenizer.mask_token)
        self.pad_id: int = 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.special = set(tokenizer.all_special_ids)
        first = tokenizer.cls_token_id, tokenizer.bos_token_id
        last = tokenizer.sep_token_id, tokenizer.eos_token_id
        ends = [next((i for i in pair if i is not None), None) for pair in (first, last)]
        self.framing = list(dict.fromkeys(i for i in ends if i is not None))
        self._commas = [i for i, t in enumerate(self.tokens) if t.strip(_MARKS) == ","]
        self._periods = [i for i, t in enumerate(self.tokens) if t.strip(_MARKS) == "."]
        self.custom = settings.categories is not None
        ids = self._default() if settings.categories is None else self._own(settings.categories)
        self.names = (*ids, OTHERS)
        self._category_of_id = self._table(list(ids.values()))

    def categories_of(self, ids: NDArray[np.int64]) -> Int[np.ndarray, "*shape"]:
        """Return the category of each id, as an index into ``names``."""
        return self._category_of_id[np.minimum(ids, len(self.tokens))]

    def strings(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the tokens of these ids."""
        known = len(self.tokens)
        return [self.tokens[i] if i < known else f"id {i}" for i in ids.tolist()]

    def framing_names(self) -> tuple[str, ...]:
        """Return the tokens that begin and end a text, such as [CLS] and [SEP]."""
        return tuple(self.tokens[i] for i in self.framing)

    # ---- categories

    def _default(self) -> dict[str, list[int]]:
        marks = {COMMA_PERIOD: [*self._commas, *self._periods]}
        return {self.tokens[i]: [i] for i in self.framing} | marks

    def _own(self, categories: Mapping[str, Category]) -> dict[str, list[int]]:
        if not categories:
            raise InputError(
                'categories is empty; give at least one, as in {"stop": ["the", "a"]}, or leave '
                "it out for the default categories"
            )
        for name in (*RESERVED, self.mask_token):
            if name in categories:
                raise InputError(
                    f"a category may not be called {name!r}: a category of the tables has that "
                    "name; choose another one"
                )
        return {name: self._ids(name, category) for name, category in categories.items()}

    def _ids(self, name: str, category: Category) -> list[int]:
        """Return the ids of the tokens that belong to a category."""
        if isinstance(category, str | re.Pattern):
            try:
                matches = re.compile(category).fullmatch
            except re.error as problem:
                raise InputError(
                    f"category {name!r}: {category!r} is not a regular expression ({problem}); "
                    'write a list of tokens as ["a", "b"]'
                ) from problem
            return self._where(name, lambda token: matches(token) is not None)
        if callable(category):
            return self._where(name, category)
        if not isinstance(category, Sequence):
            raise InputError(
                f"category {name!r} must be a list of tokens or ids, a regular expression or a "
                f"function of a token, but is of type {type(category).__name__}"
            )
        known = {token: i for i, token in enumerate(self.tokens)}
        ids: list[int] = []
        for member in category:
            if isinstance(member, str) and member in known:
                ids.append(known[member])
            elif not isinstance(member, str) and 0 <= int(member) < len(self.tokens):
                ids.append(int(member))
            else:
                raise InputError(
                    f"category {name!r}: {member!r} is not in the tokenizer's vocabulary of "
                    f"{len(self.tokens)} tokens; give tokens as the tokenizer writes them"
                )
        return ids

    def _where(self, name: str, belongs: Callable[[str], bool]) -> list[int]:
        ids = [i for i, token in enumerate(self.tokens) if belongs(token)]
        if not ids:
            raise InputError(
                f"category {name!r}: no token of the tokenizer's vocabulary belongs to it; a "
                "regular expression must match a whole token, as the tokenizer writes it"
            )
        return ids

    def _table(self, ids: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Return the category of each id; the last entry is for ids beyond the vocabulary."""
        table = np.full(len(self.tokens) + 1, len(ids))
        # Backwards, since a token belongs to the first category that names it.
        for category, members in reversed(list(enumerate(ids))):
            table[list(members)] = category
        return table

    # ---- ranks

    def ranks(self, source: str) -> Int[np.ndarray, " id"]:
        """Return the frequency rank of each id, from 1; ids with rank 0 are left out.

        Args:
            source: "ids", or the path of a file with lines `rank count token_id`.
        """
        return self._ranks_by_id() if source == "ids" else self._ranks_from_file(Path(source))

    def _ranks_by_id(self) -> NDArray[np.int64]:
        """Rank tokens by their ids: vocabularies list the most frequent tokens first.

        Special tokens and single characters are left out, because their ids do not follow their
        frequency. Comma, period and the tokens that end and begin a text come first.
        """
        first = [*self._commas[:1], *self._periods[:1], *reversed(self.framing)]
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
                f"the file of ranks {path} cannot be read: {problem}; ranks must be "
                '"ids", "corpus", or a file of lines `rank count token_id`'
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
                    f"{path}, line {number}: rank {rank} of token {token} is not valid; ranks "
                    f"count from 1, and token ids go from 0 to {len(self.tokens) - 1}"
                )
            ranks[token] = rank
        if not ranks.any():
            raise InputError(
                f"{path} has no ranks; write one line `rank count token_id` for each token"
            )
        return ranks
