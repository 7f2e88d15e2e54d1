"""Draw which source words a translation model reads at each step, and how much they add.

The model is the German–English one that comes with normscope. Each row is a step of its decoder,
named after the word that it has just read. On the left, the largest contribution is usually that of
the word's translation, even where the word order differs. The last key on the right,
"residual", is the decoder's own state, to which the source words are added.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.plots import heatmap

result = normscope.analyze(
    "de-en",
    text="die Kommission hat ihren Bericht noch nicht vorgelegt .",
    target="the Commission has not yet presented its report .",
    maps=["attn_n", "attn_res_n"],
)

figure = Figure(figsize=(9, 4.1), layout="compressed")
axes = figure.subplots(1, 2, width_ratios=(10, 11))  # by the number of keys: cells of equal size
titles = {"attn_n": "What the source words add", "attn_res_n": "Beside the decoder's own state"}
for ax, (name, title) in zip(axes, titles.items(), strict=True):
    tokens = result.cross[name].tokens
    heatmap(result.cross[name], layer=1, ax=ax)
    ax.set_xticklabels(tokens["key"].texts)  # words rather than the tokenizer's pieces
    ax.set_yticklabels(tokens["query"].texts)
    ax.set(title=title, xlabel="from: German (keys)", ylabel="to: English, as read (queries)")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "cross_attention.png", dpi=100)
