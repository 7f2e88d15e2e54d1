"""Compare two models: how much do the maps change if the weights are rounded to a few bits?

The change is 1 − Spearman's ρ of the maps, by layer. It is 0 if both maps rank the pairs equally.
"""

import sys

import torch
from matplotlib.figure import Figure

import normscope
from normscope.models import load

TEXT = "Anna baked a cake, and Tom ate most of it."
model, tokenizer = load(None)
before = normscope.analyze(model, tokenizer, TEXT, maps=["attn_w", "attn_n"])

figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.subplots(1, 2, sharey=True)
for bits, colour in {8: "#56B4E9", 4: "#0072B2", 3: "#D55E00"}.items():
    rounded, _ = load(None)
    with torch.no_grad():
        for weight in (p for p in rounded.parameters() if p.dim() == 2):
            step = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.copy_((weight / step).round() * step)
    after = normscope.analyze(rounded, tokenizer, TEXT, maps=["attn_w", "attn_n"])
    for ax, name in zip(axes, ("attn_w", "attn_n"), strict=True):
        change = normscope.comparison.contextualization_change(before[name], after[name])
        ax.plot(change, "o-", color=colour, label=f"{bits} bits", markersize=4)
for ax, title in zip(axes, ("weights", "norms"), strict=True):
    ax.set(title=title, xlabel="layer")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel(r"change, 1 − $\rho$")
axes[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "two_models.png", dpi=100)
