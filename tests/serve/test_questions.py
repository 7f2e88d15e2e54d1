"""What can be asked of a model in the web app."""

from __future__ import annotations

from typing import Any

import pytest

from normscope.serve.questions import QUESTIONS, describe_questions
from normscope.serve.requests import TEXTS
from normscope.serve.worker import ASKED
from tests.helpers.heads import LABELS, classifier, masked_tokenizer, tiny_head
from tests.helpers.tiny import tokenizer

HEADS = {
    "GPT2LMHeadModel": ["maps", "next", "write", "continue"],
    "BertForMaskedLM": ["maps", "mask"],
    "BertForSequenceClassification": ["maps", "label"],
    "BertForTokenClassification": ["maps", "token"],
    "BertForQuestionAnswering": ["maps", "span"],
    "BertForMultipleChoice": ["maps"],
    "BartForConditionalGeneration": ["maps", "target", "write"],
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_has_its_questions(name: str) -> None:
    family = next(family for family in ("gpt2", "bert", "bart") if name.lower().startswith(family))
    labels = 2 if "QuestionAnswering" in name else 3
    described = describe_questions(tiny_head(family, name, labels=labels), tokenizer())
    assert list(described["questions"]) == HEADS[name]


@pytest.mark.parametrize(
    ("family", "model"), [("bert", "BertModel"), ("gpt2", "GPT2Model"), ("bart", "BartModel")]
)
def test_without_a_head_there_is_similarity(family: str, model: str) -> None:
    described: dict[str, Any] = describe_questions(tiny_head(family, model), tokenizer())
    assert list(described["questions"]) == ["maps", "similar"]
    assert described["questions"]["similar"]["required"] == ["similar_to"]
    assert (described["labels"], described["mask"]) == ([], None)


def test_labels_and_the_mask_are_named() -> None:
    assert describe_questions(classifier(), tokenizer())["labels"] == list(LABELS.values())
    masked = describe_questions(tiny_head("bert", "BertForMaskedLM"), masked_tokenizer())
    assert masked["mask"] == "sun"
    assert "cabinet sun on" in masked["questions"]["mask"]["examples"]["text"]


def test_every_field_is_known_and_required_fields_are_offered() -> None:
    for question in QUESTIONS[1:]:
        assert set(question.fields) <= {*ASKED, "trace"}, question.name
        assert set(question.required) <= set(question.fields), question.name
        assert {name for name, _ in question.examples} <= {"text", *question.fields}
    assert set(ASKED) == {*TEXTS, "generate", "position"} - {"text"}
