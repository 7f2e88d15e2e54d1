"""The first token of a language model gets far more attention than it contributes.

The share of the first token for all later tokens, by weight and by norm, in SmolLM2.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

text = "The river flooded the valley, and the farmers moved their sheep to the hills."
result = normscope.analyze("smollm2", text=text)
shares = {}
for name, label in {"attn_w": "of the attention weight", "attn_n": "of what is added"}.items():
    rows = result[name].values / result[name].values.sum(axis=-1, keepdims=True)
    shares[label] = rows[:, 1:, 0].mean(axis=1)  # the first token is the only one before itself
weight, norm = shares.values()
print(f"“The” gets {weight.mean():.0%} of the attention weight, but {norm.mean():.0%} of what is")
print(f"added, on average over layers; its share by weight is larger in {sum(weight > norm)} of")
print(f"{result.layers} layers.")

with theme():
    figure = Figure(figsize=(6.8, 3), layout="constrained")
    figure.suptitle("The first token: what it gets, and what it gives", x=0.01, ha="left")
    ax = figure.subplots()
    for (label, share), colour, marker in zip(shares.items(), CATEGORIES, "os", strict=False):
        ax.plot(100 * share, color=colour, marker=marker, markersize=4, label=label)
    ax.set(xlabel="layer", ylabel="share of the first token, %", ylim=(0, 100))
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "attention_sink.png")
