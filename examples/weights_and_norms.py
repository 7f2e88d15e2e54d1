"""Draw attention weights beside norms for one sentence and one layer.

The weights are largest for [CLS] in every row. In most rows, the norms are largest for a verb.
"""

import sys

import normscope
from normscope.plots import compare

result = normscope.analyze(None, text="Anna baked a cake, and Tom ate most of it.")
axes = compare(result, layer=2)
output = sys.argv[1] if len(sys.argv) > 1 else "weights_and_norms.png"
axes[0].figure.savefig(output, dpi=90)
