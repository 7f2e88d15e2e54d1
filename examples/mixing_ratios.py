"""Plot the mixing ratio by layer for five maps (2021 paper, Fig. 3).

The more of the block a map includes, the larger the part that a token keeps of itself.
"""

import sys

from matplotlib.figure import Figure

import normscope

maps = {
    "attn_w": ("Attn-W", "#000000", ":"),
    "attn_n": ("Attn-N", "#0072B2", "-"),
    "attn_res_w": ("AttnRes-W", "#999999", ":"),
    "attn_res_n": ("AttnRes-N", "#E69F00", "-"),
    "attn_res_ln_n": ("AttnResLn-N", "#009E73", "-"),
}
result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
    maps=list(maps),
)
figure = Figure(figsize=(6, 3.4), layout="constrained")
ax = figure.subplots()
for name, (label, colour, style) in maps.items():
    ratio = 100 * result.mixing_ratio[name].values.mean(axis=1)
    ax.plot(ratio, style, color=colour, marker="o", markersize=4)
    at = (result.layers - 1 + 0.1, ratio[-1] + {"attn_res_n": 2, "attn_res_ln_n": -2}.get(name, 0))
    ax.annotate(label, at, color=colour, va="center", annotation_clip=False)
ax.set(xlabel="layer", ylabel="mixing ratio, %", ylim=(0, 100), xticks=range(result.layers))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "mixing_ratios.png", dpi=100)
