"""Properties of f, the affine map that attention applies to every vector, from a model's weights.

    f(x) = Σ_h (x W_V^h + b_V^h) W_O^h,      (x, 1) ↦ (f(x), 1)  linear, of d + 1 dimensions

Families store W_V differently: as a matrix of its own, or as a block or every third column of a
fused one. It is therefore found by running the model on one small input: W_V consists of the
columns of a linear module whose outputs are exactly the values of the heads. In pre-norm models, x
is the output of the norm.

`layernorm_scale` answers a related question (2021 paper: why does a layer keep more than it
mixes?). It needs a text, because a norm divides by the σ of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from normscope.capture import AttentionKind, Capture
from normscope.capture.layers import layer_around, layers_of
from normscope.capture.projection import affine
from normscope.decomposition.layer import LayerView
from normscope.decomposition.norms import read_norm
from normscope.engine.run import look
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.foundation.shapes import Float
from normscope.models.inventory import Inventory
from normscope.models.layouts import factor_at, part
from normscope.models.random_inputs import random_inputs
from normscope.models.running import accepted_by
from normscope.results.arrays import LabelledArray, is_int
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import encode, pad

OutputBias = Literal["without", "with_output_bias", "released"]
OUTPUT_BIAS: tuple[OutputBias, ...] = ("without", "with_output_bias", "released")
Norms = Float[np.ndarray, " layer"]
PerLayer = TypeVar("PerLayer")


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The weights of f of one attention call, in the model's dtype."""

    name: str  # the attention module's path in the model
    value: Float[Tensor, "in kv_head head_size"]  # W_V
    value_bias: Float[Tensor, "kv_head head_size"] | None  # b_V
    output: Float[Tensor, "head head_size out"]  # W_O
    output_bias: Float[Tensor, " out"] | None  # b_O

    def factors(
        self, heads: Sequence[int], bias: OutputBias = "without"
    ) -> tuple[Float[Tensor, "in1 inner1"], Float[Tensor, "inner1 out1"]]:
        """Return [[W_V, 0], [b_V, 1]] and [[W_O, 0], [0, 1]] of these heads; f̃ is their product."""
        shared = len(self.output) // self.value.shape[1]  # neighbouring heads share a value head
        groups = [head // shared for head in heads]
        value = _wide(self.value[:, groups].flatten(1))
        output = _wide(self.output[list(heads)].flatten(0, 1))
        left = torch.zeros(len(value) + 1, value.shape[1] + 1, dtype=torch.float64)
        right = torch.zeros(len(output) + 1, output.shape[1] + 1, dtype=torch.float64)
        left[:-1, :-1], right[:-1, :-1] = value, output
        left[-1, -1] = right[-1, -1] = 1
        if self.value_bias is not None:
            left[-1, :-1] = _wide(self.value_bias[groups].flatten())
        if self.output_bias is not None and bias == "with_output_bias":
            right[-1, :-1] = _wide(self.output_bias)
        elif self.output_bias is not None and bias == "released":
            if output.shape[0] != output.shape[1]:
                raise InputError(
                    f'bias="released" puts b_O beside W_O, so W_O must be square, but the W_O of '
                    f"{self.name} is {tuple(output.shape)}. Use one of {OUTPUT_BIAS[:2]}"
                )
            right[:-1, -1] = _wide(self.output_bias)
        return left, right

    def singular_values(self, head: int) -> Float[np.ndarray, " rank"]:
        """Return the singular values of one head's map (x, 1) ↦ (f_h(x), 1), largest first."""
        left, right = self.factors([head])
        # Orthogonal factors do not change singular values: the two small triangular ones suffice.
        small = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right.T, mode="r").R.T
        return torch.linalg.svdvals(small).numpy()


