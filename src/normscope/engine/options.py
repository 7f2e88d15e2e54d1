"""The options of an analysis, declared once for Python and the command line.

This module imports neither torch nor transformers, so that the command line's help is fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normscope.decomposition.reductions import check_reductions
from normscope.decomposition.scopes import (
    NAMES,
    NORMS,
    PER_HEAD,
    SCOPES,
    WEIGHTS,
    behind_feed_forward,
)
from normscope.errors import InputError

OTHER = "other"  # tokens of no category
CHOICES = {
    "heads": ("sum", "each"),
    "ff_bias": ("path", "fixed"),
    "attention": ("auto", "eager", "fused"),
    "kernels": ("auto", "torch", "triton"),
    "precision": ("model", "float64"),
}


@dataclass(frozen=True)
class AnalysisOptions:
    """What to compute and how; the keyword arguments of `analyze` of the same names."""

    maps: Sequence[str] = field(
        default=(WEIGHTS, NORMS),
        metadata={
            "metavar": "MAP[,MAP]",
            "help": "Maps to compute; a part of the model that lacks a map is left out. "
            + "; ".join(f"{s.name}: {s.label}" for s in SCOPES.values())
            + f". Default: {WEIGHTS},{NORMS}.",
        },
    )
    heads: str = field(
        default="sum",
        metadata={
            "metavar": "sum|each",
            "help": "sum: one map per layer (the mean of the weights, the norm of the summed "
            "vectors). each: one map per head. Default: sum.",
        },
    )
    ff_bias: str = field(
        default="path",
        metadata={
            "metavar": "path|fixed",
            "help": "Whether the feed-forward's bias gets a share of the activation (path) or "
            "keeps g(b) (fixed).",
        },
    )
    memory: str | int = field(
        default="2GB",
        metadata={"metavar": "SIZE", "help": "Memory for the largest arrays of feed-forward maps."},
    )
    attention: Any = field(  # one of CHOICES
        default="auto",
        metadata={
            "metavar": "auto|eager|fused",
            "help": "eager: the model's own eager attention. fused: its sdpa attention, with "
            "weights computed block by block. auto: fused for long texts and on a GPU.",
        },
    )
    kernels: str = "auto"
    reduce: Sequence[str] = field(
        default=(),
        metadata={
            "metavar": "NAME[,NAME]",
            "help": "Keep summaries instead of maps: mixing_ratio, row_sum, argmax, top16 (or "
            "any number), category. Written as JSON.",
        },
    )
    categories: Mapping[str, Sequence[str]] | None = None
    precision: str = field(
        default="model",
        metadata={
            "metavar": "model|float64",
            "help": "model: lengths in the model's precision, at least float32, accurate relative "
            "to the parts that are summed. float64: accurate relative to themselves, slower.",
        },
    )

    def checked(self) -> AnalysisOptions:
        """Return the options in a normal form; raise InputError for invalid values."""
        maps = (self.maps,) if isinstance(self.maps, str) else tuple(dict.fromkeys(self.maps))
        unknown = [name for name in maps if name not in NAMES]
        if unknown or not maps:
            listing = ", ".join(repr(name) for name in unknown) or "none"
            raise InputError(f"unknown map: {listing}; the maps are: {', '.join(NAMES)}")
        for name, valid in CHOICES.items():
            if (value := getattr(self, name)) not in valid:
                raise InputError(f"{name} must be one of {', '.join(valid)}, not {value!r}")
        rest = [name for name in maps if name not in PER_HEAD]
        if self.heads == "each" and rest:
            raise InputError(
                "a residual, a norm or a feed-forward belongs to no single head: "
                f'{", ".join(rest)} exist for heads="sum" only; with heads="each" there is: '
                f"{', '.join(PER_HEAD)}"
            )
        reduce = check_reductions(self.reduce) if self.reduce else ()
        if reduce and self.heads == "each":
            raise InputError("reduce works on maps of summed heads, not on those of single heads")
        if reduce and (signed := [name for name in maps if SCOPES[name].signed]):
            raise InputError(
                f"cells of {', '.join(signed)} may be negative, so sums and ranks over keys mean "
                "little: leave out reduce, or this map"
            )
        return replace(
            self,
            maps=maps,
            memory=_bytes(self.memory),
            reduce=reduce,
            categories=_checked_categories(self.categories, reduce),
        )

    def describe(self) -> dict[str, str]:
        """Return the settings that belong in a signature."""
        described = {"maps": ",".join(self.maps), "heads": self.heads}
        if behind_feed_forward(self.maps):
            described["ff_bias"] = self.ff_bias
        if self.reduce:
            described["reduce"] = ",".join(self.reduce)
        if self.precision != "model":
            described["precision"] = self.precision
        return described


def _checked_categories(categories: Any, reduce: Sequence[str]) -> dict[str, Sequence[str]]:
    if ("category" in reduce) != bool(categories):
        raise InputError(
            'categories={"name": ["token", …]} and reduce=("category",) go together: give both'
        )
    if categories is not None and not isinstance(categories, Mapping):
        raise InputError(f"categories must be {{name: [tokens]}}, not {categories!r}")
    if any(isinstance(tokens, str) for tokens in (categories or {}).values()):
        raise InputError("each category is a list of tokens, not a string")
    if OTHER in (categories or {}):
        raise InputError(f"{OTHER!r} is the name for tokens of no category; choose another name")
    return dict(categories or {})


def _bytes(memory: str | int) -> int:
    """Return a size in bytes: 2**31 for "2GB"."""
    units = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B?)\s*", str(memory), re.IGNORECASE)
    try:
        size = float(match[1]) * units.get(match[2].upper(), 0) if match else 0
    except ValueError:  # "1.2.3GB"
        size = 0
    if size < 1:
        raise InputError(f'memory must be a size such as "2GB" or "500MB", not {memory!r}')
    return int(size)
