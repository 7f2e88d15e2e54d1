"""In a hybrid model, the layer that attends fetches what a question asks for.

An LFM2 of two layers, a convolution and an attention, learns here to read letters with their digits
and to give the digit of one of them. Maps are those of the layer that attends.
"""

import sys

import torch
from transformers import Lfm2Config, Lfm2ForCausalLM
from transformers.utils import logging

import normscope
from normscope.plots import attribution

logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 19}
kinds = {"layer_types": ["conv", "full_attention"], "num_attention_heads": 2, "pad_token_id": 18}
config = Lfm2Config(**sizes, **kinds, num_key_value_heads=2, block_multiple_of=8, eos_token_id=18)
model = Lfm2ForCausalLM(config)


def lists(count):
    """Draw six letters with their digits and a question after one; return ids and answers."""
    letters, digits = 10 + torch.rand(count, 8).argsort(1)[:, :6], torch.randint(10, (count, 6))
    asked, mark = torch.randint(6, (count, 1)), torch.full((count, 1), 18)
    pairs = torch.stack([letters, digits], 2).flatten(1)
    return torch.cat([pairs, mark, letters.gather(1, asked)], 1), digits.gather(1, asked)[:, 0]


optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0)
for _ in range(300):
    ids, answers = lists(64)
    torch.nn.functional.cross_entropy(model(ids).logits[:, -1], answers).backward()
    optimizer.step()
    optimizer.zero_grad()
ids, answer = lists(1)
texts = [[*"0123456789abcdefgh?"][number] for number in ids[0]]
inputs, place = {"input_ids": ids}, texts.index(texts[-1]) + 1  # the digit that is asked for
maps = normscope.analyze_inputs(model.eval(), inputs, maps=["attn_n"], tokens=[texts])
added = maps[0]["attn_n"].values[0, -1]
result = normscope.attribute_inputs(model, inputs, answer=int(answer), tokens=[texts])[0]
share = result.scores.values[place] / result.value
print(f"Asked for “{texts[-1]}”, the layer that attends adds the digit after it: it makes up")
print(f"{added[place] / added.sum():.0%} of what is added, and {share:.0%} of the answer’s logit.")

ax = attribution(result)
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "hybrid.png")
