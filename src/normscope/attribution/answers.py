"""What is explained: functions from a model's output to one number for each row and step.

A function is called inside the pass that is explained, on the output of a whole batch. With
baselines, the second half of the rows are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.attribution.heads import LABELS, SPANS, scores_of
from normscope.attribution.options import LOGPROB
from normscope.errors import InputError


@dataclass(frozen=True)
class Term:
    """One score in an answer: its place and class in the head's scores, and its factor.

    The class is None where it is the model's own choice.
    """

    place: int
    index: int | None
    weight: float = 1.0


Terms = tuple[Term, ...]


class LogitValue:
    """Sums of logits, or of log-probabilities.

    Args:
        head: the kind of the model's head.
        rows: the terms of each step, for each row. A row may have fewer steps than another.
        units: "logit" or "logprob".
        exact: whether "logprob" is the log-probability itself, which only a method for
            differences can explain; otherwise the probabilities are held fixed.
        kept: the positions that the model computes logits of, if not all.
        valid: for spans and choices, what can be chosen in each row.
    """

    def __init__(
        self,
        head: str,
        rows: Sequence[Sequence[Terms]],
        *,
        units: str,
        exact: bool,
        kept: Sequence[int] | None = None,
        valid: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.head, self.rows = head, [list(steps) for steps in rows]
        self.units, self.exact, self.valid = units, exact, valid
        self.places = None if kept is None else {position: at for at, position in enumerate(kept)}
        self.scale: NDArray[np.float64] | None = None  # of the numbers that cancel in the values

    def __call__(self, output: Any) -> Tensor:
        """Return the value of every row and step; settle what the model itself chooses."""
        scores = scores_of(self.head, output)
        self._settle(scores)
        place, index, weight = self._indices(scores)
        row = torch.arange(len(scores), device=scores.device)[:, None, None]
        picked = _wide(scores[row, place, index])
        sizes = picked.detach().abs().double()
        if self.units == LOGPROB:
            # In float64: two large numbers nearly cancel, and one sums over a whole vocabulary.
            norm = self._norm(scores, row, place)
            sizes = sizes + norm.detach().abs()
            picked = picked.double() - norm
        total: Tensor = (picked * weight.to(picked.dtype)).sum(dim=-1)
        sizes = (sizes * weight.abs()).sum(dim=-1)[: len(self.rows)]
        self.scale = sizes.detach().cpu().numpy()
        return total

    def _settle(self, scores: Tensor) -> None:
        """Replace the model's own choices by their classes, which are those of the real rows."""
        if all(t.index is not None for steps in self.rows for terms in steps for t in terms):
            return
        # As an array: choosing is no part of what is explained.
        table = scores[: len(self.rows)].detach().to("cpu", torch.float32).numpy()
        for at, steps in enumerate(self.rows):
            self.rows[at] = [self._chosen(at, terms, table[at]) for terms in steps]

    def _chosen(self, row: int, terms: Terms, table: NDArray[np.float32]) -> Terms:
        if all(term.index is not None for term in terms):
            return terms
        if self.head == SPANS:
            positions = range(table.shape[1]) if self.valid is None else self.valid[row]
            return span_terms(*best_span(table, list(positions)))
        return tuple(
            term
            if term.index is not None
            else Term(term.place, int(table[self._at(term.place)].argmax()), term.weight)
            for term in terms
        )

    def _at(self, place: int) -> int:
        return place if self.places is None else self.places[place]

    def _indices(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return places, classes and factors as (row, step, term), with factors 0 as padding."""
        steps = max(len(row) for row in self.rows)
        terms = max(len(step) for row in self.rows for step in row)
        place = torch.zeros(len(self.rows), steps, terms, dtype=torch.long)
        index, weight = torch.zeros_like(place), torch.zeros(place.shape, dtype=torch.float64)
        for i, row in enumerate(self.rows):
            for j, step in enumerate(row):
                for k, term in enumerate(step):
                    assert term.index is not None
                    if term.index >= scores.shape[-1]:
                        raise InputError(
                            f"the model has scores for {scores.shape[-1]} classes, so there is no "
                            f"answer {term.index}"
                        )
                    place[i, j, k], index[i, j, k] = self._at(term.place), term.index
                    weight[i, j, k] = term.weight
        copies = len(scores) // len(self.rows)  # with baselines, every row is there twice
        device = scores.device
        return tuple(t.repeat(copies, 1, 1).to(device) for t in (place, index, weight))  # type: ignore[return-value]

    def _norm(self, scores: Tensor, row: Tensor, place: Tensor) -> Tensor:
        """Return what is subtracted from logits, of each term's place."""
        classes = scores.shape[-1]
        if self.head == LABELS and classes == 1:
            raise InputError('units="logprob" needs two labels or more, and the model has one')
        chosen = scores[row, place].double()  # (row, step, term, class)
        if self.valid is not None:
            mask = torch.zeros(len(self.valid), classes, dtype=torch.bool)
            for at, positions in enumerate(self.valid):
                mask[at, list(positions)] = True
            mask = mask.repeat(len(scores) // len(self.valid), 1).to(scores.device)
            chosen = chosen.masked_fill(~mask[:, None, None], torch.finfo(chosen.dtype).min / 2)
        if self.exact:
            return torch.logsumexp(chosen, dim=-1)
        held = torch.softmax(chosen.detach(), dim=-1).detach()
        expected: Tensor = (chosen * held).sum(dim=-1)
        return expected


class ChoiceValue(LogitValue):
    """Logits of choices, each of which is a row of its own.

    A value of several choices (an answer less its foil) is the sum over their rows.
    """

    def __call__(self, output: Any) -> Tensor:
        """Return the part of each choice in the values, as (row · choice, 1)."""
        logits = _wide(output.logits.reshape(-1, 1))
        with_baselines = len(logits) > sum(len(names) for names in self.valid or ())
        if self.units == LOGPROB and with_baselines:
            raise InputError(
                'units="logprob" depends on all choices at once, so it cannot be divided among '
                "them with a baseline: leave out the baseline, or explain logits"
            )
        count = len(self.valid[0]) if self.valid else 1
        table = logits.detach()[: len(self.rows) * count].reshape(-1, 1, count)
        self._settle(table)
        weights = torch.zeros(len(self.rows), count, dtype=logits.dtype)
        for row, (terms,) in enumerate(self.rows):
            for term in terms:
                assert term.index is not None
                weights[row, term.index] += term.weight
        if self.units == LOGPROB:
            held = torch.softmax(table[:, 0], dim=-1).detach().cpu()
            weights = weights - weights.sum(dim=-1, keepdim=True) * held
        copies = len(logits) // weights.numel()
        return logits * weights.reshape(-1, 1).repeat(copies, 1).to(logits.device)


def _wide(scores: Tensor) -> Tensor:
    """Return scores in a dtype in which sums of logits keep their digits."""
    half = scores.dtype in (torch.float16, torch.bfloat16)
    return scores.float() if half else scores


def span_terms(start: int, end: int, weight: float = 1.0) -> Terms:
    """Return the terms of a span of a question-answering head; the end is included."""
    return (Term(0, start, weight), Term(1, end, weight))


def best_span(table: NDArray[Any], positions: Sequence[int]) -> tuple[int, int]:
    """Return start and end, which is included, of the span with the largest sum of logits."""
    starts, ends = table[0, list(positions)], table[1, list(positions)]
    best = np.maximum.accumulate(starts)  # of the starts up to each end
    last = int((best + ends).argmax())
    first = int(starts[: last + 1].argmax())
    return int(positions[first]), int(positions[last])


class CosineValue:
    """The cosine of each row's mean state, over real tokens, with a fixed vector.

    Args:
        vectors: the fixed vectors, of length 1, as (row, hidden).
        mask: which positions are real, as (row, position).
    """

    def __init__(self, vectors: Tensor, mask: Tensor) -> None:
        self.vectors, self.mask = vectors, mask

    def __call__(self, output: Any) -> Tensor:
        """Return the cosine as (row, 1)."""
        states = _wide(states_of(output))
        copies = len(states) // len(self.vectors)
        mask, vectors = self.mask.repeat(copies, 1), self.vectors.repeat(copies, 1)
        pooled = mean_state(states, mask)
        # A norm written out, as the models do it: its scale is known to every method.
        scaled = pooled * torch.rsqrt(pooled.pow(2).mean(dim=-1, keepdim=True))
        factors = vectors.to(scaled) * scaled.shape[-1] ** -0.5
        cosine: Tensor = (scaled * factors).sum(dim=-1, keepdim=True)
        return cosine


def states_of(output: Any) -> Tensor:
    """Return the states of the last layer, as (row, position, hidden)."""
    states = getattr(output, "last_hidden_state", None)
    return output[0] if states is None else states


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the states at real positions, as (row, hidden)."""
    weights = mask.to(states)
    weights = weights / weights.sum(dim=1, keepdim=True)
    pooled: Tensor = (states * weights[..., None]).sum(dim=1)
    return pooled


class CallerValue:
    """A function of the caller, of the output of one row.

    Args:
        function: it gets the model's output with a batch of one, and returns one number.
        rows: the number of rows, baselines not counted.
    """

    def __init__(self, function: Callable[[Any], Any], rows: int) -> None:
        self.function, self.rows = function, rows

    def __call__(self, output: Any) -> Tensor:
        """Return the caller's number of each row, as (row, 1)."""
        batch = _rows_in(output)
        if batch == self.rows == 1:
            return self._number(output).reshape(1, 1)
        if batch > self.rows:
            # A method for differences needs the two rows of a pair in one tensor wherever the
            # function is not linear, so prefer a function that works on a whole batch.
            values = [self._number(row_of(output, row, batch, held=True)) for row in range(batch)]
            if (whole := self._of_batch(output, torch.stack(values))) is not None:
                return whole.reshape(-1, 1)
        each = torch.stack([self._number(row_of(output, row, batch)) for row in range(batch)])
        return each.reshape(-1, 1)

    def _number(self, output: Any) -> Tensor:
        value = self.function(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                "answer= is a function from the model's output to one number, a tensor with one "
                f"element, but it gave {shape}"
            )
        return value.reshape(())

    def _of_batch(self, output: Any, each: Tensor) -> Tensor | None:
        value = self.function(output)
        if isinstance(value, Tensor) and value.numel() == len(each) == len(value):
            close = torch.allclose(value.detach().flatten(), each.detach(), rtol=1e-3, atol=1e-5)
            return value if close else None
        return None


def _rows_in(output: Any) -> int:
    for value in _values(output):
        if isinstance(value, Tensor) and value.ndim > 0:
            return len(value)
    raise InputError("the model's output has no tensor that could be explained")


def _values(output: Any) -> Sequence[Any]:
    if isinstance(output, Tensor):
        return [output]
    return list(output.values()) if hasattr(output, "values") else list(output)


def row_of(output: Any, row: int, batch: int, *, held: bool = False) -> Any:
    """Return a model's output for one row, with the batch axis kept; as constants if ``held``."""

    def part(value: Any) -> Any:
        return row_of(value, row, batch, held=held)

    if isinstance(output, Tensor):
        output = output.detach() if held else output
        return output[row : row + 1] if output.ndim and len(output) == batch else output
    if isinstance(output, list | tuple):
        return type(output)(part(value) for value in output)
    if hasattr(output, "items") and hasattr(output, "to_tuple"):  # transformers' ModelOutput
        return type(output)(**{name: part(value) for name, value in output.items()})
    return output
