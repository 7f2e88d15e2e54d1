"""The results that the command line shows on a page: every head, and the block around them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from normscope.decomposition.available import available
from normscope.decomposition.scopes import ANALYSES, HEAD_MAPS
from normscope.engine.options import AnalysisOptions
from normscope.measures.analysis import analyze_views
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
    """Return the results of one text that make a rich page, from one forward pass.

    The first has the weights and norms of every head, the second, with heads summed, the maps up to
    the end of the attention block. Takes the arguments of :func:`normscope.analyze` except ``maps``
    and ``heads``. The first is left out where one of its maps would have more than 16 million
    cells.
    """
    names = {field.name for field in fields(AnalysisOptions)}
    how = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}

    def views(model: Any, length: int) -> list[AnalysisOptions]:
        summed = AnalysisOptions(summed_maps(model), **how)
        if _heads(model) * length**2 > LARGEST:
            return [summed]
        # The result by head comes first: then the page computes the mean of the weights from it.
        return [AnalysisOptions(HEAD_MAPS, "each", **how), summed]

    results = analyze_views(
        model, tokenizer, text, views, text_pair=text_pair, target=target, **rest
    )
    parts = results[-1].parts or {"": results[-1]}
    return results[-1:] if any(_cells(part) > LARGEST for part in parts.values()) else results


def summed_maps(model: Any) -> list[str]:
    """List the maps to show with heads summed: those of ANALYSES that the model has."""
    names = {name for part in available(model).values() for name in part}
    return [name for name in ANALYSES if name in HEAD_MAPS or name in names]


def _heads(model: Any) -> int:
    """Return how many heads all layers have together, as far as the configuration says."""
    config = model.config.get_text_config()
    layers, heads = (getattr(config, f"num_{of}", 1) for of in ("hidden_layers", "attention_heads"))
    return layers * heads if isinstance(layers, int) and isinstance(heads, int) else 1


def _cells(part: Contributions) -> int:
    return part.layers * part.heads * len(part.tokens) * len(part.key_tokens)
