"""A token keeps most of itself, which neither weights nor norms of attention alone show.

The mixing ratio is the part of a token's new state that comes from other tokens (2021 paper).
"""

import sys

import normscope
from normscope.plots import mixing_ratio

result = normscope.analyze(
    None,
    text="Anna baked a cake, and Tom ate most of it.",
    text_pair="She was not angry, because he had washed every dish.",
    maps=["attn_w", "attn_n", "attn_res_n", "attn_res_ln_n"],
)
mixed = {name: ratio.values.mean() for name, ratio in result.mixing_ratio.items()}
print(f"Other tokens supply {mixed['attn_w']:.0%} by weights, {mixed['attn_n']:.0%} by norms,")
print(f"{mixed['attn_res_n']:.0%} with the residual connection,")
print(f"and {mixed['attn_res_ln_n']:.0%} with LayerNorm.")

ax = mixing_ratio(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "mixing_ratios.png")
