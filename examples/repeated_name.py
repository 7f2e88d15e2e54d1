"""A name that occurs twice is evidence for the other name.

After “Mary and John went …, John gave a drink to”, SmolLM2 continues with “Mary”, not “John”.
"""

import sys

import normscope
from normscope.plots import attribution

text = "When Mary and John went to the store, John gave a drink to"
result = normscope.attribute(None, text=text, answer=" Mary", foil=" John")
names = [at for at, token in enumerate(result.tokens.texts) if token in ("Mary", "John")]
mary, first, second = (float(result.scores.values[at]) for at in names)
print(
    f"“Mary” leads by {result.value:.1f} (logits). The first “John” contributes {first:+.1f}, and"
)
print(f"the second “John” {second:+.1f}: it supports “Mary”, as “Mary” itself does ({mary:+.1f}).")

ax = attribution(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "repeated_name.png")
