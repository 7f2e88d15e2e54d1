"""Gradient baselines: how much the probability of a target token changes with a source token.

``saliency`` (Li et al. 2016): the gradient of log p(y_t) with respect to the source embedding, mean
absolute value over the dimensions. ``smoothgrad`` (Ding et al. 2019, after Smilkov et al. 2017):
|x · ∂p(y_t)/∂x|, with the gradient averaged over noisy copies of the embeddings; the standard
deviation of the noise is a share of the range of the sentence's embeddings. Row t is the step that
writes token t, so the reading is always ``awo``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.alignment.batches import PairBatch, SentencePair, batches, budget_of
from normscope.alignment.extract import Consume
from normscope.alignment.options import AlignOptions
from normscope.errors import InputError
from normscope.foundation.interrupts import shielded
from normscope.foundation.shapes import Float
from normscope.models.completeness import refuse_made_up_head
from normscope.models.running import evaluating


def gradient_maps(
    model: Any,
    pairs: Sequence[SentencePair],
    consume: Consume,
    options: AlignOptions,
    *,
    padding: int,
) -> None:
    """Call ``consume`` with (batch, 0, (None,), values) for every batch, as `Extractor` does."""
    refuse_made_up_head(model)
    copies = options.copies if options.method == "smoothgrad" else 1
    budget = max(1, budget_of(model, options.budget) // copies)
    noise = torch.Generator().manual_seed(options.seed)
    with evaluating(model):
        for batch in batches(model, pairs, ("awo",), padding=padding, budget=budget):
            values = _gradients(model, batch, options, noise)
            consume(batch, 0, (None,), batch.words(values.unsqueeze(1), "awo").unsqueeze(0))


@shielded
def _hooked(module: nn.Module, hook: Callable[..., Tensor | None]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _gradients(
    model: Any, batch: PairBatch, options: AlignOptions, noise: torch.Generator
) -> Float[Tensor, "batch query key"]:
    """Compute the saliency of every source token at every step."""
    if batch.keys is None:
        raise InputError("gradient methods need a text as source, not audio")
    smooth = options.method == "smoothgrad"
    copies = options.copies if smooth else 1
    inputs = {
        name: tensor.repeat_interleave(copies, dim=0) for name, tensor in batch.inputs.items()
    }
    kept: list[Tensor] = []  # the encoder's embeddings, as a leaf of the graph

    def watch(_: Any, __: Any, embeddings: Tensor) -> Tensor | None:
        if kept:  # a shared table is used again by the decoder
            return None
        embeddings = embeddings.detach()
        if smooth:
            mask = inputs["attention_mask"]
            embeddings = embeddings + _noise(embeddings, mask, options.noise, noise)
        kept.append(embeddings.requires_grad_())
        return kept[0]

    with _hooked(model.get_encoder().get_input_embeddings(), watch), torch.enable_grad():
        logits = model(**inputs, use_cache=False).logits
        # Each step writes what the next one reads.
        following = inputs["decoder_input_ids"].roll(-1, dims=1).unsqueeze(-1)
        chances = logits.double().log_softmax(dim=-1).gather(2, following).squeeze(-1)
        chances = chances.exp() if smooth else chances
        slopes_by_step = []
        for step in range(chances.shape[1]):
            (slope,) = torch.autograd.grad(chances[:, step].sum(), kept[0], retain_graph=True)
            slopes_by_step.append(slope.double().unflatten(0, (-1, copies)).mean(dim=1))
    slopes = torch.stack(slopes_by_step, dim=1)  # batch query key hidden
    if smooth:
        points = kept[0].detach().double().unflatten(0, (-1, copies)).mean(dim=1)
        values = (slopes * points.unsqueeze(1)).sum(dim=-1).abs()
    else:
        values = slopes.abs().mean(dim=-1)
    return values * batch.keys[:, None, :]


def _noise(points: Tensor, mask: Tensor, share: float, draw: torch.Generator) -> Tensor:
    """Draw normal noise; its deviation is a share of the range of each sentence's embeddings."""
    real = mask.bool().unsqueeze(-1)
    low = points.masked_fill(~real, float("inf")).amin(dim=(1, 2), keepdim=True)
    high = points.masked_fill(~real, float("-inf")).amax(dim=(1, 2), keepdim=True)
    noise = torch.randn(points.shape, generator=draw, dtype=torch.float64).to(points)
    return noise * (share * (high - low))
