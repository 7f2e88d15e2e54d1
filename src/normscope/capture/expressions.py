"""Follow the tensors of a running layer: each is an expression in the layer's input.

A :class:`LayerFollower` is a torch function mode that is also told which modules begin and end.
Every tensor in a running layer has an :class:`Expression`, which says what it was computed from.
Linear maps and norms are single terms, whatever their modules do inside; functions of single
numbers are composed; what changes nothing (dropout, casts, views) leaves no trace. Equal
expressions are the same object.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from normscope.capture.active import recomputing
from normscope.foundation.torch_settings import LeavableMode
from normscope.models.inventory import is_linear

TermKind = Literal[
    "input",  # of the layer
    "parameter",  # by: the parameter or buffer
    "linear",  # by: the module
    "norm",  # by: the module
    "sum",  # of two
    "product",  # of two, both computed from the input
    "scaled",  # of one, by: the term of the parameter that multiplies it
    "function",  # of one, by: a Composed, which applies to single numbers
    "slice",  # of one, by: start, stop and length of its last axis
    "matrix",  # of one, by: the number of rows into which its last axis is divided
    "other",  # by: the function's name, or the module
]
# What leaves every vector as it is, or puts it elsewhere; the last axis is compared.
_COPIES = ("alpha_dropout", "clone", "contiguous", "detach", "dropout", "feature_dropout", "get")
_CASTS = ("bfloat16", "double", "float", "half", "requires_grad", "to", "type", "type_as")
_VIEWS = ("expand", "expand_as", "flatten", "reshape", "reshape_as", "unflatten", "view", "view_as")
_MOVES = ("permute", "squeeze", "swapaxes", "swapdims", "transpose", "unsqueeze")
_KEPT = frozenset((*_COPIES, *_CASTS, *_VIEWS, *_MOVES))
# What often changes nothing; results are compared.
_IDLE = frozenset(("clamp", "clip", "getitem", "masked_fill", "nan_to_num", "narrow", "where"))
_SPLIT = frozenset(("chunk", "split", "split_with_sizes", "tensor_split"))


@dataclass(frozen=True, eq=False)
class Expression:
    """What a tensor is: computed from other terms, by something."""

    kind: TermKind
    of: tuple[Expression, ...] = ()
    by: Any = None

    @property
    def base(self) -> Expression:
        """What a function is applied to; any other term itself."""
        return self.of[0] if self.kind == "function" else self

    def below(self, stop: Expression | None = None) -> list[Expression]:
        """Return the terms that this one is computed from, itself first; none behind ``stop``."""
        found = {self: None}
        waiting = [self]
        while waiting:
            term = waiting.pop()
            fresh = [t for t in term.of if term is not stop and t not in found]
            found |= dict.fromkeys(fresh)
            waiting += fresh
        return list(found)


@dataclass(frozen=True)
class Composed:
    """A function of one tensor: torch's functions one after another, with constants."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # Composed, or None for the tensor itself, in a one-tuple each
    named: tuple[tuple[str, Any], ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function to a tensor, which is left as it is."""

        def value(argument: Any) -> Any:
            if isinstance(argument, Argument):
                return x.clone() if argument.composed is None else argument.composed(x)
            return argument

        arguments, named = tree_map(value, (self.arguments, dict(self.named)))
        result: Tensor = self.function(*arguments, **named)
        return result


@dataclass(frozen=True)
class Argument:
    """Where a function has its tensor: as it is, or computed from it."""

    composed: Composed | None


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module in a layer: the terms of its arguments, and of its first result."""

    module: nn.Module
    given: tuple[Expression, ...]
    result: Expression


class LayerFollower(LeavableMode):
    """The terms of the tensors in the layers that this thread runs.

    Attributes:
        calls: the calls in the running layer, those inside another before it.
        names: the innermost module that computes a function.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.running: list[tuple[nn.Module, Expression | None]] = []
        self.calls: list[ModuleCall] = []
        self.names: dict[Expression, nn.Module] = {}
        self._given: list[tuple[Expression, ...]] = []  # of the modules that are running
        self._left: tuple[nn.Module, tuple[Expression, ...], Tensor] | None = None
        self._owned = {id(t) for t in (*model.parameters(), *model.buffers())}
        self._known: dict[int, tuple[weakref.ref[Tensor], Expression]] = {}
        self._terms: dict[Any, Expression] = {}

    # ---- terms

    def term(self, kind: TermKind, of: Sequence[Expression] = (), by: Any = None) -> Expression:
        """Return the term with this content; always the same object."""
        content = repr(by) if isinstance(by, Composed | tuple) else id(by)
        key = kind, tuple(map(id, of)), content
        return self._terms.setdefault(key, Expression(kind, tuple(of), by))

    def of(self, tensor: Any) -> Expression | None:
        """Return the term of a tensor; None for what does not come from the layer's input."""
        if not isinstance(tensor, Tensor):
            return None
        if id(tensor) in self._owned:
            return self.term("parameter", by=tensor)
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def note(self, tensor: Tensor, term: Expression | None) -> None:
        """Note the term of a tensor."""
        self._known.pop(id(tensor), None)
        if term is not None:
            self._known[id(tensor)] = weakref.ref(tensor), term

    # ---- modules

    def is_own_thread(self) -> bool:
        """Return whether this thread is the one that is followed, in a forward pass."""
        return threading.get_ident() == self.thread and not recomputing()

    def follows(self) -> bool:
        """Return whether a layer runs in this thread."""
        return bool(self.running) and self.is_own_thread()

    def begin(self, layer: nn.Module, state: Tensor | None) -> None:
        """Note that a layer begins to run on a state; layers may be inside others."""
        if not self.running:
            self._known.clear()
            self._terms.clear()
            self.names.clear()
            self.calls.clear()
        if state is not None and self.of(state) is None:
            self.note(state, self.term("input", by=layer))
        self.running.append((layer, self.of(state)))

    def enter(self, args: Any, kwargs: Any) -> None:
        """Note what a module is called with."""
        terms = [self.of(leaf) for leaf in tree_leaves((args, kwargs))]
        self._given.append(tuple(t for t in terms if t is not None and t.kind != "parameter"))

    def leave(self, module: nn.Module, output: Any, *, linear: bool = False) -> None:
        """Note what a module has made of it."""
        given, state = self._given.pop(), first_tensor(output)
        self._left = None if state is None else (module, given, state)
        if state is None:
            return
        term, leaf = self.of(state), not module._modules
        if linear or is_linear(module):
            term = self.term("linear", given[:1], module)
        elif leaf and given and term is not given[0] and "norm" in type(module).__name__.lower():
            term = self.term("norm", given[:1], module)
        elif term is not None and term.kind == "function" and term.base in given:
            self.names.setdefault(term, module)
        elif leaf and given and term not in given and self._is_activation(module, term):
            term = self.term("function", given[:1], module)
            self.names[term] = module
        elif term is None and given:
            term = self.term("other", given, module)
        self.note(state, term)
        if term is not None:
            self.calls.append(ModuleCall(module, given, term))

    @staticmethod
    def _is_activation(module: nn.Module, term: Expression | None) -> bool:
        """Whether a module without parts is a function of numbers that was not seen to be one."""
        composed = term is not None and term.kind in ("function", "scaled", "slice")
        return not composed and applies_to_numbers(module.forward)

    def count_linear(self, module: nn.Module) -> None:
        """Count the module that was left last as a linear map, if it is this one."""
        if self._left is not None and self._left[0] is module and self.running:
            _, given, state = self._left
            self._left = None
            self._given.append(given)
            self.leave(module, state, linear=True)

    # ---- functions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """ModuleCall a torch function, and note what it has computed."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.running:
            written = args[0] if getattr(func, "__name__", "") == "__setitem__" else output
            if isinstance(written, Tensor | tuple | list):
                self._computed(func, args, kwargs, written)
        return output

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        terms = [self.of(tensor) for tensor in tensors]
        if not any(terms):
            return
        name = _bare(func.__name__)
        if isinstance(output, Tensor):
            self.note(output, self._meaning(name, func, args, kwargs, output, tensors))
            return
        parts = [part for part in output if isinstance(part, Tensor)]
        for part, term in zip(parts, self._parts(name, tensors[0], parts), strict=False):
            self.note(part, term or self.term("other", [t for t in terms if t is not None], name))

    def _meaning(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Tensor,
        tensors: list[Tensor],
    ) -> Expression:
        terms = [self.of(tensor) for tensor in tensors]
        first, known = terms[0], [term for term in terms if term is not None]
        if first is not None and name in _KEPT and self._is_kept(name, output, tensors[0], first):
            return first
        if first is not None and (cut := self._cut(name, args, output, first)) is not None:
            return cut
        if name in _IDLE:
            for tensor, term in zip(tensors, terms, strict=True):
                if term is not None and tensor is not output and _same(tensor, output):
                    return term
        if name == "cat" and len(set(terms)) == 1 and first is not None:
            return first  # positions that were computed in chunks
        if name not in _KEPT and name != "setitem":
            composed = self._composed(func, args, kwargs, output, tensors)
            if composed is not None:
                return composed
        if len(terms) == len(known) == 2 and name in ("add", "sub", "mul"):
            factor = {"add": 1, "sub": -1, "mul": 1}[name] * kwargs.get("alpha", 1)
            if factor != 1:
                known[1] = self._apply(torch.mul, (known[1], factor), {})
            return self._binary("product" if name == "mul" else "sum", known)
        return self.term("other", known, name)

    def _binary(self, kind: TermKind, terms: list[Expression]) -> Expression:
        if kind == "product":
            for factor, state in (terms, terms[::-1]):
                if factor.base.kind == "parameter" and state.base.kind != "parameter":
                    return self.term("scaled", [state], factor)
        return self.term(kind, terms)

    def _is_kept(self, name: str, output: Tensor, tensor: Tensor, term: Expression) -> bool:
        """Whether a function has left all vectors as they are: parameters may be repeated."""
        if not output.dim() or not tensor.dim() or output.shape[-1] != tensor.shape[-1]:
            return output.numel() == tensor.numel() == 1
        moved = name in ("permute", "transpose", "swapaxes", "swapdims", "get")
        if moved and output.stride(-1) != tensor.stride(-1):
            return False
        return output.numel() == tensor.numel() or term.kind == "parameter"

    def _cut(
        self, name: str, args: tuple[Any, ...], output: Tensor, term: Expression
    ) -> Expression | None:
        """A part of the last axis, which may have been divided into rows before."""
        tensor, last = args[0], output.shape[-1] if output.dim() else 0
        if not isinstance(tensor, Tensor) or not tensor.dim():
            return None
        if name in ("view", "reshape", "unflatten") and output.dim() > 1:
            rows = output.shape[-2]
            divided = rows * last == tensor.shape[-1] != last
            return self.term("matrix", [term], (rows,)) if divided else None
        if name != "getitem":
            return None
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        if all(key is None or key is Ellipsis or key == slice(None) for key in keys):
            return term
        if term.kind == "matrix":
            if len(keys) == 3 and keys[::2] == (Ellipsis, slice(None)) and isinstance(keys[1], int):
                start = keys[1] % term.by[0] * last
                return self.term("slice", term.of, (start, start + last, term.by[0] * last))
        elif len(keys) == 2 and keys[0] is Ellipsis and isinstance(keys[1], slice):
            start, stop, step = keys[1].indices(tensor.shape[-1])
            if step == 1:
                return self.term("slice", [term], (start, stop, tensor.shape[-1]))
        return None

    def _parts(self, name: str, tensor: Tensor, parts: list[Tensor]) -> Iterator[Expression | None]:
        """The terms of the parts into which a tensor is split, along its last axis or another."""
        term, width, start = self.of(tensor), tensor.shape[-1] if tensor.dim() else 0, 0
        for part in parts:
            if term is None or name not in _SPLIT:
                yield None
            elif part.shape[-1] == width:
                yield term
            else:
                yield self.term("slice", [term], (start, start + part.shape[-1], width))
            start += part.shape[-1] if part.dim() else 0

    def _composed(
        self, func: Any, args: Any, kwargs: Any, output: Tensor, tensors: list[Tensor]
    ) -> Expression | None:
        """A function of one term and of numbers, if its result has the shape of that term."""
        bases = {term.base for t in tensors if (term := self.of(t)) is not None}
        shaped = any(t.shape == output.shape for t in tensors if self.of(t) is not None)
        numbers = all(t.numel() == 1 for t in tensors if self.of(t) is None)
        if len(bases) != 1 or not shaped or not numbers or "out" in kwargs:
            return None
        return self._apply(func, args, kwargs)

    def _apply(self, func: Any, args: Any, kwargs: Any) -> Expression:
        bases = []

        def argument(value: Any) -> Any:
            term = value if isinstance(value, Expression) else self.of(value)
            if term is None:
                return value.item() if isinstance(value, Tensor) else value
            bases.append(term.base)
            return Argument(term.by if term.kind == "function" else None)

        args, kwargs = tree_map(argument, (args, kwargs))
        return self.term("function", bases[:1], Composed(func, args, tuple(kwargs.items())))


def first_tensor(values: Any) -> Tensor | None:
    """Return the first tensor in what a module returns."""
    if isinstance(values, Mapping):
        values = list(values.values())
    listed = values if isinstance(values, tuple | list) else [values]
    return next((value for value in listed if isinstance(value, Tensor)), None)


def applies_to_numbers(function: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a function treats every number of a tensor by itself."""
    grid = torch.linspace(-6, 6, 25, dtype=torch.float64)
    try:
        with torch.no_grad():
            whole, halves = function(grid.clone()), [function(g.clone()) for g in grid.split(13)]
            back = function(grid.flip(0))
    except Exception:  # it needs other shapes, or another dtype
        return False
    if not isinstance(whole, Tensor) or whole.shape != grid.shape:
        return False
    same = [torch.allclose(whole, t, rtol=1e-12) for t in (torch.cat(halves), back.flip(0))]
    return all(same)


def factor_of(function: Callable[[Tensor], Tensor]) -> float | None:
    """Return c if a function multiplies by the number c, else None."""
    grid = torch.linspace(-6, 6, 25, dtype=torch.float64)
    if not applies_to_numbers(function):
        return None
    factor = float(function(torch.ones(1, dtype=torch.float64)))
    exact = math.isfinite(factor) and torch.allclose(function(grid), factor * grid, rtol=1e-12)
    return factor if exact else None


def _bare(name: str) -> str:
    """The name of a function without underscores, and without the side of an operator."""
    bare = name.strip("_")
    return bare[1:] if bare in ("radd", "iadd", "rmul", "imul", "isub") else bare


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
