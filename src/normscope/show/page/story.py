"""The results that the command line shows on a page: every head, and the block around them."""

from __future__ import annotations

from typing import Any

from normscope.decomposition.maps import available
from normscope.decomposition.scopes import ANALYSES, HEAD_MAPS
from normscope.measures.analysis import analyze
from normscope.models import load
from normscope.results.contributions import Contributions

LARGEST = 16_000_000  # cells of one map with all its heads: about ten megabytes on the page


def gather(
    model: Any,
    tokenizer: Any = None,
    text: str | None = None,
    text_pair: str | None = None,
    target: str | None = None,
    **options: Any,
) -> list[Contributions]:
    """Return the results of one text that make a rich page.

    The first has the weights and norms of every head, the second, with heads summed, the maps up to
    the end of the attention block. Takes the arguments of :func:`normscope.analyze` except ``maps``
    and ``heads``. The first is left out where one of its maps would have more than 16 million
    cells.
    """
    if model is None or isinstance(model, str) or hasattr(model, "__fspath__"):
        choice = {name: options.pop(name, None) for name in ("revision", "dtype", "device")}
        model, own_tokenizer = load(model if model is None else str(model), **choice)
        tokenizer = own_tokenizer if tokenizer is None else tokenizer
    inputs = {"text": text, "text_pair": text_pair, "target": target, **options}
    summed: Contributions = analyze(model, tokenizer, maps=summed_maps(model), **inputs)
    if any(_cells(part) > LARGEST for part in (summed.parts or {"": summed}).values()):
        return [summed]
    # The result by head comes first: then the page computes the mean of the weights from it.
    return [analyze(model, tokenizer, maps=HEAD_MAPS, heads="each", **inputs), summed]


def summed_maps(model: Any) -> list[str]:
    """List the maps to show with heads summed: those of ANALYSES that the model has."""
    names = {name for part in available(model).values() for name in part}
    return [name for name in ANALYSES if name in HEAD_MAPS or name in names]


def _cells(part: Contributions) -> int:
    return part.layers * part.heads * len(part.tokens) * len(part.key_tokens)
