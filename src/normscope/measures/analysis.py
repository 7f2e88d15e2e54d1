"""`analyze` computes labelled maps of texts, `analyze_inputs` those of the model's own inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from normscope.decomposition.available import check_available
from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.engine.batch import Batch
from normscope.engine.batches import by_length, halves, out_of_memory, padded_length
from normscope.engine.given import checked_inputs, model_failures, row_tokens
from normscope.engine.items import MediaGiven
from normscope.engine.naming import SeenPositions, named
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import run
from normscope.errors import InputError
from normscope.foundation.progress import stage
from normscope.measures.items import analyze_items
from normscope.measures.maps import Maps, settings_of
from normscope.models.left_padding import warn_of_left_padding
from normscope.models.loading import resolve
from normscope.models.running import accepted_by, check_reads_text
from normscope.models.sides import Tokenizers, tokenizers_of
from normscope.results.contributions import Contributions
from normscope.results.signature import Signature
from normscope.text.limits import check_fits, max_length_of
from normscope.text.targets import shift_right
from normscope.text.tokens import Encoded, encode_many, pad

BATCH_TOKENS = 2048  # padded tokens in one batch on a CPU
# A GPU gets larger batches of short texts, because starting an operation takes longer than
# executing it on a few rows. Memory for maps grows with the pairs of positions.
GPU_TOKENS = 2**14
GPU_PAIRS = 2**21
GPU_ROWS = 512  # a grid of kernels has at most 65,535 blocks for rows and heads
# On a GPU, the length of padded batches is a multiple of this: a few shapes then occur again and
# again, and their CUDA graphs are replayed.
LENGTHS = 16


@overload
def analyze(
    model: Any,
    tokenizer: Any = ...,
    text: str = ...,
    text_pair: str | None = ...,
    target: str | None = ...,
    maps: Sequence[str] = ...,
    heads: str = ...,
    **options: Any,
) -> Contributions: ...


@overload
def analyze(
    model: Any,
    tokenizer: Any,
    text: Sequence[str],
    text_pair: Sequence[str] | None = ...,
    target: Sequence[str] | None = ...,
    maps: Sequence[str] = ...,
    heads: str = ...,
    **options: Any,
) -> list[Contributions]: ...


def analyze(  # type: ignore[misc]  # the overloads leave out the keyword-only options
    model: Any,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    text_pair: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    maps: Sequence[str] = (WEIGHTS, NORMS),
    heads: str = "sum",
    *,
    images: Any = None,
    audio: Any = None,
    sampling_rate: int | None = None,
    ff_bias: str = "path",
    memory: str | int = "2GB",
    attention: str = "auto",
    kernels: str = "auto",
    reduce: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    precision: str = "model",
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> Contributions | list[Contributions]:
    """Compute how much each token contributes to every other, by weight and by norm.

        >>> result = analyze(model, tokenizer, "The cat sat.")                  # doctest: +SKIP
        >>> result["attn_n"].shape                     # (layer, query, key)    # doctest: +SKIP
        (6, 6, 6)

    Args:
        model: a transformers model, a folder or a hub name; None is the default model.
        tokenizer: the model's tokenizer, or a pair (source, target) of them, or its processor;
            loaded with the model if that is a folder or a name.
        text: one text, or a list of texts, which is computed in batches of similar lengths. For a
            model that reads images within a text, with the image's token at its place, or the
            messages of a chat.
        text_pair: a second text in the same input, for models that read pairs.
        target: the decoder's input; required for encoder–decoder models.
        images: an image, or a list: a path, an image of Pillow, an array or a tensor. Without a
            text there is a result for each; all images of a list belong to one text; for a list of
            texts, give an image, or a list of images, for each.
        audio: a recording, or a list: the path of a WAV file, or samples.
        sampling_rate: samples in a second, of samples with another rate than the model's.
        maps: names of maps: "attn_w", "attn_n", and those that include residual, norm and
            feed-forward.
        heads: "sum", the norm of the sum over heads, or "each".
        ff_bias: whether a feed-forward's first bias is a summand with a share of its own ("path")
            or is present from the start of the integration path ("fixed").
        memory: limit for the largest arrays of maps behind a feed-forward, such as "2GB".
        attention: "eager" uses the model's own eager attention; "fused" keeps the model's sdpa
            attention and computes weights from queries and keys block by block; "auto" uses
            "fused" for long inputs and on a GPU.
        kernels: "torch" operations or "triton" kernels; "auto" uses Triton on a GPU.
        reduce: what to keep instead of maps, so that no array of (query, key) size is stored:
            "mixing_ratio", "row_sum", "argmax", "top16" (or another number), "category".
        categories: for "category", the keys to add up: {"name": [tokens]}.
        precision: "model" computes in the model's precision, at least float32: every length is
            within 2e-6 · Σ_h ‖α_h f_h‖ of the exact value for a float32 model. "float64" computes
            in float64, which is slower: lengths are accurate relative to themselves, to the digits
            of the dtype in which they are stored, even where heads cancel.
        truncate: cut a text that is too long for the model, instead of raising InputError.
        device: device of a model given by name, such as "cuda". Default: the CPU.
        dtype: dtype of a model given by name, such as "bfloat16". Default: that of its file.
        revision: revision of a model on the hub.
        strict: refuse a model given by name that is not loaded whole (see
            :func:`normscope.models.load`).

    Returns:
        A :class:`Contributions`; a list of them for a list of texts. With ``reduce`` they have
        reductions instead of maps.
    """
    options = AnalysisOptions(
        maps, heads, ff_bias, memory, attention, kernels, reduce, categories, precision
    ).checked()
    where: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    media = MediaGiven(images, audio, sampling_rate)
    if media:
        given = media.items(text, target, text_pair=text_pair, truncate=truncate)
        with_model = _resolve(model, tokenizer, **where, strict=strict, processor=True)
        (results,) = analyze_items(*with_model, given, lambda _: [options])
        return results[0] if given.single else results
    texts = _Texts.of(text, text_pair, target, truncate)
    with_model = _resolve(model, tokenizer, **where, strict=strict)
    (results,) = _analyze_texts(*with_model, texts, lambda _: [options])
    return results[0] if texts.single else results


def analyze_views(
    model: Any,
    tokenizer: Any,
    text: str | None,
    views: Callable[[nn.Module, int], Sequence[AnalysisOptions]],
    *,
    text_pair: str | None = None,
    target: str | None = None,
    images: Any = None,
    audio: Any = None,
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> list[Contributions]:
    """Analyse one text in several ways, in one forward pass.

    ``views`` returns the options of each analysis (such as summed heads and single heads) for the
    loaded model and the number of tokens. The other arguments are those of :func:`analyze`.
    """
    where: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    media = MediaGiven(images, audio)
    with_media = bool(media)
    model, tokenizer, loaded = _resolve(
        model, tokenizer, **where, strict=strict, processor=with_media
    )

    def chosen(length: int) -> list[AnalysisOptions]:
        return [view.checked() for view in views(model, length)]

    if media:
        given = media.items(text, target, text_pair=text_pair, truncate=truncate)
        return [results[0] for results in analyze_items(model, tokenizer, loaded, given, chosen)]
    texts = _Texts.of(text, text_pair, target, truncate)
    return [results[0] for results in _analyze_texts(model, tokenizer, loaded, texts, chosen)]


def analyze_inputs(
    model: Any,
    inputs: Mapping[str, Any],
    tokens: Sequence[Sequence[str]] | None = None,
    maps: Sequence[str] = (WEIGHTS, NORMS),
    heads: str = "sum",
    *,
    ff_bias: str = "path",
    memory: str | int = "2GB",
    attention: str = "auto",
    kernels: str = "auto",
    reduce: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    precision: str = "model",
    tokenizer: Any = None,
) -> list[Contributions]:
    """Analyse the model's own inputs: ids, pixels, audio, embeddings.

        >>> ids = tokenizer(texts, padding=True, return_tensors="pt")           # doctest: +SKIP
        >>> results = analyze_inputs(model, ids, tokenizer=tokenizer)           # doctest: +SKIP

    Returns one result for each row; positions that the attention mask marks as padding are removed.
    ``inputs`` may hold tensors, arrays or lists. ``tokens`` names the positions of each row (with
    or without its padding), and ``tokenizer`` names ids by their pieces and words; by default they
    are named by their ids, or numbered if there are no ids. The other arguments are those of
    :func:`analyze`.
    """
    options = AnalysisOptions(
        maps, heads, ff_bias, memory, attention, kernels, reduce, categories, precision
    ).checked()
    model, _ = resolve(model)
    if tokens is not None and tokenizer is not None:
        raise InputError("tokens and tokenizer both name the positions: give one of them")
    host = checked_inputs(model, inputs, "analyze_inputs")
    check_available(model, options.maps, host, ff_bias=options.ff_bias)
    known: Any = None if tokens is None else [{"": named(row)} for row in tokens]
    if tokenizer is not None:
        known = row_tokens(model, tokenizer, host)
    warn_of_left_padding(model, host, stacklevel=2)
    signature = Signature(model, tokenizer, settings_of(model, options))
    measure = Maps(options, signature)
    moved = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in host.items()}
    try:
        with model_failures(model, moved):
            (judged,) = run(
                model,
                [Batch(model, moved, known, host=host, seen=SeenPositions(model, host))],
                [measure],
                attention=options.attention,
                recorded_as=repr(options),
                snapshot=signature.snapshot,
            )
    except torch.OutOfMemoryError as error:
        raise out_of_memory("this batch: give fewer rows at once") from error
    results: list[Contributions] = judged.results[0]
    return results


# ---- the model


def _resolve(
    model: Any, tokenizer: Any, *, processor: bool = False, **where: Any
) -> tuple[Any, Any, bool]:
    """Return the model, what it reads with, and whether it was loaded for this call alone."""
    loaded = isinstance(model, str | os.PathLike)
    model, tokenizer = resolve(model, tokenizer, processor=processor, **where)
    if tokenizer is None and processor:
        raise InputError(
            "no processor was given; use analyze(model, processor, images=…), or give the model's "
            "folder or name, and its processor is loaded with it"
        )
    if processor:
        return model, tokenizer, loaded
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; use analyze(model, tokenizer, text), or give the model's "
            "folder or name, and its tokenizer is loaded with it"
        )
    check_reads_text(model, "give images= or audio=, with its processor in the tokenizer's place")
    return model, tokenizer, loaded


# ---- texts


@dataclass(frozen=True)
class _Texts:
    """The texts of one call, with their pairs and targets."""

    texts: list[str]
    pairs: list[str | None]
    targets: list[str | None]
    single: bool
    truncate: bool
    has_target: bool

    @classmethod
    def of(
        cls,
        text: str | Sequence[str] | None,
        text_pair: str | Sequence[str] | None,
        target: str | Sequence[str] | None,
        truncate: bool,
    ) -> _Texts:
        """Return the texts; raise InputError if text, pair and target do not correspond."""
        if text is None:
            raise InputError('no text was given; use analyze(model, tokenizer, "some text")')
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        pairs = _alongside(text_pair, texts, single, "text_pair")
        targets = _alongside(target, texts, single, "target")
        return cls(texts, pairs, targets, single, truncate, target is not None)


def _alongside(
    strings: str | Sequence[str] | None, texts: list[str], single: bool, name: str
) -> list[str | None]:
    """Return the pair or target of each text; raise InputError if there are not as many."""
    if strings is None:
        return [None] * len(texts)
    if isinstance(strings, str) != single or (not single and len(strings) != len(texts)):
        what = "one string" if isinstance(strings, str) else f"{len(strings)} strings"
        wanted = "one string" if single else f"a list of {len(texts)} strings"
        raise InputError(f"{name} must match the text: give {wanted}, not {what}")
    return [strings] if isinstance(strings, str) else list(strings)


EncodedRow = tuple[Encoded, Encoded | None]  # a text and its target, if any


def _analyze_texts(
    model: Any,
    tokenizer: Any,
    loaded: bool,
    texts: _Texts,
    choose: Callable[[int], Sequence[AnalysisOptions]],
) -> list[list[Contributions]]:
    """Return the results of each view by text; ``choose`` maps the greatest length to the views."""
    _check_target(model, texts.has_target)
    both = tokenizers_of(model, tokenizer)
    signature = Signature(model, both.given, {})
    rows = _encode_rows(model, both, texts)
    lengths = [(max(len(side.ids) for side in row if side is not None),) for row in rows]
    views = choose(max((length for (length,) in lengths), default=0))
    if len({options.attention for options in views}) != 1:
        raise InputError("several views of a text share one pass: give them the same attention")
    for options in views:
        check_available(model, options.maps, ff_bias=options.ff_bias)
    measures = [
        Maps(options, signature.with_settings(settings_of(model, options))) for options in views
    ]
    make = partial(TextBatch, model, both.source, rows)
    on_gpu = model.device.type == "cuda"
    divided = (
        by_length(lengths, gpu_budget, LENGTHS) if on_gpu else by_length(lengths, BATCH_TOKENS)
    )
    batches: Iterable[TextBatch] = map(make, divided)
    results: list[list[Any]] = [[None] * len(rows) for _ in views]
    stage(f"running {len(rows)} text{'s' * (len(rows) != 1)}, checking the maps")
    judged_batches = run(
        model,
        batches,
        measures,
        attention=views[0].attention,
        recorded_as=repr(views),
        snapshot=signature.snapshot,
    )
    for judged in judged_batches:
        assert isinstance(judged.batch, TextBatch)
        for by_text, by_row in zip(results, judged.results, strict=True):
            for row, result in zip(judged.batch.indices, by_row, strict=True):
                by_text[row] = result
    if loaded:  # hash the weights now, because the model is deleted on return
        for result in (result for by_text in results for result in by_text):
            _ = result.signature
    return results


class TextBatch(Batch):
    """Some of the texts of one call."""

    def __init__(
        self, model: Any, tokenizer: Any, rows: Sequence[EncodedRow], indices: Sequence[int]
    ) -> None:
        self.tokenizer, self.rows, self.indices = tokenizer, rows, list(indices)
        chosen = [rows[i] for i in indices]
        host = _inputs(model, tokenizer, chosen)
        tokens = [
            {"": source.tokens, "decoder": None if target is None else target.tokens}
            for source, target in chosen
        ]
        super().__init__(model, host, tokens)

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The keyword arguments of the model, sent to its device when they are first read."""
        device: Any = self.model.device
        return {name: t.to(device, non_blocking=True) for name, t in self.host.items()}

    def row_name(self, row: int) -> str:
        """Return the number of a text in the caller's list."""
        return f"text {self.indices[row]}"

    def split(self) -> list[Batch]:
        """Return the texts as two batches."""
        parts = halves(self.indices, "these texts")
        return [TextBatch(self.model, self.tokenizer, self.rows, part) for part in parts]


