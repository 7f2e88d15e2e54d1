"""Heads cancel: more than half of what they add is lost when they are summed.

The lengths of the vectors of each head, added up, and the length of their sum, in MiniLM.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

text = "Anna baked a cake, and Tom ate most of it."
each = normscope.analyze(None, text=text, maps=["attn_n"], heads="each")["attn_n"].values
together = normscope.analyze(None, text=text, maps=["attn_n"])["attn_n"].values
apart, left = each.sum(axis=1).mean(axis=(1, 2)), together.mean(axis=(1, 2))  # by layer
part = left / apart
print(f"The sum of {each.shape[1]} heads is {part.min():.0%} to {part.max():.0%} as long as")
print(f"all heads' lengths added up, {part.mean():.0%} on average over layers.")

with theme():
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    figure.suptitle("Heads one by one, and their sum", x=0.01, ha="left")
    ax = figure.subplots()
    layers = np.arange(len(part))
    ax.bar(layers - 0.2, apart, 0.38, color=CATEGORIES[0], label="lengths of the heads, added up")
    ax.bar(layers + 0.2, left, 0.38, color=CATEGORIES[1], label="length of the sum")
    ax.set(xlabel="layer", ylabel="mean length of a cell")
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "heads_cancel.png")
