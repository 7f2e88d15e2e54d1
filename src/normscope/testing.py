"""Check that normscope decomposes a model exactly; for tests and for your own models.

>>> from normscope.testing import check_architecture
>>> check_architecture(model).worst                                         # doctest: +SKIP
3.1e-16
"""

from __future__ import annotations

import hashlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from normscope.capture import eager
from normscope.capture.interface import NAME
from normscope.capture.layers import unlisted_layers
from normscope.capture.scores import lowest
from normscope.decomposition.available import check_has_layers
from normscope.decomposition.feedforward import FF_BIASES
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import HEAD_MAPS, NAMES, need_whole_layers
from normscope.engine.judge import bound_of
from normscope.engine.measure import Needs
from normscope.engine.run import look
from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.foundation.torch_settings import torch_settings
from normscope.models.architectures import randomize_
from normscope.models.inventory import configs_of
from normscope.models.random_inputs import random_inputs
from normscope.models.running import evaluating
from normscope.models.walk import named_modules

__all__ = [
    "FullPrecision",
    "Proof",
    "check_architecture",
    "check_layers",
    "check_untouched",
    "random_inputs",
    "randomize_",
]


@dataclass(frozen=True)
class Proof:
    """The result of `check_architecture`."""

    model: str  # its class
    attentions: dict[str, int]  # calls by stack and kind: {"encoder.layer self": 12}
    paths: tuple[str, ...]  # how attention was captured: "interface", "watched"
    worst: float  # the largest relative gap between the parts and the model's own output
    bound: float  # the largest gap that was accepted


def check_architecture(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, *, bound: float | None = None
) -> Proof:
    """Prove that normscope's parts add up to what ``model`` itself computes.

    On one batch (``inputs``, by default random ids with padding) it checks that

    1. the model's outputs under capture are bit for bit those of its own eager attention, with the
       same random numbers; where eager attention reads the model's masks in another way than the
       attention that it is set to, they are those of the latter, up to rounding;
    2. for every attention call Σ_h Σ_j α f(x_j) + b_O is the real output, within ``bound`` of
       the parts' size (default: rounding in the model's dtype);
    3. the factored norms are those of the vectors themselves, at random cells of every map;
    4. the model is afterwards what it was before (as by ``check_untouched``, except for attributes
       that its modules may change themselves).

    Raises ExactnessError or UnsupportedModelError otherwise. Freshly initialised weights hide
    mistakes (zero biases, unit scales): call ``randomize_`` first, in float64.
    """
    kind = type(model).__name__
    inputs = random_inputs(model) if inputs is None else inputs
    calls: Counter[str] = Counter()
    dtypes: set[torch.dtype] = set()

    def check(view: LayerView) -> None:
        calls[f"{view.captured.stack} {view.kind}"] += 1
        dtypes.update(view.dtypes)
        view.maps(HEAD_MAPS)
        view.head_maps(HEAD_MAPS)

    with _same_random(), evaluating(model), torch.no_grad(), eager(model), Saturated():
        expected = _tensors(model(**inputs))
    before = _state(model, own=False)
    with _same_random():
        judged, output = look(model, inputs, check, bound=bound)
    _compare(model, before, _state(model, own=False), None)
    differing = _differing(expected, _tensors(output))
    if differing and not _is_own(model, inputs, bound_of(dtypes)):
        raise ExactnessError(
            f"{kind}: {differing[0]} under capture differs from the model's own eager attention"
        )
    worst = max(judged.gaps[0].values())
    limit = bound_of(dtypes) if bound is None else bound
    return Proof(kind, dict(calls), tuple(sorted(judged.paths)), worst, limit)


