"""Metrics of scores against tokens that are known to decide: rank, precision, mass."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.faithfulness.conventions import Figure
from normscope.faithfulness.ranking import competition_rank, is_positions, precision_at
from normscope.faithfulness.result import RESAMPLES, MethodFigures
from normscope.results.arrays import abridged, is_int
from normscope.results.attribution import Attribution
from normscope.text.tokens import Tokens

OCCURRENCES = ("only", "first", "last", "all")
READ = ("text", "pair", "source", "image", "audio")  # sides that are ranked
PUNCTUATION = "".join(chr(c) for c in range(33, 127) if not chr(c).isalnum())


def evidence(
    results: Any,
    spans: Sequence[Any],
    *,
    texts: Sequence[str] | None = None,
    occurrence: str = "only",
    k: int | None = None,
    words: bool = False,
    absolute: bool = False,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> MethodFigures:
    """Measure how high scores rank the tokens that are known to decide.

        >>> r = evidence({"frozen": results}, ["keys", "author"])              # doctest: +SKIP
        >>> r.mean("frozen", "mrr")                                            # doctest: +SKIP

    Figures:

    - ``mrr``: 1/rank of the best-ranked token of the evidence, in competition ranking: one more
      than the number of tokens with a larger score, so that equal scores share the better rank.
    - ``precision``: the share of evidence among the k tokens with the largest scores.
    - ``mass``: Σ|score| of the evidence, divided by that of all ranked tokens.
    - ``positive_mass``: the same with the positive scores alone.

    Special tokens, continuations and targets are not ranked. Of several answers, scores are summed.

    Args:
        results: attributions, one for each text; or a mapping from names of methods to these.
        spans: the evidence of each text: a string (words of the text), a token's position, a pair
            (first, end) of characters of the text, or a list of any of these.
        texts: the texts, if there are ranges of characters.
        occurrence: which occurrence of a string counts: "first", "last", "all", or "only", which
            raises InputError if there are several.
        k: for precision; by default the number of tokens in the evidence.
        words: rank whole words, whose scores are the sums of their tokens; positions are then
            those of words.
        absolute: rank by the absolute value of the scores.
        resamples: bootstrap resamples of the texts for the intervals.
        confidence: the share of the resamples within an interval.
        seed: the seed of the resampling.
    """
    if occurrence not in OCCURRENCES:
        raise InputError(f"occurrence must be one of {', '.join(OCCURRENCES)}, not {occurrence!r}")
    if k is not None and (not is_int(k) or k < 1):
        raise InputError(f"k must be a whole number above 0, not {k!r}")
    by_method = _by_method(results)
    count = len(spans)
    for name, listed in by_method.items():
        if len(listed) != count or (texts is not None and len(texts) != count):
            raise InputError(
                f"there is evidence for {count} texts, and {name!r} has {len(listed)} results"
                + (f" for {len(texts)} texts" if texts is not None else "")
            )
    values = {}
    for name, listed in by_method.items():
        rows = []
        for at, (result, span) in enumerate(zip(listed, spans, strict=True)):
            merged = result.words() if words else result
            text = None if texts is None else texts[at]
            where = f"text {at}"
            chosen = positions_of(
                merged.tokens, span, text=text, occurrence=occurrence, where=where
            )
            rows.append(_figures(merged, chosen, k=k, absolute=absolute, where=where))
        values[name] = np.array(rows)
    settings = {
        "ranking": f"competition;scores={'absolute' if absolute else 'signed'};"
        f"specials=no;unit={'word' if words else 'token'}",
        "evidence": f"occurrence={occurrence};k={'number of evidence' if k is None else k}",
    }
    signatures = [each.signature for listed in by_method.values() for each in listed[:1]]
    precision = "precision" if k is None else f"precision@{k}"
    figures = [
        Figure("mrr", "mean reciprocal rank of the best-ranked evidence", True),
        Figure(precision, "share of evidence among the first tokens", True),
        Figure("mass", "share of the absolute scores that is on the evidence", True),
        Figure("positive_mass", "share of the positive scores that is on the evidence", True),
    ]
    return MethodFigures(
        figures,
        values,
        settings=settings,
        signature=signatures[0] if len(set(signatures)) == 1 else " || ".join(signatures),
        sampling=(resamples, confidence, seed),
    )


def _by_method(results: Any) -> dict[str, list[Attribution]]:
    """Return the attributions of each method."""
    if not isinstance(results, Mapping):
        listed = [results] if isinstance(results, Attribution) else list(results)
        names = dict.fromkeys(each.method for each in listed if isinstance(each, Attribution))
        results = {next(iter(names), "scores"): listed}
    by_method = {str(name): list(listed) for name, listed in results.items()}
    for listed in by_method.values():
        if not listed or not all(isinstance(each, Attribution) for each in listed):
            raise InputError("results are attributions, at least one, as `attribute` returns them")
    return by_method


def _figures(
    result: Attribution, chosen: Sequence[int], *, k: int | None, absolute: bool, where: str
) -> list[float]:
    scores = np.atleast_2d(result.scores.values).sum(axis=0)
    ranked = [
        at
        for at, (side, special) in enumerate(zip(result.sides, result.tokens.special, strict=True))
        if side in READ and not special
    ]
    number = {at: rank for rank, at in enumerate(ranked)}
    if out := [at for at in chosen if at not in number]:
        raise InputError(
            f"{where}: the evidence has token {out[0]}, {result.tokens.strings[out[0]]!r}, which "
            "is special or not of the text, and is not ranked"
        )
    own = np.abs(scores[ranked]) if absolute else scores[ranked]
    places = [number[at] for at in chosen]
    masses = (np.abs(scores[ranked]), np.maximum(scores[ranked], 0))
    return [
        1 / competition_rank(own, places),
        precision_at(own, places, k),
        *(_share(mass, places) for mass in masses),
    ]


def _share(mass: NDArray[np.float64], places: Sequence[int]) -> float:
    total = mass.sum()
    return float(mass[places].sum() / total) if total > 0 else float("nan")


# ---- from evidence to positions


def positions_of(
    tokens: Tokens, span: Any, *, text: str | None = None, occurrence: str = "only", where: str = ""
) -> list[int]:
    """Return the positions of tokens that evidence names.

    Args:
        tokens: the tokens of a text.
        span: a string, a position, a range of characters, or a list of any of these.
        text: the text, if there are ranges of characters.
        occurrence: which occurrence of a string counts.
        where: the name of the text, for errors.
    """
    entries = span if isinstance(span, list) else [span]
    chosen: set[int] = set()
    for entry in entries:
        if isinstance(entry, str):
            chosen |= _of_words(tokens, entry, occurrence, where)
        elif is_int(entry) and is_positions([int(entry)], len(tokens)):
            chosen.add(int(entry))
        elif isinstance(entry, tuple) and len(entry) == 2 and all(map(is_int, entry)):
            chosen |= _of_characters(tokens, entry, text, where)
        else:
            raise InputError(
                f"{where}: evidence is a string, a position below {len(tokens)} or a pair (first, "
                f"end) of characters, not {entry!r:.60}"
            )
    if not chosen:
        raise InputError(f"{where}: the evidence {span!r:.60} has no token")
    return sorted(chosen)


def _of_words(tokens: Tokens, string: str, occurrence: str, where: str) -> set[int]:
    if tokens.words is None or tokens.word_of is None:
        raise InputError(f"{where}: the words of these tokens are not known; give positions")
    wanted = [_plain(word) for word in string.split()]
    words = [_plain(word) for word in tokens.words]
    starts = [
        at
        for at in range(len(words) - len(wanted) + 1)
        if wanted and words[at : at + len(wanted)] == wanted
    ]
    if not starts:
        raise InputError(
            f"{where}: there is no word {string!r:.60} in: {abridged(tokens)}; give positions"
        )
    if len(starts) > 1 and occurrence == "only":
        raise InputError(
            f"{where}: {string!r:.60} occurs {len(starts)} times: give positions, or "
            'occurrence="first", "last" or "all"'
        )
    starts = {"first": starts[:1], "last": starts[-1:]}.get(occurrence, starts)
    chosen = {at + number for at in starts for number in range(len(wanted))}
    return {at for at, word in enumerate(tokens.word_of) if word in chosen}


def _plain(word: str) -> str:
    """Return a word in small letters without accents and punctuation around it."""
    letters = unicodedata.normalize("NFD", word.casefold())
    letters = "".join(char for char in letters if not unicodedata.combining(char))
    return letters.strip(PUNCTUATION) or letters


def _of_characters(tokens: Tokens, span: tuple[int, int], text: str | None, where: str) -> set[int]:
    if text is None:
        raise InputError(f"{where}: ranges of characters need texts=, the texts themselves")
    first, end = span
    if not 0 <= first < end <= len(text):
        raise InputError(
            f"{where}: {span} is no range of characters; valid: 0 <= first < end <= {len(text)}"
        )
    return {
        at for at, (a, b) in enumerate(characters_of(tokens, text, where)) if a < end and b > first
    }


def characters_of(tokens: Tokens, text: str, where: str = "") -> list[tuple[int, int]]:
    """Return the range of characters of each token in its text; (0, 0) for special tokens.

    Tokens are looked up one after the other, in small letters and without accents, as tokenizers
    may have changed them.
    """
    plain, origin = [], []
    for at, char in enumerate(text):
        for letter in unicodedata.normalize("NFD", char.casefold()):
            if not unicodedata.combining(letter):
                plain.append(letter)
                origin.append(at)
    letters = "".join(plain)
    origin.append(len(text))
    ranges, cursor = [], 0
    for string, special in zip(tokens.texts, tokens.special, strict=True):
        piece = unicodedata.normalize("NFD", string.strip().casefold())
        piece = "".join(char for char in piece if not unicodedata.combining(char))
        if special or not piece:
            ranges.append((0, 0))
            continue
        begins = letters.find(piece, cursor)
        if begins < 0 or letters[cursor:begins].strip():
            raise InputError(
                f"{where}: the token {string!r:.40} is not where the text has "
                f"{text[origin[cursor] :]!r:.40}; give positions of tokens"
            )
        cursor = begins + len(piece)
        ranges.append((origin[begins], origin[cursor - 1] + 1))
    assert all(a <= b for a, b in ranges)
    assert all(x[1] <= y[0] for x, y in pairwise(r for r in ranges if r[1]))
    return ranges
