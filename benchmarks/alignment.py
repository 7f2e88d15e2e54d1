"""Throughput of the aligner: batched, against one pair at a time with the dense form.

python benchmarks/alignment.py                   # 10,000 pairs, a model of the embedded one's size
python benchmarks/alignment.py --device cuda --hidden 512 --layers 6 --budget 65536
python benchmarks/alignment.py --model FOLDER    # a model of your own, sentences of its words

The dense form runs the whole model on one pair, keeps all attention weights, builds every vector
αf(x) of one decoder layer, (head, query, key, hidden), adds the heads up and takes the norms. Both
sides tokenise, merge pieces to words and make links, which must be the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.alignment.aligner import align_direction
from normscope.alignment.options import AlignOptions
from normscope.alignment.translator import Translator, translator

WORDS = 8000


def small_model(hidden: int, layers: int, heads: int, device: str) -> tuple[Any, Any]:
    """A Marian with random weights, and a tokenizer of one piece a word, or two."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

    pieces = ["<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(WORDS)), "##x"]
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    config = MarianConfig(
        vocab_size=len(pieces), d_model=hidden, max_position_embeddings=512,
        encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=2 * hidden, decoder_ffn_dim=2 * hidden,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    reader = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    return MarianMTModel(config).eval().to(device), reader


def sentences(count: int, words: list[str], seed: int) -> list[list[str]]:
    """Sentences as long as those of Europarl: a mean of about 25 words, up to 60."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.gamma(2.6, 9.6, count), 1, 60).astype(int)
    return [[words[i] for i in draw.integers(0, len(words), n)] for n in lengths]


@torch.no_grad()
def dense(made: Translator, source: list[str], target: list[str], layer: int) -> set[Any]:
    """One pair, the way the equations read."""
    (pair,) = made.pairs([source], [target])
    assert pair is not None
    model, device = made.model, made.model.device
    attention = model.get_decoder().layers[layer].encoder_attn
    values: list[torch.Tensor] = []
    hook = attention.v_proj.register_forward_hook(lambda _, __, value: values.append(value))
    read = torch.tensor([pair.read], device=device)
    try:
        out = model(
            input_ids=torch.tensor([pair.source.ids], device=device),  # type: ignore[union-attr]
            decoder_input_ids=read,
            output_attentions=True,
            use_cache=False,
        )
    finally:
        hook.remove()
    alpha = out.cross_attentions[layer][0]  # head query key
    heads, size = alpha.shape[0], attention.head_dim
    value = values[0][0].unflatten(-1, (heads, size)).transpose(0, 1)  # head key size
    weight = attention.out_proj.weight.T.unflatten(0, (heads, size))  # head size hidden
    vectors = alpha[..., None] * (value @ weight)[:, None]  # head query key hidden
    norms = vectors.sum(dim=0).norm(dim=-1).cpu().numpy()
    words = np.zeros((len(norms), len(source) + 1))
    for key, word in enumerate(pair.source.word_of):  # type: ignore[union-attr]
        words[:, word if word >= 0 else len(source)] += norms[:, key]
    links = set()
    for word in range(len(target)):
        steps = [at + 1 for at, own in enumerate(pair.target.word_of) if own == word]
        best = int(words[steps].mean(axis=0).argmax())
        if best < len(source):
            links.add((best, word))
    return links


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--single", type=int, default=300, help="pairs for the dense form")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--model", default=None, help="a folder instead of random weights")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.model:
        made = translator(AlignOptions(options.model, device=options.device))
        vocabulary = made.source_tokenizer.get_vocab()
        words = [w for w in vocabulary if w.startswith("▁") and w[1:].isalpha()]
        words = [word[1:] for word in words][:WORDS]
    else:
        shape = options.hidden, options.layers, options.heads
        made = translator(AlignOptions(*small_model(*shape, options.device)))
        words = [f"w{i}{'x' * (i % 4 == 0)}" for i in range(WORDS)]
    made.model.set_attn_implementation("eager")  # or the dense form gets no weights
    source, target = (sentences(options.pairs, words, seed) for seed in (1, 2))
    settings = AlignOptions(layer=options.layer, head="sum", reading="awi", budget=options.budget)

    def batched(count: int) -> list[Any]:
        pairs = made.pairs(source[:count], target[:count])
        return align_direction(made, pairs, source[:count], target[:count], settings).links

    batched(50)
    dense(made, source[0], target[0], options.layer)  # both have run once
    begin = time.perf_counter()
    some = zip(source[: options.single], target[: options.single], strict=True)
    single = [dense(made, s, t, options.layer) for s, t in some]
    one_by_one = len(single) / (time.perf_counter() - begin)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    found = batched(options.pairs)
    together = options.pairs / (time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    same = np.mean([set(a) == b for a, b in zip(found, single, strict=False)])
    told = {
        "pairs": options.pairs,
        "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu",
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in made.model.parameters()),
        "budget": options.budget,
        "batched pairs/s": together,
        "dense pairs/s": one_by_one,
        "ratio": together / one_by_one,
        "same links": same,
        "peak MB": peak / 1024,
        "peak MB before": before / 1024,
    }
    if options.device != "cpu":
        told["GPU peak MB"] = torch.cuda.max_memory_allocated() / 2**20
    for name, value in told.items():
        print(f"{name:18} {value:.4g}" if isinstance(value, float) else f"{name:18} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
