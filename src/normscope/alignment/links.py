"""Links between words, and one line of each file format that holds them.

======= =========================================================================================
pharaoh ``0-0 1-2``: counted from 0
talp    ``1-1 2p3``: counted from 1; ``-`` a sure link, ``p`` a possible one (RWTH, Moses)
jsonl   ``{"links": [[0, 0, 0.91]], "possible": [[1, 2]]}``: counted from 0, scores if known
======= =========================================================================================
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.errors import InputError

Link = tuple[int, int]
Format = Literal["pharaoh", "talp", "jsonl", "giza"]
FORMATS: tuple[Format, ...] = ("pharaoh", "talp", "jsonl", "giza")

MOST = 10**9  # words that a sentence may have; nine digits are always read fast
_PHARAOH = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_TALP = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})")


@dataclass(frozen=True)
class Links:
    """The links of one sentence pair."""

    sure: frozenset[Link] = frozenset()
    possible: frozenset[Link] = frozenset()
    """All links, the sure ones among them: every sure link is possible."""
    scores: Mapping[Link, float] = field(default_factory=dict, compare=False)
    """How strong a link is, where that is known."""

    def __post_init__(self) -> None:
        if not self.sure <= self.possible:
            object.__setattr__(self, "possible", self.sure | self.possible)

    @classmethod
    def of(cls, links: Iterable[Link], possible: Iterable[Link] = ()) -> Links:
        """Sure links, and others that are only possible."""
        sure = frozenset(links)
        return cls(sure, sure.union(possible))

    def __iter__(self) -> Any:
        """All links in order."""
        return iter(sorted(self.possible))

    def __len__(self) -> int:
        return len(self.possible)

    def flipped(self) -> Links:
        """The same links seen from the other side."""
        return Links(
            frozenset((t, s) for s, t in self.sure),
            frozenset((t, s) for s, t in self.possible),
            {(t, s): score for (s, t), score in self.scores.items()},
        )


def parse(line: str, form: Format) -> Links:
    """One line of a file; what is wrong with it is told without the place."""
    if form == "pharaoh":
        return _parse_pharaoh(line)
    if form == "talp":
        return _parse_talp(line)
    return _parse_json(line)


def write(links: Links, form: Format, **more: Any) -> str:
    """One line of a file, without its end; ``more`` are further fields of a JSON object."""
    if form == "pharaoh":
        return " ".join(f"{s}-{t}" for s, t in links)
    if form == "talp":
        sure = links.sure
        return " ".join(f"{s + 1}{'-' if (s, t) in sure else 'p'}{t + 1}" for s, t in links)
    scores = links.scores
    sure_links = [[s, t, *_score(scores.get((s, t)))] for s, t in sorted(links.sure)]
    only = sorted(links.possible - links.sure)
    data: dict[str, Any] = {**more, "links": sure_links}
    if only:
        data["possible"] = [[s, t, *_score(scores.get((s, t)))] for s, t in only]
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _score(score: float | None) -> list[float]:
    return [] if score is None else [float(score)]


def _parse_pharaoh(line: str) -> Links:
    found = set()
    for word in line.split():
        match = _PHARAOH.fullmatch(word)
        if match is None:
            hint = "; only talp has possible links (1p2)" if _TALP.fullmatch(word) else ""
            raise InputError(f"{word!r:.60} is no link of a Pharaoh file, as in 0-1{hint}")
        found.add((int(match[1]), int(match[2])))
    both = frozenset(found)
    return Links(both, both)


def _parse_talp(line: str) -> Links:
    sure, possible = set(), set()
    for word in line.split():
        match = _TALP.fullmatch(word)
        if match is None:
            raise InputError(f"{word!r:.60} is no link of a talp file, as in 1-2 or 1p2")
        link = int(match[1]) - 1, int(match[3]) - 1
        if min(link) < 0:
            raise InputError(
                f"{word!r} has an index 0, and talp files count from 1; if this file counts from "
                "0, it is a Pharaoh file"
            )
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def _parse_json(line: str) -> Links:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError(f"no JSON object: {error}") from None
    except RecursionError:
        raise InputError("no JSON object: it is nested too deep") from None
    if not isinstance(data, dict) or "links" not in data:
        raise InputError('a line is an object with "links", as in {"links": [[0, 1, 0.9]]}')
    scores: dict[Link, float] = {}
    sure = _json_links(data["links"], scores)
    possible = _json_links(data.get("possible", []), scores)
    return Links(sure, sure | possible, scores)


def _json_links(given: Any, scores: dict[Link, float]) -> frozenset[Link]:
    if not isinstance(given, list):
        raise InputError(
            f"links are a list of [source, target] or [source, target, score]: {given!r:.60}"
        )
    found = set()
    for one in given:
        if not isinstance(one, list) or len(one) not in (2, 3):
            raise InputError(
                f"a link is [source, target] or [source, target, score], not {one!r:.60}"
            )
        if not all(type(index) is int and 0 <= index < MOST for index in one[:2]):
            raise InputError(f"a link's indices are whole numbers from 0, not {one!r:.60}")
        link = one[0], one[1]
        found.add(link)
        if len(one) == 3 and one[2] is not None:
            scores[link] = _json_score(one[2])
    return frozenset(found)


def _json_score(given: Any) -> float:
    try:
        score = float(given) if type(given) in (int, float) else math.nan
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise InputError(f"a link's score is a number, not {given!r:.60}")
    return score
