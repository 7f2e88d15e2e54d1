"""What a model answers to changed texts: one engine for every perturbation metric.

A :class:`ChangedText` is the number of a text, what becomes of chosen tokens, and which they are.
Each is computed once, in batches of similar lengths and in an order of their own, so that the
numbers do not depend on the order in which methods ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normscope.attribution.answers import LogitValue, Term
from normscope.attribution.batches import Runner
from normscope.attribution.heads import CAUSAL, LABELS, MASKED, SEQ2SEQ, TOKEN_LABELS
from normscope.attribution.rows import AskedRow
from normscope.engine.batches import by_length, halves
from normscope.errors import InputError, UnsupportedModelError
from normscope.faithfulness.conventions import ATTENTION, DELETE, MASK, PAD, ZERO
from normscope.foundation.interrupts import shielded
from normscope.foundation.shapes import Bool, Int
from normscope.models.running import accepted_by, evaluating
from normscope.text.tokens import Encoded, Tokens

HEADS = (CAUSAL, MASKED, SEQ2SEQ, LABELS, TOKEN_LABELS)
_IN_TEXT = (CAUSAL, MASKED, TOKEN_LABELS)  # heads whose places are positions of the text
BATCH_TOKENS = 8192  # padded tokens in one batch
_UNLABELLED = Tokens.positions(0)  # changed texts are read by the model alone
WHOLE = ""  # the replacement of a form that is not changed


class ChangedText(NamedTuple):
    """A changed text: its number, what becomes of chosen tokens, and their positions."""

    text: int
    replacement: str
    positions: tuple[int, ...]


class AnswerLogprobs(NamedTuple):
    """The log-probability of the answer, and that of the foil (NaN without one)."""

    answer: float
    foil: float

    @property
    def logprob(self) -> float:
        """The log-probability of the answer, less that of the foil."""
        return self.answer if np.isnan(self.foil) else self.answer - self.foil

    @property
    def probability(self) -> float:
        """The probability of the answer, less that of the foil."""
        foil = 0.0 if np.isnan(self.foil) else float(np.exp(self.foil))
        return float(np.exp(self.answer)) - foil


def form(text: int, replacement: str, positions: Iterable[Any]) -> ChangedText:
    """Return a form in its normal form: all that change nothing are the same."""
    chosen = tuple(sorted(int(at) for at in positions))
    return ChangedText(text, replacement if chosen else WHOLE, chosen)


def check_replacement(runner: Runner, replacement: str) -> None:
    """Raise InputError if a model or its tokenizer cannot replace tokens so."""
    tokenizer, model = runner.tokenizer, runner.model
    if replacement in (MASK, PAD) and getattr(tokenizer, f"{replacement}_token_id") is None:
        raise InputError(
            f"the tokenizer has no {replacement} token to put in place of others; give "
            f'replacement="{DELETE}", "{ZERO}" or "{ATTENTION}"'
        )
    if replacement == ATTENTION and "attention_mask" not in accepted_by(model):
        raise InputError(f"{type(model).__name__} takes no attention_mask: use another replacement")
    if replacement == ZERO and runner.head == SEQ2SEQ:
        raise InputError(
            "encoder and decoder may share their embeddings, so that setting those of the text to "
            "zero is not defined: use another replacement"
        )


# ---- one changed text


def changed(runner: Runner, row: AskedRow, replacement: str, positions: Sequence[int]) -> AskedRow:
    """Return the row of a changed text; "zero" and "attention" change tensors, not the row."""
    text = row.text
    if replacement in (MASK, PAD):
        index = getattr(runner.tokenizer, f"{replacement}_token_id")
        ids = [index if at in set(positions) else old for at, old in enumerate(text.ids)]
        return replace(row, texts=(replace(text, ids=ids),))
    if replacement != DELETE:
        return row
    gone = set(positions)
    kept = [at for at in range(len(text)) if at not in gone]
    shortened = _chosen(text, kept)
    if runner.head not in _IN_TEXT:
        shortened = shortened if kept else _started(runner, shortened)
        return replace(row, texts=(shortened,))
    # A place moves with the tokens before it; if it is deleted, the last token before it answers.
    before = np.cumsum([at not in gone for at in range(len(text))]) - 1
    shift = 0
    if min(before[term.place] for step in row.steps for term in step) < 0:
        shortened, shift = _started(runner, shortened), 1
    steps = tuple(
        tuple(replace(term, place=int(before[term.place]) + shift) for term in step)
        for step in row.steps
    )
    return replace(row, texts=(shortened,), steps=steps)


def _chosen(text: Encoded, kept: Sequence[int]) -> Encoded:
    extra = {name: [values[at] for at in kept] for name, values in text.extra.items()}
    return Encoded([text.ids[at] for at in kept], extra, _UNLABELLED)


def _started(runner: Runner, text: Encoded) -> Encoded:
    """Return a text with a start token before it: a model has to read something."""
    tokenizer = runner.tokenizer
    known = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    index = next((number for number in known if number is not None), None)
    if index is None:
        raise InputError(
            "all tokens before the answer are deleted, and the tokenizer has no start or end token "
            'for the model to begin with: give replacement="zero" or "attention"'
        )
    extra = {name: [values[0] if values else 0, *values] for name, values in text.extra.items()}
    return Encoded([int(index), *text.ids], extra, _UNLABELLED)


# ---- many


class Outcomes:
    """Compute the outcomes of changed texts.

    Args:
        runner: makes tensors of rows; its options ask for log-probabilities.
        rows: the texts. Their answers may be the model's own choice; they are settled here.

    Attributes:
        rows: the texts with their settled answers: one step of the answer's terms, and one of the
            foil's if there is a foil.
    """

    def __init__(self, runner: Runner, rows: Sequence[AskedRow]) -> None:
        self.runner = runner
        self.rows = list(rows)
        self._known: dict[ChangedText, AnswerLogprobs] = {}
        for batch in self._batches(self.rows):
            self._settle(batch)

    def __getitem__(self, wanted: ChangedText) -> AnswerLogprobs:
        return self._known[wanted]

    def compute(self, forms: Iterable[ChangedText]) -> None:
        """Compute the outcomes of forms that are not known yet."""
        asked = sorted(set(forms) - self._known.keys())
        for kind in dict.fromkeys(wanted.replacement for wanted in asked):
            alike = [wanted for wanted in asked if wanted.replacement == kind]
            rows = [changed(self.runner, self.rows[f.text], kind, f.positions) for f in alike]
            for batch in self._batches(rows):
                self._run([(rows[at], alike[at]) for at in batch])

    def _batches(self, rows: Sequence[AskedRow]) -> Iterator[list[int]]:
        """Yield the numbers of rows that are run together.

        Logits are kept at every place of a batch, and a vocabulary is large: the rows of a language
        model answer at the same places.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, row in enumerate(rows):
            places = {term.place for step in row.steps for term in step}
            alike = tuple(sorted(places)) if self.runner.head == CAUSAL else ()
            groups.setdefault(alike, []).append(at)
        for members in groups.values():
            chosen = [rows[at] for at in members]
            lengths = [(len(r.text), 0 if r.decoder is None else len(r.decoder)) for r in chosen]
            for batch in by_length(lengths, 0 if self.runner.alone else BATCH_TOKENS):
                yield [members[at] for at in batch]

    def _settle(self, batch: list[int]) -> None:
        """Settle the answers of some texts, and divide their terms into answer and foil."""
        settled = [list(self.rows[at].steps) for at in batch]
        if any(term.index is None for steps in settled for step in steps for term in step):
            _, settled = self._values([self.rows[at] for at in batch])
        for at, steps in zip(batch, settled, strict=True):
            terms = [term for step in steps for term in step]
            parts = [
                tuple(replace(t, weight=abs(t.weight)) for t in terms if (t.weight < 0) is negative)
                for negative in (False, True)
            ]
            self.rows[at] = replace(self.rows[at], steps=tuple(part for part in parts if part))
        self._run([(self.rows[at], ChangedText(at, WHOLE, ())) for at in batch])

    def _run(self, batch: Sequence[tuple[AskedRow, ChangedText]]) -> None:
        """Compute a batch of rows, or its halves if a GPU does not have the memory for it."""
        try:
            values, _ = self._values(*map(list, zip(*batch, strict=True)))
        except torch.OutOfMemoryError:
            values = None
        if values is None:
            for half in halves(batch, "these texts"):
                self._run(half)
            return
        for (_, wanted), logprobs in zip(batch, values, strict=True):
            if not np.isfinite(logprobs[0]):
                raise UnsupportedModelError(
                    f"{type(self.runner.model).__name__} gives no finite probability for text "
                    f"{wanted.text} with {len(wanted.positions)} tokens changed "
                    f"(replacement {wanted.replacement or 'none'!r}): use another replacement"
                )
            self._known[wanted] = AnswerLogprobs(*logprobs)

    def _values(
        self, rows: Sequence[AskedRow], forms: Sequence[ChangedText] = ()
    ) -> tuple[list[tuple[float, float]], list[list[tuple[Term, ...]]]]:
        """Return log-probabilities of answer and foil, and the terms that they are of."""
        runner = self.runner
        inputs, kept = runner.inputs(rows)
        value = runner.value(list(rows), inputs, kept, exact=True)
        assert isinstance(value, LogitValue)
        kind = forms[0].replacement if forms else WHOLE
        with evaluating(runner.model), torch.no_grad(), ExitStack() as stack:
            if kind == ATTENTION:
                inputs = _hidden(runner, inputs, _mask(forms, inputs["input_ids"]))
            if kind == ZERO:
                ids: Tensor = inputs["input_ids"]
                stack.enter_context(zeroed(runner.model, ids, _mask(forms, ids)))
            table = value(runner.model(**inputs)).double().cpu().numpy()
        has_foil = [len(steps) > 1 for steps in value.rows]
        values = [
            (float(row[0]), float(row[1]) if foil else float("nan"))
            for row, foil in zip(table, has_foil, strict=True)
        ]
        return values, [list(steps) for steps in value.rows]


