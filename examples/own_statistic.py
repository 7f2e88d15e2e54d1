"""A statistic of your own over several texts: the mean length of f(x), by kind of token.

Sums and counts of each text, merged in any order; the table at the end.
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
    """Sum of the lengths, and number of tokens, by kind."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    lengths = result.transformed_norm.values.mean(axis=(0, 1))  # over layers and heads
    for token, length in zip(result.tokens.strings, lengths, strict=True):
        kind = "word" if token.isalpha() else token
        sums[kind] += float(length)
        counts[kind] += 1
    return sums, counts


states = [measure(result) for result in normscope.analyze(None, text=TEXTS)]
sums = sum((one for one, _ in states), Counter())
counts = sum((one for _, one in states), Counter())
rows = [f'"{kind}",{n},{sums[kind] / n:.3f}' for kind, n in counts.items()]
output = Path(sys.argv[1] if len(sys.argv) > 1 else "own_statistic.csv")
output.write_text("\n".join(["kind,tokens,mean_length", *rows, ""]), encoding="utf-8")
