"""align(): words in, links out. translate_align(): the same on the model's own translation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.alignment import aer, gradients, statistical
from normscope.alignment.aligner import Direction, Settings, align_direction
from normscope.alignment.auto import DEFAULT, SAMPLE, Candidate
from normscope.alignment.batches import Pair, parameter_of
from normscope.alignment.extract import Choice
from normscope.alignment.files import check_links, read_links
from normscope.alignment.links import Links
from normscope.alignment.symmetrize import SYMMETRIZATIONS, symmetrize_links
from normscope.alignment.translator import Translator, translator
from normscope.alignment.words import Side, split
from normscope.errors import InputError
from normscope.models import identity
from normscope.results.signature import Signature, versions, weights_hash

METHODS = ("attention", *gradients.METHODS, "eflomal")
FRAME_SECONDS = 0.02  # of Whisper's encoder: two steps of its features, 10 ms each


@dataclass(frozen=True, eq=False)
class Alignment:
    """One sentence pair with its links."""

    source: tuple[str, ...] | None  # None: audio
    target: tuple[str, ...]
    links: Links
    """(source word or frame, target word), with the share of the target word's row as score."""
    soft: NDArray[np.float32] | None = None
    """(target word, source word): the last column is ``</s>`` and whatever frames the source."""
    dropped: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Words of each side of which the tokenizer left nothing; they have no link."""
    skipped: str = ""
    """Why the pair was not aligned at all: "empty", "too long", or nothing."""

    @property
    def times(self) -> list[float | None]:
        """When each word is spoken, in seconds; for audio alone."""
        if self.source is not None:
            raise InputError("times are those of audio, and this pair is two texts")
        frames = {word: frame for frame, word in self.links}
        return [
            None if word not in frames else frames[word] * FRAME_SECONDS
            for word in range(len(self.target))
        ]


@dataclass(frozen=True, eq=False)
class Alignments(Sequence[Alignment]):
    """The alignments of a corpus, in order, and how they were made."""

    pairs: tuple[Alignment, ...]
    choices: tuple[Choice, ...] = ()
    """The layer, head and reading that were taken; several where they were combined."""
    reverse_choices: tuple[Choice, ...] = ()
    ranking: list[Candidate] = field(default_factory=list)
    """All that was to choose from, best first; empty where nothing was."""
    error: float = 0.0
    """The worst gap between the parts and the model's own output."""
    score: aer.Score | None = None
    """Against the gold, where it was given."""
    how: Signature | str = ""

    @property
    def signature(self) -> str:
        """The one line that lets another person get the same links."""
        return self.how if isinstance(self.how, str) else self.how.text()

    @property
    def links(self) -> list[Links]:
        """The links of every pair."""
        return [pair.links for pair in self.pairs]

    def __repr__(self) -> str:
        links = sum(len(pair.links) for pair in self.pairs)
        by = f" by {', '.join(map(str, self.choices))}" if self.choices else ""
        scored = "" if self.score is None else f", AER {100 * self.score.aer:.1f}"
        return f"Alignments of {len(self)} pairs: {links} links{by}{scored}, error {self.error:.1e}"

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Alignment]:
        return iter(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Alignment: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Alignment, ...]: ...

    def __getitem__(self, index: int | slice) -> Alignment | tuple[Alignment, ...]:
        return self.pairs[index]


