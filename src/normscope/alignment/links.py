"""Links between words, and the line formats of files that hold them.

======= =========================================================================================
pharaoh ``0-0 1-2``: counted from 0
talp    ``1-1 2p3``: counted from 1; ``-`` a sure link, ``p`` a possible one (RWTH, Moses)
jsonl   ``{"links": [[0, 0, 0.91]], "possible": [[1, 2]]}``: counted from 0, scores optional
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
from normscope.foundation.texts import to_json

Link = tuple[int, int]
Format = Literal["pharaoh", "talp", "jsonl", "giza"]
FORMATS: tuple[Format, ...] = ("pharaoh", "talp", "jsonl", "giza")

MOST = 10**9  # words of a sentence; the patterns accept nine digits
_PHARAOH = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_TALP = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})")


@dataclass(frozen=True)
class Links:
    """The links of one sentence pair."""

    sure: frozenset[Link] = frozenset()
    possible: frozenset[Link] = frozenset()
    """All links, including the sure ones."""
    scores: Mapping[Link, float] = field(default_factory=dict, compare=False)
    """Scores of links, where they are known."""

    def __post_init__(self) -> None:
        if not self.sure <= self.possible:
            object.__setattr__(self, "possible", self.sure | self.possible)

    @classmethod
    def of(cls, links: Iterable[Link], possible: Iterable[Link] = ()) -> Links:
        """Make links from sure links and links that are only possible."""
        sure = frozenset(links)
        return cls(sure, sure.union(possible))

    def __iter__(self) -> Any:
        """Iterate over all links in order."""
        return iter(sorted(self.possible))

    def __len__(self) -> int:
        return len(self.possible)

    def flipped(self) -> Links:
        """Return the links with source and target exchanged."""
        return Links(
            frozenset((t, s) for s, t in self.sure),
            frozenset((t, s) for s, t in self.possible),
            {(t, s): score for (s, t), score in self.scores.items()},
        )


def parse(line: str, form: Format) -> Links:
    """Parse one line of a file. Errors do not name the file; the caller adds it."""
    if form == "pharaoh":
        return _parse_pharaoh(line)
    if form == "talp":
        return _parse_talp(line)
    return _parse_json(line)


def write(links: Links, form: Format, **more: Any) -> str:
    """Format one line of a file, without line feed; ``more`` are further fields for JSON."""
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
    return to_json(data)


def _score(score: float | None) -> list[float]:
    return [] if score is None else [float(score)]


def _parse_pharaoh(line: str) -> Links:
    links = set()
    for word in line.split():
        match = _PHARAOH.fullmatch(word)
        if match is None:
            hint = "; only talp files have possible links (1p2)" if _TALP.fullmatch(word) else ""
            raise InputError(f"{word!r:.60} is not a Pharaoh link such as 0-1{hint}")
        links.add((int(match[1]), int(match[2])))
    return Links.of(links)


def _parse_talp(line: str) -> Links:
    sure, possible = set(), set()
    for word in line.split():
        match = _TALP.fullmatch(word)
        if match is None:
            raise InputError(f"{word!r:.60} is not a talp link such as 1-2 or 1p2")
        link = int(match[1]) - 1, int(match[3]) - 1
        if min(link) < 0:
            raise InputError(
                f"{word!r} has an index 0, but talp files count from 1; if this file counts from "
                "0, read it as pharaoh"
            )
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def _parse_json(line: str) -> Links:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError(f"not a JSON object: {error}") from None
    except RecursionError:
        raise InputError("not a JSON object: it is nested too deeply") from None
    if not isinstance(data, dict) or "links" not in data:
        raise InputError('a line must be an object with "links": {"links": [[0, 1, 0.9]]}')
    scores: dict[Link, float] = {}
    sure = _json_links(data["links"], scores)
    possible = _json_links(data.get("possible", []), scores)
    return Links(sure, sure | possible, scores)


def _json_links(entries: Any, scores: dict[Link, float]) -> frozenset[Link]:
    """Check the links of a JSON object and add their scores to ``scores``."""
    if not isinstance(entries, list):
        raise InputError(
            "links must be a list of [source, target] or [source, target, score], not "
            f"{entries!r:.60}"
        )
    links = set()
    for entry in entries:
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            raise InputError(
                f"a link must be [source, target] or [source, target, score], not {entry!r:.60}"
            )
        if not all(type(index) is int and 0 <= index < MOST for index in entry[:2]):
            raise InputError(f"the indices of a link must be integers from 0, not {entry!r:.60}")
        link = entry[0], entry[1]
        links.add(link)
        if len(entry) == 3 and entry[2] is not None:
            scores[link] = _json_score(entry[2])
    return frozenset(links)


def _json_score(value: Any) -> float:
    try:
        score = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise InputError(f"the score of a link must be a finite number, not {value!r:.60}")
    return score
