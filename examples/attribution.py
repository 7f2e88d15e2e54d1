"""Show which words of a prompt made a language model prefer "are" to "is", and at which layer.

Left: the share of every token in the difference of the two logits. Right: the shares of the states
between the layers, which move from "keys" to the last token, where the answer is read.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.plots import attribution, trace

result = normscope.attribute(
    None, text="The keys to the cabinet", answer=" are", foil=" is", trace=True
)

figure = Figure(figsize=(13, 5.5), layout="constrained")
left, right = figure.subplots(1, 2)
attribution(result, ax=left)
trace(result, ax=right)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "attribution.png", dpi=100)
