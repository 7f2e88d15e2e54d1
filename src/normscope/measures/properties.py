"""What attention does to any vector: properties of f, read from a model's weights.

    f(x) = Σ_h (x W_V^h + b_V^h) W_O^h,      (x, 1) ↦ (f(x), 1)  linear, of d + 1 dimensions

Where a family keeps W_V (a matrix of its own, a stretch or every third column of a fused one) is
not looked up but found: one small input goes through the model, and the columns of a linear module
that made exactly the values of the heads are W_V. In pre-norm models x is what the norm made.

`layernorm_scale` belongs to the same questions ([2021]: why does a layer keep more than it mixes?)
but needs a text, since a norm divides by the σ of what it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.capture.inventory import Inventory
from normscope.capture.projection import affine
from normscope.decomposition.layer import Kind, LayerView
from normscope.decomposition.norms import read_norm
from normscope.engine.run import look
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.models.layouts import layer_of, layout_of, part
from normscope.models.random_inputs import random_inputs
from normscope.results.arrays import LabelledArray, is_int
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import encode, pad

OutputBias = Literal["without", "with_output_bias", "released"]
OUTPUT_BIAS: tuple[OutputBias, ...] = ("without", "with_output_bias", "released")
Norms = Float[np.ndarray, " layer"]
Found = TypeVar("Found")


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
        """[[W_V, 0], [b_V, 1]] and [[W_O, 0], [0, 1]] of these heads: f̃ is their product."""
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
                    f'bias="released" writes b_O beside W_O, which must be square for that; that '
                    f"of {self.name} is {tuple(output.shape)}. Use one of {OUTPUT_BIAS[:2]}"
                )
            right[:-1, -1] = _wide(self.output_bias)
        return left, right

    def singular_values(self, head: int) -> Float[np.ndarray, " rank"]:
        """Of one head's map (x, 1) ↦ (f_h(x), 1), largest first."""
        left, right = self.factors([head])
        # Orthogonal factors change no singular value: the two small triangular ones tell them all.
        small = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right.T, mode="r").R.T
        return torch.linalg.svdvals(small).numpy()


