"""What was explained, in words: answers, settings and headlines."""

from __future__ import annotations

from typing import Any

from normscope.attribution.answers import Terms
from normscope.attribution.heads import (
    CHOICES,
    LABELS,
    SPANS,
    TOKEN_LABELS,
    WORDS,
    head_of,
    labels_of,
)
from normscope.attribution.labels import span_text
from normscope.attribution.reading import Reader, spoken
from normscope.attribution.rows import AskedRow


def answer_in_words(model: Any, reader: Reader, row: AskedRow, terms: Terms) -> str:
    """Return the answer that the model chose, in words."""
    head = head_of(model)
    indices = [int(term.index) for term in terms if term.index is not None]
    if head == SPANS:
        return span_text(row.text.tokens, *indices)
    if head == CHOICES:
        return row.names[indices[0]]
    if head in WORDS:
        return spoken(reader.writer, indices)
    return labels_of(model).get(indices[0], str(indices[0]))


def terms_in_words(row: AskedRow, terms: Terms, answer: str) -> dict[str, str]:
    """Return what was explained, as settings of a signature."""
    settings: dict[str, str] = {}
    indices = [term.index for term in terms if term.index is not None]
    positive = sum(term.weight > 0 for term in terms)
    if row.explained is not None:
        settings["answer"] = f"{len(row.explained)} tokens"
    elif row.similar_to is not None:
        settings["answer"] = settings["units"] = "cosine"
    elif row.function is not None:
        settings["answer"], settings["units"] = answer, "function"
    else:
        settings["answer"] = ",".join(map(str, indices[:positive])) or "none"
        if row.foil is not None:
            settings["foil"] = ",".join(map(str, indices[positive:]))
    if row.position is not None:
        settings["position"] = str(row.position)
    return settings


def headline_of(head: str, row: AskedRow, answer: str, what: str) -> dict[str, str]:
    """Return what the shares answer, where it is not what a language model says.

    Args:
        head: the kind of the model's head.
        row: what was explained.
        answer: the answer in words.
        what: what was read: a text, an image, a recording.
    """
    rather = "" if row.foil is None else f" rather than {row.foil!r}"
    if row.similar_to is not None:
        return {"question": f"What makes the text similar to {row.similar_to!r}"}
    if row.function is not None and answer == "similarity":
        return {"question": f"What makes {what} and text belong together"}
    if row.function is not None:
        return {"question": f"What made the value of the function {answer}".rstrip()}
    if head == LABELS:
        return {"question": f"What makes the {what} {answer!r}{rather}"}
    if head == TOKEN_LABELS and row.position is not None:
        token = row.text.tokens.texts[row.position]
        return {"question": f"What makes {token!r} {answer!r}{rather}"}
    if head in (SPANS, CHOICES):
        verb = "answer" if head == SPANS else "choose"
        return {"question": f"What made the model {verb} {answer!r}{rather}"}
    return {}
