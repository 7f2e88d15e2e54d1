"""Explain outputs by images and recordings: items that a processor reads, with a text or without.

The questions are those about texts, and so is what they mean (`questions.py`): an item's reader
gives the ids that the processor made, in which images have their places, instead of a text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.attribution.answers import CallerValue, LogitValue
from normscope.attribution.assembly import Labels, attribution
from normscope.attribution.generation import greedy_ids, start_ids, write
from normscope.attribution.heads import NO_HEAD, TOKEN_LABELS, detects, head_of
from normscope.attribution.inputs import InputRows
from normscope.attribution.methods.table import ChosenMethod
from normscope.attribution.options import AttributionOptions, Question
from normscope.attribution.questions import row_of
from normscope.attribution.reading import Reader, join, join_tokens
from normscope.attribution.rows import AskedRow
from normscope.attribution.wording import answer_in_words, headline_of, terms_in_words
from normscope.engine.items import PreparedItem
from normscope.errors import InputError
from normscope.models.processors import MediaItem, processor_name, rendered
from normscope.models.running import accepted_by, evaluating
from normscope.models.sides import tokenizer_in
from normscope.results.attribution import Attribution
from normscope.text.pieces import label_ids
from normscope.text.tokens import Encoded, Tokens

# Inputs with one entry for each id, by what they have for ids that follow.
_BESIDE_IDS = {"attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 0}


class ItemReader(Reader):
    """Read one item for one model.

    Args:
        model: a transformers model.
        processor: its processor.
        item: what is read.
        prepared: the inputs that the processor made of it.
    """

    def __init__(self, model: Any, processor: Any, item: MediaItem, prepared: PreparedItem) -> None:
        super().__init__(model, tokenizer_in(processor), truncate=False)
        self.processor, self.item, self.prepared = processor, item, prepared
        ids = prepared.inputs.get("input_ids")
        self.encoded: Encoded | None = None
        if isinstance(ids, Tensor):
            tokens = prepared.tokens.get("")
            assert tokens is not None
            self.encoded = Encoded([int(index) for index in ids[0]], {}, tokens)

    @property
    def begins(self) -> int:
        """The number of tokens before what a decoder writes."""
        return len(start_ids(self.model, self.writer))

    def text(self, text: Any, pair: str | None = None) -> Encoded:
        """Return the ids of the item, or the positions at which its model has outputs."""
        if pair is not None:
            raise InputError("text_pair applies to a text without images and recordings")
        if self.encoded is not None:
            return self.encoded
        count = 0
        if head_of(self.model) == TOKEN_LABELS:
            with evaluating(self.model), torch.no_grad():
                count = self.model(**self.prepared.moved(self.model)).logits.shape[1]
        what = "object" if detects(self.model) else "frame" if self.item.audio is not None else None
        names = Tokens.positions(count, what or "position")
        return Encoded(list(range(count)), {}, names)

    def prompt(self, text: Any, follows: Any = None) -> tuple[Encoded, int]:
        """Return the ids of the item and of what follows, and the number of the former."""
        if self.encoded is None:
            raise InputError(
                f"{type(self.model).__name__} goes on from a text: give text=, if only the token "
                "that it begins with"
            )
        count = len(self.encoded)
        if follows is None:
            return self.encoded, count
        ids = self.ids_after(text, follows)
        return join(self.encoded, label_ids(self.tokenizer, ids)), count

    def ids_after(self, text: Any, follows: Any) -> list[int]:
        """Return the ids of what follows the item's text."""
        if not isinstance(follows, str):
            return self.checked_ids(follows)
        return super().ids_after(rendered(self.processor, self.item.text), follows)

    def write(self, prompt: Encoded, count: int) -> list[int]:
        """Return what the model writes after the item."""
        inputs = self.prepared.moved(self.model)
        if getattr(self.model.config, "is_encoder_decoder", False):
            return greedy_ids(self.model, self.writer, inputs, count)
        return write(self.model, self.writer, prompt, count, inputs)


