"""From a text and a question to a row: what the model reads and what is explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normscope.attribution.heads import (
    CAUSAL,
    CHOICES,
    LABELS,
    MASKED,
    NO_HEAD,
    SEQ2SEQ,
    SPANS,
    TOKEN_LABELS,
    head_of,
    no_head,
)
from normscope.attribution.labels import choices_row, label_row, span_row
from normscope.attribution.language import causal_row, masked_row, translation_row
from normscope.attribution.options import Question
from normscope.attribution.reading import Reader, is_chat
from normscope.attribution.rows import AskedRow, sides_of, with_decoder
from normscope.errors import InputError


def row_of(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row for one text and a checked question.

    Raises:
        InputError: text, question and model do not go together.
    """
    head = head_of(model)
    if question.similar_to is not None:
        return _plain(reader, text, question, similar_to=question.similar_to)
    if callable(question.answer):
        return _plain(reader, text, question, function=question.answer)
    if head == NO_HEAD:
        raise no_head(model)
    for name, heads in {"target": [SEQ2SEQ], "continuation": [CAUSAL]}.items():
        if getattr(question, name) is not None and head not in heads:
            raise InputError(
                f"{type(model).__name__} does not accept {name}: {name}= is for "
                f"{'encoder–decoder' if name == 'target' else 'causal language'} models"
            )
    if question.generate is not None and head not in (CAUSAL, SEQ2SEQ):
        raise InputError(f"{type(model).__name__} writes no text, so generate= does not apply")
    if question.text_pair is not None and head in (CAUSAL, SEQ2SEQ):
        raise InputError(f"{type(model).__name__} reads one text, not a pair: leave out text_pair")
    if is_chat(text) and head != CAUSAL and head != LABELS:
        raise InputError(f"{type(model).__name__} reads a text, not the messages of a chat")
    make: dict[str, Callable[..., AskedRow]] = {
        CAUSAL: causal_row,
        MASKED: masked_row,
        SEQ2SEQ: translation_row,
        LABELS: label_row,
        TOKEN_LABELS: label_row,
        SPANS: span_row,
        CHOICES: choices_row,
    }
    return make[head](reader, text, question, model)


def _plain(reader: Reader, text: Any, question: Question, **what: Any) -> AskedRow:
    """Return the row of a model whose output is read by a function."""
    encoded = reader.text(text, question.text_pair)
    sides = sides_of(reader, encoded, text, question.text_pair)
    if "function" in what and head_of(reader.model) == CAUSAL and question.text_pair is None:
        encoded, _ = reader.prompt(text)
        sides = ("text",) * len(encoded)
    answer = "similarity" if "similar_to" in what else getattr(question.answer, "__name__", "")
    decoder = None
    if "function" in what:
        decoder, sides = with_decoder(reader, encoded, sides)
    return AskedRow((encoded,), decoder, sides, answer=answer, **what)
