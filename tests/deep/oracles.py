"""What other libraries compute on small models: Input×Gradient, integrated gradients, LRP.

captum, inseq and lxt want versions of their own, so this script runs in an environment of its own,
which has no normscope, and stores arrays that a test compares with:

    python -m venv oracles && oracles/bin/pip install torch captum inseq lxt transformers
    oracles/bin/python tests/deep/oracles.py tests/attribution/oracles

The weights are drawn by name, so both sides have the same.
"""

from __future__ import annotations

import sys
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock  # of torchvision, which lxt imports for its vision models

import numpy as np
import torch

IDS = [7, 21, 9, 33, 14, 50]
BASELINE = [7, 40, 9, 12, 14, 8]
ANSWER = 5
STEPS = 32
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 60, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_positions": 32},
    "llama": {
        "vocab_size": 60,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "attention_bias": True,
    },
}


def small_model(name: str) -> Any:
    """Return a language model in float64 whose weights depend on their names alone."""
    import transformers

    kind = {"gpt2": "GPT2", "llama": "Llama"}[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES[name])
    model_class = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[name]
    model = getattr(transformers, model_class)(config).double().eval()
    for key, parameter in model.named_parameters():
        draw = np.random.default_rng(zlib.crc32(f"{name}.{key}".encode()))
        values = 0.3 * draw.normal(size=tuple(parameter.shape))
        norm = "norm" in key or ".ln_" in key
        values = 1 + values if norm and key.endswith("weight") else values
        parameter.data = torch.from_numpy(values)
    return model


def _ends(model: Any) -> tuple[Any, Any]:
    table = model.get_input_embeddings()
    return tuple(table(torch.tensor([ids])).detach() for ids in (IDS, BASELINE))


def by_captum(name: str) -> dict[str, np.ndarray]:
    """Return Input×Gradient and integrated gradients of a logit at the last position."""
    from captum.attr import InputXGradient, IntegratedGradients, Saliency  # type: ignore[import-not-found]

    model = small_model(name)

    def forward(embeddings: Any) -> Any:
        return model(inputs_embeds=embeddings).logits[:, -1, ANSWER]

    x, start = _ends(model)
    x.requires_grad_()
    products = InputXGradient(forward).attribute(x)
    integrated = IntegratedGradients(forward).attribute(
        x, start, n_steps=STEPS, method="gausslegendre"
    )
    zero = IntegratedGradients(forward).attribute(x, n_steps=STEPS, method="gausslegendre")
    lengths = Saliency(forward).attribute(x, abs=False)
    return {
        "input_x_gradient": products[0].sum(-1).detach().numpy(),
        "integrated_gradients": integrated[0].sum(-1).detach().numpy(),
        "integrated_gradients_zero": zero[0].sum(-1).detach().numpy(),
        "gradient_norm": lengths[0].norm(dim=-1).detach().numpy(),
    }


def by_lxt(kind: str) -> dict[str, np.ndarray]:
    """Return the relevance of a Llama's tokens by the rules of LRP; patches transformers."""
    from transformers.models.llama import modeling_llama

    sys.modules.update({name: MagicMock() for name in ("torchvision", "torchvision.models")})
    from lxt.efficient import monkey_patch  # type: ignore[import-not-found]
    from lxt.efficient.models import llama  # type: ignore[import-not-found]

    rules = llama.attnLRP if kind == "attn_lrp" else llama.cp_LRP
    monkey_patch(modeling_llama, patch_map=rules, verbose=False)
    model = small_model("llama")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    x, _ = _ends(model)
    x.requires_grad_()
    model(inputs_embeds=x, use_cache=False).logits[0, -1, ANSWER].backward()
    return {kind: (x * x.grad)[0].sum(-1).detach().numpy()}


def by_inseq(name: str) -> dict[str, np.ndarray]:
    """Return Input×Gradient and integrated gradients as inseq computes them."""
    import inseq  # type: ignore[import-not-found]
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    names = [*special.values(), *(f"w{at}" for at in range(len(special), 60))]
    backend = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    reader = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    found = {}
    for method, more in (
        ("input_x_gradient", {}),
        ("integrated_gradients", {"n_steps": STEPS}),  # by captum's default, Gauss–Legendre
    ):
        model = inseq.load_model(small_model(name), method, tokenizer=reader)
        text = " ".join(f"w{index}" for index in IDS)
        result = model.attribute(
            text,
            f"{text} w{ANSWER}",
            attributed_fn="logit",
            show_progress=False,
            **more,
        )
        step = result.sequence_attributions[0].target_attributions
        found[f"inseq_{method}"] = step.sum(-1)[: len(IDS), 0].double().numpy()
    return found


def main(folder: Path, what: str) -> None:
    """Store the arrays of one library; lxt patches transformers, so each has a process."""
    name, _, kind = what.partition(":")
    make = {"captum": by_captum, "lxt": by_lxt, "inseq": by_inseq}[name]
    arrays = make(kind)
    arrays["libraries"] = np.array(f"{name} {version(name)}, torch {torch.__version__}")
    path = folder / f"{name}_{kind}.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    for key, array in arrays.items():
        print(path.name, key, array)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