class ItemExplainer:
    """Answer questions about items, with one model.

    Args:
        model: a transformers model.
        processor: its processor.
        options: checked options.
    """

    def __init__(self, model: Any, processor: Any, options: AttributionOptions) -> None:
        self.model, self.processor, self.options = model, processor, options

    def explain(self, item: MediaItem, prepared: PreparedItem, question: Question) -> Attribution:
        """Return the shares of an item in what the question asks for."""
        reader = ItemReader(self.model, self.processor, item, prepared)
        question = _with_similarity(self.model, item, question)
        row = row_of(reader, item.text, question, self.model)
        method = self.options.method_for(question)
        rows = InputRows(self.model, self._inputs(prepared, row), None, self.processor)
        value: Any
        kept = None
        if row.function is not None:
            value = CallerValue(row.function, 1)
        else:
            kept = rows.kept(term.place for step in row.steps for term in step)
            how: dict[str, Any] = {"units": self.options.units, "exact": not method.method.held}
            value = LogitValue(rows.head, [row.steps], kept=kept, **how)
        question = replace(question, baseline=rows.baselines(question, method) or None)
        shares = rows.explained(value, kept, question.baselines, method, self.options)
        return self._result(reader, rows, row, question, method, shares, value)

    def _inputs(self, prepared: PreparedItem, row: AskedRow) -> dict[str, Any]:
        """Return the inputs with the ids that follow, and those that a decoder reads."""
        inputs = dict(prepared.inputs)
        ids = inputs.get("input_ids")
        if isinstance(ids, Tensor) and row.texts:
            more = row.text.ids[ids.shape[1] :]
            for name, filler in {"input_ids": 0, **_BESIDE_IDS}.items():
                tensor = inputs.get(name)
                if more and isinstance(tensor, Tensor) and tensor.shape[:2] == ids.shape:
                    behind = torch.full((1, len(more)), filler, dtype=tensor.dtype)
                    inputs[name] = torch.cat([tensor, behind], dim=1)
            if more:
                inputs["input_ids"][0, ids.shape[1] :] = torch.tensor(more)
        if row.decoder is not None and "decoder_input_ids" in accepted_by(self.model):
            inputs["decoder_input_ids"] = torch.tensor([row.decoder.ids])
        return inputs

    def _result(
        self,
        reader: ItemReader,
        rows: InputRows,
        row: AskedRow,
        question: Question,
        method: ChosenMethod,
        shares: Sequence[Any],
        value: Any,
    ) -> Attribution:
        segments, parts, sides = rows.segments(0, shares)
        tokens = parts[0]
        for names in parts[1:]:
            tokens = join_tokens(tokens, names)
        steps = value.rows[0] if isinstance(value, LogitValue) else []
        terms = steps[0] if steps else ()
        answer = row.answer
        if answer is None:
            answer = answer_in_words(self.model, reader, row, terms)
        settings = self.options.describe(method) | terms_in_words(row, terms, answer)
        if question.baselines:
            settings["baseline"] = ",".join(map(str, question.baselines))
        parameter = next(self.model.parameters())
        settings["dtype"] = str(parameter.dtype).removeprefix("torch.")
        settings["processor"] = processor_name(self.processor)
        what = "image" if reader.item.images else "recording"
        labels = Labels(
            tokens=tokens,
            sides=_sides(sides, parts, row),
            explained=row.explained,
            answer=answer,
            foil=row.foil,
            settings={**settings, **headline_of(rows.head, row, answer, what)},
            signature=rows.signature.with_settings(settings),
        )
        return attribution(shares, slice(0, 1), segments, labels)


def _with_similarity(model: Any, item: MediaItem, question: Question) -> Question:
    """Return the question of a model that compares images with texts, if none was asked."""
    both = bool(item.images) and item.text is not None
    compares = head_of(model) == NO_HEAD and "return_loss" in accepted_by(model)
    if question.answer is None and both and compares:
        return Question(answer=similarity, baseline=question.baseline)
    return question


def similarity(output: Any) -> Tensor:
    """Return the logit with which a model says that image and text belong together."""
    logits: Tensor = output.logits_per_image
    return logits[0, 0]


def _sides(sides: Sequence[str], parts: Sequence[Tokens], row: AskedRow) -> list[str]:
    """Return the side of each token; of ids, whether they are of the text or follow it."""
    given = list(sides)
    start = 0
    for tokens in parts:
        end = start + len(tokens)
        follow = row.sides[: len(row.text)].count("continuation") if row.texts else 0
        if follow and sides[start] == "text":
            given[end - follow : end] = ["continuation"] * follow
        start = end
    return given
