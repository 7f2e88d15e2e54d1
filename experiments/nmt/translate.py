"""Greedy translation of many sentences, and BLEU. Good enough to follow training with."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from experiments.nmt.batches import Corpus
from experiments.nmt.model import Translator
from experiments.nmt.subwords import EOS, PAD


@torch.no_grad()
def translate(
    model: Translator, corpus: Corpus, tokenizer: Tokenizer, *, size: int = 500
) -> list[str]:
    """The most probable next piece, step by step; tokenised lines in the corpus's order."""
    model.eval()
    lines = [""] * len(corpus)
    order = np.argsort(corpus.lengths[0], kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        source = corpus.sources(chosen)
        mask = (source != PAD)[:, None, None, :]
        memory = model.encode(source, mask)
        most = min(2 * source.shape[1] + 10, model.shape.positions - 1)
        found = torch.full((len(chosen), 1), EOS, device=source.device)
        going = torch.ones(len(chosen), dtype=torch.bool, device=source.device)
        for step in range(most):
            # The whole prefix once more: on a GPU, for a few hundred sentences, no cache is needed.
            x = model.decode(found, memory, mask)[:, -1]
            logits = functional.linear(x, model.output.weight.to(x.dtype))
            logits[:, PAD] = -torch.inf
            best = torch.where(going, logits.argmax(-1), PAD)
            found = torch.cat([found, best[:, None]], 1)
            going &= best != EOS
            if step % 8 == 7 and not bool(going.any()):
                break
        ids = found[:, 1:].cpu().numpy()
        for place, row in zip(chosen, ids, strict=True):
            lines[int(place)] = tokenizer.decode(row[row > EOS].tolist())
    return lines


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str] | None:
    """Corpus BLEU of tokenised lower-cased text, with sacrebleu's signature; None without it."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        return None
    metric = BLEU(tokenize="none", force=True)  # the text is tokenised already
    score = metric.corpus_score(hypotheses, [references]).score
    return float(np.round(score, 2)), str(metric.get_signature())
