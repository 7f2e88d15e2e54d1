"""Tiny models with heads, all parameters random, in float64, for the tokenizer of 60 ids."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import transformers

from normscope.models.architectures import FAMILIES, randomize_
from tests.helpers.tiny import tokenizer

LABELS = {0: "negative", 1: "positive", 2: "neutral"}


@functools.cache
def _model(family: str, model: str, seed: int, labels: int) -> Any:
    tiny = FAMILIES[family]
    config = getattr(transformers, tiny.config)(**copy.deepcopy(tiny.tiny))
    config.id2label = {i: LABELS.get(i, f"LABEL_{i}") for i in range(labels)}
    config.label2id = {label: i for i, label in config.id2label.items()}
    # Kept for other tests, whatever mode this one is in.
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        made = getattr(transformers, model)(config)
        made.double().eval()
        randomize_(made, seed)
    return made


def tiny_head(family: str, model: str, *, seed: int = 0, labels: int = 3) -> Any:
    """The tiny model of a family with a head: `tiny_head("bert", "BertForMaskedLM")`."""
    return _model(family, model, seed, labels)


def language_model() -> Any:
    return tiny_head("gpt2", "GPT2LMHeadModel")


def classifier() -> Any:
    return tiny_head("bert", "BertForSequenceClassification")


def translator() -> Any:
    return tiny_head("bart", "BartForConditionalGeneration")


def masked_tokenizer() -> Any:
    """The tiny tokenizer, with <unk> as its mask token."""
    made = tokenizer()
    made.mask_token = "sun"
    return made
