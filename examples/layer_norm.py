"""LayerNorm favours the token itself over what other tokens add.

The mixing ratio of the attention block, before and after its LayerNorm, in each layer of MiniLM.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

text = "Anna baked a cake, and Tom ate most of it."
result = normscope.analyze(None, text=text, maps=["attn_res_n", "attn_res_ln_n"])
before, after = (100 * result.mixing_ratio[name].values.mean(axis=1) for name in result)
lower = before - after
print(f"LayerNorm lowers the part that comes from other tokens in {sum(lower > 0)} of")
print(f"{result.layers} layers, by {lower.mean():.1f} points on average.")

with theme():
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    figure.suptitle("What comes from other tokens, before and after LayerNorm", x=0.01, ha="left")
    ax = figure.subplots()
    layers = np.arange(result.layers)
    ax.bar(layers - 0.2, before, 0.38, color=CATEGORIES[0], label="before LayerNorm")
    ax.bar(layers + 0.2, after, 0.38, color=CATEGORIES[1], label="after LayerNorm")
    ax.set(xlabel="layer", ylabel="from other tokens, %")
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "layer_norm.png")
