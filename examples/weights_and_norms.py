"""[CLS] gets half of the attention weight and adds almost nothing.

Left: attention weights in one layer of MiniLM. Right: the norms of the vectors that are added.
"""

import sys

import normscope
from normscope.plots import compare

result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
)
layers = [result[name].sel(layer=2).values for name in ("attn_w", "attn_n")]  # (query, key)
weight, norm = ((rows / rows.sum(axis=1, keepdims=True))[:, 0].mean() for rows in layers)
print(f"In layer 2, [CLS] gets {weight:.0%} of the attention weight")
print(f"but {norm:.0%} of what is added.")

axes = compare(result, layer=2)
axes[0].figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "weights_and_norms.png", dpi=110)
