"""The feed-forward block ties words to the words they form a phrase with.

The pairs of different words whose contribution grows most from before to after it (2024 paper).
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.comparison import amplification
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

text = "The White House announced new rules for air traffic on Tuesday."
result = normscope.analyze(None, text=text, maps=["atb", "atb_ff_res_ln"])
largest = amplification(result["atb"], result["atb_ff_res_ln"]).top(40, special=False)
pairs = [pair for pair in largest if pair.query != pair.key][:8]
names = [f"{pair.query_token} ← {pair.key_token}" for pair in pairs]
gains = [f"{name} by {pair.difference:.2f}" for name, pair in zip(names, pairs, strict=True)]
print(f"The contributions that grow most are {gains[0]}, {gains[1]} and {gains[2]}.")

with theme():
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    figure.suptitle("Pairs of words that the feed-forward block strengthens", x=0.01, ha="left")
    ax = figure.subplots()
    ax.barh(range(len(pairs)), [pair.difference for pair in pairs], color=CATEGORIES[0])
    labels = [f"{name}  (layer {pair.layer})" for name, pair in zip(names, pairs, strict=True)]
    ax.set_yticks(range(len(pairs)), labels)
    ax.invert_yaxis()
    ax.set(xlabel="contribution after the feed-forward block, less that before it")
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "feed_forward_pairs.png")
