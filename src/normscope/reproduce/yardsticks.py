"""Sizes of embedding × gradient, with which papers compare: ℓ2 norms and means of |·|."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.models.running import evaluating

BATCH = 32
Sizes = NDArray[np.float64]


def embedding_module(model: nn.Module) -> nn.Module:
    """Return the module whose output enters the first layer, or the word embeddings."""
    base: Any = getattr(model, "base_model", model)
    whole = getattr(base, "embeddings", None)
    chosen: nn.Module = whole if isinstance(whole, nn.Module) else base.get_input_embeddings()
    return chosen


def products(
    model: Any, tokenizer: Any, texts: Sequence[str], classes: Sequence[int] | None = None
) -> list[NDArray[np.float64]]:
    """Return the embedding output times the gradient of a logit, (token, hidden), of each text.

    Args:
        model: a classifier, or a language model with attention to the left.
        tokenizer: its tokenizer.
        texts: the texts.
        classes: whose logits are explained; by default the largest of each text (of a language
            model, at its last token).
    """
    size = BATCH if tokenizer.pad_token_id is not None else 1
    found: list[NDArray[np.float64]] = []
    for start in range(0, len(texts), size):
        part = list(texts[start : start + size])
        encoded = tokenizer(part, return_tensors="pt", padding=len(part) > 1, padding_side="right")
        inputs = {name: tensor.to(model.device) for name, tensor in encoded.items()}
        lengths = inputs["attention_mask"].sum(-1)
        wanted = None if classes is None else torch.tensor(classes[start : start + size])
        product = _products(model, inputs, lengths, wanted).double().cpu().numpy()
        found += [row[:length] for row, length in zip(product, lengths.tolist(), strict=True)]
    return found


def _products(
    model: Any, inputs: dict[str, Tensor], lengths: Tensor, wanted: Tensor | None
) -> Tensor:
    leaves: list[Tensor] = []

    def cut(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    hook = embedding_module(model).register_forward_hook(cut)
    try:
        with evaluating(model), torch.inference_mode(False), torch.enable_grad():
            logits = model(**inputs).logits
            if logits.dim() == 3:  # of a language model
                logits = logits[torch.arange(len(lengths)), lengths - 1]
            chosen = logits.argmax(-1) if wanted is None else wanted.to(logits.device)
            value = logits.gather(1, chosen[:, None]).sum()
            (gradient,) = torch.autograd.grad(value, leaves)
    finally:
        hook.remove()
    return leaves[0].detach() * gradient


def l2(product: NDArray[np.float64]) -> Sizes:
    """Return the ℓ2 norm over the hidden axis."""
    return np.asarray(np.linalg.norm(product, axis=-1))


def mean_size(product: NDArray[np.float64]) -> Sizes:
    """Return the mean of absolute values over the hidden axis."""
    return np.asarray(np.abs(product).mean(axis=-1))


def scorer(reduce: Callable[[NDArray[np.float64]], Sizes]) -> Any:
    """Return a function that `faithfulness` accepts as a method."""

    def scores(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[Sizes]:
        return [reduce(product) for product in products(model, tokenizer, texts)]

    return scores


SIZES = {
    "input_x_gradient, ℓ2": scorer(l2),
    "input_x_gradient, mean |·|": scorer(mean_size),
}