def _differing(expected: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors that are not equal bit for bit."""
    names = expected.items()
    return [n for n, t in names if n not in outputs or not torch.equal(t, outputs[n])]


def _is_own(model: nn.Module, inputs: Mapping[str, Any], bound: float) -> bool:
    """Return whether a model's output under capture is that of the attention it is set to.

    Models that make boolean masks themselves are read in another way by eager attention, which adds
    them to the scores. A float64 model is compared in full precision.
    """
    wide = next(model.parameters()).dtype == torch.float64
    with FullPrecision() if wide else nullcontext():
        with _same_random(), evaluating(model), torch.no_grad():
            own = _tensors(model(**inputs))
        with _same_random():
            captured = _tensors(look(model, inputs, lambda _: None)[1])
    if own.keys() != captured.keys():
        return False
    for name, tensor in own.items():
        if not tensor.is_floating_point():
            if not torch.equal(tensor, captured[name]):
                return False
            continue
        size = tensor[tensor.isfinite()].abs().amax(dim=0) if tensor.isfinite().any() else 0.0
        close = (captured[name] - tensor).abs() <= 100 * bound * size
        if not bool((close | (captured[name] == tensor)).all()):
            return False
    return True


@contextmanager
def _same_random() -> Iterator[None]:
    """Draw the same random numbers in every such context, and leave torch's generator as it is."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Saturated(TorchFunctionMode):
    """A context in which masks of a float64 model do not overflow in a softmax of float32.

    Where all keys are masked, such a softmax would be NaN, in padding at first, and in the next
    layers everywhere.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        narrowed = getattr(func, "__name__", "") == "softmax" and torch.float32 in (
            *args[1:],
            kwargs.get("dtype"),
        )
        if narrowed and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            args = (args[0].clamp_min(lowest(torch.float64)), *args[1:])
        return func(*args, **kwargs)


class FullPrecision(TorchFunctionMode):
    """A context in which a float64 model stays in float64, also where modules cast to float32.

    Many norms do so; inside this context a remaining gap is not due to their rounding.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            return args[0].double()
        if func is Tensor.__setitem__ and isinstance(args[2], Tensor):
            # A model's own float32 tensor, into which it writes what it has cast to float32.
            return func(args[0], args[1], args[2].to(args[0].dtype))
        if args and isinstance(args[0], Tensor):
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in kwargs.items()}
        return func(*args, **kwargs)


def check_layers(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, *, bound: float | None = None
) -> dict[str, float]:
    """Prove for every scope of every layer that parts and bias add up to the model's own states.

    Returns the worst relative gap of each map, spot checks included, over both conventions for the
    feed-forward's bias. Raises ExactnessError above ``bound`` (default: rounding in the dtypes that
    the layers compute in), and UnsupportedModelError for a layer whose structure is not known. For
    a proof without rounding use float64 inside ``FullPrecision()``.
    """
    inputs = random_inputs(model) if inputs is None else inputs
    check_has_layers(model, inputs)
    worst: dict[str, float] = {}
    unlisted = bool(unlisted_layers(model))
    for ff_bias in FF_BIASES:
        replayed = NAMES if unlisted or ff_bias == FF_BIASES[0] else ()
        needs = Needs(whole_layers=True, weights=True, replay=replayed)
        needs = replace(needs, how=replace(needs.how, ff_bias=ff_bias))
        judged, _ = look(model, inputs, _all_maps, needs=needs, bound=bound)
        for name, gap in judged.gaps[0].items():
            worst[name] = max(gap, worst.get(name, 0.0))
    if not need_whole_layers(worst):
        raise UnsupportedModelError(
            f"no layer of {type(model).__name__} has a map that goes beyond its attention for "
            "these inputs"
        )
    return worst


def _all_maps(view: LayerView) -> None:
    view.maps(view.scopes)


@contextmanager
def check_untouched(model: nn.Module, tokenizer: Any = None) -> Iterator[None]:
    """Prove that a model is afterwards as it was before, whether or not the block raises.

        >>> with check_untouched(model, tokenizer):                             # doctest: +SKIP
        ...     normscope.analyze(model, tokenizer, "The cat sat.")

    Compared are, for every module, its mode, hooks, attributes and forward function; of every
    parameter and buffer the bytes, the version, ``requires_grad`` and ``grad``; the configurations
    with their attention implementations; transformers' tables of attention and mask functions,
    where normscope may leave entries of its own name; torch's modes, settings and global hooks in
    this thread; the handlers of signals; and the state of the tokenizer. A model that changes
    itself when it runs for the first time must have run before.

    Raises:
        ExactnessError: something has changed; the message names it.
    """
    before = _state(model, tokenizer)
    try:
        yield
    except BaseException as error:
        _compare(model, before, _state(model, tokenizer), error)
        raise
    _compare(model, before, _state(model, tokenizer), None)


