"""Analyse items that a processor reads: images, recordings, and texts with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normscope.decomposition.available import check_available
from normscope.engine.batch import Batch
from normscope.engine.batches import out_of_memory
from normscope.engine.given import model_failures
from normscope.engine.items import GivenItems, PreparedItem
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import run
from normscope.errors import InputError
from normscope.foundation.progress import stage
from normscope.measures.maps import Maps, settings_of
from normscope.models.processors import processor_name
from normscope.models.running import accepted_by
from normscope.models.sides import tokenizer_in
from normscope.results.contributions import Contributions
from normscope.results.signature import Signature


def analyze_items(
    model: Any,
    processor: Any,
    loaded: bool,
    given: GivenItems,
    choose: Callable[[int], Sequence[AnalysisOptions]],
) -> list[list[Contributions]]:
    """Return the results of each view by item; ``choose`` maps the greatest length to the views.

    Every item has a pass of its own: images and texts have different sizes.
    """
    tokenizer = tokenizer_in(processor)
    signature = Signature(model, None if tokenizer is processor else tokenizer, {})
    results: list[list[Contributions]] = []
    for at in range(len(given.items)):
        item = given.prepared(model, processor, at)
        _check_decoder(model, item)
        lengths = [len(tokens) for tokens in item.tokens.values() if tokens is not None]
        views = choose(max(lengths, default=0))
        if len({options.attention for options in views}) != 1:
            raise InputError("several views of an item share one pass: give them equal attention")
        measures = []
        for options in views:
            check_available(model, options.maps, item.inputs, ff_bias=options.ff_bias)
            settings = settings_of(model, options) | {"processor": processor_name(processor)}
            measures.append(Maps(options, signature.with_settings(settings)))
        stage("running the model, checking the maps")
        moved = item.moved(model)
        tokens = [item.tokens] if item.tokens else None
        batch = Batch(model, moved, tokens, host=item.inputs, seen=item.seen(model, processor))
        try:
            with model_failures(model, moved):
                (judged,) = run(
                    model,
                    [batch],
                    measures,
                    attention=views[0].attention,
                    recorded_as=repr(views),
                    snapshot=signature.snapshot,
                )
        except torch.OutOfMemoryError as error:
            raise out_of_memory("this image or recording") from error
        results += [[] for _ in judged.results[len(results) :]]
        for by_item, (result,) in zip(results, judged.results, strict=True):
            by_item.append(result)
    if loaded:  # hash the weights now, because the model is deleted on return
        for result in (result for by_item in results for result in by_item):
            _ = result.signature
    return results


def _check_decoder(model: Any, item: PreparedItem) -> None:
    """Raise InputError for a model whose decoder reads text, of which none was given."""
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    if two and "decoder_input_ids" in accepted_by(model) and "decoder_input_ids" not in item.inputs:
        raise InputError(
            f"{type(model).__name__} is an encoder–decoder model: give target=, the text that its "
            "decoder writes (on the command line --target)"
        )