def align(
    source: str | Sequence[str] | Sequence[Sequence[str]] | Tensor,
    target: str | Sequence[str] | Sequence[Sequence[str]],
    model: Any = None,
    tokenizer: Any = None,
    map: str = "attn_n",
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
    criterion: str = DEFAULT,
    sample: int = SAMPLE,
    copies: int = 30,
    noise: float = 0.15,
    seed: int = 0,
    skip_long: bool = False,
    budget: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
) -> Alignments:
    """Align the words of sentence pairs by the cross-attention of a translation model.

        >>> found = align("das Haus ist klein", "the house is small")           # doctest: +SKIP
        >>> sorted(found[0].links)                                              # doctest: +SKIP
        [(0, 0), (1, 1), (2, 2), (3, 3)]

    Args:
        source: a sentence, or a list of them, each a string or a list of words; for Whisper the
            features (batch, mel, frame) of its feature extractor.
        target: the same for the other side; the model is made to write it.
        model: an encoder-decoder model, a folder or a hub name; None is normscope's own
            German-English model.
        tokenizer: the model's, where it is given as an object; two of them for two vocabularies.
        map: what is read off the cross-attention: attn_n, attn_w, attn_res_ln_n, …
        layer: a layer from 0 on, or "auto": chosen without gold data, for each direction.
        head: a head from 0 on, "sum" for all together, or "auto".
        reading: "awi", "awo" or "auto".
        reverse_model: a model for the other direction, given like ``model``.
        reverse_tokenizer: its tokenizer.
        symmetrize: how both directions become one; without it, grow-diag-final-and.
        method: "attention", or a baseline: "saliency", "smoothgrad", "eflomal".
        gold: a file of gold links, or the links; then the result has a score.
        soft: keep the matrices.
        words: how strings become words: "space", or "moses".
        source_lang: the language code of a multilingual model (and Moses' language).
        target_lang: the same for the other side.
        prefix: a text before each source that is no part of it, as T5 wants it.
        combine: average so many of the best candidates; None: three, of no more than a tenth.
        criterion: what "auto" goes by.
        sample: how many pairs "auto" looks at.
        copies: noisy copies that SmoothGrad averages.
        noise: their noise, as a share of the embeddings' range.
        seed: of the noise.
        skip_long: leave pairs beyond the model's limit without links instead of refusing them.
        budget: padded tokens that go through the model at once; it bounds the memory.
            Without it, 4096 on a CPU and 32768 on a GPU.
        device: where a model that is given by name goes.
        dtype: in which a model that is given by name computes.
        revision: of a model on the hub.
    """
    _check(method, symmetrize, reverse_model)
    if method != "attention":
        _check_baseline(method, map, layer, head, reading, combine, soft)
    sources, targets = sentences(source, target, words, source_lang, target_lang)
    gold_links = _gold(gold, sources, targets)
    if method == "eflomal":
        if isinstance(sources, Tensor):
            raise InputError("eflomal aligns two texts, and the source is audio")
        ahead, back = statistical.eflomal(sources, targets)
        made = [
            symmetrize_links(a, b, symmetrize or SYMMETRIZATIONS[-1])
            for a, b in zip(ahead, back, strict=True)
        ]
        about = {"method": method, "symmetrize": symmetrize or SYMMETRIZATIONS[-1], **versions()}
        signature = "|".join(f"{key}:{value}" for key, value in about.items())
        found = Direction(made, [None] * len(made))
        empty: list[Pair | None] = [None] * len(made)
        return _result(sources, targets, empty, found, None, gold_links, signature, model=False)
    settings = Settings(
        map,
        layer,
        head,
        reading,
        combine,
        criterion,
        sample,
        budget,
        soft,
        None if method == "attention" else gradients.Gradients(method, copies, noise, seed),
    )
    forward = translator(
        model,
        tokenizer,
        source_lang=source_lang,
        target_lang=target_lang,
        prefix=prefix,
        device=device,
        dtype=dtype,
        revision=revision,
        moses=words == "moses",
    )
    texts = None if isinstance(sources, Tensor) else sources
    backward = None
    if reverse_model is not None:
        if texts is None:
            raise InputError("audio has no other direction: leave reverse_model out")
        if prefix:
            raise InputError(
                "a prefix names one direction, so both cannot be aligned at once: align each by "
                "itself and put their links together with normscope.alignment.symmetrize"
            )
        backward = forward.turned(reverse_model, reverse_tokenizer)
    pairs = forward.pairs(sources, targets, skip_long=skip_long)
    one = align_direction(forward, pairs, texts, targets, settings)
    other = None
    if backward is not None and texts is not None:
        turned = backward.pairs(targets, texts, skip_long=skip_long)
        other = align_direction(backward, turned, targets, texts, settings)
        how = symmetrize or SYMMETRIZATIONS[-1]
        one.links = [
            symmetrize_links(a, b.flipped(), how)
            for a, b in zip(one.links, other.links, strict=True)
        ]
    signature_of = _signature(forward, settings, method, one, other, symmetrize, words, backward)
    return _result(sources, targets, pairs, one, other, gold_links, signature_of)


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
    """Let the model translate, then align its translation with the source.

    The translation is cut into words like any other target, so that it is read again as text: its
    pieces may differ from those that were generated. ``options`` are those of :func:`align`.
    """
    from normscope.alignment.translate import translate

    how = ("source_lang", "target_lang", "prefix", "device", "dtype", "revision")
    known = {name: options[name] for name in how if options.get(name) is not None}
    made = translator(model, tokenizer, moses=words == "moses", **known)
    given = [source] if isinstance(source, str) else list(source)
    sources = [_words(one, words, options.get("source_lang")) for one in given]
    skip_long = bool(options.get("skip_long", False))
    written = translate(made, sources, beams=beams, budget=budget, skip_long=skip_long)
    both = (made.source, made.target)
    rest = {
        name: value
        for name, value in options.items()
        if name not in ("device", "dtype", "revision")
    }
    texts = [text or "" for text in written]
    found = align(sources, texts, made.model, both, words=words, budget=budget, **rest)
    pairs = tuple(
        replace(pair, skipped="too long") if text is None else pair
        for pair, text in zip(found, written, strict=True)
    )
    return replace(found, pairs=pairs)


def sentences(
    source: Any, target: Any, words: str, source_lang: str | None, target_lang: str | None
) -> tuple[list[list[str]] | Tensor, list[list[str]]]:
    """The words of every sentence; different numbers of them are refused."""
    targets = [
        _words(one, words, target_lang) for one in ([target] if isinstance(target, str) else target)
    ]
    if isinstance(source, Tensor):
        sources: Any = source.unsqueeze(0) if source.dim() == 2 else source
        if sources.dim() != 3:
            raise InputError(f"audio features are (batch, mel, frame), not {tuple(source.shape)}")
    else:
        given = [source] if isinstance(source, str) else source
        sources = [_words(one, words, source_lang) for one in given]
    if len(sources) != len(targets):
        raise InputError(
            f"the source has {len(sources)} sentences and the target {len(targets)}: line n of the "
            "one must translate line n of the other"
        )
    if not targets:
        raise InputError("no sentences were given")
    return sources, targets


