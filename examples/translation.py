"""Every English word was made by the German word that it translates, across the word order.

The share of each piece of the source in the logit of each piece of the translation, for the
German–English model that comes with normscope.
"""

import sys

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import normscope
from normscope.alignment.translator import embedded_model_path
from normscope.plots import theme
from normscope.show.palette import DIVERGING

model = AutoModelForSeq2SeqLM.from_pretrained(embedded_model_path(), dtype=torch.float32)
german = AutoTokenizer.from_pretrained(embedded_model_path())
english = AutoTokenizer.from_pretrained(embedded_model_path() / "target")
source = german("der mann , den ich gestern gesehen habe , ist mein lehrer .", return_tensors="pt")
target = english("the man i saw yesterday is my teacher", add_special_tokens=False)["input_ids"]
words = [german.decode([number]) for number in source["input_ids"][0]]
made = [english.decode([number]) for number in target]
written, shares = [model.config.decoder_start_token_id], []
for number in target:
    inputs = {**source, "decoder_input_ids": torch.tensor([written])}
    [result] = normscope.attribute_inputs(model, inputs, answer=number)
    shares.append(result.scores.values[: len(words)])
    written.append(number)
largest = [words[at] for at in np.argmax(shares, axis=1)]
pairs = ", ".join(f"{word} ← {from_word}" for word, from_word in zip(made, largest, strict=True))
print(f"The largest share in each word: {pairs}.")

with theme():
    figure = Figure(figsize=(6.8, 4), layout="constrained")
    figure.suptitle("Which German word made which English word", x=0.01, ha="left")
    ax = figure.subplots()
    limit = np.abs(shares).max()
    colours = LinearSegmentedColormap.from_list("shares", DIVERGING["light"])
    image = ax.imshow(shares, cmap=colours, vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(words)), words, rotation=45, ha="right")
    ax.set_yticks(range(len(made)), made)
    figure.colorbar(image, label="share of the logit")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "translation.png")
