"""Draw the cross-attention of an encoder–decoder model, without and with the decoder's own state.

The model is a tiny Marian that attends to the token it has just read. Its target is the reversed
source. The last key of the right map, "residual", is the decoder's own state, not a source token.
"""

import sys

import torch
from matplotlib.figure import Figure
from transformers import MarianConfig, MarianMTModel

import normscope
from normscope.plots import heatmap

torch.manual_seed(1)
config = MarianConfig(vocab_size=40, d_model=64, encoder_layers=1, decoder_layers=1, pad_token_id=0,
                      eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1,
                      encoder_attention_heads=4, decoder_attention_heads=4)  # fmt: skip
model = MarianMTModel(config).eval()
cross = model.model.decoder.layers[0].encoder_attn
with torch.no_grad():  # a query attends to keys similar to itself
    model.model.shared.weight.normal_()
    cross.k_proj.weight.copy_(cross.q_proj.weight.normal_(std=0.25))
    cross.out_proj.weight.normal_(std=0.4)

source = torch.randperm(30)[None, :9] + 2
inputs = {"input_ids": source, "decoder_input_ids": source.flip(1)}
[result] = normscope.analyze_inputs(model, inputs, maps=["attn_n", "attn_res_n"])

figure = Figure(figsize=(8, 3.8), layout="compressed")
axes = figure.subplots(1, 2, width_ratios=(9, 10))  # in proportion to the keys: cells of equal size
titles = {"attn_n": "source tokens only", "attn_res_n": "with the decoder's own state"}
for ax, (name, title) in zip(axes, titles.items(), strict=True):
    heatmap(result.cross[name], layer=0, ax=ax)
    ax.set(title=title, xlabel="key: id in the source", ylabel="query: id read by the decoder")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "cross_attention.png", dpi=100)