def gpu_budget(length: int) -> int:
    """Return how many padded tokens a batch of rows of this padded length may have on a GPU."""
    return min(GPU_TOKENS, max(BATCH_TOKENS, GPU_PAIRS // length), GPU_ROWS * length)


def _inputs(model: Any, tokenizer: Any, rows: Sequence[EncodedRow]) -> dict[str, Tensor]:
    configured = getattr(model.config.get_text_config(), "pad_token_id", None)
    padding = next((p for p in (tokenizer.pad_token_id, configured) if p is not None), 0)
    on_gpu = model.device.type == "cuda"

    def padded(side: Sequence[Encoded], *, as_target: bool) -> dict[str, Tensor]:
        limit = max_length_of(model.config, tokenizer, as_target=as_target) if on_gpu else None
        longest = padded_length([len(row) for row in side], LENGTHS, limit) if on_gpu else None
        return pad(side, padding, longest)

    inputs = padded([source for source, _ in rows], as_target=False)
    accepted = accepted_by(model)
    inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    targets = [target for _, target in rows if target is not None]
    if targets:
        of_decoder = padded(targets, as_target=True)
        inputs["decoder_input_ids"] = of_decoder["input_ids"]
        inputs["decoder_attention_mask"] = of_decoder["attention_mask"]
    # A GPU copies from pinned memory in the background.
    return {name: tensor.pin_memory() if on_gpu else tensor for name, tensor in inputs.items()}


def _check_target(model: Any, has_target: bool) -> None:
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    kind = type(model).__name__
    if two and not has_target:
        raise InputError(
            f"{kind} is an encoder–decoder model: give target=, the input of its decoder (on the "
            "command line --target)"
        )
    if not two and has_target:
        raise InputError(
            f"{kind} is not an encoder–decoder model, so it does not accept a target; for two "
            "sentences in one input use text_pair"
        )


def _encode_rows(model: Any, both: Tokenizers, texts: _Texts) -> list[EncodedRow]:
    """Encode all texts, and their targets where there are any."""

    def encoded(
        strings: Sequence[str], pairs: Sequence[str | None], *, as_target: bool
    ) -> list[Encoded]:
        tokenizer = both.side(as_target=as_target)
        strings = [both.normalized(text, as_target=as_target) for text in strings]
        pairs = [None if pair is None else both.normalized(pair) for pair in pairs]
        limit = max_length_of(model.config, tokenizer, as_target=as_target)
        how: dict[str, Any] = {"max_length": limit, "truncate": texts.truncate}
        rows = encode_many(tokenizer, strings, pairs, as_target=as_target, **how)
        for row in rows:
            check_fits(tokenizer, model, row, as_target=as_target)
        return rows

    sources = encoded(texts.texts, texts.pairs, as_target=False)
    if not texts.has_target:
        return [(source, None) for source in sources]
    strings: list[Any] = texts.targets  # there is one for each text
    targets = encoded(strings, [None] * len(strings), as_target=True)
    shifted = [shift_right(model, both.target, target) for target in targets]
    return list(zip(sources, shifted, strict=True))
