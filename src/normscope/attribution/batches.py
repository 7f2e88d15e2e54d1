"""Run rows in batches: from rows to the tensors that a model reads, and through the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normscope.attribution.account import RowShares
from normscope.attribution.answers import (
    CallerValue,
    ChoiceValue,
    CosineValue,
    LogitValue,
    mean_state,
    states_of,
)
from normscope.attribution.baselines import EMBEDDINGS, Baseline, embedded
from normscope.attribution.heads import (
    CAUSAL,
    CHOICES,
    LABELS,
    SEQ2SEQ,
    SPANS,
    head_of,
    writes,
)
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.table import ChosenMethod
from normscope.attribution.options import AttributionOptions
from normscope.attribution.rows import AskedRow
from normscope.engine.batches import by_length, halves
from normscope.errors import InputError, NormscopeError, UnsupportedModelError
from normscope.foundation.progress import stage
from normscope.models.running import accepted_by, evaluating
from normscope.results.state import Snapshot
from normscope.text.tokens import encode, pad

BATCH_TOKENS = 2048  # padded tokens in one batch


@dataclass(frozen=True)
class Task:
    """A row with its baselines, and the method that explains it."""

    row: AskedRow
    method: ChosenMethod
    baselines: tuple[Baseline, ...] = ()

    def alike(self) -> tuple[Any, ...]:
        """Return what rows of one batch must have in common."""
        kinds = tuple(baseline.embedding for baseline in self.baselines)
        row = self.row
        reads = (row.function is not None, row.similar_to is not None, row.decoder is None)
        return (self.method, kinds, len(row.texts), row.explained is None, reads)


@dataclass(frozen=True)
class ExplainedBatch:
    """The rows of one batch after the pass, with the shares for each baseline."""

    indices: list[int]
    value: Callable[[Any], Tensor]
    shares: list[RowShares]


class Runner:
    """Explain tasks with one model.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        options: checked options.
        snapshot: what the model is for all tasks.
    """

    def __init__(
        self, model: Any, tokenizer: Any, options: AttributionOptions, snapshot: Snapshot
    ) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.snapshot = snapshot
        self.head = head_of(model)
        configured = getattr(model.config.get_text_config(), "pad_token_id", None)
        # A classifier finds the last token of a text by the padding id of its own config.
        known = (configured, tokenizer.pad_token_id)
        # One with a decoder wants as many end tokens in every row.
        two_sided = bool(getattr(model.config, "is_encoder_decoder", False))
        self.alone = self.head == LABELS and (configured is None or two_sided)
        self.padding = next((p for p in known if p is not None), 0)

    def run(self, tasks: Sequence[Task]) -> Iterator[ExplainedBatch]:
        """Explain tasks in batches of similar lengths; yield each batch when it is done."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for at, task in enumerate(tasks):
            groups.setdefault(task.alike(), []).append(at)
        for members in groups.values():
            lengths = [_lengths(tasks[at].row) for at in members]
            first = tasks[members[0]]
            single = self.alone or first.method.method.alone or first.row.function is not None
            for batch in by_length(lengths, 0 if single else BATCH_TOKENS):
                yield from self._fitting(tasks, [members[at] for at in batch])

    def _fitting(self, tasks: Sequence[Task], indices: list[int]) -> Iterator[ExplainedBatch]:
        """Explain a batch, or its halves if a GPU does not have the memory for it."""
        try:
            explained = self._explain([tasks[at] for at in indices], indices)
        except torch.OutOfMemoryError:
            explained = None
        if explained is not None:
            yield explained
            return
        for half in halves(indices, "these texts"):
            yield from self._fitting(tasks, half)

    def _explain(self, tasks: list[Task], indices: list[int]) -> ExplainedBatch:
        rows = [task.row for task in tasks]
        inputs, kept = self.inputs(rows)
        chosen, options = tasks[0].method, self.options
        value = self.value(rows, inputs, kept, exact=not chosen.method.held)
        shares = []
        stage("computing the shares")
        for number in range(max(1, len(tasks[0].baselines))):
            others: dict[str, Any] | None = None
            real = inputs
            if tasks[0].baselines:
                baselines = [task.baselines[number] for task in tasks]
                real, others = self._pair(rows, baselines, inputs, value)
            how = (options.gate, options.trace, options.recompute, self.alone)
            call = MethodCall(self.model, real, value, chosen, others, *how)
            with evaluating(self.model), _readable_errors(self.model, rows[0]):
                shares.append(self.snapshot.settled(partial(chosen.shares, call)))
        return ExplainedBatch(indices, value, shares)

    # ---- tensors

    def inputs(self, rows: Sequence[AskedRow]) -> tuple[dict[str, Any], list[int] | None]:
        """Return the keyword arguments of the model, and the positions that logits are kept of."""
        accepted = accepted_by(self.model)
        padded = pad([text for row in rows for text in row.texts], self.padding)
        known = {name: t for name, t in padded.items() if name in accepted}
        inputs: dict[str, Any] = self._moved(known or padded)
        if self.head == CHOICES:
            inputs = {name: t.unsqueeze(1) for name, t in inputs.items()}  # a row for each choice
        if self.head == SEQ2SEQ and rows[0].decoder is not None:
            decoders = pad([row.decoder for row in rows if row.decoder is not None], self.padding)
            decoders = self._moved(decoders)
            inputs["decoder_input_ids"] = decoders["input_ids"]
            inputs["decoder_attention_mask"] = decoders["attention_mask"]
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        kept = None
        if self.head == CAUSAL and "logits_to_keep" in accepted and rows[0].steps:
            places = {term.place for row in rows for step in row.steps for term in step}
            inputs["logits_to_keep"] = kept = sorted(places)
        return inputs, kept

    def _moved(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.model.device) for name, tensor in tensors.items()}

    def value(
        self,
        rows: Sequence[AskedRow],
        inputs: dict[str, Any],
        kept: list[int] | None,
        *,
        exact: bool,
    ) -> Callable[[Any], Tensor]:
        """Return the function of the model's output that is explained."""
        if rows[0].function is not None:
            return CallerValue(rows[0].function, len(rows))
        if rows[0].similar_to is not None:
            vectors = self._embedding([row.similar_to or "" for row in rows])
            return CosineValue(vectors, inputs["attention_mask"])
        valid = None
        if self.head == SPANS:
            valid = [_span_positions(row) for row in rows]
        how: dict[str, Any] = {"units": self.options.units, "exact": exact}
        if self.head == CHOICES:
            choices = [list(range(len(row.texts))) for row in rows]
            return ChoiceValue(self.head, [row.steps for row in rows], valid=choices, **how)
        return LogitValue(self.head, [row.steps for row in rows], kept=kept, valid=valid, **how)

    def _embedding(self, texts: list[str]) -> Tensor:
        """Return the sentence embeddings of texts, of length 1, as (text, hidden)."""
        vectors: dict[str, Tensor] = {}
        for text in dict.fromkeys(texts):
            encoded = encode(self.tokenizer, text, max_length=None, truncate=False)
            inputs, _ = self.inputs([AskedRow((encoded,))])
            with evaluating(self.model), torch.no_grad():
                states = states_of(self.model(**inputs))
            pooled = mean_state(states.double(), inputs["attention_mask"])[0]
            vectors[text] = pooled / pooled.norm()
        return torch.stack([vectors[text] for text in texts])

    def _pair(
        self,
        rows: list[AskedRow],
        baselines: list[Baseline],
        inputs: dict[str, Any],
        value: Callable[[Any], Tensor],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the inputs of the rows and of their baselines."""
        others = [baseline.row for baseline in baselines if baseline.row is not None]
        if others:
            replaced, _ = self.inputs(others)
            return inputs, replaced
        masks: dict[str, Any] = {"kind": baselines[0].embedding}
        flags = [row.replaceable(writes(self.model)) for row in rows]
        for name, side in zip(
            EMBEDDINGS, ([texts[0] for texts, _ in flags], [d for _, d in flags]), strict=True
        ):
            if name in inputs:
                masks[name] = _mask(side, inputs[name])
        with evaluating(self.model):
            return embedded(self.model, inputs, value, masks)


def _lengths(row: AskedRow) -> tuple[int, ...]:
    longest = max(len(text) for text in row.texts)
    return (longest * len(row.texts), 0 if row.decoder is None else len(row.decoder))


def _mask(flags: Sequence[Sequence[bool]], ids: Tensor) -> Tensor:
    """Return the positions that are flagged, as (row, position)."""
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, of_row in enumerate(flags):
        mask[row, : len(of_row)] = torch.tensor(of_row)
    return mask.to(ids.device)


def _span_positions(row: AskedRow) -> list[int]:
    """Return where the answer to a question can be: in the pair if there is one."""
    sides = row.sides[: len(row.text)]
    side = "pair" if "pair" in sides else sides[0]
    special = row.text.tokens.special
    return [at for at, name in enumerate(sides) if name == side and not special[at]]


@contextmanager
def _readable_errors(model: Any, row: AskedRow) -> Iterator[None]:
    """Turn an error that gives no advice into one that does."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, UnsupportedModelError) as error:
        cause = error.__cause__ if isinstance(error, NormscopeError) else error
        if row.function is None or isinstance(cause, NormscopeError | None):
            raise
        raise InputError(
            f"the function in answer= cannot be explained ({cause}). With a baseline, a function "
            "that is not linear must work on a whole batch, as output.logits[:, -1].log_softmax(-1)"
            "[:, 5] does"
        ) from error
    except ValueError as error:
        if "no padding token is defined" not in str(error):
            raise
        raise InputError(
            f"{type(model).__name__} reads several rows only if its config has a padding token: "
            "set model.config.pad_token_id"
        ) from error
