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
        for step in range(most):
            # The whole prefix once more: on a GPU, for a few hundred sentences, no cache is needed.
            x = model.decode(found, memory, mask)[:, -1]
            logits = functional.linear(x, model.output.weight.to(x.dtype))
            logits[:, PAD] = -torch.inf
            found = torch.cat([found, logits.argmax(-1)[:, None]], 1)
            if step % 8 == 7 or step == most - 1:
                # What has ended leaves the batch.
                ended = (found[:, 1:] == EOS).any(1).cpu().numpy() | (step == most - 1)
                for place, row in zip(
                    chosen[ended], found[:, 1:].cpu().numpy()[ended], strict=True
                ):
                    end = int(np.argmax(row == EOS)) if EOS in row else len(row)
                    lines[int(place)] = tokenizer.decode(row[:end].tolist())
                going = torch.from_numpy(np.flatnonzero(~ended)).to(source.device)
                chosen = chosen[~ended]
                found, memory, mask = found[going], memory[going], mask[going]
                if not len(chosen):
                    break
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
