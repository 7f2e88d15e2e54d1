"""What the head of a model gives: words, labels, spans; told by the class of the model."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError

CAUSAL, MASKED, SEQ2SEQ = "causal", "masked", "seq2seq"
LABELS, TOKEN_LABELS, SPANS, CHOICES = "labels", "token labels", "spans", "choices"
NO_HEAD = "none"
WORDS = (CAUSAL, MASKED, SEQ2SEQ)  # heads whose classes are tokens

# The names of transformers' classes, by the kind of their head.
_KINDS = {
    SEQ2SEQ: r"ForConditionalGeneration|MTModel|EncoderDecoderModel",
    CAUSAL: r"ForCausalLM|LMHeadModel|ModelWithLMHead",
    MASKED: r"ForMaskedLM",
    LABELS: r"For(Sequence|Image|Audio|Video)Classification(WithTeacher)?"
    r"|SequenceClassifi(er|cation)|ForNextSentencePrediction",
    TOKEN_LABELS: r"For(Token|AudioFrame)Classification|ForCTC|ForObjectDetection",
    SPANS: r"ForQuestionAnswering(Simple)?",
    CHOICES: r"ForMultipleChoice",
}

# What to load instead of a model without a head.
_LOADERS = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForAudioClassification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForSpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "AutoModelForCTC": "MODEL_FOR_CTC_MAPPING_NAMES",
}


def head_of(model: nn.Module) -> str:
    """Return the kind of a model's head; NO_HEAD for a base model and for heads not known."""
    config = getattr(model, "config", None)
    for cls in type(model).__mro__:
        for kind, names in _KINDS.items():
            if not re.search(rf"(?:{names})$", cls.__name__):
                continue
            if kind == SEQ2SEQ and not getattr(config, "is_encoder_decoder", False):
                return CAUSAL  # models of images and text have this name too
            if kind == CAUSAL and getattr(config, "causal", True) is False:
                return MASKED  # XLM and FlauBERT have one class for both
            return kind
    return NO_HEAD


def no_head(model: nn.Module) -> InputError:
    """Return the error for a model without a head that an answer could name."""
    from transformers.models.auto import modeling_auto

    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", "")
    loaders = [
        loader
        for loader, mapping in _LOADERS.items()
        if kind in getattr(modeling_auto, mapping, ())
    ]
    load = f"load the model with {' or '.join(loaders)}" if loaders else "load it with its head"
    return InputError(
        f"{type(model).__name__} has no head that gives tokens or labels, so it has no answer to "
        f"explain: {load}; or give similar_to= for sentence embeddings, or a function of the "
        "model's output as answer="
    )


def scores_of(head: str, output: Any) -> Tensor:
    """Return the scores of a head as (row, place, class).

    Places are positions of tokens; a head of labels or choices has one place; the two places of a
    question-answering head are start and end, and its classes are positions.
    """
    import torch

    if head == SPANS:
        return torch.stack((output.start_logits, output.end_logits), dim=1)
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits.unsqueeze(1) if logits.ndim == 2 else logits


def detects(model: nn.Module) -> bool:
    """Return whether a model gives each of several queries a label: an object, or none."""
    return type(model).__name__.endswith("ForObjectDetection")


def labels_of(model: Any) -> dict[int, str]:
    """Return the labels of a model's config by their index.

    Where a model has one class more, for queries that find nothing, it is called "no object".
    """
    named = getattr(model.config, "id2label", None) or {}
    labels = {int(index): str(label) for index, label in named.items()}
    classifier = getattr(model, "class_labels_classifier", None)
    if isinstance(classifier, nn.Module) and len([*classifier.parameters()][-1]) > len(labels):
        labels[len(labels)] = "no object"
    return labels


def label_index(model: Any, answer: Any) -> int:
    """Return the index of a label that is given by its name or its index."""
    labels = labels_of(model)
    if isinstance(answer, str):
        exact = [index for index, label in labels.items() if label == answer]
        alike = [index for index, label in labels.items() if label.lower() == answer.lower()]
        for matches in (exact, alike):
            if len(matches) == 1:
                return matches[0]
        if answer.isdecimal() and int(answer) in labels:
            return int(answer)
    elif is_index(answer) and int(answer) in labels:
        return int(answer)
    listing = ", ".join(f"{index} {label!r}" for index, label in labels.items())
    raise InputError(f"the model has no label {answer!r}; its labels are: {listing:.2000}")


def is_index(value: object) -> bool:
    """Return whether a value is a whole number, of Python, NumPy or torch."""
    import numpy as np

    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def writes(model: Any) -> bool:
    """Return whether a model generates text."""
    return bool(getattr(model, "can_generate", lambda: False)())
