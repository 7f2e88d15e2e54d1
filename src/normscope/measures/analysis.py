"""analyze(): text in, labelled maps out. analyze_inputs(): the same for ready tensors."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.decomposition.attention import HEADS, MAPS
from normscope.decomposition.feedforward import FF_BIASES
from normscope.decomposition.maps import NAMES, check_maps_of
from normscope.decomposition.rows import check_reductions
from normscope.engine.collector import Options
from normscope.engine.halving import halves, out_of_memory
from normscope.engine.judged import Results
from normscope.engine.labels import OTHER, named
from normscope.engine.runner import Runner, accepted_by
from normscope.errors import InputError
from normscope.kernels.backend import check_kernels, triton_for
from normscope.models import load
from normscope.results.arrays import take
from normscope.results.contributions import Contributions
from normscope.results.reductions import Reductions
from normscope.results.signature import Signature
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import Encoded, Tokens, encode, pad

BATCH_TOKENS = 2048  # padded tokens that go through the model at once
ATTENTION: tuple[Literal["auto", "eager", "fused"], ...] = ("auto", "eager", "fused")


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
    attention: str = "auto",
    kernels: str = "auto",
    reduce: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
) -> Any:
    """Show how much each token contributes to each other one, by weight and by norm.

        >>> result = analyze(model, tokenizer, "The cat sat.")                  # doctest: +SKIP
        >>> result["attn_n"].shape                     # (layer, query, key)    # doctest: +SKIP
        (6, 6, 6)

    Args:
        model: a transformers model, a folder or a hub name; None stands for the default model.
        tokenizer: found with the model where that is a folder or a name.
        text: one text, or a list of them, which is computed in batches of like lengths.
        text_pair: a second text in the same input, for models that read pairs.
        target: the text that the decoder of an encoder–decoder model reads; these need it.
        maps: their names: "attn_w", "attn_n", and on through residual, norm and feed-forward.
        heads: "sum", the norm of the sum over heads, or "each".
        ff_bias: a feed-forward's first bias is one more summand, with a share of its own ("path"),
            or there from the start ("fixed").
        memory: for the largest arrays of maps behind a feed-forward, such as "2GB".
        attention: "eager" is the model's own eager attention; "fused" leaves the model to its sdpa
            attention and makes the weights from queries and keys a block at a time; "auto" takes
            that for long inputs and on a GPU.
        kernels: "torch" operations or "triton"; "auto" takes Triton's on a GPU.
        reduce: "mixing_ratio", "row_sum", "argmax", "top16" (or another number), "category", or
            some of these, instead of maps: no array of (query, key) size is kept.
        categories: for "category", which keys to add up: {"name": [tokens]}.
        truncate: cut a text that is too long for the model, instead of refusing it.
        device: where a model that is loaded here goes, such as "cuda"; by itself the CPU.
        dtype: of a model that is loaded here, such as "bfloat16"; by itself that of its file.
        revision: of a model on the hub.

    Returns:
        A :class:`Contributions`, or :class:`Reductions` where ``reduce`` is given; a list of them
        for a list of texts.
    """
    chosen, options = check_maps(
        maps,
        heads,
        ff_bias,
        memory,
        attention=attention,
        kernels=kernels,
        reduce=reduce,
        categories=categories,
    )
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
    results: list[Contributions | Reductions | None] = [None] * len(rows)
    runner = Runner(model, chosen, options, _signature(model, tokenizer, chosen, options))
    started: list[tuple[list[int], Results]] = []  # the last one, still on its way

    def finish() -> None:
        for these, made in started:
            for row, result in zip(these, made.rows(), strict=True):
                results[row] = result

    waiting = deque(_batches(rows))
    while waiting:
        batch = waiting.popleft()
        following = _start(model, tokenizer, runner, [rows[i] for i in batch])
        finish()
        started[:] = [] if following is None else [(batch, following)]
        if following is None:
            waiting.extendleft(reversed(halves(batch, "these texts")))
    finish()
    return results[0] if single else results


def _start(
    model: Any, tokenizer: Any, runner: Runner, rows: Sequence[tuple[Encoded, Encoded | None]]
) -> Results | None:
    """A batch on its way; None where the GPU has no room for it."""
    host = _inputs(model, tokenizer, rows)
    known = [
        {"": source.tokens, "decoder": None if target is None else target.tokens}
        for source, target in rows
    ]
    try:
        inputs = {name: tensor.to(model.device, non_blocking=True) for name, tensor in host.items()}
        return runner.start(inputs, known, host)
    except torch.OutOfMemoryError:
        return None


def analyze_inputs(
    model: Any,
    inputs: Mapping[str, Any],
    tokens: Sequence[Sequence[str]] | None = None,
    maps: Sequence[str] = MAPS,
    heads: str = "sum",
    *,
    ff_bias: str = "path",
    memory: str | int = "2GB",
    attention: str = "auto",
    kernels: str = "auto",
    reduce: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
) -> list[Any]:
    """The same for tensors that are ready for the model: ids, pixels, audio, embeddings.

    Gives one result for each row, positions that the attention mask calls padding removed.
    ``tokens`` names the positions of each row (with or without its padding); without it they have
    their ids for names, or numbers where there are none. The rest is as for :func:`analyze`.
    """
    chosen, options = check_maps(
        maps,
        heads,
        ff_bias,
        memory,
        attention=attention,
        kernels=kernels,
        reduce=reduce,
        categories=categories,
    )
    model = _runnable(model)
    _check_scopes(model, chosen)
    if not isinstance(inputs, Mapping) or not any(isinstance(v, Tensor) for v in inputs.values()):
        raise InputError(
            f"analyze_inputs() takes a mapping of tensors (input_ids, pixel_values, …) as the "
            f"model itself does, but was given {type(inputs).__name__}"
        )
    known = None if tokens is None else [{"": named(row)} for row in tokens]
    runner = Runner(model, chosen, options, _signature(model, None, chosen, options))
    try:
        there = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        return list(runner.run(there, known))
    except torch.OutOfMemoryError as error:
        raise out_of_memory("this batch: give fewer rows at once") from error


def check_maps(
    maps: Sequence[str],
    heads: str,
    ff_bias: str = "path",
    memory: str | int = "2GB",
    *,
    attention: str = "auto",
    kernels: str = "auto",
    reduce: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
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
    if attention not in ATTENTION:
        raise InputError(f"attention is one of {', '.join(ATTENTION)}, but was given {attention!r}")
    reductions = check_reductions(reduce) if reduce else ()
    beyond = [name for name in chosen if "_ff" in name]
    if reductions and (heads == "each" or beyond):
        what = f"maps behind a feed-forward ({', '.join(beyond)})" if beyond else "single heads"
        raise InputError(f"reduce serves maps of summed heads up to the norms, not {what}")
    if ("category" in reductions) != bool(categories):
        raise InputError(
            'categories={"name": ["token", …]} and reduce=("category",) go together: give both'
        )
    if categories is not None and not isinstance(categories, Mapping):
        raise InputError(f"categories are {{name: [tokens]}}, but was given {categories!r}")
    if any(isinstance(tokens, str) for tokens in (categories or {}).values()):
        raise InputError("each category is a list of tokens, not a string")
    if OTHER in (categories or {}):
        raise InputError(f"{OTHER!r} is what tokens of no category are called; choose another name")
    return chosen, Options(
        heads,
        ff_bias,
        _bytes(memory),
        attention,
        check_kernels(kernels),
        reductions,
        dict(categories or {}),
    )


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
    if two:
        _check_tokenizers(model)


def _check_tokenizers(model: Any) -> None:
    """Refuse a model whose folder says that it writes with another tokenizer than it reads with.

    The target would be cut by the wrong one, and its ids would be those of other words.
    """
    name = str(getattr(model.config, "_name_or_path", "") or "")
    about = Path(name) / "normscope.json"
    if not name or not about.is_file() or b'"target_tokenizer"' not in about.read_bytes():
        return
    raise InputError(
        f"{type(model).__name__} in {about.parent.name!r} has a tokenizer of its own for the "
        "target, which analyze does not use; align() does (normscope align), and analyze_inputs() "
        "takes ids of both"
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
    accepted = accepted_by(model)
    inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    targets = [target for _, target in rows if target is not None]
    if targets:
        padded = pad(targets, padding)
        inputs["decoder_input_ids"] = padded["input_ids"]
        inputs["decoder_attention_mask"] = padded["attention_mask"]
    pinned = model.device.type == "cuda"  # from there a GPU fetches without being waited for
    return {name: tensor.pin_memory() if pinned else tensor for name, tensor in inputs.items()}


def _signature(
    model: nn.Module, tokenizer: Any, maps: tuple[str, ...], options: Options
) -> Signature:
    parameter = next(model.parameters())
    triton = triton_for(options.kernels, parameter.device)
    settings = {
        "maps": ",".join(maps),
        "heads": options.heads,
        **({"ff_bias": options.ff_bias} if any("_ff" in name for name in maps) else {}),
        **({"reduce": ",".join(options.reduce)} if options.reduce else {}),
        **({"categories": json.dumps(options.categories)} if options.categories else {}),
        **({"kernels": "triton"} if triton is not None else {}),
        "dtype": str(parameter.dtype).removeprefix("torch."),
    }
    return Signature(model, tokenizer, settings)