def expansion_rate(
    model: nn.Module,
    *,
    bias: OutputBias = "without",
    stack: str | None = None,
    kind: Kind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> LabelledArray:
    """How much f stretches a vector on average, (layer,): ‖f̃‖_F / √(d + 1).

    f̃ is f with all heads as a linear map on (x, 1), [[W, 0], [b, 1]] with its corner 1 counted,
    and d the size of x. There are three conventions for b_O, and the result's name says which one
    its numbers follow:

    * ``bias="without"``: b = b_V W_O. b_O belongs to no token and is not in f.
    * ``bias="with_output_bias"``: b = b_V W_O + b_O, the whole attention module.
    * ``bias="released"``: as the code released with the 2021 paper computes it, with b_O as a
      column beside W_O, [[W_V, 0], [b_V, 1]] · [[W_O, b_O], [0, 1]]; to compare with its numbers.

    ``stack`` is a part of the path of the layer list that is meant, such as "encoder", where there
    are several; kind="cross" asks for cross-attention. ``inputs`` (as for the model itself) are
    needed where random ids are not enough to run it; the numbers do not depend on them.
    """
    if bias not in OUTPUT_BIAS:
        raise InputError(f"bias is one of {', '.join(OUTPUT_BIAS)}, but was given {bias!r}")
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
    kind: Kind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> Float[np.ndarray, " rank"]:
    """The singular values of one head's map (x, 1) ↦ (f_h(x), 1), largest first, b_O left out.

    The map has rank e + 1 at most (e the head size), so that many are given; the others are zero.
    The further arguments are those of `expansion_rate`.
    """
    layers = affine_maps(model, stack=stack, kind=kind, inputs=inputs)
    found = layers[_index("layer", layer, len(layers))]
    return found.singular_values(_index("head", head, len(found.output)))


def affine_maps(
    model: nn.Module,
    *,
    stack: str | None = None,
    kind: Kind = "self",
    inputs: Mapping[str, Any] | None = None,
) -> list[AffineMap]:
    """W_V, b_V, W_O and b_O of each layer of one stack, wherever the model keeps them."""
    _check_model(model)
    layout = Inventory(model)
    found: dict[tuple[str, str], list[AffineMap]] = {}  # by stack and kind
    calls: list[_Call] = []  # of linear modules, since the last attention
    arguments: dict[nn.Module, list[Tensor]] = {}  # attention module -> what it was given

    def attention(module: nn.Module, args: Any, kwargs: Any) -> None:
        arguments[module] = _tensors(args, kwargs)

    def linear(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        given = _tensors(args, kwargs)
        if given and isinstance(made, Tensor):
            # A copy: OLMo clips its values in place.
            calls.append(_Call(layout[module].name, module, given[0], made.detach().clone()))

    def read(view: LayerView) -> None:
        captured = view.captured
        given = arguments[model.get_submodule(captured.name)]
        weight, bias = _value_projection(captured, calls, given)
        calls.clear()
        sizes = (captured.value.shape[1], captured.value.shape[3])
        read_off = AffineMap(
            name=captured.name,
            value=weight.unflatten(1, sizes),
            value_bias=None if bias is None else bias.unflatten(0, sizes),
            output=captured.projection.weight,
            output_bias=captured.projection.bias,
        )
        found.setdefault((captured.stack, captured.kind), []).append(read_off)

    hooks = [m.register_forward_pre_hook(attention, with_kwargs=True) for m in layout.attention]
    hooks += [m.register_forward_hook(linear, with_kwargs=True) for m in layout.linear]
    try:
        _run(model, random_inputs(model) if inputs is None else inputs, read)
    except (AttributeError, TypeError, ValueError) as problem:
        if inputs is not None:
            raise
        raise InputError(
            f"{type(model).__name__} does not run on random token ids alone; give it something "
            "that it reads, as inputs="
        ) from problem
    finally:
        for hook in hooks:
            hook.remove()
    return _choose(model, found, stack, kind)


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
    kind: Kind = "self",
) -> LayerNormScale:
    """Mean |γ|, and the mean of |γ|/σ_i over all real tokens, of the norm of each attention block.

    That is the norm which follows the attention: on the residual sum ("after", post-norm) or, where
    there is none, on the attention's output alone ("branch"). In pre-norm models no norm follows,
    and the one on the block's input ("before") is taken. ``places`` says which it was; a layer that
    has none at all (ModernBERT's first) gets NaN.

    Give a tokenizer and a text, or several; or ``inputs``, as for the model itself.
    """
    _check_model(model)
    ready = _ready(model, tokenizer, text, inputs)
    found: dict[tuple[str, str], list[tuple[float, float, str, str]]] = {}

    def read(view: LayerView) -> None:
        captured = view.captured
        rows = found.setdefault((captured.stack, captured.kind), [])
        place, path, given = _norm_of(model, captured)
        if not path:
            rows.append((np.nan, np.nan, path, place))
            return
        real = given[view.positions.queries]
        norm = model.get_submodule(path)
        form = read_norm(norm, real, norm(real), path)
        gamma = 1.0 if form.scale is None else float(form.scale.double().abs().mean())
        rows.append((gamma, float((gamma / form.sigma(_wide(real))).mean()), path, place))

    _run(model, ready, read)
    gammas, scales, paths, places = zip(*_choose(model, found, stack, kind), strict=True)
    return LayerNormScale(np.array(gammas), np.array(scales), paths, places)


def _norm_of(model: nn.Module, captured: Capture) -> tuple[str, str, Tensor]:
    """Place and path of the norm of an attention block ("none" and "" if none), and its input."""
    above, layer = layer_of(model, captured.name)
    layout = layout_of(layer, getattr(model, "config", None))
    block = layout.cross if captured.kind == "cross" else layout.attention
    x, branch = captured.residual, captured.output
    if block is None or x is None:
        raise UnsupportedModelError(f"{captured.name}: its residual connection cannot be seen")
    if block.after:
        branch = part(layer, block.branch)(branch) if block.branch else branch
        branch = part(layer, block.scale) * branch if block.scale else branch
        return "after", f"{above}.{block.after}", x + branch
    if block.branch:
        return "branch", f"{above}.{block.branch}", branch
    return ("before", f"{above}.{block.before}", x) if block.before else ("none", "", x)


# --------------------------------------------------------------------- one pass through the model


@dataclass(frozen=True, eq=False)
class _Call:
    """What one linear module was given and made."""

    name: str
    module: nn.Module
    given: Tensor
    made: Tensor


def _run(model: nn.Module, inputs: Mapping[str, Any], read: Callable[[LayerView], None]) -> None:
    """Run the model and read each attention call once."""

    def first_step(view: LayerView) -> None:
        if view.captured.step == 0:  # a stack that runs again has the same weights
            read(view)

    device = next(model.parameters()).device
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    look(model, inputs, first_step)


def _value_projection(
    captured: Capture, calls: Sequence[_Call], arguments: Sequence[Tensor]
) -> tuple[Float[Tensor, "in features"], Float[Tensor, " features"] | None]:
    """The columns of a linear module that made the values, and its bias there."""
    for call in calls:
        columns = _columns(captured.value, call.made)
        if columns is None:
            continue
        if not any(_is_view(call.given, x) for x in arguments):
            raise UnsupportedModelError(
                f"{captured.name}: its values are made by {call.name}, but from something that was "
                "computed from x first (a low-rank code and its norm, say), so f is not one affine "
                "map of x and has no expansion rate or singular values of its own"
            )
        weight, bias = affine(call.module, call.name, call.given)
        return weight[:, columns], None if bias is None else bias[columns]
    raise UnsupportedModelError(
        f"{captured.name}: no linear module makes its values as they are; something acts on them "
        "in between (clipping, a norm, a gate, a cache), so f is not an affine map of x and has no "
        "expansion rate or singular values"
    )


def _columns(value: Float[Tensor, "batch kv_head key head_size"], made: Tensor) -> Any:
    """For each channel of the values the column of ``made`` that is the same on all tokens."""
    batch, _, keys, _ = value.shape
    if made.numel() % (batch * keys):
        return None
    wanted = _by_channel(value.transpose(1, 2).flatten(2))
    made = made.to(value.dtype)
    for ordered in (made.reshape(batch, keys, -1), made.reshape(keys, batch, -1).transpose(0, 1)):
        there = {column: place for place, column in enumerate(_by_channel(ordered))}
        if all(channel in there for channel in wanted):
            return [there[channel] for channel in wanted]
    return None


def _by_channel(states: Float[Tensor, "batch position channel"]) -> list[bytes]:
    """Each channel as the bytes of its numbers on all tokens, so that NaN in padding is equal."""
    rows = states.detach().flatten(0, 1).T.contiguous().cpu().view(torch.uint8).numpy()
    return [row.tobytes() for row in rows]


def _choose(
    model: nn.Module, found: Mapping[tuple[str, str], list[Found]], stack: str | None, kind: str
) -> list[Found]:
    """What was found in one stack and kind of attention, by layer."""
    if kind not in ("self", "cross"):
        raise InputError(f'kind is "self" or "cross", but was given {kind!r}')
    stacks = [path for path, of in found if of == kind]
    if not stacks:
        raise InputError(f"{type(model).__name__} has no {kind}-attention that normscope can see")
    matching = [s for s in stacks if stack is None or stack in s]
    matching = [s for s in matching if s == stack] or matching
    if len(matching) != 1:
        given = "none was chosen" if stack is None else f"stack={stack!r} fits {len(matching)}"
        raise InputError(
            f"{type(model).__name__} has {kind}-attention in: {', '.join(stacks)}; {given}. Give "
            "stack=, a part of the path that only one of them has"
        )
    return found[matching[0], kind]


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a transformers model, but was given a {type(model).__name__}")


def _ready(
    model: Any, tokenizer: Any, text: str | Sequence[str] | None, inputs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the model reads."""
    if (text is None) == (inputs is None) or (text is not None and tokenizer is None):
        raise InputError("give a tokenizer and a text, or inputs= alone: σ depends on what is read")
    accepted = inspect.signature(model.forward).parameters
    if text is not None:
        if model.config.is_encoder_decoder:
            raise InputError(
                f"{type(model).__name__} is an encoder–decoder model: give what both sides read, "
                "as inputs="
            )
        limit = max_length_of(model.config, tokenizer)
        texts = [text] if isinstance(text, str) else list(text)
        rows = [encode(tokenizer, one, max_length=limit, truncate=False) for one in texts]
        for row in rows:
            check_fits(tokenizer, model, row)
        inputs = pad(rows, tokenizer.pad_token_id or 0)
        inputs = {name: tensor for name, tensor in inputs.items() if name in accepted}
    # A cache is not read here; FSMT even drops its causal mask for it.
    extra = {"use_cache": False} if "use_cache" in accepted else {}
    return {**extra, **(inputs or {})}


def _index(what: str, given: object, count: int) -> int:
    if not is_int(given) or not 0 <= given < count:
        raise InputError(f"{what} {given!r} is not there; valid: 0 to {count - 1}")
    return int(given)


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]


def _is_view(given: Tensor, x: Tensor) -> bool:
    """Whether a tensor holds the vectors of another, in whatever shape."""
    alike = given.shape[-1] == x.shape[-1:].numel() and given.numel() == x.numel()
    if not alike or given.dtype != x.dtype:
        return False
    return torch.allclose(given.reshape(x.shape), x, rtol=0, atol=0, equal_nan=True)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
