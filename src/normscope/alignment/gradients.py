"""Gradient baselines: how much the probability of a target token changes with a source token.

``saliency`` (Li et al. 2016): mean absolute value over the dimensions of the gradient of log p(y_t)
with respect to the source embedding. ``smoothgrad`` (Ding et al. 2019, after Smilkov et al. 2017):
|x · ∂p(y_t)/∂x|, the gradient averaged over noisy copies of the embeddings; the noise's standard
deviation is a share of the range of the sentence's embeddings. Row t is the step that writes token
t: these readings are ``awo`` by nature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.alignment.batches import Batch, Pair, batches, budget_of
from normscope.alignment.extract import Consume
from normscope.errors import InputError
from normscope.foundation.shapes import Float
from normscope.models.running import evaluating

METHODS = ("saliency", "smoothgrad")


@dataclass(frozen=True)
class Gradients:
    """How gradients are taken."""

    method: str = "smoothgrad"
    copies: int = 30  # noisy ones that are averaged; saliency takes none
    noise: float = 0.15  # standard deviation as a share of the embeddings' range
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}; valid: {', '.join(METHODS)}")
        if self.copies < 1 or self.noise < 0:
            raise InputError(
                f"copies are at least 1 and noise at least 0, but were given {self.copies} and "
                f"{self.noise}"
            )


def gradient_maps(
    model: Any,
    pairs: Sequence[Pair],
    consume: Consume,
    settings: Gradients,
    *,
    padding: int,
    budget: int | None,
    rows: Sequence[int] | None = None,
) -> None:
    """Give (batch, 0, (None,), values) to ``consume`` as an `Extractor` does."""
    copies = settings.copies if settings.method == "smoothgrad" else 1
    room = max(1, budget_of(model, budget) // copies)
    noise = torch.Generator().manual_seed(settings.seed)
    with evaluating(model):
        for batch in batches(model, pairs, ("awo",), padding=padding, budget=room, rows=rows):
            values = _gradients(model, batch, settings, noise)
            consume(batch, 0, (None,), batch.words(values.unsqueeze(1), "awo").unsqueeze(0))


def _gradients(
    model: Any, batch: Batch, settings: Gradients, noise: torch.Generator
) -> Float[Tensor, "batch query key"]:
    """The saliency of every source token at every step."""
    if batch.keys is None:
        raise InputError("gradients are taken with respect to words, and audio has none")
    smooth = settings.method == "smoothgrad"
    copies = settings.copies if smooth else 1
    inputs = {name: one.repeat_interleave(copies, dim=0) for name, one in batch.inputs.items()}
    kept: list[Tensor] = []

    def watch(_: Any, __: Any, made: Tensor) -> Tensor | None:
        if kept:  # a shared table serves the decoder too, after the encoder
            return None
        made = made.detach()
        if smooth:
            made = made + _noise(made, inputs["attention_mask"], settings.noise, noise)
        kept.append(made.requires_grad_())
        return kept[0]

    hook = model.get_encoder().get_input_embeddings().register_forward_hook(watch)
    try:
        with torch.enable_grad():
            logits = model(**inputs, use_cache=False).logits
            # What each step is to write: what the next one reads.
            following = inputs["decoder_input_ids"].roll(-1, dims=1).unsqueeze(-1)
            chances = logits.double().log_softmax(dim=-1).gather(2, following).squeeze(-1)
            chances = chances.exp() if smooth else chances
            found = []
            for step in range(chances.shape[1]):
                (slope,) = torch.autograd.grad(chances[:, step].sum(), kept[0], retain_graph=True)
                found.append(slope.double().unflatten(0, (-1, copies)).mean(dim=1))
    finally:
        hook.remove()
    slopes = torch.stack(found, dim=1)  # batch query key hidden
    if not smooth:
        return slopes.abs().mean(dim=-1) * batch.keys[:, None, :]
    points = kept[0].detach().double().unflatten(0, (-1, copies)).mean(dim=1)
    made = (slopes * points.unsqueeze(1)).sum(dim=-1).abs()
    return made * batch.keys[:, None, :]


def _noise(points: Tensor, mask: Tensor, share: float, draw: torch.Generator) -> Tensor:
    real = mask.bool().unsqueeze(-1)
    low = points.masked_fill(~real, float("inf")).amin(dim=(1, 2), keepdim=True)
    high = points.masked_fill(~real, float("-inf")).amax(dim=(1, 2), keepdim=True)
    noise = torch.randn(points.shape, generator=draw, dtype=torch.float64).to(points)
    return noise * (share * (high - low))
