"""What is explained of heads that give labels, spans or choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normscope.attribution.answers import Term, Terms, span_terms
from normscope.attribution.heads import (
    TOKEN_LABELS,
    detects,
    head_of,
    is_index,
    label_index,
    labels_of,
)
from normscope.attribution.options import SPAN, Question
from normscope.attribution.reading import Reader
from normscope.attribution.rows import AskedRow, position_in, sides_of, with_decoder
from normscope.errors import InputError
from normscope.results.arrays import abridged
from normscope.text.tokens import Encoded, Tokens


def label_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of a model that labels a text, or each of its tokens."""
    encoded = reader.text(text, question.text_pair)
    sides = sides_of(reader, encoded, text, question.text_pair)
    place, position = 0, None
    if head_of(model) == TOKEN_LABELS:
        if question.position is None:
            what = "object query" if detects(model) else "token"
            raise InputError(
                f"{type(model).__name__} labels every {what}: give position=, 0 to "
                f"{len(encoded) - 1}: {abridged(encoded.tokens)}"
            )
        place = position = position_in(encoded.tokens, question.position)
    elif question.position is not None:
        raise InputError(
            f"{type(model).__name__} has one output for the whole text: leave out position"
        )
    terms, answer, foil = label_terms(model, question, place)
    decoder, sides = with_decoder(reader, encoded, sides)
    return AskedRow((encoded,), decoder, sides, (terms,), None, answer, foil, position)


def label_terms(model: Any, question: Question, place: int) -> tuple[Terms, str | None, str | None]:
    """Return the terms of a label, and label and foil in words."""
    if question.answer is None:
        return (Term(place, None),), None, None
    labels = labels_of(model)
    index = label_index(model, question.answer)
    terms: Terms = (Term(place, index),)
    if question.foil is None:
        return terms, labels[index], None
    foil = label_index(model, question.foil)
    if foil == index:
        raise InputError(f"answer and foil are the same label, {labels[index]!r}")
    return (*terms, Term(place, foil, -1.0)), labels[index], labels[foil]


def span_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of a question-answering model: start and end of a span."""
    if question.position is not None:
        raise InputError(
            "question answering has a start and an end: give answer=(start, end), not position"
        )
    encoded = reader.text(text, question.text_pair)
    sides = sides_of(reader, encoded, text, question.text_pair)
    side = "text" if question.text_pair is None else "pair"
    valid = [
        at for at, special in enumerate(encoded.tokens.special) if not special and sides[at] == side
    ]
    decoder, all_sides = with_decoder(reader, encoded, sides)
    row = AskedRow((encoded,), decoder, all_sides, ((Term(0, None), Term(1, None)),))
    if question.answer is None or question.answer == SPAN:
        if question.foil is None:
            return row
        raise InputError("a foil needs an explicit answer: a span, not the model's own choice")
    spans = [
        _span_at(reader, encoded, valid, given)
        for given in (question.answer, question.foil)
        if given is not None
    ]
    terms = span_terms(*spans[0])
    if len(spans) == 2:
        terms = (*terms, *span_terms(*spans[1], weight=-1.0))
    answer, foil = [*(span_text(encoded.tokens, *span) for span in spans), None][:2]
    return AskedRow((encoded,), decoder, all_sides, (terms,), None, answer, foil)


def _span_at(
    reader: Reader, encoded: Encoded, valid: Sequence[int], answer: Any
) -> tuple[int, int]:
    """Return start and end of a span that is given by its positions or by its words."""
    if isinstance(answer, str):
        for string in (answer, f" {answer}"):
            ids = reader.ids_of(string)
            for at in valid:
                if ids and encoded.ids[at : at + len(ids)] == ids:
                    return at, at + len(ids) - 1
        raise InputError(
            f"the span {answer!r} is not in the text, as the tokenizer divides it: "
            f"{abridged(encoded.tokens)}; give words of it, (start, end) in tokens, or "
            '"span" for the model\'s own choice'
        )
    pair = list(answer) if isinstance(answer, Sequence) else []
    if len(pair) != 2 or not all(map(is_index, pair)):
        raise InputError(f"a span is given as words or as (start, end), not {answer!r:.60}")
    start, end = (position_in(encoded.tokens, int(at)) for at in pair)
    if end < start:
        raise InputError(f"the span {answer!r} ends before it starts")
    return start, end


def span_text(tokens: Tokens, start: int, end: int) -> str:
    """Return the text of a span of tokens, the end included."""
    if tokens.word_of is None:
        return " ".join(tokens.texts[start : end + 1])
    text = ""
    for at in range(start, end + 1):
        space = at > start and tokens.word_of[at] != tokens.word_of[at - 1]
        text += " " * space + tokens.texts[at]
    return text


def choices_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of a multiple-choice model, which reads the text with each choice."""
    if question.position is not None:
        raise InputError("multiple choice has one output for each choice: leave out position")
    pairs = question.text_pair
    if pairs is None or isinstance(pairs, str):
        raise InputError(
            f"{type(model).__name__} chooses between texts: give text_pair=[…], the choices"
        )
    texts = tuple(reader.text(text, pair) for pair in pairs)

    def index_of(choice: Any) -> int:
        if isinstance(choice, str) and choice in pairs:
            return list(pairs).index(choice)
        if isinstance(choice, str) and choice.isdecimal():
            choice = int(choice)
        if is_index(choice) and 0 <= choice < len(pairs):
            return int(choice)
        listing = ", ".join(f"{at} {pair!r:.40}" for at, pair in enumerate(pairs))
        raise InputError(f"there is no choice {choice!r}; the choices are: {listing}")

    sides = tuple(
        side
        for encoded, pair in zip(texts, pairs, strict=True)
        for side in sides_of(reader, encoded, text, pair)
    )
    terms: Terms = (Term(0, None),)
    answer, foil = None, None
    if question.answer is not None:
        chosen = index_of(question.answer)
        terms, answer = (Term(0, chosen),), pairs[chosen]
    if question.foil is not None:
        other = index_of(question.foil)
        if other == chosen:
            raise InputError(f"answer and foil are the same choice, {pairs[other]!r:.60}")
        terms, foil = (*terms, Term(0, other, -1.0)), pairs[other]
    return AskedRow(texts, None, sides, (terms,), None, answer, foil, names=tuple(pairs))
