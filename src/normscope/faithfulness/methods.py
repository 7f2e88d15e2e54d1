"""Scores of tokens by method: any method of `attribute`, a function, or a random order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.attribution.api import attribute
from normscope.attribution.options import METHODS, SECANT, Question
from normscope.attribution.rows import AskedRow
from normscope.errors import InputError
from normscope.foundation.shapes import Float
from normscope.results.attribution import Attribution

RANDOM = "random"
# A function (model, tokenizer, texts) -> an attribution, or an array of scores, for each text.
Scorer = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class ComparedMethod:
    """One method under comparison.

    Attributes:
        name: its name in tables.
        options: keyword arguments of `attribute`, "method" among them.
        scorer: a function in place of `attribute`.
        seed: of the random order.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    scorer: Scorer | None = None
    seed: int = 0

    def text(self) -> str:
        """Return what is called, for signatures."""
        if self.scorer is not None:
            return f"{self.name}=function"
        if self.is_random:
            return f"{self.name}=seed {self.seed}"
        given = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.name}={given}"

    @property
    def is_random(self) -> bool:
        """Whether tokens are put in a random order, as a control."""
        return self.scorer is None and not self.options

    def attributions(
        self, model: Any, tokenizer: Any, texts: Sequence[Any], asked: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Return an attribution, or an array of scores, for each text.

        Args:
            model: a loaded model.
            tokenizer: its tokenizer.
            texts: the texts.
            asked: what is explained: keyword arguments of `attribute` as lists, one for each text.
        """
        if self.scorer is not None:
            return self.scorer(model, tokenizer, texts)
        return attribute(model, tokenizer, list(texts), **{**asked, **self._spread(len(texts))})

    def _spread(self, count: int) -> dict[str, Any]:
        """Return the options; a list of baselines is one question of every text."""
        options = dict(self.options)
        if isinstance(options.get("baseline"), list):
            options["baseline"] = [options["baseline"]] * count
        return options

    def random_scores(self, row: AskedRow) -> Float[np.ndarray, " token"]:
        """Return random scores that depend on the seed and on the tokens alone."""
        return np.random.default_rng([self.seed, *row.text.ids]).random(len(row.text))


def calls_of(methods: Any, tokenizer: Any, seed: int = 0) -> tuple[ComparedMethod, ...]:
    """Return the calls of some methods.

    Args:
        methods: names, or a mapping from names of your own to names, to keyword arguments of
            `attribute`, or to functions. A name is a method of `attribute`, such as "frozen", a
            method with its baseline, such as "secant@[MASK]", or "random".
        tokenizer: the model's tokenizer, whose mask token is the baseline of "secant" if none is
            given.
        seed: the seed of "random".
    """
    if isinstance(methods, str):
        methods = [methods]
    if not isinstance(methods, Mapping):
        listed = list(methods)
        if wrong := [entry for entry in listed if not isinstance(entry, str)]:
            raise InputError(
                f"methods are names, or a mapping from names to what they are, not {wrong[0]!r:.60}"
            )
        if len(set(listed)) < len(listed):
            raise InputError(f"a method is named twice: {', '.join(listed)}")
        methods = {name: name for name in listed}
    if not methods:
        raise InputError("no method was given; methods are, for example, ('frozen', 'random')")
    return tuple(_call(str(name), what, tokenizer, seed) for name, what in methods.items())


def _call(name: str, what: Any, tokenizer: Any, seed: int) -> ComparedMethod:
    if callable(what):
        return ComparedMethod(name, scorer=what)
    if isinstance(what, Mapping):
        if "method" not in what and "baseline" not in what:
            raise InputError(
                f"the method {name!r} needs a method= or a baseline= among its arguments"
            )
        return ComparedMethod(name, dict(what))
    if not isinstance(what, str):
        raise InputError(
            f"the method {name!r} is a name, keyword arguments or a function, not {what!r:.60}"
        )
    method, at, baseline = what.partition("@")
    if method == RANDOM and not at:
        own = RANDOM not in METHODS
        return ComparedMethod(name, {} if own else {"method": f"{RANDOM}:seed={seed}"}, seed=seed)
    options = {"method": method}
    mask = getattr(tokenizer, "mask_token", None)
    if at:
        options["baseline"] = baseline
    elif method == SECANT and mask is not None:
        options["baseline"] = mask
    elif method == SECANT:
        raise InputError(
            "secant explains the difference from a baseline, and the tokenizer has no mask token: "
            'name a baseline, as in "secant@mean"'
        )
    return ComparedMethod(name, options)


def text_scores(call: ComparedMethod, row: AskedRow, result: Any) -> Float[np.ndarray, " token"]:
    """Return the score of every token of a text; of several answers, the sum.

    Raises:
        InputError: the scores are not those of the text's tokens.
    """
    count = len(row.text)
    if isinstance(result, Attribution):
        values = np.atleast_2d(result.scores.values).sum(axis=0)
        ids = result.tokens.ids
        same = ids is None or list(ids[:count]) == list(row.text.ids)
        if len(values) < count or not same:
            raise InputError(
                f"the method {call.name!r} scored other tokens than the text has: {len(values)} "
                f"for {count}"
            )
        return np.asarray(values[:count], dtype=np.float64)
    values = np.asarray(result, dtype=np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise InputError(
            f"the method {call.name!r} gave an array of shape {values.shape}; give a finite score "
            f"for each of the {count} tokens, special tokens included"
        )
    return values


def answered(row: AskedRow, question: Question, *, labels: bool) -> dict[str, Any]:
    """Return a question as keyword arguments, with the model's own choice as its answer.

    Every method then explains the same answer.

    Args:
        row: the text, settled.
        question: what was asked.
        labels: whether answers are labels, not tokens.
    """
    asked = dict(vars(question))
    asked.pop("baseline")
    kinds = ("answer", "target", "continuation", "generate")
    if all(asked[name] is None for name in kinds):
        index = row.steps[0][0].index
        asked["answer"] = index if labels else [index]
    return {name: value for name, value in asked.items() if value is not None}
