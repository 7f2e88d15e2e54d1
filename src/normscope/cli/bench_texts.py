"""What `normscope bench --maps texts` measures: many texts of different lengths, in one call.

forward  plain forward passes over the texts, in batches of similar lengths, encoded beforehand
texts    normscope.analyze(model, tokenizer, texts) with four maps, tokenising included, every
         array of every result read as numpy
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import normscope
from normscope.cli.bench_works import (
    GROUPS,
    SHAPES,
    TEXTS,
    BenchSettings,
    Work,
    plain_attention,
    read,
)
from normscope.decomposition.available import available
from normscope.engine.batches import by_length
from normscope.errors import InputError
from normscope.models import load
from normscope.models.running import accepted_by

COUNT = 1000  # texts
SHORTEST, LONGEST = 10, 120  # tokens of a text, special tokens included
WORDS = 500  # different words in all texts
BUDGET = {"cpu": 2048, "cuda": 2**15}  # padded tokens in a batch of the plain forward passes
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def text_works(settings: BenchSettings, model: Any) -> list[Work]:
    """Return the plain forward passes over many texts, and their analysis."""
    if model.config.is_encoder_decoder:
        raise InputError("--maps texts reads texts without targets: choose another model")
    tokenizer = tokenizer_of(settings, model)
    texts = make_texts(tokenizer)
    scopes = {name for names in available(model).values() for name in names}
    maps = [name for name in GROUPS[TEXTS] if name in scopes]
    plain = plain_attention(model)

    def analyze() -> Any:
        return read(normscope.analyze(model, tokenizer, texts, maps=maps))

    return [
        Work("forward", passes(settings, model, tokenizer, texts), f"{plain} attention", plain),
        Work(TEXTS, analyze, "tokenising included", plain, in_hand=True),
    ]


def sizes() -> dict[str, int]:
    """Return how many texts there are, and how many tokens they have."""
    return {"texts": COUNT, "shortest": SHORTEST, "longest": LONGEST}


def tokenizer_of(settings: BenchSettings, model: Any) -> Any:
    """Return the model's own tokenizer, or one of made-up words for random weights."""
    if settings.model in SHAPES:
        return word_tokenizer(model.config.vocab_size)
    _, tokenizer = load(settings.model)
    return tokenizer


def word_tokenizer(size: int) -> Any:
    """Make a tokenizer whose words are "w4", "w5", …, for a vocabulary of a given size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL.values(), *(f"w{number}" for number in range(len(SPECIAL), size))]
    numbers = {word: number for number, word in enumerate(words[:size])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    first, last = SPECIAL["cls_token"], SPECIAL["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(first, numbers[first]), (last, numbers[last])],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def make_texts(tokenizer: Any) -> list[str]:
    """Make texts of random words, each of which is one token."""
    draw = random.Random(0)
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.get)
    candidates = [piece for piece in pieces if piece.isalnum() and piece.isascii()]
    draw.shuffle(candidates)
    special = len(tokenizer("")["input_ids"])
    single = (w for w in candidates if len(tokenizer(f"{w} {w}")["input_ids"]) == special + 2)
    words = list(islice(single, WORDS))
    counts = [draw.randint(SHORTEST, LONGEST) - special for _ in range(COUNT)]
    return [" ".join(draw.choices(words, k=count)) for count in counts]


def passes(
    settings: BenchSettings, model: Any, tokenizer: Any, texts: Sequence[str]
) -> Callable[[], None]:
    """Return a function that runs the plain forward pass over all texts, encoded already."""
    encoded = [tokenizer(text) for text in texts]
    accepted = accepted_by(model)
    device = torch.device(settings.device)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    def batch_of(rows: Sequence[int]) -> dict[str, Tensor]:
        padded = tokenizer.pad([encoded[row] for row in rows], return_tensors="pt")
        return {name: tensor.to(device) for name, tensor in padded.items() if name in accepted}

    lengths = [(len(row["input_ids"]),) for row in encoded]
    batches = [batch_of(rows) for rows in by_length(lengths, BUDGET[settings.device])]

    def run() -> None:
        for batch in batches:
            model(**batch)

    return run
