"""What can be asked of a model: its maps, and what made an output of the head that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normscope.attribution.heads import (
    CAUSAL,
    LABELS,
    MASKED,
    NO_HEAD,
    SEQ2SEQ,
    SPANS,
    TOKEN_LABELS,
    head_of,
    labels_of,
)

MASK = "{mask}"  # stands for the mask token in an example
HOW = ("baseline", "trace")  # fields of every question but that for maps


@dataclass(frozen=True)
class OfferedQuestion:
    """A question that the page offers and that a request names.

    Attributes:
        name: Its name in requests.
        title: The question in words.
        heads: The kinds of heads that can answer it; empty for every model.
        fields: The fields of a request that it uses, beside model and text.
        required: Those that must not be empty.
        text: What the text is called.
        follows: Whether the answer comes after the text, as its continuation.
        examples: Texts that the page suggests, by field.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    fields: tuple[str, ...]
    required: tuple[str, ...] = ()
    text: str = "Text"
    follows: bool = False
    examples: tuple[tuple[str, str], ...] = ()


_SENTENCE = (("text", "Anna baked a cake, and Tom ate most of it."),)

QUESTIONS = (
    OfferedQuestion(
        "maps",
        "How do the tokens mix, layer by layer?",
        (),
        ("text_pair", "target", "maps", "heads"),
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "next",
        "What made the next word?",
        (CAUSAL,),
        ("answer", "foil", *HOW),
        text="Prompt",
        follows=True,
        examples=(("text", "The keys to the cabinet"),),
    ),
    OfferedQuestion(
        "write",
        "Let the model write: what made each word?",
        (CAUSAL,),
        ("generate", *HOW),
        ("generate",),
        text="Prompt",
        follows=True,
        examples=(("text", "Once upon a time, there was a"),),
    ),
    OfferedQuestion(
        "continue",
        "What made this continuation?",
        (CAUSAL,),
        ("continuation", *HOW),
        ("continuation",),
        text="Prompt",
        follows=True,
        examples=(("text", "The keys to the cabinet"), ("continuation", "are on the table.")),
    ),
    OfferedQuestion(
        "mask",
        "What made the word at the mask?",
        (MASKED,),
        ("text_pair", "answer", "foil", "position", *HOW),
        examples=(("text", f"The keys to the cabinet {MASK} on the table."),),
    ),
    OfferedQuestion(
        "label",
        "What made the label?",
        (LABELS,),
        ("text_pair", "answer", "foil", *HOW),
        examples=(("text", "A gripping film, from the first minute to the last."),),
    ),
    OfferedQuestion(
        "token",
        "What made the label of one token?",
        (TOKEN_LABELS,),
        ("text_pair", "position", "answer", "foil", *HOW),
        ("position",),
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "span",
        "What made the answer to a question?",
        (SPANS,),
        ("text_pair", "answer", "foil", *HOW),
        ("text_pair",),
        text="Question",
        examples=(("text", "Who baked the cake?"), ("text_pair", _SENTENCE[0][1])),
    ),
    OfferedQuestion(
        "target",
        "What made this translation?",
        (SEQ2SEQ,),
        ("target", *HOW),
        ("target",),
        text="Source",
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "write",
        "Let the model write: what made each word?",
        (SEQ2SEQ,),
        ("generate", *HOW),
        ("generate",),
        text="Source",
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "similar",
        "What makes two texts similar?",
        (NO_HEAD,),
        ("similar_to", *HOW),
        ("similar_to",),
        examples=(("text", "A man plays a guitar."), ("similar_to", "Someone makes music.")),
    ),
)


def describe_questions(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return what can be asked of a model, in plain types, by the names that requests use."""
    head = head_of(model)
    mask = getattr(tokenizer, "mask_token", None)
    return {
        "questions": {
            question.name: {
                "title": question.title,
                "fields": list(question.fields),
                "required": list(question.required),
                "text": question.text,
                "follows": question.follows,
                "examples": {
                    name: text.replace(MASK, mask or "") for name, text in question.examples
                },
            }
            for question in QUESTIONS
            if not question.heads or head in question.heads
        },
        "labels": list(labels_of(model).values()) if head in (LABELS, TOKEN_LABELS) else [],
        "mask": mask if head == MASKED else None,
    }
