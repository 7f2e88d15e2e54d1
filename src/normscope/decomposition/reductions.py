"""The reductions of a map that can be kept instead of it, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from normscope.errors import InputError

REDUCTIONS = ("mixing_ratio", "row_sum", "argmax", "top16", "category")


def check_reductions(names: Any) -> tuple[str, ...]:
    """Return the reductions asked for, each once; raise InputError for unknown ones."""
    listed = isinstance(names, Iterable) and not isinstance(names, str)
    chosen = tuple(dict.fromkeys(names)) if listed else (names,)
    unknown = [n for n in chosen if n not in REDUCTIONS and not _is_top(n)]
    if unknown or not chosen:
        listing = ", ".join(map(repr, unknown)) or "none"
        raise InputError(
            f"unknown reduction: {listing}; the reductions are: {', '.join(REDUCTIONS)}, with any "
            "number after top"
        )
    return chosen


def _is_top(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"top[1-9]\d*", name) is not None


def largest(names: Sequence[str]) -> int:
    """Return how many contributors of each query some reductions need."""
    tops = [int(name[3:]) for name in names if name.startswith("top")]
    return max([*tops, 1 if "argmax" in names else 0])
