"""analyze(): text in, labelled maps out. analyze_inputs(): the same for ready tensors."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normscope.arrays import take
from normscope.capture import capture
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.collector import Collector, Options, named
from normscope.contributions import Contributions
from normscope.decomposition.attention import HEADS, MAPS
from normscope.decomposition.feedforward import FF_BIASES
from normscope.errors import InputError
from normscope.limits import check_fits, max_length_of
from normscope.maps import NAMES, check_maps_of
from normscope.models import load
from normscope.signature import Signature
from normscope.tokens import Encoded, Tokens, encode, pad

BATCH_TOKENS = 2048  # padded tokens that go through the model at once


def analyze(
    model: Any,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    text_pair: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    maps: Sequence[str] = MAPS,
    heads: str = "sum",
    *,
    ff_bias: str = "path",
    memory: str | int = "2GB",
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
) -> Any:
    """Show how much each token contributes to each other one, by weight and by norm.

    ``model`` is a transformers model, a folder or a hub name; for the last two the tokenizer is
    found with it, and None stands for the default model. Encoder–decoder models need ``target``.
    A list of texts gives a list of results, computed in batches of like lengths.

        >>> result = analyze(model, tokenizer, "The cat sat.")                  # doctest: +SKIP
        >>> result["attn_n"].shape                     # (layer, query, key)    # doctest: +SKIP
        (6, 6, 6)
    """
    chosen, options = check_maps(maps, heads, ff_bias, memory)
    if text is None:
        raise InputError('no text was given; use analyze(model, tokenizer, "some text")')
    if model is None or isinstance(model, str) or hasattr(model, "__fspath__"):
        name = model if model is None else str(model)
        model, found = load(name, revision=revision, dtype=dtype, device=device)
        tokenizer = found if tokenizer is None else tokenizer
    else:
        model = _runnable(model)
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; use analyze(model, tokenizer, text), or give the model by "
            "its folder or name, and its tokenizer is found with it"
        )
    _check_scopes(model, chosen)
    single = isinstance(text, str)
    texts = [text] if isinstance(text, str) else list(text)
    pairs = _alongside(text_pair, texts, single, "text_pair")
    targets = _alongside(target, texts, single, "target")
    _check_target(model, target)
    rows = [
        _encode_row(model, tokenizer, *row, truncate)
        for row in zip(texts, pairs, targets, strict=True)
    ]
    results: list[Contributions | None] = [None] * len(rows)
    signature = _signature(model, tokenizer, chosen, options)
    for batch in _batches(rows):
        inputs = _inputs(model, tokenizer, [rows[i] for i in batch])
        known = [
            {"": source.tokens, "decoder": None if target is None else target.tokens}
            for source, target in (rows[i] for i in batch)
        ]
        for i, result in zip(
            batch, _run(model, inputs, known, chosen, options, signature), strict=True
        ):
            results[i] = result
    return results[0] if single else results


def analyze_inputs(
    model: Any,
    inputs: Mapping[str, Any],
    tokens: Sequence[Sequence[str]] | None = None,
    maps: Sequence[str] = MAPS,
    heads: str = "sum",
    *,
    ff_bias: str = "path",
    memory: str | int = "2GB",
) -> list[Contributions]:
    """The same for tensors that are ready for the model: ids, pixels, audio, embeddings.

    Gives one result for each row, positions that the attention mask calls padding removed.
    ``tokens`` names the positions of each row (with or without its padding); without it they
    are numbered.
    """
    chosen, options = check_maps(maps, heads, ff_bias, memory)
    model = _runnable(model)
    _check_scopes(model, chosen)
    if not isinstance(inputs, Mapping) or not any(isinstance(v, Tensor) for v in inputs.values()):
        raise InputError(
            f"analyze_inputs() takes a mapping of tensors (input_ids, pixel_values, …) as the "
            f"model itself does, but was given {type(inputs).__name__}"
        )
    inputs = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    known = None if tokens is None else [{"": named(row)} for row in tokens]
    return _run(model, inputs, known, chosen, options, _signature(model, None, chosen, options))


def check_maps(
    maps: Sequence[str], heads: str, ff_bias: str = "path", memory: str | int = "2GB"
) -> tuple[tuple[str, ...], Options]:
    """The maps and options asked for, each map once, or an error that lists the valid ones."""
    chosen = (maps,) if isinstance(maps, str) else tuple(dict.fromkeys(maps))
    unknown = [name for name in chosen if name not in NAMES]
    if unknown or not chosen:
        given = ", ".join(repr(name) for name in unknown) or "none"
        raise InputError(f"unknown map: {given}; the maps are: {', '.join(NAMES)}")
    if heads not in HEADS:
        raise InputError(f'heads is "sum" or "each", but was given {heads!r}')
    if heads == "each" and (rest := [name for name in chosen if name not in MAPS]):
        raise InputError(
            f"a residual, a norm or a feed-forward belongs to no single head: {', '.join(rest)} "
            f'exist for heads="sum" only; with heads="each" there is: {", ".join(MAPS)}'
        )
    if ff_bias not in FF_BIASES:
        raise InputError(f'ff_bias is "path" or "fixed", but was given {ff_bias!r}')
    return chosen, Options(heads, ff_bias, _bytes(memory))


def _check_scopes(model: nn.Module, maps: tuple[str, ...]) -> None:
    if any(name not in MAPS for name in maps):
        check_maps_of(model, maps)


def _bytes(memory: str | int) -> int:
    """2**31 for "2GB", and so on."""
    units = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B?)\s*", str(memory), re.IGNORECASE)
    size = float(found[1]) * units.get(found[2].upper(), 0) if found else 0
    if size < 1:
        raise InputError(f'memory is a size such as "2GB" or "500MB", but was given {memory!r}')
    return int(size)


# ------------------------------------------------------------------------------------ text in


def _runnable(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(
            "model is a transformers model, a folder or a hub name, but was given "
            f"{type(model).__name__}"
        )
    # A compiled model shares its parameters with the one that it was made from.
    original: nn.Module = getattr(model, "_orig_mod", model)
    return original


def _alongside(
    given: str | Sequence[str] | None, texts: list[str], single: bool, name: str
) -> list[str | None]:
    if given is None:
        return [None] * len(texts)
    if isinstance(given, str) != single or (not single and len(given) != len(texts)):
        what = "one string" if isinstance(given, str) else f"{len(given)} strings"
        wanted = "one string" if single else f"a list of {len(texts)} strings"
        raise InputError(f"{name} goes with the text: give {wanted}, not {what}")
    return [given] if isinstance(given, str) else list(given)


def _check_target(model: Any, target: Any) -> None:
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    kind = type(model).__name__
    if two and target is None:
        raise InputError(
            f"{kind} is an encoder–decoder model: give target=, the text that its decoder reads "
            "(on the command line --target)"
        )
    if not two and target is not None:
        raise InputError(
            f"{kind} has no decoder beside an encoder, so it takes no target; for two sentences "
            "in one input use text_pair"
        )


def _encode_row(
    model: Any,
    tokenizer: Any,
    text: str,
    pair: str | None,
    target: str | None,
    truncate: bool,
) -> tuple[Encoded, Encoded | None]:
    source = _encode(model, tokenizer, text, pair, truncate)
    if target is None:
        return source, None
    return source, _shift_right(
        model, tokenizer, _encode(model, tokenizer, target, None, truncate, as_target=True)
    )


def _encode(
    model: Any, tokenizer: Any, text: str, pair: str | None, truncate: bool, as_target: bool = False
) -> Encoded:
    limit = max_length_of(model.config, tokenizer, as_target=as_target)
    encoded = encode(
        tokenizer, text, pair, max_length=limit, truncate=truncate, as_target=as_target
    )
    check_fits(tokenizer, model, encoded, as_target=as_target)
    return encoded


def _shift_right(model: Any, tokenizer: Any, target: Encoded) -> Encoded:
    """What the decoder reads while it says ``target``: its start token, then all but the last."""
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    start = getattr(model.config, "decoder_start_token_id", None)
    if prepare is not None:
        first = int(prepare(torch.tensor([target.ids], device=model.device))[0, 0])
    else:
        first = target.ids[-1] if start is None else start
    name = str(tokenizer.convert_ids_to_tokens(first))
    rest = take(target.tokens, range(len(target.ids) - 1))
    tokens = Tokens(
        strings=(name, *rest.strings),
        ids=(first, *target.ids[:-1]),
        special=(True, *rest.special),
        texts=(name, *rest.texts),
        word_of=None if rest.word_of is None else (0, *(word + 1 for word in rest.word_of)),
        words=None if rest.words is None else (name, *rest.words),
    )
    return Encoded([first, *target.ids[:-1]], extra={}, tokens=tokens)


def _batches(rows: Sequence[tuple[Encoded, Encoded | None]]) -> Iterator[list[int]]:
    """Indices of rows of like lengths, longest first, a bounded number of tokens at a time."""

    def length(i: int) -> int:
        return max(len(side.ids) for side in rows[i] if side is not None)

    batch: list[int] = []
    for i in sorted(range(len(rows)), key=length, reverse=True):
        if batch and (len(batch) + 1) * length(batch[0]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _inputs(
    model: Any, tokenizer: Any, rows: Sequence[tuple[Encoded, Encoded | None]]
) -> dict[str, Tensor]:
    configured = getattr(model.config.get_text_config(), "pad_token_id", None)
    padding = next((p for p in (tokenizer.pad_token_id, configured) if p is not None), 0)
    inputs = pad([source for source, _ in rows], padding)
    accepted = _accepted(type(model).forward)
    inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    targets = [target for _, target in rows if target is not None]
    if targets:
        padded = pad(targets, padding)
        inputs["decoder_input_ids"] = padded["input_ids"]
        inputs["decoder_attention_mask"] = padded["attention_mask"]
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


# ---------------------------------------------------------------------- one batch through it


def _run(
    model: nn.Module,
    inputs: Mapping[str, Any],
    known: Sequence[Mapping[str, Tokens | None]] | None,
    maps: tuple[str, ...],
    options: Options,
    signature: Signature,
) -> list[Contributions]:
    collector = Collector(model, inputs, maps, options)
    record = (
        capture_layers(model, _with_progress(model, collector))
        if collector.whole_layers
        else capture(model, collector.attention)
    )
    # A cache costs memory and is not read here; FSMT even drops its causal mask for it.
    extra = {"use_cache": False} if "use_cache" not in inputs and _takes_cache(model) else {}
    with evaluating(model), torch.no_grad(), record:
        model(**inputs, **extra)
    return collector.results(known, signature)


def _with_progress(model: nn.Module, collector: Collector) -> Callable[[LayerCapture], None]:
    """A bar over the layers where a feed-forward makes them slow, on a terminal only."""
    from tqdm import tqdm

    slow = any("_ff" in name for name in collector.maps)
    bar = tqdm(
        total=len(layers_of(model)), desc="layers", leave=False, disable=None if slow else True
    )

    def take(layer: LayerCapture) -> None:
        collector.layer(layer)
        bar.update()
        if bar.n >= (bar.total or 0):
            bar.close()

    return take


def _takes_cache(model: nn.Module) -> bool:
    return "use_cache" in _accepted(type(model).forward)


@functools.cache
def _accepted(forward: Callable[..., Any]) -> frozenset[str]:
    """The names of a model's inputs."""
    return frozenset(inspect.signature(forward).parameters)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode again outside."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _signature(
    model: nn.Module, tokenizer: Any, maps: tuple[str, ...], options: Options
) -> Signature:
    settings = {
        "maps": ",".join(maps),
        "heads": options.heads,
        **({"ff_bias": options.ff_bias} if any("_ff" in name for name in maps) else {}),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    return Signature(model, tokenizer, settings)
