"""Capture by hand: how much each head adds, and that the parts are the model's own output.

A callback gets every attention call as it happens; nothing else is kept.
"""

import sys

import torch
from matplotlib.figure import Figure

import normscope
from normscope.capture import Capture
from normscope.models import load

model, tokenizer = load(None)
inputs = tokenizer("Anna baked a cake, and Tom ate most of it.", return_tensors="pt")
added = []  # (head,) of each layer


def look(captured: Capture) -> None:
    """‖Σ_j α f_h(x_j)‖ of each head, mean over queries."""
    mixed = captured.alpha @ captured.value  # (batch, head, query, head size)
    vectors = torch.einsum("bhqe,hed->bhqd", mixed, captured.projection.weight)
    whole = vectors.sum(dim=1) + captured.projection.bias
    assert torch.allclose(whole, captured.output, atol=1e-5)
    added.append(vectors.norm(dim=-1).mean(dim=(0, 2)))


with torch.no_grad(), normscope.capture(model, look):
    model(**inputs)

figure = Figure(figsize=(6, 3), layout="constrained")
ax = figure.subplots()
drawn = ax.imshow(torch.stack(added).numpy(), cmap="Blues", vmin=0)
figure.colorbar(drawn, label="length of what a head adds", shrink=0.9).outline.set_visible(False)
ax.set(xlabel="head", ylabel="layer", xticks=range(12), yticks=range(6))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "capture_by_hand.png", dpi=100)
