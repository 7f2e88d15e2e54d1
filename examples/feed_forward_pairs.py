"""List the pairs that the feed-forward block amplifies most (2024 paper).

The table leaves out special tokens and pairs of a token with itself.
"""

import sys

import normscope

result = normscope.analyze(
    None,
    text="The White House announced new rules for air traffic on Tuesday.",
    maps=["atb", "atb_ff_res_ln"],
)
grown = normscope.comparison.amplification(result["atb"], result["atb_ff_res_ln"])
table = grown.to_pandas(special=False)
table = table[table["query"] != table["key"]].drop(columns=["query", "key"])
output = sys.argv[1] if len(sys.argv) > 1 else "feed_forward_pairs.csv"
table.head(10).round(2).to_csv(output, index=False)
