"""A sentence embedding hardly notices a negation.

Shares of the words in the cosine of two sentence embeddings (MiniLM) that contradict each other.
"""

import sys

import normscope
from normscope.plots import attribution

text, other = "The patient has no fever.", "The patient has a fever."
result = normscope.attribute(None, text=text, similar_to=other)
shares = dict(zip(result.tokens.strings, result.scores.values, strict=True))
print(f"“{text}” and “{other}” have a cosine of {result.value:.2f}: “fever”")
print(f"contributes {shares['fever']:+.2f}, “no” only {shares['no']:+.2f}.")

ax = attribution(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "negation.png")