def expansion_rate(
    model: nn.Module,
    *,
    bias: OutputBias = "without",
    stack: str | None = None,
    kind: AttentionKind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> LabelledArray:
    """Return how much f stretches a vector on average, (layer,): ‖f̃‖_F / √(d + 1).

    f̃ is f with all heads as a linear map on (x, 1), [[W, 0], [b, 1]] including the corner 1, and d
    is the size of x. There are three conventions for b_O; the name of the result says which one was
    used:

    * ``bias="without"``: b = b_V W_O. b_O belongs to no token and is not in f.
    * ``bias="with_output_bias"``: b = b_V W_O + b_O, the whole attention module.
    * ``bias="released"``: as the code released with the 2021 paper computes it, with b_O as a
      column beside W_O, [[W_V, 0], [b_V, 1]] · [[W_O, b_O], [0, 1]]; to compare with its numbers.

    ``stack`` is part of the path of one list of layers, such as "encoder", for models with several;
    kind="cross" selects cross-attention. ``inputs`` (keyword arguments of the model) are needed if
    the model does not run on random ids alone; the numbers do not depend on them.
    """
    if bias not in OUTPUT_BIAS:
        raise InputError(f"bias must be one of {', '.join(OUTPUT_BIAS)}, not {bias!r}")
    rates = []
    for layer in affine_maps(model, stack=stack, kind=kind, inputs=inputs):
        left, right = layer.factors(range(len(layer.output)), bias)
        rates.append(float((left @ right).norm()) / len(left) ** 0.5)
    return LabelledArray(np.array(rates), ("layer",), {}, name=f"expansion_rate bias={bias}")


def singular_values(
    model: nn.Module,
    layer: int,
    head: int,
    *,
    stack: str | None = None,
    kind: AttentionKind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> Float[np.ndarray, " rank"]:
    """Return the singular values of one head's map (x, 1) ↦ (f_h(x), 1), largest first.

    b_O is left out. The map has at most rank e + 1 (e is the head size), so e + 1 values are
    returned; the others are zero. The other arguments are those of `expansion_rate`.
    """
    layers = affine_maps(model, stack=stack, kind=kind, inputs=inputs)
    affine_map = layers[_index("layer", layer, len(layers))]
    return affine_map.singular_values(_index("head", head, len(affine_map.output)))


def affine_maps(
    model: nn.Module,
    *,
    stack: str | None = None,
    kind: AttentionKind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> list[AffineMap]:
    """Return W_V, b_V, W_O and b_O of each layer of one stack, wherever the model stores them."""
    _check_model(model)
    inventory = Inventory(model)
    by_stack: dict[tuple[str, str], list[AffineMap]] = {}  # by stack and kind
    calls: list[_Call] = []  # of linear modules, since the last attention
    arguments: dict[nn.Module, list[Tensor]] = {}  # of attention modules

    def attention(module: nn.Module, args: Any, kwargs: Any) -> None:
        arguments[module] = _tensors(args, kwargs)

    def linear(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensors = _tensors(args, kwargs)
        if tensors and isinstance(output, Tensor):
            # A copy, because OLMo clips its values in place.
            copied = output.detach().clone()
            calls.append(_Call(inventory[module].name, module, tensors[0], copied))

    def read(view: LayerView) -> None:
        captured = view.captured
        if captured.held is not None:
            raise UnsupportedModelError(
                f"{captured.name}: a gate, a norm or a difference acts between the heads and their "
                "output projection, so W_V and W_O alone do not say what a head does"
            )
        attention_module = model.get_submodule(captured.name)
        weight, bias = _value_projection(captured, calls, arguments[attention_module])
        calls.clear()
        sizes = (captured.value.shape[1], captured.value.shape[3])
        affine_map = AffineMap(
            name=captured.name,
            value=weight.unflatten(1, sizes),
            value_bias=None if bias is None else bias.unflatten(0, sizes),
            output=captured.projection.weight,
            output_bias=captured.projection.bias,
        )
        by_stack.setdefault((captured.stack, captured.kind), []).append(affine_map)

    try:
        with _watched(inventory, attention, linear):
            _run(model, random_inputs(model) if inputs is None else inputs, read)
    except (AttributeError, TypeError, ValueError) as problem:
        if inputs is not None:
            raise
        raise InputError(
            f"{type(model).__name__} does not run on random inputs; give the model's own "
            "keyword arguments as inputs="
        ) from problem
    return _choose(model, by_stack, stack, kind)


@shielded
def _watched(
    inventory: Inventory, attention: Callable[..., None], linear: Callable[..., None]
) -> Iterator[None]:
    """Call one function before every attention module, and one after every linear module."""
    with ExitStack() as installed:
        for module in inventory.attention:
            handle = module.register_forward_pre_hook(attention, with_kwargs=True)
            installed.callback(handle.remove)
        for module in inventory.linear:
            handle = module.register_forward_hook(linear, with_kwargs=True)
            installed.callback(handle.remove)
        yield


@dataclass(frozen=True, eq=False)
class LayerNormScale:
    """How much the norm of each layer's attention block scales what passes through it."""

    gamma: Norms  # mean |γ| over channels
    scale: Norms  # mean over tokens of mean |γ| / σ_i
    norms: tuple[str, ...]  # the path of the norm that was read, by layer
    places: tuple[str, ...]  # where it stands, by layer: "after", "branch", "before" or "none"


def layernorm_scale(
    model: nn.Module,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    stack: str | None = None,
    kind: AttentionKind = "self",
) -> LayerNormScale:
    """Return mean |γ|, and mean |γ|/σ_i over real tokens, for the norm of each attention block.

    The norm is the one that follows attention: on the residual sum ("after", post-norm), otherwise
    on the attention's output alone ("branch"). In pre-norm models no norm follows, and the one on
    the block's input ("before") is used. ``places`` says which it was; a layer without any norm
    (ModernBERT's first) gets NaN.

    Give a tokenizer and a text, or several; or ``inputs``, as for the model itself.
    """
    _check_model(model)
    ready = _on_device(model, _ready(model, tokenizer, text, inputs))
    layers_of(model, ready)  # their layouts are read from a pass, which cannot begin in another
    by_stack: dict[tuple[str, str], list[tuple[float, float, str, str]]] = {}

    def read(view: LayerView) -> None:
        captured = view.captured
        rows = by_stack.setdefault((captured.stack, captured.kind), [])
        place, path, states = _norm_of(model, captured)
        if not path:
            rows.append((np.nan, np.nan, path, place))
            return
        real = states[view.positions.queries]
        norm = model.get_submodule(path)
        form = read_norm(norm, real, norm(real), path)
        gamma = 1.0 if form.scale is None else float(form.scale.double().abs().mean())
        rows.append((gamma, float((gamma / form.sigma(_wide(real))).mean()), path, place))

    _run(model, ready, read)
    gammas, scales, paths, places = zip(*_choose(model, by_stack, stack, kind), strict=True)
    return LayerNormScale(np.array(gammas), np.array(scales), paths, places)


def _norm_of(model: nn.Module, captured: Capture) -> tuple[str, str, Tensor]:
    """Return place and path of an attention block's norm ("none" and "" if none), and its input."""
    above = layer_around(model, captured.name)
    layer, layout = layers_of(model)[above]
    block = layout.cross if captured.kind == "cross" else layout.attention
    x, branch = captured.residual, captured.output
    if block is None or x is None:
        raise UnsupportedModelError(f"{captured.name}: its residual connection was not found")
    if block.after:
        branch = part(layer, block.branch)(branch) if block.branch else branch
        branch = branch if block.scale is None else factor_at(layer, block.scale) * branch
        x = part(layer, block.before)(x) if block.normed and block.before else x
        x = x if block.carry is None else factor_at(layer, block.carry) * x
        return "after", f"{above}.{block.after}", x + branch
    if block.branch:
        return "branch", f"{above}.{block.branch}", branch
    return ("before", f"{above}.{block.before}", x) if block.before else ("none", "", x)


# --------------------------------------------------------------------- one pass through the model


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a linear module."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


def _run(model: nn.Module, inputs: Mapping[str, Any], read: Callable[[LayerView], None]) -> None:
    """Run the model and read each attention call once."""

    def first_step(view: LayerView) -> None:
        if view.captured.step == 0:  # a stack that runs again has the same weights
            read(view)

    look(model, _on_device(model, inputs), first_step)


def _on_device(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    device = next(model.parameters()).device
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}


def _value_projection(
    captured: Capture, calls: Sequence[_Call], arguments: Sequence[Tensor]
) -> tuple[Float[Tensor, "in features"], Float[Tensor, " features"] | None]:
    """Return the columns of the linear module that computed the values, and its bias there."""
    for call in calls:
        columns = _columns(captured.value, call.output)
        if columns is None:
            continue
        if not any(_is_view(call.input, x) for x in arguments):
            raise UnsupportedModelError(
                f"{captured.name}: its values are computed by {call.name}, but from something that "
                "was computed from x first (such as a low-rank code and its norm), so f is not an "
                "affine map of x and has no expansion rate or singular values"
            )
        weight, bias = affine(call.module, call.name, call.input)
        return weight[:, columns], None if bias is None else bias[columns]
    raise UnsupportedModelError(
        f"{captured.name}: no linear module outputs its values as they are; something changes "
        "them afterwards (clipping, a norm, a gate, a cache), so f is not an affine map of x and "
        "has no expansion rate or singular values"
    )


def _columns(value: Float[Tensor, "batch kv_head key head_size"], output: Tensor) -> Any:
    """Return the column of ``output`` that equals each channel of the values, or None."""
    batch, _, keys, _ = value.shape
    if output.numel() % (batch * keys):
        return None
    wanted = _by_channel(value.transpose(1, 2).flatten(2))
    output = output.to(value.dtype)
    batch_first = output.reshape(batch, keys, -1)
    key_first = output.reshape(keys, batch, -1).transpose(0, 1)
    for states in (batch_first, key_first):
        places = {column: place for place, column in enumerate(_by_channel(states))}
        if all(channel in places for channel in wanted):
            return [places[channel] for channel in wanted]
    return None


def _by_channel(states: Float[Tensor, "batch position channel"]) -> list[bytes]:
    """Return each channel as the bytes of its numbers on all tokens; NaN in padding is equal."""
    rows = states.detach().flatten(0, 1).T.contiguous().cpu().view(torch.uint8).numpy()
    return [row.tobytes() for row in rows]


def _choose(
    model: nn.Module,
    by_stack: Mapping[tuple[str, str], list[PerLayer]],
    stack: str | None,
    kind: str,
) -> list[PerLayer]:
    """Return the entries of the stack and kind of attention that was asked for, by layer."""
    if kind not in ("self", "cross"):
        raise InputError(f'kind must be "self" or "cross", not {kind!r}')
    stacks = [path for path, other in by_stack if other == kind]
    if not stacks:
        raise InputError(f"{type(model).__name__} has no {kind}-attention that normscope can read")
    matching = [s for s in stacks if stack is None or stack in s]
    matching = [s for s in matching if s == stack] or matching
    if len(matching) != 1:
        choice = "none was chosen" if stack is None else f"stack={stack!r} fits {len(matching)}"
        raise InputError(
            f"{type(model).__name__} has {kind}-attention in: {', '.join(stacks)}; {choice}. Give "
            "stack=, a part of the path that only one of them has"
        )
    return by_stack[matching[0], kind]


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a transformers model, not a {type(model).__name__}")


def _ready(
    model: Any, tokenizer: Any, text: str | Sequence[str] | None, inputs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the model's keyword arguments for a text, or ``inputs`` themselves."""
    if (text is None) == (inputs is None) or (text is not None and tokenizer is None):
        raise InputError("give a tokenizer and a text, or inputs= alone: σ depends on the input")
    accepted = accepted_by(model)
    if text is not None:
        if model.config.is_encoder_decoder:
            raise InputError(
                f"{type(model).__name__} is an encoder–decoder model: give the inputs of both "
                "sides as inputs="
            )
        limit = max_length_of(model.config, tokenizer)
        texts = [text] if isinstance(text, str) else list(text)
        rows = [encode(tokenizer, line, max_length=limit, truncate=False) for line in texts]
        for row in rows:
            check_fits(tokenizer, model, row)
        inputs = pad(rows, tokenizer.pad_token_id or 0)
        inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    # A cache is not used here; with one, FSMT even drops its causal mask.
    extra = {"use_cache": False} if "use_cache" in accepted else {}
    return {**extra, **(inputs or {})}


def _index(what: str, index: object, count: int) -> int:
    if not is_int(index) or not 0 <= index < count:
        raise InputError(f"there is no {what} {index!r}; valid: 0 to {count - 1}")
    return int(index)


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]


def _is_view(tensor: Tensor, x: Tensor) -> bool:
    """Return whether a tensor holds the vectors of ``x``, in any shape."""
    alike = tensor.shape[-1] == x.shape[-1:].numel() and tensor.numel() == x.numel()
    if not alike or tensor.dtype != x.dtype:
        return False
    return torch.allclose(tensor.reshape(x.shape), x, rtol=0, atol=0, equal_nan=True)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
