"""Compare how much f stretches a vector on average, by layer, under the three conventions for b_O.

The rate is ‖f̃‖_F / √(d + 1), computed from the weights. State the convention with every value.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import normscope
from normscope.models import load

model, _ = load(None)
conventions = {"without": "#0072B2", "with_output_bias": "#56B4E9", "released": "#E69F00"}
figure = Figure(figsize=(6, 3), layout="constrained")
ax = figure.subplots()
for place, (bias, colour) in enumerate(conventions.items()):
    rates = normscope.properties.expansion_rate(model, bias=bias).values
    ax.bar(np.arange(len(rates)) + 0.27 * (place - 1), rates, 0.25, color=colour, label=bias)
ax.set(xlabel="layer", ylabel="expansion rate", xticks=range(len(rates)))
ax.legend(title="bias=", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "expansion_rates.png", dpi=100)
