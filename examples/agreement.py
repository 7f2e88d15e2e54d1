"""The subject decides the verb: “keys”, not “cabinet”, makes SmolLM2 prefer “are” to “is”.

Each bar is the signed share of a token in the difference of the two logits. The first token gets a
share of almost every logit; see "When do shares mislead?" in the FAQ.
"""

import sys

import normscope
from normscope.plots import attribution

result = normscope.attribute(None, text="The keys to the cabinet", answer=" are", foil=" is")
shares = dict(zip(result.tokens.texts, result.scores.values, strict=True))
keys, cabinet = shares["keys"], shares["cabinet"]
print(
    f"The logit of “are” is {result.value:.1f} above that of “is”: “keys” contributes {keys:+.1f},"
)
print(f"“cabinet” {cabinet:+.1f}.")

ax = attribution(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "agreement.png")
