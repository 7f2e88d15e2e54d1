"""The results that make a rich page: every head of the attention, and the block around it."""

from __future__ import annotations

from typing import Any

from normscope.decomposition.available import available
from normscope.measures.analysis import analyze
from normscope.models import load
from normscope.results.contributions import Contributions

# From the weights to the end of the attention block; what a model lacks is left out.
STORY = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n")
BY_HEAD = ("attn_w", "attn_n")
LARGEST = 16_000_000  # cells of one map with all its heads: about ten megabytes on the page


def gather(
    model: Any,
    tokenizer: Any = None,
    text: str | None = None,
    text_pair: str | None = None,
    target: str | None = None,
    **options: Any,
) -> list[Contributions]:
    """Analyse one text twice: maps up to the attention block's end, then weights and norms by head.

    Takes what :func:`normscope.analyze` takes, but for ``maps`` and ``heads``. The second result
    is left out where its maps would have more than 16 million cells.
    """
    if model is None or isinstance(model, str) or hasattr(model, "__fspath__"):
        chosen = {name: options.pop(name, None) for name in ("revision", "dtype", "device")}
        model, found = load(model if model is None else str(model), **chosen)
        tokenizer = found if tokenizer is None else tokenizer
    has = {name for names in available(model).values() for name in names} | set(BY_HEAD)
    inputs = {"text": text, "text_pair": text_pair, "target": target, **options}
    together: Contributions = analyze(
        model, tokenizer, maps=[name for name in STORY if name in has], **inputs
    )
    if any(_cells(part) > LARGEST for part in (together.parts or {"": together}).values()):
        return [together]
    # By head first: the page then knows the mean of the weights without a copy of it.
    return [analyze(model, tokenizer, maps=BY_HEAD, heads="each", **inputs), together]


def _cells(part: Contributions) -> int:
    return part.layers * part.heads * len(part.tokens) * len(part.key_tokens)