@dataclass(frozen=True, eq=False)
class _Same:
    """An object that equals itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


_PLAIN = (bool, int, float, str, bytes, type(None))
_TABLES = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_TORCHS = frozenset(vars(nn.Module()))  # attributes that every module has
_SETTINGS = ("get_default_dtype", "get_num_threads", "are_deterministic_algorithms_enabled")


def _compare(
    model: nn.Module, before: dict[str, Any], after: dict[str, Any], error: BaseException | None
) -> None:
    names = [*before, *(name for name in after if name not in before)]
    changed = [n for n in names if n not in before or n not in after or before[n] != after[n]]
    if changed:
        kind, more = type(model).__name__, f" and {len(changed) - 5} more" * (len(changed) > 5)
        raise ExactnessError(
            f"{kind} was not left as it was; changed: {', '.join(changed[:5])}{more}"
        ) from error


def _state(model: nn.Module, tokenizer: Any = None, *, own: bool = True) -> dict[str, Any]:
    """Return by name all that a pass may change; `own`: with attributes that are not torch's."""
    from transformers import AttentionInterface, AttentionMaskInterface

    state = {f"torch's {name}": value for name, value in torch_settings().items()}
    state |= {f"torch.{name}": getattr(torch, name)() for name in _SETTINGS}
    state |= {f"torch's {name}": _shallow(getattr(torch_module, name)) for name in _TABLES}
    for table in (AttentionInterface, AttentionMaskInterface):
        functions = {k: v for k, v in table._global_mapping.items() if k != NAME}
        state[table.__name__] = _shallow(functions)
    for number in sorted(signal.valid_signals()):
        state[f"the handler of signal {int(number)}"] = _shallow(signal.getsignal(number))
    for place, config in enumerate(configs_of(model).values()):
        name = f"configuration {place} ({type(config).__name__})"
        implementation = config._attn_implementation_internal
        state[f"the attention implementation of {name}"] = type(implementation), implementation
        state[name] = {**vars(config), **config.to_dict()}
    for path, module in named_modules(model):
        name = path or "the model"
        state[f"the forward of {name}"] = _Same(type(module).forward)
        for attribute, value in vars(module).items():
            if own or attribute in _TORCHS or attribute == "forward":
                state[f"{attribute} of {name}"] = _shallow(value)
        for key, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is not None:
                state[f"{name}.{key}"] = _tensor_facts(tensor)
    for attribute, value in {} if tokenizer is None else vars(tokenizer).items():
        state[f"{attribute} of the tokenizer"] = _shallow(value)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        for name in ("truncation", "padding", "encode_special_tokens"):
            state[f"{name} of the tokenizer"] = getattr(backend, name)
        processor = backend.post_processor
        state["post_processor of the tokenizer"] = processor and processor.__getstate__()
    return state


def _shallow(value: Any) -> Any:
    """Return what tells whether an attribute was replaced, or what it contains."""
    if isinstance(value, Mapping):
        return [(key, _Same(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_shallow(item) for item in value]
    return value if isinstance(value, _PLAIN) else _Same(value)


def _tensor_facts(tensor: Tensor) -> tuple[Any, ...]:
    grad = None if tensor.grad is None else (id(tensor.grad), tensor.grad._version)
    hooks = [_shallow(getattr(tensor, name, None)) for name in ("_backward_hooks",)]
    version = None if tensor.is_inference() else tensor._version
    try:
        data: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        contents = hashlib.blake2b(data).digest()
    except (RuntimeError, NotImplementedError, TypeError):  # no plain memory: the version is enough
        contents = b""
    return tensor.dtype, tensor.shape, version, contents, tensor.requires_grad, grad, hooks


def _tensors(output: Any, name: str = "output") -> dict[str, Tensor]:
    """Return every tensor in a model's output, by its path in the output."""
    if isinstance(output, Tensor):
        return {name: output}
    items: Any = ()
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, list | tuple):
        items = enumerate(output)
    return {k: t for key, value in items for k, t in _tensors(value, f"{name}.{key}").items()}
