"""Show how few tokens make up most of what a decoder token receives, with reduce.

No (query, key) array is kept, so this works for any length. The model is a tiny Llama with random
weights; replace it with your own.
"""

import sys

import torch
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaForCausalLM

import normscope

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 50}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.3)).eval()
ids = torch.randint(0, 50, (1, 500))
maps = {"attn_n": "what attention adds", "attn_res_n": "with the residual"}
[reduced] = normscope.analyze_inputs(
    model, {"input_ids": ids}, maps=list(maps), attention="fused", reduce=("top64", "row_sum")
)

figure = Figure(figsize=(6.6, 3.2), layout="constrained")
ax = figure.subplots()
for (name, label), colour in zip(maps.items(), ("#0072B2", "#E69F00"), strict=True):
    largest, whole = reduced.top_value[name][1], reduced.row_sum[name][1]  # layer 1, by query
    share = (largest.cumsum(axis=-1) / whole[:, None])[100:].mean(axis=0)
    ax.plot(range(1, len(share) + 1), 100 * share, color=colour, label=label)
ax.set(xlabel="largest contributors", ylabel="their share, %", ylim=(0, 100), xlim=(1, 64))
ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
ax.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "decoder_contributors.png", dpi=100)
