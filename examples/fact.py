"""One layer of SmolLM2 moves the fact: before it, “France” carries the answer, after it, “is”.

What changes when “Italy” is replaced with “France”: shares of the difference between two inputs, a
text and its baseline, on the states between the layers.
"""

import sys

import numpy as np

import normscope
from normscope.plots import trace

text, other = "The capital of France is", "The capital of Italy is"
result = normscope.attribute(
    None, text=text, baseline=other, answer=" Paris", foil=" Rome", trace=True
)
states = result.layers.values  # (state, token); state 0 enters layer 0
layer = int(np.argmax(states[:, 4] > result.value / 2)) - 1
before, after = states[layer], states[layer + 1]
print(
    f"Before layer {layer}, “France” carries {before[3]:.1f} of the change of {result.value:.1f},"
)
print(f"after it {after[3]:.1f}; “is”, the last token, carries {before[4]:.1f} before it")
print(f"and {after[4]:.1f} after it.")

ax = trace(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "fact.png")
