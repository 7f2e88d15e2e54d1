"""Alignment error rate while a model trains: all layers, heads and readings in one pass.

Everything is dense and on the device, so that it costs less than a second. The library's own
aligner is the reference; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from experiments.nmt.model import Record, Translator
from experiments.nmt.subwords import EOS, PAD

_LINK = re.compile(r"(\d+)([-p])(\d+)")


@dataclass(frozen=True)
class Gold:
    """Sentence pairs with hand-made links, as tensors; ``</s>`` is the last source word."""

    source: Tensor  # pair × piece
    target: Tensor  # pair × step, </s> first
    source_words: Tensor  # pair × piece × word: which pieces a source word has
    target_words: Tensor  # pair × word × piece: the same, divided by their number
    sure: Tensor  # pair × target word × source word
    possible: Tensor  # sure ones included
    ends: Tensor  # pair: the source word that is </s>
    lengths: Tensor  # pair: number of target words

    def to(self, device: torch.device) -> Gold:
        return Gold(**{name: value.to(device) for name, value in vars(self).items()})


def _pieces(
    tokenizer: Tokenizer, sentences: list[list[str]]
) -> tuple[list[list[int]], list[list[int]]]:
    encoded = tokenizer.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False)
    return [e.ids for e in encoded], [[w for w in e.word_ids if w is not None] for e in encoded]


def read_gold(
    source: Path,
    target: Path,
    links: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    *,
    turned: bool,
) -> Gold:
    """Read tokenised text and 1-based links ``s-t`` (sure) and ``spt`` (possible).

    Args:
        source: The model's source side, a sentence a line.
        target: Its target side.
        links: The file of links.
        tokenizers: Of the source and the target.
        turned: The links name the target word first.
    """
    texts = [
        [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (source, target)
    ]
    (source_ids, source_of), (target_ids, target_of) = (
        _pieces(tokenizer, lines) for tokenizer, lines in zip(tokenizers, texts, strict=True)
    )
    count = len(texts[0])
    pieces = max(map(len, source_ids)) + 1
    steps = max(map(len, target_ids)) + 1
    source_most, target_most = (max(map(len, lines)) for lines in texts)
    gold = Gold(
        source=torch.full((count, pieces), PAD),
        target=torch.full((count, steps), PAD),
        source_words=torch.zeros(count, pieces, source_most + 1),
        target_words=torch.zeros(count, target_most, steps - 1),
        sure=torch.zeros(count, target_most, source_most + 1, dtype=torch.bool),
        possible=torch.zeros(count, target_most, source_most + 1, dtype=torch.bool),
        ends=torch.tensor([len(line) for line in texts[0]]),
        lengths=torch.tensor([len(line) for line in texts[1]]),
    )
    link_lines = links.read_text(encoding="utf-8").splitlines()
    for n in range(count):
        gold.source[n, : len(source_ids[n]) + 1] = torch.tensor([*source_ids[n], EOS])
        gold.target[n, : len(target_ids[n]) + 1] = torch.tensor([EOS, *target_ids[n]])
        for piece, word in enumerate([*source_of[n], len(texts[0][n])]):
            gold.source_words[n, piece, word] = 1
        for piece, word in enumerate(target_of[n]):
            gold.target_words[n, word, piece] = 1 / target_of[n].count(word)
        for one, kind, other in _LINK.findall(link_lines[n]):
            s, t = (int(other), int(one)) if turned else (int(one), int(other))
            gold.possible[n, t - 1, s - 1] = True
            if kind == "-":
                gold.sure[n, t - 1, s - 1] = True
    return gold


@torch.no_grad()
def soft_maps(model: Translator, gold: Gold, index: Tensor) -> dict[str, Tensor]:
    """Maps of some pairs, ``weights`` and ``norms``: layer × head × pair × step × piece.

    The last head stands for all heads together.
    """
    source, target = gold.source[index], gold.target[index]
    source = source[:, : int((source != PAD).sum(1).max())]
    target = target[:, : int((target != PAD).sum(1).max())]
    mask = (source != PAD)[:, None, None, :]
    record = Record()
    model.decode(target, model.encode(source, mask), mask, record)
    maps: dict[str, list[Tensor]] = {"weights": [], "norms": []}
    for alpha, transformed in zip(record.alpha, record.transformed, strict=True):
        maps["weights"].append(torch.cat([alpha, alpha.mean(1, keepdim=True)], 1))
        by_head = alpha * transformed.norm(dim=-1)[:, :, None, :]
        together = torch.einsum("bhqk,bhkd->bqkd", alpha, transformed).norm(dim=-1)
        maps["norms"].append(torch.cat([by_head, together[:, None]], 1))
    return {name: torch.stack(layers).transpose(1, 2) for name, layers in maps.items()}


@torch.no_grad()
def error_rates(model: Translator, gold: Gold, *, size: int = 64) -> dict[str, object]:
    """AER in percent by map, reading, layer and head; the mean norm by layer and head.

    ``AWI`` reads the step whose input is a word, ``AWO`` the step that puts it out. The last head
    stands for all heads together.
    """
    training, precision = model.training, model.precision
    model.eval()
    model.precision = torch.float32
    counts: dict[str, Tensor] = {}
    norms: Tensor | float = 0.0
    steps = 0
    for index in torch.arange(len(gold.source), device=gold.source.device).split(size):
        maps = soft_maps(model, gold, index)
        width, last = maps["norms"].shape[-1], maps["norms"].shape[-2]
        join_source = gold.source_words[index, :width]
        join_target = gold.target_words[index, :, : last - 1]
        real = (
            torch.arange(gold.target_words.shape[1], device=index.device)
            < gold.lengths[index][:, None]
        )
        inside = (
            torch.arange(last - 1, device=index.device)[None]
            < (gold.target[index] != PAD).sum(1)[:, None] - 1
        )
        norms = norms + (maps["norms"].sum(-1)[..., 1:] * inside).sum((2, 3))
        steps += int(inside.sum())
        for name, value in maps.items():
            for reading, rows in (("awi", value[..., 1:, :]), ("awo", value[..., :-1, :])):
                words = join_target @ rows @ join_source  # layer head pair target source
                absent = (
                    torch.arange(words.shape[-1], device=index.device) > gold.ends[index][:, None]
                )
                words = words.masked_fill(absent[:, None, :], -1.0)
                best = words.argmax(-1)
                linked = (best < gold.ends[index][:, None]) & real
                pick = best[..., None]
                shape = (*best.shape, gold.sure.shape[-1])
                sure = gold.sure[index].expand(shape).gather(-1, pick)[..., 0] & linked
                possible = gold.possible[index].expand(shape).gather(-1, pick)[..., 0] & linked
                found = torch.stack([t.sum((2, 3)) for t in (linked, sure, possible)])
                key = f"{name}_{reading}"
                counts[key] = counts.get(key, torch.zeros_like(found)) + found
    model.train(training)
    model.precision = precision
    everything = gold.sure.sum()
    table: dict[str, object] = {}
    for key, (linked, sure, possible) in counts.items():
        rate = 100 * (1 - (possible + sure) / (linked + everything))
        table[key] = [[round(float(x), 2) for x in row] for row in rate]
    assert isinstance(norms, Tensor)
    table["mean_norm"] = [[round(float(x), 4) for x in row] for row in norms / steps]
    return table


def best_layer(table: dict[str, object], key: str) -> tuple[int, float]:
    """The layer (from 1) with the lowest AER, all heads together."""
    rows = table[key]
    assert isinstance(rows, list)
    rates = [row[-1] for row in rows]
    return rates.index(min(rates)) + 1, min(rates)
