"""Special tokens collect attention in every layer, and contribute little in every layer.

The shares of [CLS] and [SEP] together, averaged over all tokens of two sentences, in MiniLM.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
)
special = list(result.tokens.special)
shares = {}
for name, label in {"attn_w": "of the attention weight", "attn_n": "of what is added"}.items():
    rows = result[name].values / result[name].values.sum(axis=-1, keepdims=True)
    shares[label] = rows[:, :, special].sum(axis=-1).mean(axis=-1)  # one number for each layer
weight, norm = shares.values()
print(f"[CLS] and [SEP] get {weight.min():.0%} to {weight.max():.0%} of the attention weight,")
print(f"but make up {norm.min():.0%} to {norm.max():.0%} of what is added.")

with theme():
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    figure.suptitle("What [CLS] and [SEP] get, and what they give", x=0.01, ha="left")
    ax = figure.subplots()
    for shift, (label, share), colour in zip((-0.2, 0.2), shares.items(), CATEGORIES, strict=False):
        ax.bar(np.arange(result.layers) + shift, 100 * share, 0.38, color=colour, label=label)
    ax.set(xlabel="layer", ylabel="[CLS] and [SEP], %")
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "special_tokens.png")
