"""Evaluate methods on texts: scores, changed texts, outcomes, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.attribution.api import gradients, signature_of
from normscope.attribution.batches import Runner
from normscope.attribution.heads import LABELS, MASKED, SEQ2SEQ, TOKEN_LABELS, head_of
from normscope.attribution.options import LOGPROB as LOGPROB_UNITS
from normscope.attribution.options import AttributionOptions, Question
from normscope.attribution.questions import row_of
from normscope.attribution.reading import Reader
from normscope.attribution.rows import AskedRow
from normscope.errors import InputError
from normscope.faithfulness.conventions import (
    AUTO,
    BLANK_OUT,
    DELETE,
    LOGPROB,
    MASK,
    METRICS,
    MOST,
    Convention,
    Curve,
    curves_of,
    figures_of,
)
from normscope.faithfulness.methods import ComparedMethod, answered, text_scores
from normscope.faithfulness.outcomes import HEADS, ChangedText, Outcomes, check_replacement, form
from normscope.faithfulness.ranking import ascending, descending
from normscope.foundation.ranks import spearman
from normscope.foundation.shapes import Float
from normscope.results.signature import Signature

UNDEFINED = float("nan")


@dataclass(frozen=True)
class TextRecord:
    """What was measured of one text.

    Attributes:
        tokens: how many of its tokens are ranked, special tokens left out.
        answer: what was explained, by number: a class or a token.
        value: the probability of the answer, less that of a foil.
        figures: for each method the figures in their order; NaN where one is not defined.
    """

    tokens: int
    answer: tuple[int, ...]
    value: float
    figures: Mapping[str, tuple[float, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return the record in plain JSON types, with None for NaN."""
        figures = {
            name: [None if np.isnan(value) else value for value in values]
            for name, values in self.figures.items()
        }
        return {**vars(self), "answer": list(self.answer), "figures": figures}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TextRecord:
        """Return the record that `to_dict` described."""
        figures = {
            name: tuple(UNDEFINED if value is None else float(value) for value in values)
            for name, values in data["figures"].items()
        }
        return cls(data["tokens"], tuple(data["answer"]), data["value"], figures)


class TextReader:
    """Read texts and questions for a model, and settle what it answers.

    Args:
        model: a loaded model.
        tokenizer: its tokenizer.
        truncate: cut texts that are too long.
    """

    def __init__(self, model: Any, tokenizer: Any, *, truncate: bool = False) -> None:
        self.model, self.tokenizer, self.truncate = model, tokenizer, truncate
        self.head = head_of(model)
        if self.head not in HEADS:
            raise InputError(
                f"{type(model).__name__} gives no probability of a token or a label; give a "
                "language model, an encoder–decoder model or a classifier"
            )
        self.signature: Signature = signature_of(model, tokenizer, {})
        self._reader = Reader(model, tokenizer, truncate=truncate)
        options = AttributionOptions(units=LOGPROB_UNITS)
        self.runner = Runner(model, self._reader.tokenizer, options, self.signature.snapshot)

    def settled(self, texts: Sequence[Any], questions: Sequence[Question]) -> Outcomes:
        """Return the outcomes of the texts as they are; their rows have the model's answers."""
        rows = [self._row(text, q) for text, q in zip(texts, questions, strict=True)]
        with gradients():
            return Outcomes(self.runner, rows)

    def _row(self, text: Any, question: Question) -> AskedRow:
        if callable(question.answer) or question.similar_to is not None or question.baselines:
            raise InputError(
                "faithfulness is measured by the probability of a token or a label: leave out "
                'functions, similar_to and baseline (a method has its own: "secant@[MASK]")'
            )
        row = row_of(self._reader, text, question, self.model)
        if row.decoder is not None and self.head != SEQ2SEQ:
            raise InputError(
                f"the decoder of {type(self.model).__name__} reads the text once more, so that "
                "a changed text is not defined"
            )
        return row

    def asked(self, rows: Sequence[AskedRow], questions: Sequence[Question]) -> dict[str, Any]:
        """Return the questions as lists for `attribute`: every method explains the same answer."""
        labels = self.head in (LABELS, TOKEN_LABELS)
        each = [answered(row, q, labels=labels) for row, q in zip(rows, questions, strict=True)]
        names = dict.fromkeys(name for asked in each for name in asked)
        columns = {name: [asked.get(name) for asked in each] for name in names}
        return {**columns, "truncate": self.truncate}

    def ranked(self, row: AskedRow, *, specials: bool = False) -> NDArray[np.int64]:
        """Return the positions that methods are compared on.

        Tokens that are given stay out: those of a continuation, and the position that a masked
        model or a labeller of tokens answers at. So do special tokens, unless they are wanted.
        """
        given = [side == "continuation" for side in row.sides[: len(row.text)]]
        kept = [bool(flag) for flag in row.text.tokens.special] if not specials else []
        out = {at for at, flag in enumerate(given) if flag}
        out |= {at for at, flag in enumerate(kept) if flag}
        if self.head in (MASKED, TOKEN_LABELS):
            out |= {term.place for step in row.steps for term in step}
        return np.array([at for at in range(len(row.text)) if at not in out], dtype=np.int64)


