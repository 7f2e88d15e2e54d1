"""Align the words of given sentence pairs, or of sentences and the model's own translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.alignment import aer, statistical
from normscope.alignment.aligner import Direction, align_direction
from normscope.alignment.batches import SentencePair, parameter_of
from normscope.alignment.extract import Choice
from normscope.alignment.files import check_links, read_links
from normscope.alignment.links import Links
from normscope.alignment.options import ATTENTION, CRITERION, EFLOMAL, SAMPLE, AlignOptions
from normscope.alignment.result import Alignment, Alignments
from normscope.alignment.symmetrize import symmetrize_links
from normscope.alignment.translate import translate
from normscope.alignment.translator import Translator, is_named, translator
from normscope.alignment.words import Sentences, Side, split
from normscope.decomposition.scopes import NORMS
from normscope.errors import InputError
from normscope.foundation.texts import to_json
from normscope.models import identity
from normscope.results.signature import Signature, signature_line, versions, weights_hash
from normscope.results.state import Snapshot

RESAMPLES = 1000  # of the bootstrap intervals of a score


def align(
    source: str | Sequence[str] | Sequence[Sequence[str]] | Tensor,
    target: str | Sequence[str] | Sequence[Sequence[str]],
    model: Any = None,
    tokenizer: Any = None,
    map: str = NORMS,
    layer: int | str = "auto",
    head: int | str = "auto",
    reading: str = "auto",
    *,
    reverse_model: Any = None,
    reverse_tokenizer: Any = None,
    symmetrize: str | None = None,
    method: str = "attention",
    gold: str | Path | Sequence[Links] | None = None,
    soft: bool = False,
    words: str = "space",
    source_lang: str | None = None,
    target_lang: str | None = None,
    prefix: str = "",
    combine: int | None = None,
    criterion: str = CRITERION,
    sample: int = SAMPLE,
    copies: int = 30,
    noise: float = 0.15,
    seed: int = 0,
    skip_long: bool = False,
    budget: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> Alignments:
    """Align the words of sentence pairs by the cross-attention of a translation model.

        >>> alignments = align("das Haus ist klein", "the house is small")      # doctest: +SKIP
        >>> sorted(alignments[0].links)                                         # doctest: +SKIP
        [(0, 0), (1, 1), (2, 2), (3, 3)]

    Args:
        source: a sentence or a list of sentences, each a string or a list of words. For Whisper,
            the features (batch, mel, frame) of its feature extractor.
        target: the translations, in the same form. The model is forced to write them.
        model: an encoder-decoder model, its folder, or its name on the hub. None: normscope's own
            German-English model.
        tokenizer: the tokenizer of a model that is given as an object; a pair (source, target) if
            the model has two.
        map: the map of the cross-attention to read the links from.
        layer: a decoder layer, counted from 0, or "auto" to choose one without gold links, for
            each direction.
        head: a head, counted from 0, "sum" for all heads together, or "auto".
        reading: the decoder step that stands for a target word: "awi", the step that reads it,
            "awo", the step that writes it, or "auto".
        reverse_model: a model for the other direction, in the form of ``model``.
        reverse_tokenizer: its tokenizer.
        symmetrize: how to combine both directions. Default: "grow-diag-final-and".
        method: "attention", or one of the baselines "saliency", "smoothgrad" and "eflomal".
        gold: gold links, or a file with them. The result then has a score.
        soft: keep the soft alignment matrices.
        words: how to split strings into words: "space", "punctuation" (also off the ends of words)
            or "moses".
        source_lang: the language code of the source, for a multilingual model and for Moses.
        target_lang: the language code of the target.
        prefix: text before each source sentence that is not part of it, as T5 expects.
        combine: how many of the best candidates to average. Default: 3, but at most a tenth of the
            candidates.
        criterion: the feature by which "auto" ranks candidates.
        sample: the maximum number of pairs on which "auto" ranks candidates.
        copies: noisy copies over which SmoothGrad averages.
        noise: the standard deviation of their noise, as a share of the embeddings' range.
        seed: the seed of the noise.
        skip_long: leave pairs that exceed the model's maximum length without links, instead of
            raising InputError.
        budget: the maximum number of tokens in a batch, padding included; it bounds the memory.
            Default: 4096 on a CPU, 32768 on a GPU.
        device: the device for a model given by name.
        dtype: the dtype for a model given by name.
        revision: the revision of a model on the hub.
        strict: refuse a model given by name that is not loaded whole (see
            :func:`normscope.models.load`).
    """
    options = AlignOptions(
        model, tokenizer, map, layer, head, reading,
        reverse_model=reverse_model, reverse_tokenizer=reverse_tokenizer, symmetrize=symmetrize,
        method=method, gold=gold, soft=soft, words=words, source_lang=source_lang,
        target_lang=target_lang, prefix=prefix, combine=combine, criterion=criterion,
        sample=sample, copies=copies, noise=noise, seed=seed, skip_long=skip_long, budget=budget,
        device=device, dtype=dtype, revision=revision, strict=strict,
    )  # fmt: skip
    return _align(*sentences(source, target, options), options)


def translate_align(
    source: str | Sequence[str] | Sequence[Sequence[str]],
    model: Any = None,
    tokenizer: Any = None,
    *,
    words: str = "space",
    beams: int | None = None,
    budget: int | None = None,
    **options: Any,
) -> Alignments:
    """Translate sentences with the model, then align them with their translations.

    The translation is split into words and encoded again like any other target, so its pieces may
    differ from those that were generated.

    Args:
        source: a sentence or a list of sentences, each a string or a list of words.
        model: an encoder-decoder model, as in :func:`align`.
        tokenizer: its tokenizer, as in :func:`align`.
        words: how to split strings into words, as in :func:`align`.
        beams: beams of the search. Default: as the model's generation settings say.
        budget: the maximum number of tokens in a batch, as in :func:`align`.
        **options: other options of :func:`align`.
    """
    settings = AlignOptions(model, tokenizer, words=words, budget=budget, **options)
    forward = translator(settings)
    sources = _split(source, words, settings.source_lang)
    skip_long = settings.skip_long
    translations = translate(forward, sources, beams=beams, budget=budget, skip_long=skip_long)
    texts = [text or "" for text in translations]
    alignments = _align(*sentences(sources, texts, settings), settings, forward)
    pairs = tuple(
        replace(pair, skipped="too long") if text is None else pair
        for pair, text in zip(alignments, translations, strict=True)
    )
    return replace(alignments, pairs=pairs)


def sentences(
    source: Any, target: Any, options: AlignOptions
) -> tuple[Sentences | Tensor, Sentences]:
    """Split the sentences of both sides into words; audio features stay a tensor.

    Raises:
        InputError: the sides differ in their number of sentences, or have none.
    """
    targets = _split(target, options.words, options.target_lang)
    sources: Sentences | Tensor
    if isinstance(source, Tensor):
        sources = source.unsqueeze(0) if source.dim() == 2 else source
        if sources.dim() != 3:
            raise InputError(f"audio features are (batch, mel, frame), not {tuple(source.shape)}")
    else:
        sources = _split(source, options.words, options.source_lang)
    if len(sources) != len(targets):
        raise InputError(
            f"the source has {len(sources)} sentences and the target {len(targets)}: line n of one "
            "must translate line n of the other"
        )
    if not targets:
        raise InputError("no sentences were given")
    return sources, targets


def _split(text: Any, how: str, language: str | None) -> list[list[str]]:
    """Split a sentence, or each of several, into words."""
    lines = []
    for line in [text] if isinstance(text, str) else text:
        words = split(line, how, language) if isinstance(line, str) else list(line)
        if not all(isinstance(word, str) for word in words):
            raise InputError(f"a sentence is a string or a list of words, not {line!r:.60}")
        lines.append(words)
    return lines


def _align(
    sources: Sentences | Tensor,
    targets: Sentences,
    options: AlignOptions,
    forward: Translator | None = None,
) -> Alignments:
    """Align sentences that have been split; ``forward`` is the model if it is loaded already."""
    gold = _gold(options.gold, sources, targets)
    texts = None if isinstance(sources, Tensor) else sources
    if options.method == EFLOMAL:
        return _align_by_eflomal(texts, targets, options, gold)
    if texts is None and options.reverse_model is not None:
        raise InputError("audio has no reverse direction: leave reverse_model out")
    forward = translator(options) if forward is None else forward
    backward = None if options.reverse_model is None else forward.reverse(options)
    compute = partial(_align_by_model, sources, targets, options, forward, backward, gold)
    for side in (forward, backward):
        if side is not None:  # the same weights from the first pass until they are hashed
            compute = partial(Snapshot(side.model).settled, compute)
    return compute()


def _align_by_model(
    sources: Sentences | Tensor,
    targets: Sentences,
    options: AlignOptions,
    forward: Translator,
    backward: Translator | None,
    gold: list[Links] | None,
) -> Alignments:
    texts = None if isinstance(sources, Tensor) else sources
    pairs = forward.pairs(sources, targets, skip_long=options.skip_long)
    ahead = align_direction(forward, pairs, texts, targets, options)
    back = None
    if backward is not None and texts is not None:
        reverse_pairs = backward.pairs(targets, texts, skip_long=options.skip_long)
        back = align_direction(backward, reverse_pairs, targets, texts, options)
        ahead.links = [
            symmetrize_links(links, reverse_links.flipped(), options.symmetrization)
            for links, reverse_links in zip(ahead.links, back.links, strict=True)
        ]
    how = _signature(options, forward, ahead, backward, back)
    return Alignments(
        _pairs(texts, targets, pairs, ahead, gold, how),
        ahead.choices,
        () if back is None else back.choices,
        ahead.ranking,
        ahead.error if back is None else max(ahead.error, back.error),
        _score(gold, ahead.links),
        how,
    )


def _align_by_eflomal(
    texts: Sentences | None, targets: Sentences, options: AlignOptions, gold: list[Links] | None
) -> Alignments:
    if texts is None:
        raise InputError("eflomal aligns two texts, and the source is audio")
    forward, reverse = statistical.eflomal(texts, targets)
    links = [
        symmetrize_links(*both, options.symmetrization)
        for both in zip(forward, reverse, strict=True)
    ]
    settings = {"method": EFLOMAL, "symmetrize": options.symmetrization, **versions()}
    how = signature_line(settings)
    return Alignments(
        _pairs(texts, targets, None, Direction(links, [None] * len(links)), gold, how),
        score=_score(gold, links),
        how=how,
    )


def _gold(gold: Any, source: Sentences | Tensor, target: Sentences) -> list[Links] | None:
    """Read the gold links and check that they belong to these sentences."""
    if gold is None:
        return None
    source_lengths = None if isinstance(source, Tensor) else [len(words) for words in source]
    target_lengths = [len(words) for words in target]
    if isinstance(gold, str | Path):
        links = read_links(gold, source=source_lengths, target=target_lengths)
    else:
        links = list(gold)
        check_links("the gold", links, source_lengths, target_lengths)
    aer.score(links, links)  # raises InputError if there are no sure links, before any work
    return links


def _score(gold: list[Links] | None, links: list[Links]) -> aer.Score | None:
    return None if gold is None else aer.score(gold, links, resamples=RESAMPLES)


def _pairs(
    texts: Sentences | None,
    targets: Sentences,
    encoded: Sequence[SentencePair | None] | None,
    direction: Direction,
    gold: list[Links] | None,
    how: Signature | str,
) -> tuple[Alignment, ...]:
    """Put together the result of each pair; ``encoded`` is None for a method without a model."""
    results = []
    for row, target in enumerate(targets):
        source = None if texts is None else tuple(texts[row])
        pair = None if encoded is None else encoded[row]
        skipped = ""
        if not target or (source is not None and not source):
            skipped = "empty"
        elif encoded is not None and pair is None:
            skipped = "too long"
        dropped: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if pair is not None:
            source_dropped = pair.source.dropped if isinstance(pair.source, Side) else ()
            dropped = source_dropped, pair.target.dropped
        links, soft = direction.links[row], direction.soft[row]
        truth = None if gold is None else gold[row]
        results.append(Alignment(source, tuple(target), links, soft, dropped, skipped, truth, how))
    return tuple(results)


def _signature(
    options: AlignOptions,
    forward: Translator,
    ahead: Direction,
    backward: Translator | None,
    back: Direction | None,
) -> Signature | str:
    settings = {"task": "align", "method": options.method}
    if options.words != "space":
        settings["words"] = options.words
    for name in ("source_lang", "target_lang", "prefix"):
        if value := getattr(forward, name):
            settings[name] = to_json(value)
    if options.method == ATTENTION:
        settings |= {"map": options.map, "choice": _choice_codes(ahead.choices)}
        if ahead.ranking:
            settings |= {"criterion": options.criterion, "sample": str(options.sample)}
    elif options.method == "smoothgrad":
        settings |= {name: str(getattr(options, name)) for name in ("copies", "noise", "seed")}
    if backward is not None and back is not None:
        reverse_name = identity(backward.model)["name"]
        settings |= {
            "symmetrize": options.symmetrization,
            "reverse_choice": _choice_codes(back.choices),
            "reverse_model": f"{reverse_name}/sha256={weights_hash(backward.model)}",
        }
    settings["dtype"] = str(parameter_of(forward.model).dtype).removeprefix("torch.")
    signature = Signature(forward.model, forward.source_tokenizer, settings, path="cross")
    # A model that was loaded for this call is deleted on return, and could not be hashed later.
    return signature.text() if is_named(options) else signature


def _choice_codes(choices: Sequence[Choice]) -> str:
    """Write choices as layer.head.reading, separated by semicolons."""
    return ";".join(
        f"{choice.layer}.{'sum' if choice.head is None else choice.head}.{choice.reading}"
        for choice in choices
    )
