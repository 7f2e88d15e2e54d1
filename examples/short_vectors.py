"""The most frequent words have the shortest vectors f(x).

MiniLM's vocabulary lists words by frequency from id 1996, "the", onwards, so ids serve as ranks.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

texts = [
    "Anna baked a cake, and Tom ate most of it.",
    "She was not angry, because he had washed every dish.",
    "On Tuesday, new rules were announced by the government in Berlin.",
    "The river flooded the valley, and the farmers drove their sheep to the hills.",
    "A young violinist practised the concerto for hours before the concert.",
]
lengths = {}
for result in normscope.analyze(None, text=texts):
    norms = result.transformed_norm.sel(layer=5).values.mean(axis=0)  # over heads
    for token, number, norm in zip(result.tokens.strings, result.tokens.ids, norms, strict=True):
        if number >= 1996:
            lengths.setdefault((number - 1995, token), []).append(norm)
ranks, words = zip(*lengths, strict=True)
norms = np.array([np.mean(of_a_word) for of_a_word in lengths.values()])
common = np.array(ranks) <= 100
print("In layer 5, the vectors f(x) of the hundred most frequent words have a mean length of")
print(f"{norms[common].mean():.1f}, those of other words {norms[~common].mean():.1f}.")

with theme():
    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    figure.suptitle("Length of f(x) by frequency of the word, layer 5", x=0.01, ha="left")
    ax = figure.subplots()
    ax.scatter(ranks, norms, s=14, color=[CATEGORIES[0 if rank <= 100 else 1] for rank in ranks])
    for rank, word, norm in zip(ranks, words, norms, strict=True):
        if rank < 2000:  # further right, words would cover each other
            ax.annotate(word, (rank, norm), (3, 2), textcoords="offset points", fontsize=7)
    ax.set(xscale="log", xlabel="rank by frequency", ylabel=r"$\Vert f(x)\Vert$, mean over heads")
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "short_vectors.png")
