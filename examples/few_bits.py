"""Eight bits per weight leave the maps intact; three bits do not.

The change is 1 − Spearman's ρ of all cells of a layer, before and after rounding MiniLM.
"""

import sys

import torch
from matplotlib.figure import Figure

import normscope
from normscope.comparison import contextualization_change
from normscope.models import load
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

text = "Anna baked a cake, and Tom ate most of it."
exact = normscope.analyze(None, text=text, maps=["attn_n"])
changes = {}
for bits in (8, 4, 3):
    model, tokenizer = load(None)
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.dim() == 2):
            step = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.copy_((weight / step).round() * step)
    rounded = normscope.analyze(model, tokenizer, text, maps=["attn_n"])
    changes[bits] = contextualization_change(exact["attn_n"], rounded["attn_n"])
mean = {bits: change.mean() for bits, change in changes.items()}
print(f"With 8 bits the order of the contributions changes by {mean[8]:.4f}, with 4 bits by")
print(f"{mean[4]:.2f}, with 3 bits by {mean[3]:.2f}, on average over layers.")

with theme():
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    figure.suptitle("Change of the maps when weights are rounded", x=0.01, ha="left")
    ax = figure.subplots()
    for (bits, change), colour, marker in zip(changes.items(), CATEGORIES, "os^", strict=False):
        ax.plot(change, color=colour, marker=marker, markersize=4, label=f"{bits} bits")
    ax.set(xlabel="layer", ylabel=r"change, 1 − $\rho$", ylim=(0, None))
    ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "few_bits.png")