class FaithfulnessMeter(TextReader):
    """Measure how faithful the scores of methods are, text by text.

    Args:
        model: a loaded model.
        tokenizer: its tokenizer.
        calls: the methods.
        conventions: the convention of each metric.
        truncate: cut texts that are too long.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        calls: Sequence[ComparedMethod],
        conventions: Mapping[str, Convention],
        *,
        truncate: bool = False,
    ) -> None:
        super().__init__(model, tokenizer, truncate=truncate)
        self.calls = tuple(calls)
        self.conventions = {name: self._resolved(c) for name, c in conventions.items()}
        self.figures = figures_of(self.conventions)

    def _resolved(self, convention: Convention) -> Convention:
        """Return a convention whose replacement this model and tokenizer have."""
        if convention.replacement == AUTO:
            mask = getattr(self.runner.tokenizer, "mask_token_id", None)
            convention = replace(convention, replacement=DELETE if mask is None else MASK)
        check_replacement(self.runner, convention.replacement)
        return convention

    def settings(self) -> dict[str, str]:
        """Return everything that the numbers depend on, beside the model and the texts."""
        conventions = {name: c.text(name) for name, c in self.conventions.items()}
        return {"methods": " ".join(call.text() for call in self.calls), **conventions}

    def records(self, texts: Sequence[Any], questions: Sequence[Question]) -> list[TextRecord]:
        """Return what is measured of each text."""
        outcomes = self.settled(texts, questions)
        asked = self.asked(outcomes.rows, questions)
        scores = {call.name: self._scores(call, texts, outcomes.rows, asked) for call in self.calls}
        forms = {
            wanted
            for by_text in scores.values()
            for at, values in enumerate(by_text)
            for wanted in self._forms(at, outcomes.rows[at], values)
        }
        with gradients():
            outcomes.compute(forms)
        return [
            self._record(at, outcomes, {name: by_text[at] for name, by_text in scores.items()})
            for at in range(len(texts))
        ]

    def _scores(
        self,
        call: ComparedMethod,
        texts: Sequence[Any],
        rows: Sequence[AskedRow],
        asked: Mapping[str, Any],
    ) -> list[Float[np.ndarray, " token"]]:
        if call.is_random:
            return [call.random_scores(row) for row in rows]
        results = call.attributions(self.model, self.tokenizer, texts, asked)
        if len(results) != len(rows):
            raise InputError(
                f"the method {call.name!r} gave {len(results)} results for {len(rows)} texts"
            )
        return [text_scores(call, row, result) for row, result in zip(rows, results, strict=True)]

    # ---- one text

    def _record(
        self, at: int, outcomes: Outcomes, scores: Mapping[str, Float[np.ndarray, " token"]]
    ) -> TextRecord:
        row = outcomes.rows[at]
        figures = {
            name: tuple(
                number
                for metric, convention in self.conventions.items()
                for curve in curves_of(metric, convention)
                for number in self._numbers(at, outcomes, convention, curve, values)
            )
            for name, values in scores.items()
        }
        answer = tuple(int(t.index) for t in row.steps[0] if t.index is not None)
        value = outcomes[form(at, "", ())].probability
        return TextRecord(len(self.ranked(row)), answer, value, figures)

    def _forms(
        self, at: int, row: AskedRow, scores: Float[np.ndarray, " token"]
    ) -> Iterator[ChangedText]:
        """Yield the changed forms of a text that the metrics need."""
        for metric, convention in self.conventions.items():
            for curve in curves_of(metric, convention):
                yield from self._steps(at, row, convention, curve, scores)

    def _places(self, row: AskedRow, convention: Convention, curve: Curve) -> NDArray[np.int64]:
        places = self.ranked(row, specials=convention.specials)
        return places[places > 0] if curve.keep_first else places

    def _steps(
        self,
        at: int,
        row: AskedRow,
        convention: Convention,
        curve: Curve,
        scores: Float[np.ndarray, " token"],
    ) -> list[ChangedText]:
        """Return the form of each step of a curve; of blank-out, one for each token."""
        places = self._places(row, convention, curve)
        kind = convention.replacement
        if curve.metric == BLANK_OUT:
            return [form(at, kind, [place]) for place in places]
        values = np.abs(scores[places]) if convention.absolute else scores[places]
        order = places[descending(values) if curve.order == MOST else ascending(values)]
        counts = convention.counts(len(places))
        if METRICS[curve.metric].keeps:
            return [form(at, kind, order[count:]) for count in counts]
        return [form(at, kind, order[:count]) for count in counts]

    def _numbers(
        self,
        at: int,
        outcomes: Outcomes,
        convention: Convention,
        curve: Curve,
        scores: Float[np.ndarray, " token"],
    ) -> list[float]:
        """Return the figures of a curve; NaN if no token is ranked."""
        metric = METRICS[curve.metric]
        row = outcomes.rows[at]
        places = self._places(row, convention, curve)
        each = convention.average == "each" and curve.metric != BLANK_OUT
        if not len(places):
            return [UNDEFINED] * (len(convention.steps) if each else 1)
        kind = LOGPROB if metric.outcome == LOGPROB else "probability"
        whole = getattr(outcomes[form(at, "", ())], kind)
        steps = self._steps(at, row, convention, curve, scores)
        values = np.array([getattr(outcomes[step], kind) for step in steps])
        if curve.metric == BLANK_OUT:
            drops, own = whole - values, scores[places]
            if convention.absolute:
                drops, own = np.abs(drops), np.abs(own)
            return [spearman(own, drops)]
        if convention.monotone:
            so_far = np.maximum if metric.keeps else np.minimum
            values = so_far.accumulate(values)
        losses = whole - values
        if each:
            return [float(loss) for loss in losses]
        return [float(losses.sum()) / (len(losses) + (convention.average == "with_zero"))]
