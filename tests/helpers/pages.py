"""Results made of plain numbers, to be shown on pages: no model is needed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import normscope
from normscope import Contributions, LabelledArray
from normscope.engine.batch import with_residual
from normscope.engine.naming import named
from normscope.text.tokens import Tokens

SENTENCE = ("[CLS]", "the", "cat", "##s", "sat", "on", "the", "mat", ".", "[SEP]")
TEXTS = ("[CLS]", "The", "cat", "s", "sat", "on", "the", "mat", ".", "[SEP]")
WORDS = ("[CLS]", "The", "cats", "sat", "on", "the", "mat", ".", "[SEP]")

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'",
    "a\0\u202eb",
)


def sentence() -> Tokens:
    """Ten pieces, nine words, two special tokens."""
    return Tokens(
        strings=SENTENCE,
        ids=tuple(range(10)),
        special=(True, *[False] * 8, True),
        texts=TEXTS,
        word_of=(0, 1, 2, 2, 3, 4, 5, 6, 7, 8),
        words=WORDS,
    )


def tokens_of(strings: Sequence[str]) -> Tokens:
    """Each a word of its own."""
    return named(strings)


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    grown = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def results(
    tokens: Tokens | None = None,
    layers: int = 3,
    heads: int = 4,
    *,
    seed: int = 0,
    keys: Tokens | None = None,
) -> list[Contributions]:
    """One result with every head, one with three maps of the heads together."""
    query = sentence() if tokens is None else tokens
    key = query if keys is None else keys
    random = np.random.default_rng(seed)
    n, m = len(query), len(key)
    alpha = softmax(2 * random.normal(size=(layers, heads, n, m)))
    norm = random.uniform(0.2, 3.0, size=(layers, heads, m))
    both = {"query": query, "key": key}

    def array(name: str, values: NDArray[np.float64], like: Any = both) -> LabelledArray:
        axes = ("layer", *(["head"] if values.ndim == 4 else []), "query", "key")
        return LabelledArray(values.astype(np.float32), axes, like, name=name)

    each = Contributions(
        {"attn_w": array("attn_w", alpha), "attn_n": array("attn_n", alpha * norm[:, :, None])},
        LabelledArray(
            norm.astype(np.float32),
            ("layer", "head", "key"),
            {"key": key},
            name="transformed_norm",
            key_reduce="mean",
        ),
        query,
        key,
        {"attn_w": 3e-8, "attn_n": 2e-8},
        "model:tiny|heads:each",
    )
    weight, summed = alpha.mean(axis=1), random.uniform(0, 2, size=(layers, n, m))
    if keys is None:
        block = summed + 6 * np.eye(n)
        last = array("attn_res_ln_n", block)
    else:
        block = np.concatenate([summed, random.uniform(1, 3, size=(layers, n, 1))], axis=-1)
        last = array("attn_res_ln_n", block, {"query": query, "key": with_residual(key)})
    ratio = LabelledArray(
        random.uniform(0, 1, size=(layers, n)).astype(np.float32),
        ("layer", "query"),
        {"query": query},
    )
    together = Contributions(
        {
            "attn_w": array("attn_w", weight),
            "attn_n": array("attn_n", summed),
            "attn_res_ln_n": last,
        },
        None,
        query,
        key,
        {"attn_w": 3e-8, "attn_n": 2e-8, "attn_res_ln_n": 4e-8},
        "model:tiny|heads:sum",
        None,
        {"mixing_ratio": {"attn_n": ratio, "attn_res_ln_n": ratio}},
    )
    return [each, together]


def translation() -> list[Contributions]:
    """Encoder, decoder and cross-attention of a small pair of sentences."""
    source = tokens_of(["Guten", "Tag", ",", "Welt", "</s>"])
    target = tokens_of(["<s>", "Good", "day", ",", "world"])
    found = [
        results(source, seed=1),
        results(target, seed=2),
        results(target, seed=3, keys=source),
    ]
    return [
        normscope.Contributions(
            signature=f"model:tiny-translator|{which}",
            parts={
                name: part[which]
                for name, part in zip(("encoder", "decoder", "cross"), found, strict=True)
            },
        )
        for which in (0, 1)
    ]


def shares(values: NDArray[Any]) -> NDArray[np.float64]:
    wide = np.asarray(values, dtype=np.float64)
    return np.asarray(wide / wide.sum(axis=-1, keepdims=True))


def decoded(data: dict[str, Any], number: int) -> NDArray[np.float64]:
    """One array of a payload, as the page unpacks it."""
    slab = data["slabs"][number]
    if "mean" in slab:
        return decoded(data, slab["mean"]).mean(axis=1)
    if "times" in slab:
        weights = decoded(data, slab["times"])
        factor = np.frombuffer(base64.b64decode(slab["factor"]), "<f4")
        return weights * factor.reshape(*weights.shape[:2], 1, weights.shape[3])
    raw = np.frombuffer(zlib.decompress(base64.b64decode(slab["data"])), np.uint8)
    planes = raw.reshape(1 if slab["levels"] <= 255 else 2, *slab["shape"]).astype(np.float64)
    cells = planes[0] + (256 * planes[1] if len(planes) == 2 else 0)
    leading = slab["shape"][: len(slab["shape"]) - (1 if len(slab["shape"]) == 2 else 2)]
    largest = np.array(slab["largest"]).reshape(*leading, *[1] * (cells.ndim - len(leading)))
    middle = slab["levels"] // 2 if slab.get("signed") else 0  # the level of zero
    roots = (cells - middle) / (middle or slab["levels"])
    return np.asarray(np.sign(roots) * roots**2 * largest)


def signed_result() -> Contributions:
    """A map with negative cells, in which every row has both signs and zeros."""
    tokens = sentence()
    values = np.random.default_rng(3).normal(size=(3, len(tokens), len(tokens)))
    values[:, :, 2] = 0
    array = LabelledArray(
        values.astype(np.float32),
        ("layer", "query", "key"),
        {"query": tokens, "key": tokens},
        name="effective",
        signed=True,
    )
    return Contributions({"effective": array}, tokens=tokens)


def maps_of(data: dict[str, Any], part: int = 0) -> dict[tuple[str, str], NDArray[np.float64]]:
    return {
        (one["name"], kind): decoded(data, one[kind]["slab"])
        for one in data["parts"][part]["maps"]
        for kind in ("each", "sum")
        if kind in one
    }
