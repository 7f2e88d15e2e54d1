"""Plot the singular values of one head's f in every layer (2020 paper, Fig. 9).

They are computed from the weights. A flat curve means that the head scales all directions alike; a
steep curve means that it keeps only a few directions.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.models import load

model, _ = load(None)
colours = ["#B3CDE3", "#8CB4D5", "#5E97C5", "#3B7BB3", "#1F5C94", "#0B3C6F"]  # darker: later layer
figure = Figure(figsize=(6, 3.4), layout="constrained")
ax = figure.subplots()
for layer, colour in enumerate(colours):
    ax.plot(
        normscope.properties.singular_values(model, layer, head=0),
        color=colour,
        label=f"layer {layer}",
    )
ax.set(xlabel="rank", ylabel="singular value of head 0", ylim=(0, None))
ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "singular_values.png", dpi=100)
