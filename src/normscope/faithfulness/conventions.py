"""The metrics of faithfulness and the conventions that change their numbers.

A metric changes a text in steps, in the order of a method's scores, and compares the model's
outcomes. How tokens are replaced, in which steps, how counts are rounded and which tokens are
ranked is a :class:`Convention`; every number of a result carries it in its signature.

This module imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from numbers import Real
from typing import Any

from normscope.errors import InputError

MASK, PAD, DELETE, ZERO, ATTENTION = "mask", "pad", "delete", "zero", "attention"
AUTO = "auto"  # the mask token, or deletion where the tokenizer has none
REPLACEMENTS = (AUTO, MASK, PAD, DELETE, ZERO, ATTENTION)
ROUNDINGS = ("floor", "ceil", "at_least_one")
AVERAGES = ("mean", "with_zero", "each")
MOST, LEAST = "most", "least"
FIRST_TOKEN = ("ranked", "kept", "both")
PROBABILITY, LOGPROB = "probability", "logprob"
TIES = "earlier-token-first"
BLANK_OUT = "blank_out"


@dataclass(frozen=True)
class Convention:
    """How a metric changes texts and what it averages.

    Attributes:
        replacement: what becomes of a chosen token: "mask" (the tokenizer's mask token), "pad"
            (its padding token, attended to), "delete", "zero" (its word embedding set to zero) or
            "attention" (no query attends to it); "auto" is "mask" if there is a mask token, else
            "delete".
        bins: the steps, in percent of the ranked tokens.
        rounding: the number of tokens of a step: "floor", "ceil", or "at_least_one" (floor, but
            never 0).
        average: "mean" over the steps; "with_zero", their sum divided by their number plus one, as
            if unchanged text were a step; "each", one figure for each step.
        monotone: replace each outcome by the smallest so far (the largest, for sufficiency).
        orders: the most important tokens first, the least important first, or both.
        specials: whether special tokens are ranked and changed like others.
        first_token: whether the first token of the text is "ranked", "kept" in place, or "both",
            which gives two figures.
        absolute: rank by the absolute value of the scores.
    """

    replacement: str = AUTO
    bins: Sequence[int | float] | int | float = (10, 20, 30, 40, 50, 60, 70, 80, 90)
    rounding: str = "floor"
    average: str = "mean"
    monotone: bool = False
    orders: Sequence[str] | str = (MOST,)
    specials: bool = False
    first_token: str = "ranked"
    absolute: bool = False

    def checked(self) -> Convention:
        """Return the convention in a normal form; raise InputError for invalid values."""
        valid = {"replacement": REPLACEMENTS, "rounding": ROUNDINGS, "average": AVERAGES}
        for name, choices in {**valid, "first_token": FIRST_TOKEN}.items():
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        orders = (self.orders,) if isinstance(self.orders, str) else tuple(self.orders)
        if not orders or not set(orders) <= {MOST, LEAST} or len(set(orders)) != len(orders):
            raise InputError(f"orders must be of {MOST!r} and {LEAST!r}, not {self.orders!r}")
        bins = self.steps
        numbers = all(isinstance(b, Real) and not isinstance(b, bool) for b in bins)
        if not bins or not numbers or not all(0 < b <= 100 for b in bins):
            raise InputError(f"bins are percentages above 0 and up to 100, not {self.bins!r}")
        if list(bins) != sorted(set(bins)):
            raise InputError(f"bins must rise from step to step, but are {self.bins!r}")
        return replace(self, orders=orders, bins=bins)

    @property
    def steps(self) -> tuple[int | float, ...]:
        """The steps in percent."""
        return tuple(self.bins) if isinstance(self.bins, Sequence) else (self.bins,)

    def counts(self, n: int) -> list[int]:
        """Return how many of n ranked tokens each step changes."""
        shares = [n * Fraction(str(percent)) / 100 for percent in self.steps]
        if self.rounding == "ceil":
            return [math.ceil(share) for share in shares]
        least = min(n, 1) if self.rounding == "at_least_one" else 0
        return [max(least, math.floor(share)) for share in shares]

    def text(self, metric: str = "") -> str:
        """Return the convention in one line, as far as a metric depends on it."""
        bins = ",".join(f"{percent:g}" for percent in self.steps)
        steps = [
            f"bins={bins}%;rounding={self.rounding};average={self.average}",
            f"monotone={_yes(self.monotone)};orders={'+'.join(self.orders)};ties={TIES}",
        ]
        return ";".join(
            [
                f"replacement={self.replacement}",
                *(["ties=average-rank"] if metric == BLANK_OUT else steps),
                f"specials={_yes(self.specials)};first-token={self.first_token}",
                f"scores={'absolute' if self.absolute else 'signed'}",
            ]
        )


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


@dataclass(frozen=True)
class Metric:
    """What a metric is: its convention unless told otherwise, and how it reads the outcomes.

    Attributes:
        title: what the metric is, in words.
        convention: its usual convention.
        outcome: "probability" or "logprob" of the answer.
        keeps: whether chosen tokens are kept and the others changed.
    """

    title: str
    convention: Convention
    outcome: str = PROBABILITY
    keeps: bool = False


DECOMPX: dict[str, Any] = {
    "replacement": AUTO,
    "bins": tuple(range(10, 100, 10)),
    "rounding": "floor",
}
ALTI: dict[str, Any] = {"replacement": DELETE, "bins": (1, 5, 10, 20, 50), "rounding": "ceil"}
JACOBIAN: dict[str, Any] = {
    "replacement": ZERO, "bins": (5, 10, 20), "rounding": "at_least_one", "average": "each",
    "specials": True, "first_token": "both",
}  # fmt: skip

# Conventions of papers, by the fields that they set; a preset applies to every metric.
PRESETS: dict[str, dict[str, Any]] = {
    "decompx": {**DECOMPX, "replacement": MASK},
    "alti": ALTI,
    "alti-released": {**ALTI, "monotone": True, "average": "with_zero"},
    "jacobian": JACOBIAN,
}

METRICS = {
    "aopc": Metric(
        "mean loss of probability, tokens replaced",
        Convention(**DECOMPX, orders=(MOST, LEAST)),
    ),
    "comprehensiveness": Metric(
        "loss of probability without the most important tokens", Convention(**ALTI)
    ),
    "sufficiency": Metric(
        "loss of probability with nothing but the most important tokens",
        Convention(**ALTI),
        keeps=True,
    ),
    "blank_out": Metric(
        "rank correlation with the loss when a token is replaced alone", Convention()
    ),
    "logprob_drop": Metric(
        "loss of log-probability, tokens removed", Convention(**JACOBIAN), outcome=LOGPROB
    ),
}
DEFAULT_METRICS = tuple(METRICS)


@dataclass(frozen=True)
class Figure:
    """One column of a result.

    Attributes:
        name: such as "aopc", "aopc_least" or "logprob_drop@5%".
        title: what it is, in words.
        higher_is_better: whether a faithful method has a large value.
    """

    name: str
    title: str
    higher_is_better: bool


@dataclass(frozen=True)
class Curve:
    """The outcomes that belong together: a metric, in one order, with or without a first token."""

    metric: str
    order: str
    keep_first: bool

    @property
    def name(self) -> str:
        """The name of its figure."""
        least = "_least" if self.order == LEAST else ""
        return f"{self.metric}{least}{'_without_first' if self.keep_first else ''}"


def curves_of(metric: str, convention: Convention) -> list[Curve]:
    """Return the curves of a metric: one for each order, with and without the first token."""
    firsts = {"ranked": [False], "kept": [True], "both": [False, True]}[convention.first_token]
    orders = (MOST,) if metric == BLANK_OUT else convention.orders
    return [Curve(metric, order, first) for order in orders for first in firsts]


def figures_of(conventions: Mapping[str, Convention]) -> tuple[Figure, ...]:
    """Return the figures of some metrics, in the order of a result's columns."""
    figures = []
    for metric, convention in conventions.items():
        for curve in curves_of(metric, convention):
            title = METRICS[metric].title
            title += ", least important first" if curve.order == LEAST else ""
            title += ", the first token kept" if curve.keep_first else ""
            higher = (curve.order == MOST) != METRICS[metric].keeps
            if convention.average == "each" and metric != BLANK_OUT:
                for percent in convention.steps:
                    name, words = f"{curve.name}@{percent:g}%", f"{title}, {percent:g}%"
                    figures.append(Figure(name, words, higher))
            else:
                figures.append(Figure(curve.name, title, higher))
    return tuple(figures)


def conventions_for(
    metrics: Sequence[str] | str, given: Any = None, replacement: str | None = None
) -> dict[str, Convention]:
    """Return the convention of each metric.

    Args:
        metrics: names of metrics.
        given: the name of a preset, a :class:`Convention`, fields to change in that of every
            metric, or a mapping from metrics to any of these. None: each metric's usual one.
        replacement: what becomes of chosen tokens, whatever else is given.
    """
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    unknown = [name for name in names if name not in METRICS]
    if unknown or not names:
        wrong = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"unknown metric: {wrong}; valid: {', '.join(METRICS)}")
    by_metric = dict.fromkeys(names, given)
    if isinstance(given, Mapping) and set(given) & set(METRICS):
        if lacking := [name for name in given if name not in names]:
            raise InputError(
                f"conventions has {lacking[0]!r}, which is not among the metrics: "
                f"{', '.join(names)}"
            )
        by_metric = {name: given.get(name) for name in names}
    chosen = {}
    for name in dict.fromkeys(names):
        convention = _with(METRICS[name].convention, by_metric[name])
        if replacement is not None:
            convention = replace(convention, replacement=replacement)
        chosen[name] = convention.checked()
    return chosen


def _with(usual: Convention, given: Any) -> Convention:
    """Return a convention with what is given in place of what is usual."""
    if given is None:
        return usual
    if isinstance(given, Convention):
        return given
    if isinstance(given, str):
        if given not in PRESETS:
            raise InputError(f"there is no preset {given!r}; valid: {', '.join(PRESETS)}")
        return replace(usual, **PRESETS[given])
    names = [item.name for item in fields(Convention)]
    if not isinstance(given, Mapping):
        raise InputError(
            "conventions are the name of a preset, a Convention or a mapping of its fields, not "
            f"{type(given).__name__}"
        )
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(names)}"
            raise InputError(f"a convention has no field {name!r}{hint}")
    for name in ("monotone", "specials", "absolute"):
        if not isinstance(given.get(name, False), bool):
            raise InputError(f"{name} must be True or False, not {given[name]!r}")
    return replace(usual, **given)
