"""Draw the maps of one layer side by side, from weights to the whole layer (2021 paper, Fig. 1).

Each row is divided by its sum. The weights are largest for [CLS], the norms for neighbouring
tokens, and the maps of the whole block for the token itself.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.plots import heatmap

maps = {
    "attn_w": "weights",
    "attn_n": "norms",
    "attn_res_ln_n": "with residual and norm",
    "atb_ff_res_ln": "the whole layer",
}
result = normscope.analyze(None, text="The cat did not eat the fish.", maps=list(maps))
figure = Figure(figsize=(11, 3.1), layout="constrained")
for ax, (name, title) in zip(figure.subplots(1, 4), maps.items(), strict=True):
    heatmap(result[name], layer=2, ax=ax, normalise=True)
    ax.set_title(title)
    ax.set_xlabel("")
    ax.set_ylabel("")
    ax.images[0].colorbar.remove()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "block_maps.png", dpi=100)
