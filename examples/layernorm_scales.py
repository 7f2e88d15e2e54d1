"""Plot the factors of the norm after attention: |γ|, and |γ|/σ averaged over the tokens of a text.

If the factor is below 1, LayerNorm shortens the vectors.
"""

import sys

from matplotlib.figure import Figure

import normscope
from normscope.models import load

model, tokenizer = load(None)
texts = ["Anna baked a cake, and Tom ate most of it.", "The cat did not eat the fish."]
scales = normscope.properties.layernorm_scale(model, tokenizer, texts)

figure = Figure(figsize=(5.4, 3), layout="constrained")
ax = figure.subplots()
ax.plot(scales.gamma, "o-", color="#E69F00", label=r"mean $|\gamma|$")
ax.plot(scales.scale, "s-", color="#0072B2", label=r"mean $|\gamma| / \sigma$")
ax.axhline(1, color="#999999", lw=0.8, ls="--")
ax.set(xlabel="layer", ylabel="factor", ylim=(0, None), xticks=range(len(scales.gamma)))
ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "layernorm_scales.png", dpi=100)
