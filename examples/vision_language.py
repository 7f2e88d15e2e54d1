"""In a vision–language model, the patch that a question is about makes the answer.

A LLaVA of two layers learns here to name the colour of the one square that is neither black nor
white. Shares of patches stand over the image: blue ones support the answer.
"""

import sys

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import normscope
from normscope.plots import image_map

torch.manual_seed(0)
sizes = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4}
tower = CLIPVisionConfig(**sizes, num_hidden_layers=1, image_size=40, patch_size=8)
writer = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=7, pad_token_id=6)
kinds = {"vision_config": tower, "text_config": writer, "image_token_index": 5}
model = LlavaForConditionalGeneration(LlavaConfig(**kinds, vision_feature_layer=-1))
colours = {"red": [1, -1, -1], "green": [-1, 1, -1], "blue": [-1, -1, 1], "yellow": [1, 1, -1]}
painted = torch.tensor([*colours.values(), [1, 1, 1], [-1.0, -1, -1]])  # the words 0 to 3, and more


def asked(count):
    """Draw five squares on grey, one of them in colour; return inputs, answers and its patch."""
    rows, places = torch.arange(count), torch.rand(count, 25).argsort(1)[:, :5]
    hues = torch.cat([torch.randint(4, (count, 1)), 4 + torch.randint(2, (count, 4))], 1)
    grid = torch.full((count, 25, 3), 0.3)
    grid[rows[:, None], places] = painted[hues]
    pixels = grid.unflatten(1, (5, 5)).movedim(3, 1).repeat_interleave(8, 2)
    ids = torch.cat([torch.full((count, 25), 5), torch.full((count, 1), 4)], 1)  # 4: which colour?
    return {"pixel_values": pixels.repeat_interleave(8, 3), "input_ids": ids}, hues[:, 0], places


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
for _ in range(250):
    inputs, answers, _ = asked(32)
    torch.nn.functional.cross_entropy(model(**inputs).logits[:, -1], answers).backward()
    optimizer.step()
    optimizer.zero_grad()
inputs, answers, places = asked(100)
right = int((model.eval()(**inputs).logits[:, -1].argmax(1) == answers).sum())
results = normscope.attribute_inputs(model, inputs, answer=answers.tolist())
patches = torch.tensor([[*r.scores.values[[s == "image" for s in r.sides]][1:]] for r in results])
most = int((patches.argmax(1) == places[:, 0]).sum())
print(f"The model names {right} of 100 colours. In {most} images, that patch supports it most.")
ax = image_map(results[0])
ax.set_title(f"The answer: {[*colours][answers[0]]}", loc="left", pad=21, weight="bold")
ax.figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "vision_language.png")
