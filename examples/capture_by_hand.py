"""Measure how much each head adds, with your own callback.

The callback receives every attention call while the model runs. It also checks that the parts add
up to the model's own output.
"""

import sys

import torch
from matplotlib.figure import Figure

import normscope
from normscope.capture import Capture
from normscope.models import load

model, tokenizer = load(None)
inputs = tokenizer("Anna baked a cake, and Tom ate most of it.", return_tensors="pt")
added = []  # one array of shape (head,) for each layer


def measure(captured: Capture) -> None:
    """Append ‖Σ_j α f_h(x_j)‖ of each head, averaged over queries."""
    mixed = captured.alpha @ captured.value  # (batch, head, query, head size)
    vectors = torch.einsum("bhqe,hed->bhqd", mixed, captured.projection.weight)
    whole = vectors.sum(dim=1) + captured.projection.bias
    assert torch.allclose(whole, captured.output, atol=1e-5)
    added.append(vectors.norm(dim=-1).mean(dim=(0, 2)))


with torch.no_grad(), normscope.capture(model, measure):
    model(**inputs)

figure = Figure(figsize=(6, 3), layout="constrained")
ax = figure.subplots()
drawn = ax.imshow(torch.stack(added).numpy(), cmap="Blues", vmin=0)
figure.colorbar(drawn, label="norm of a head's output", shrink=0.9).outline.set_visible(False)
ax.set(xlabel="head", ylabel="layer", xticks=range(12), yticks=range(6))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "capture_by_hand.png", dpi=100)
