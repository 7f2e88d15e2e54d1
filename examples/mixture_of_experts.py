"""In a mixture of experts, what the experts add comes from both words that a fact is made of.

A Mixtral of one layer learns here three facts about each of six countries: answers depend on both
words. Maps behind experts hold the routing: each expert counts with the weight that it had.
"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import MixtralConfig, MixtralForCausalLM

import normscope
from normscope.plots import theme
from normscope.show.palette import CATEGORIES

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 27}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
kinds = {"num_experts_per_tok": 2, "experts_implementation": "eager", "pad_token_id": 26}
model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, **kinds))
ids = torch.cartesian_prod(torch.arange(6), torch.arange(6, 9))  # a country, and what is asked
answers = torch.arange(9, 27)  # of each pair a word of its own

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
for _ in range(150):
    torch.nn.functional.cross_entropy(model(ids).logits[:, -1], answers).backward()
    optimizer.step()
    optimizer.zero_grad()
right = int((model(ids).logits[:, -1].argmax(-1) == answers).sum())
stations = {"atb": "attention block", "atb_ln_ff": "experts", "whole_layer": "whole layer"}
results = normscope.analyze_inputs(model.eval(), {"input_ids": ids}, maps=list(stations))
rows = np.array([[result[name].values[0, 1] for name in stations] for result in results])
parts = (rows / rows.sum(axis=2, keepdims=True)).mean(axis=0)  # (station, word)
print(f"The model knows {right} of {len(answers)} facts. Of what its experts add at the second")
first, own = parts[1]
print(f"word, {first:.0%} comes from the country and {own:.0%} from that word itself.")

with theme():
    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    figure.suptitle("From which word the vectors at the second word come", x=0.01, ha="left")
    ax = figure.subplots()
    for word, label in enumerate(("country", "what is asked")):
        look = {"left": parts[:, :word].sum(axis=1), "color": CATEGORIES[word], "label": label}
        ax.barh([*stations.values()], parts[:, word], **look)
    ax.set(xlabel="part of the lengths, mean over all facts", ylim=(2.5, -0.5))
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "mixture_of_experts.png")