def _words(sentence: Any, how: str, language: str | None) -> list[str]:
    if isinstance(sentence, str):
        return split(sentence, how, language)
    words = list(sentence)
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"a sentence is a string or a list of words, not {sentence!r:.60}")
    return words


def _check(method: str, symmetrize: str | None, reverse_model: Any) -> None:
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; valid: {', '.join(METHODS)}")
    if symmetrize is not None and symmetrize not in SYMMETRIZATIONS:
        raise InputError(
            f"unknown symmetrization {symmetrize!r}; valid: {', '.join(SYMMETRIZATIONS)}"
        )
    if symmetrize is not None and reverse_model is None and method != "eflomal":
        raise InputError(
            "symmetrization needs both directions: give a model of the other one with "
            "reverse_model (--reverse-model)"
        )
    if method == "eflomal" and reverse_model is not None:
        raise InputError("eflomal needs no model: leave reverse_model out")


def _check_baseline(
    method: str,
    map: str,
    layer: int | str,
    head: int | str,
    reading: str,
    combine: int | None,
    soft: bool,
) -> None:
    """Refuse what a method without attention cannot heed, rather than pass over it in silence."""
    given: dict[str, tuple[Any, Any]] = {"map": (map, "attn_n"), "layer": (layer, "auto")}
    given |= {"head": (head, "auto"), "reading": (reading, "auto"), "combine": (combine, None)}
    for name, (value, default) in given.items():
        if value != default and (name, value) != ("reading", "awo"):
            raise InputError(
                f"{name}={value!r} is about attention, and the method is {method}: leave it out"
            )
    if soft and method == "eflomal":
        raise InputError("eflomal makes links and no matrices: leave soft (--soft) out")


def _gold(gold: Any, source: Any, target: Sequence[Sequence[str]]) -> list[Links] | None:
    if gold is None:
        return None
    ours = None if isinstance(source, Tensor) else [len(words) for words in source]
    theirs = [len(words) for words in target]
    if isinstance(gold, str | Path):
        links = read_links(gold, source=ours, target=theirs)
    else:
        links = list(gold)
        check_links("the gold", links, ours, theirs)
    aer.score(links, links)  # refuses a gold without any sure link, before the work and not after
    return links


def _result(
    source: Any,
    target: Sequence[Sequence[str]],
    pairs: Sequence[Pair | None],
    one: Direction,
    other: Direction | None,
    gold: list[Links] | None,
    signature: Signature | str,
    *,
    model: bool = True,
) -> Alignments:
    made = []
    for row, pair in enumerate(pairs):
        words = None if isinstance(source, Tensor) else tuple(source[row])
        empty = not target[row] or (words is not None and not words)
        skipped = "empty" if empty else "too long" if pair is None and model else ""
        dropped: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if pair is not None:
            mine = pair.source.dropped if isinstance(pair.source, Side) else ()
            dropped = mine, pair.target.dropped
        made.append(
            Alignment(words, tuple(target[row]), one.links[row], one.soft[row], dropped, skipped)
        )
    return Alignments(
        tuple(made),
        one.choices,
        () if other is None else other.choices,
        one.ranking,
        max(one.error, 0.0 if other is None else other.error),
        None if gold is None else aer.score(gold, one.links, resamples=1000),
        signature,
    )


def _signature(
    forward: Translator,
    settings: Settings,
    method: str,
    one: Direction,
    other: Direction | None,
    symmetrize: str | None,
    words: str,
    back: Translator | None,
) -> Signature:
    told = {"task": "align", "method": method}
    told |= {} if words == "space" else {"words": words}
    spoken = {name: getattr(forward, name) for name in ("source_lang", "target_lang", "prefix")}
    told |= {name: json.dumps(one, ensure_ascii=False) for name, one in spoken.items() if one}
    if method == "attention":
        told |= {"map": settings.map, "choice": ";".join(map_name(c) for c in one.choices)}
        if one.ranking:
            told |= {"criterion": settings.criterion, "sample": str(settings.sample)}
    elif settings.gradients is not None and method == "smoothgrad":
        how = settings.gradients
        told |= {"copies": str(how.copies), "noise": str(how.noise), "seed": str(how.seed)}
    if other is not None:
        told |= {"symmetrize": symmetrize or SYMMETRIZATIONS[-1]}
        told |= {"reverse_choice": ";".join(map_name(c) for c in other.choices)}
    if back is not None:
        known = identity(back.model)
        told |= {"reverse_model": f"{known['name']}/sha256={weights_hash(back.model)}"}
    told["dtype"] = str(parameter_of(forward.model).dtype).removeprefix("torch.")
    return Signature(forward.model, forward.source, told, path="cross")


def map_name(choice: Choice) -> str:
    """A choice in a signature: layer, head, reading."""
    head = "sum" if choice.head is None else choice.head
    return f"{choice.layer}.{head}.{choice.reading}"
