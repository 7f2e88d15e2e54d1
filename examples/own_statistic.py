"""Compute your own statistic over several texts: the mean norm of f(x) by kind of token.

Sums and counts are computed for each text and then merged, in any order.
"""

import sys
from collections import Counter
from pathlib import Path

import normscope

TEXTS = [
    "Anna baked a cake, and Tom ate most of it.",
    "She was not angry, because he had washed every dish.",
    "The cat did not eat the fish.",
    "On Tuesday, new rules were announced.",
]


def measure(result: normscope.Contributions) -> tuple[Counter[str], Counter[str]]:
    """Return the sum of the norms and the number of tokens, by kind."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    norms = result.transformed_norm.values.mean(axis=(0, 1))  # over layers and heads
    for token, norm in zip(result.tokens.strings, norms, strict=True):
        kind = "word" if token.isalpha() else token
        sums[kind] += float(norm)
        counts[kind] += 1
    return sums, counts


states = [measure(result) for result in normscope.analyze(None, text=TEXTS)]
sums = sum((text_sums for text_sums, _ in states), Counter())
counts = sum((text_counts for _, text_counts in states), Counter())
rows = [f'"{kind}",{n},{sums[kind] / n:.3f}' for kind, n in counts.items()]
output = Path(sys.argv[1] if len(sys.argv) > 1 else "own_statistic.csv")
output.write_text("\n".join(["kind,tokens,mean_norm", *rows, ""]), encoding="utf-8")
