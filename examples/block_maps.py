"""Draw the maps of one layer side by side, from weights to the whole layer (2021 paper, Fig. 1).

Each row is divided by its sum, and equal colours are equal shares. The weights are largest for
[CLS], the norms for neighbouring tokens, and the maps of the whole block for the token itself.
"""

import sys

import normscope
from normscope.plots import scopes

maps = ["attn_w", "attn_n", "attn_res_ln_n", "atb_ff_res_ln"]
result = normscope.analyze(None, text="The cat did not eat the fish.", maps=maps)
axes = scopes(result, layer=2, columns=4)
axes[0].figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "block_maps.png")
