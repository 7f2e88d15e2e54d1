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
        about: What the answer shows, in a few words.
        heads: The kinds of heads that can answer it; empty for every model.
        fields: The fields of a request that it uses, beside model and text.
        required: Those that must not be empty.
        text: What the text is called.
        follows: Whether the answer comes after the text, as its continuation.
        examples: Texts that the page suggests, by field.
    """

    name: str
    title: str
    about: str
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
        "What does each word get from the others?",
        "Attention weights beside what is really added, layer by layer.",
        (),
        ("text_pair", "target", "maps", "heads"),
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "next",
        "Which words made this answer?",
        "Each word of a prompt, for or against the word that follows.",
        (CAUSAL,),
        ("answer", "foil", *HOW),
        text="Prompt",
        follows=True,
        examples=(("text", "The keys to the cabinet"),),
    ),
    OfferedQuestion(
        "write",
        "How does it continue?",
        "The model writes; select a word to see what made it.",
        (CAUSAL,),
        ("generate", *HOW),
        ("generate",),
        text="Prompt",
        follows=True,
        examples=(("text", "Once upon a time, there was a"),),
    ),
    OfferedQuestion(
        "continue",
        "Which words made this continuation?",
        "Write a continuation yourself; see what supports each word of it.",
        (CAUSAL,),
        ("continuation", *HOW),
        ("continuation",),
        text="Prompt",
        follows=True,
        examples=(("text", "The keys to the cabinet"), ("continuation", "are on the table.")),
    ),
    OfferedQuestion(
        "mask",
        "Which words made the missing word?",
        "Each word, for or against the word at the mask.",
        (MASKED,),
        ("text_pair", "answer", "foil", "position", *HOW),
        examples=(("text", f"The keys to the cabinet {MASK} on the table."),),
    ),
    OfferedQuestion(
        "label",
        "Which words made this label?",
        "Each word, for or against a label of the classifier.",
        (LABELS,),
        ("text_pair", "answer", "foil", *HOW),
        examples=(("text", "A gripping film, from the first minute to the last."),),
    ),
    OfferedQuestion(
        "token",
        "Which words made the label of one token?",
        "Each word, for or against the label of the token at a position.",
        (TOKEN_LABELS,),
        ("text_pair", "position", "answer", "foil", *HOW),
        ("position",),
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "span",
        "Which words made the answer to this question?",
        "Each word of question and passage, for or against the answer.",
        (SPANS,),
        ("text_pair", "answer", "foil", *HOW),
        ("text_pair",),
        text="Question",
        examples=(("text", "Who baked the cake?"), ("text_pair", _SENTENCE[0][1])),
    ),
    OfferedQuestion(
        "target",
        "Which words made this translation?",
        "Each word of the source, for every word of the translation.",
        (SEQ2SEQ,),
        ("target", *HOW),
        ("target",),
        text="Source",
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "write",
        "What does the model write?",
        "Select a word of its output to see what made it.",
        (SEQ2SEQ,),
        ("generate", *HOW),
        ("generate",),
        text="Source",
        examples=_SENTENCE,
    ),
    OfferedQuestion(
        "similar",
        "How similar are two texts?",
        "Which words make them similar, and which do not.",
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
                "about": question.about,
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
