"""Compare the shares of [CLS] and [SEP] in the weight and in the norm, layer by layer.

In most layers about half of the weight goes to [CLS], but most of the norm comes from words.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope

result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
)
tokens = np.array(result.tokens.strings)
groups = {name: np.isin(tokens, name.split()) for name in ("[CLS]", "[SEP]", ", .")}
groups["words"] = ~np.logical_or.reduce(list(groups.values()))
colours = ["#0072B2", "#56B4E9", "#E69F00", "#BBBBBB"]

figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.subplots(1, 2, sharey=True)
for ax, name, title in zip(axes, ("attn_w", "attn_n"), ("weight", "norm"), strict=True):
    values = result[name].values
    shares = values / values.sum(axis=-1, keepdims=True)
    bottom = np.zeros(len(values))
    for (group, members), colour in zip(groups.items(), colours, strict=True):
        share = shares[:, :, members].sum(axis=-1).mean(axis=-1)
        ax.bar(range(len(share)), share, bottom=bottom, label=group, color=colour, width=0.8)
        bottom += share
    ax.set(title=f"share of the {title}", xlabel="layer", ylim=(0, 1), xticks=range(6))
    ax.spines[["top", "right"]].set_visible(False)
handles = axes[0].get_legend_handles_labels()[0]
figure.legend(handles=handles[::-1], loc="outside right center", frameon=False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "special_tokens.png", dpi=100)
