"""Plot α against ‖f(x)‖ for every pair in a layer (2020 paper, Fig. 5).

[CLS] is separate from the other tokens: it has the shortest vectors and the largest weights. Among
the other tokens, longer vectors have slightly larger weights.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope

result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
    maps=["attn_w"],
    heads="each",
)
layer = 2
alpha = result["attn_w"].sel(layer=layer).values  # (head, query, key)
length = np.broadcast_to(result.transformed_norm.sel(layer=layer).values[:, None], alpha.shape)
tokens = np.array(result.tokens.strings)
kinds = {"words": ~np.isin(tokens, ["[CLS]", "[SEP]", ",", "."])}
kinds |= {name: np.isin(tokens, name.split()) for name in (", .", "[SEP]", "[CLS]")}
colours = ["#BBBBBB", "#E69F00", "#56B4E9", "#0072B2"]

figure = Figure(figsize=(6, 3.6), layout="constrained")
ax = figure.subplots()
for (kind, members), colour in zip(kinds.items(), colours, strict=True):
    ax.scatter(length[..., members], alpha[..., members], s=4, color=colour, label=kind)
ax.set(xlabel=r"norm  $\Vert f(x)\Vert$", ylabel=r"weight  $\alpha$", title=f"layer {layer}")
ax.legend(frameon=False, markerscale=3, loc="upper left", bbox_to_anchor=(1, 1))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "weight_against_length.png", dpi=100)