def _mask(forms: Sequence[ChangedText], ids: Tensor) -> Bool[Tensor, "row position"]:
    """Return the chosen positions of each form."""
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, wanted in enumerate(forms):
        mask[row, list(wanted.positions)] = True
    return mask.to(ids.device)


def _hidden(
    runner: Runner, inputs: Mapping[str, Any], positions: Bool[Tensor, "row position"]
) -> dict[str, Any]:
    """Return inputs in which no query attends to these positions, and no token moves."""
    attended = inputs["attention_mask"].masked_fill(positions, 0)
    hidden = {**inputs, "attention_mask": attended}
    if runner.head == CAUSAL and "position_ids" in accepted_by(runner.model):
        # Some models number the positions by the mask, so that tokens would move.
        numbers = torch.arange(positions.shape[1], device=positions.device)
        hidden["position_ids"] = numbers.expand(len(positions), -1)
    return hidden


@shielded
def zeroed(
    model: nn.Module, ids: Int[Tensor, "row position"], positions: Bool[Tensor, "row position"]
) -> Iterator[None]:
    """Set the word embeddings at some positions to zero while the context is open."""
    language: Any = model
    table = language.get_input_embeddings()
    calls = []

    def zero(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # GPT-2 looks token types up in the same table.
        if not (inputs and inputs[0].shape == ids.shape and torch.equal(inputs[0], ids)):
            return output
        calls.append(output.shape)
        return output.masked_fill(positions[..., None], 0)

    handle = table.register_forward_hook(zero)
    try:
        yield
    finally:
        handle.remove()
    if len(calls) != 1:
        raise UnsupportedModelError(
            f"{type(model).__name__} looks its word embeddings up {len(calls)} times, so that "
            "setting some to zero is not defined: use another replacement"
        )
