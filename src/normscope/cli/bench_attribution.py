"""What `normscope bench` measures of attribution: one output of every row, explained.

attribute         frozen attention, norms and slopes; the shares in hand, proved
input × gradient  the input times the gradient by plain autograd, which proves nothing
pairs             the plain forward pass of twice as many rows
secant            the difference to a baseline of other random ids, shares in hand, proved
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.attribution.passes import explain
from normscope.linearisation.rules import rules_of

LONGEST = 8192  # tokens of a difference: its attention is not fused


def attribution_passes(
    model: Any, inputs: Mapping[str, Tensor]
) -> Iterator[tuple[str, Callable[[], Any] | None, str]]:
    """Yield the name of each computation, what runs it (or None), and a note."""
    state = "the first entry of each row's last state"
    yield "attribute", lambda: explain(model, inputs, one_output, rules_of("frozen")), state
    if "decoder_input_ids" not in inputs:
        yield "input × gradient", lambda: input_x_gradient(model, inputs["input_ids"]), "unproved"
    ids = inputs["input_ids"]
    if ids.shape[-1] > LONGEST:
        yield "secant", None, f"over {LONGEST:,} tokens it computes every score"
        return
    baseline = {"input_ids": ids.flip(-1)}
    pairs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    yield "pairs", lambda: model(**pairs), "the forward pass of inputs and baselines"
    yield (
        "secant",
        lambda: explain(model, inputs, one_output, rules_of("secant"), baseline_inputs=baseline),
        "",
    )


def one_output(output: Any) -> Tensor:
    """Return one number of each row, (row, 1)."""
    states: Tensor = output[0]
    return states[:, -1, :1].float()


def input_x_gradient(model: Any, ids: Tensor) -> Tensor:
    """Return embeddings times gradients, summed over the hidden size; parameters get none."""
    required = [p for p in model.parameters() if p.requires_grad]
    for parameter in required:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
            value = one_output(model(inputs_embeds=embeddings)).sum()
            (gradient,) = torch.autograd.grad(value, embeddings)
        return (gradient * embeddings.detach()).sum(-1)
    finally:
        for parameter in required:
            parameter.requires_grad_(True)
