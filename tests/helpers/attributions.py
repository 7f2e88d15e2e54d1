"""Attributions made of random shares that add up: no model is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from normscope import Attribution
from normscope.results.traced import TracedShares
from normscope.text.tokens import Tokens

PIECES = ("The", "Ġkeys", "Ġto", "Ġthe", "Ġcab", "inet")
TEXTS = ("The", "keys", "to", "the", "cab", "inet")
KEYS = Tokens(
    PIECES, tuple(range(6)), (False,) * 6, TEXTS, (0, 1, 2, 3, 4, 4), (*TEXTS[:4], "cabinet")
)
SENTENCE = (
    "When the committee met again in March , nobody expected Dr. Sørensen to speak first . "
    "She rose , thanked the chair and read a short letter aloud . The keys to the cabinet were "
    "missing ! Who had taken them ? In the silence that followed only the clock could be heard . "
)
LAYERS, HEADS = 4, 3


def words(count: int) -> Tokens:
    """So many tokens of running text; every ninth continues the word before it."""
    source = SENTENCE.split()
    strings: list[str] = []
    texts: list[str] = []
    word_of: list[int] = []
    for at in range(count):
        word = source[at % len(source)]
        joined = at % 9 == 8 or not word[0].isalnum()
        strings.append(word if joined or not at else f"Ġ{word}")
        texts.append(word)
        word_of.append((word_of[-1] if joined else word_of[-1] + 1) if at else 0)
    spelled = [
        "".join(t for t, w in zip(texts, word_of, strict=True) if w == number)
        for number in range(word_of[-1] + 1)
    ]
    return Tokens(
        tuple(strings),
        tuple(range(count)),
        (False,) * count,
        tuple(texts),
        tuple(word_of),
        tuple(spelled),
    )


def tokens_of(texts: list[str]) -> Tokens:
    """Each a word of its own, as the tokenizer's piece and as text."""
    own = tuple(texts)
    return Tokens(own, None, (False,) * len(own), own, tuple(range(len(own))), own)


def attribution(
    tokens: Tokens = KEYS,
    steps: Tokens | None = None,
    *,
    trace: bool | TracedShares | None = False,
    **about: Any,
) -> Attribution:
    """Random shares in two parts, a bias, and the value that they add up to."""
    random = np.random.default_rng(about.pop("seed", 0))
    lead = () if steps is None else (len(steps),)
    count = len(tokens)
    heavy = random.exponential(size=(*lead, 2, count)) ** 2
    parts = heavy * random.choice([-0.4, 1.0], size=heavy.shape)
    parts[..., 1, :] *= 0.1
    if steps is not None:  # what comes after an explained token has no share in it
        first = count - len(steps)
        for step in range(len(steps)):
            parts[step, :, first + step :] = 0
    bias = random.normal(size=lead)
    value = parts.sum(axis=(-2, -1)) + bias
    facts: dict[str, Any] = {
        "tokens": tokens, "value": value, "bias": bias, "parts": parts, "error": 2e-7,
        "part_names": ("word", "position"), "steps": steps,
        "answer": " are" if steps is None else tuple(f" {text}" for text in steps.texts),
        "foil": " is" if steps is None else None,
        "settings": {"method": "frozen", "units": "logit"}, "signature": "model:tiny|method:frozen",
    }  # fmt: skip
    if isinstance(trace, TracedShares):
        facts["trace"] = trace
    elif trace:
        facts["trace"] = traced(parts.sum(axis=-2), np.asarray(value), random)
    return Attribution(**facts | about)


def traced(scores: Any, value: Any, random: Any) -> TracedShares:
    """Shares that move to the last token and lose their noise, layer by layer."""
    cuts = LAYERS + 1
    weight = (np.arange(cuts) / LAYERS)[:, None]
    end = np.zeros_like(scores)
    end[..., -1] = value
    layers = (1 - weight) * scores[..., None, :] + weight * end[..., None, :]
    layers = layers + 0.05 * random.normal(size=layers.shape)
    lead, count = scores.shape[:-1], scores.shape[-1]
    return TracedShares(
        layers=layers,
        layer_bias=value[..., None] - layers.sum(axis=-1),
        layer_error=np.full((*lead, cuts), 1e-7),
        heads=random.normal(size=(*lead, LAYERS, HEADS)),
        heads_error=np.full((*lead, LAYERS), 1e-7),
        feed_forward=random.normal(size=(*lead, LAYERS, count)) / count,
        feed_forward_error=np.full((*lead, LAYERS), 2e-7),
        edges=random.normal(size=(*lead, LAYERS, HEADS, count, count)) if count < 20 else None,
    )
