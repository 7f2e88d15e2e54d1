"""Every English word comes from the German word it translates, whatever the word order.

The share of each source word in the logit of each piece of the translation, for the German–English
model that comes with normscope.
"""

import sys

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

import normscope
from normscope.plots import theme
from normscope.show.palette import DIVERGING

text = "der mann , den ich gestern gesehen habe , ist mein lehrer ."
target = "the man i saw yesterday is my teacher"
result = normscope.attribute("de-en", text=text, target=target).words()
source = [at for at, side in enumerate(result.sides) if side == "source"]
german = [result.tokens.strings[at] for at in source]
english = [piece.strip("▁") for piece in result.steps.strings[:-1]]  # without the end of the text
shares = result.scores.values[:-1, source]
largest = [german[at] for at in shares.argmax(axis=1)]
pairs = ", ".join(f"{word} ← {made_by}" for word, made_by in zip(english, largest, strict=True))
print(f"The largest share in each piece: {pairs}.")

with theme():
    figure = Figure(figsize=(6.8, 4), layout="constrained")
    figure.suptitle("Which German word made which English word", x=0.01, ha="left")
    ax = figure.subplots()
    limit = np.abs(shares).max()
    colours = LinearSegmentedColormap.from_list("shares", DIVERGING["light"])
    image = ax.imshow(shares, cmap=colours, vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(german)), german, rotation=45, ha="right")
    ax.set_yticks(range(len(english)), english)
    figure.colorbar(image, label="share of the logit")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "translation.png")
