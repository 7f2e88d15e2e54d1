"""The linearised network: a model whose operations are replaced by linear maps, by rules.

`Network` is a function mode. While it is active in a thread, every torch function that an
unmodified model calls there is looked up by name, and replaced as the rules say. Tensors that
require a gradient are *states*: they depend on the inputs. All others are constants; parameters are
detached where they are used, and are left as they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import LeavableMode
from normscope.linearisation import functions
from normscope.linearisation.attention import (
    Call,
    FusedAttention,
    HeldAttention,
    SecantAttention,
    can_fuse,
)
from normscope.linearisation.composites import (
    CLAMPS,
    COMPOSITE_SCALES,
    COMPOSITES,
    Arguments,
    Keywords,
    NormCall,
    clamped,
    of_first,
)
from normscope.linearisation.ledger import Ledger
from normscope.linearisation.operators import (
    Bilinear,
    ElementwiseProduct,
    HeldNorm,
    Origin,
    Slope,
    Tangent,
    path_parts,
    unaliased,
)
from normscope.linearisation.projections import WideProjection, is_wide
from normscope.linearisation.rules import Rules
from normscope.linearisation.sampling import grid_sample
from normscope.linearisation.secants import (
    Midpoint,
    SecantExtreme,
    SecantLogSumExp,
    SecantNorm,
    SecantQuotient,
    SecantSlope,
    SecantSoftmax,
)
from normscope.linearisation.solving import solve_triangular
from normscope.linearisation.structure import Structure, first_state
from normscope.linearisation.trace import Tracer


@dataclass(frozen=True)
class Source:
    """A leaf whose share is read: embeddings, or the states that enter the first layer."""

    stack: str
    part: str
    leaf: Tensor


@dataclass
class _Coming:
    """The stack that runs next."""

    stack: str


@dataclass(frozen=True)
class _Gate:
    """What is known of a factor that came out of an activation."""

    function: Callable[[Tensor], Tensor] | None = None
    origin: Origin | None = None
    point: Tensor | None = None
    scale: Callable[[Tensor], Tensor] | None = None  # of a held factor: its function of ``point``


_ACTIVE = threading.local()


@shielded
def networks_kept() -> Iterator[None]:
    """Leave all networks when the context ends, also those that an interrupt kept from leaving."""
    before = running()
    try:
        yield
    finally:
        _ACTIVE.networks = before


def running() -> tuple[Network, ...]:
    """Return the networks that are entered in this thread, the innermost last."""
    return getattr(_ACTIVE, "networks", ())


class Network(LeavableMode):
    """A model at one batch of inputs, linear in its sources.

    Args:
        structure: the model's layers, activations and embeddings.
        rules: how each operation is replaced.
        rows: the number of rows of the batch.
    """

    def __init__(self, structure: Structure, rules: Rules, rows: int) -> None:
        super().__init__()
        self.structure, self.rules, self.rows = structure, rules, rows
        self.ledger = Ledger(rows, counting=not rules.difference)
        self.sources: list[Source] = []
        self.dtypes: set[torch.dtype] = set()
        self.entered: list[str] = []  # stacks, in the order in which they ran
        self.cut = 0  # 2l + 1 inside the layer that ran l-th, 2l + 2 after it
        self.depth = 0
        self.layers_entered = 0
        # Constants that are added before a stack belong to the one that runs next.
        self._coming = _Coming(self.structure.name(self.structure.next_stack([])))
        # Whether `torch.no_grad` in a model, which saves memory in training, is without effect.
        self.keeps_gradients = False
        self.tracer: Tracer | None = None
        self.padded_left = False  # whether queries of padding may have no key
        # Components to push forwards: a function of the stack, the part and the source's value.
        self.components: Callable[[Source], Tensor] | None = None
        self._origins: dict[Any, Origin] = {}
        self._handlers = _handlers()

    # ---- the function mode

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name in functions.PLAIN:
            value = func(*args, **kwargs)
            if isinstance(value, Tensor) and value.requires_grad and args[0].is_leaf:
                return value.detach()  # an attribute of a parameter, such as weight.T
            return value
        if name == "embedding":
            return self._embed(func, args, kwargs)
        if name == "_set_grad_enabled" and self.keeps_gradients and not args[0]:
            return None
        args, kwargs, states = without_parameters(args, kwargs)
        if not states or not torch.is_grad_enabled():
            given = args
            if self.pushes:  # nor do constants have components
                args, kwargs = _without_components(args, kwargs)
            return carry_weights(given, func(*args, **kwargs))
        if self.rules.difference and name in functions.CHOICES:
            return self._choose(func, args, kwargs)
        if name in functions.LINEAR:
            value = func(*args, **kwargs)
            if name in functions.CASTS:
                self.dtypes.add(value.dtype)
            return carry_weights(args, value)
        if name[-1] == "_" != name[-2] and name not in functions.FILLS:
            return self._in_place(name, args, kwargs)
        handler = self._handlers.get(name, Network._unknown)
        return handler(self, func, args, kwargs)

    def _in_place(self, name: str, args: Arguments, kwargs: Keywords) -> Tensor:
        """Compute a value out of place, and write it back into the tensor."""
        target: Tensor = args[0]
        if self.tracer is not None:
            self.tracer.preserve(target)
        function = getattr(Tensor, name[:-1])
        value = self.__torch_function__(function, (), (target.clone(), *args[1:]), kwargs)
        return target.copy_(value)

    def _unknown(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Leave a function that no table names to the proof, which refuses what is not linear."""
        return func(*args, **kwargs)

    def __enter__(self) -> Network:
        _ACTIVE.networks = (*running(), self)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        _ACTIVE.networks = running()[:-1]

    @property
    def explained_rows(self) -> int:
        """The number of rows without baselines."""
        return self.rows // 2 if self.rules.difference else self.rows

    @property
    def pushes(self) -> bool:
        """Whether components are pushed forwards."""
        return self.components is not None

    @property
    def active(self) -> bool:
        """Whether this network is what runs in this thread."""
        return self in running()

    # ---- layers

    def enter_layer(
        self, stack: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords]:
        """Note that a layer begins; the first input of a stack without a source becomes one."""
        if stack not in self.entered:
            self.entered.append(stack)
            self._coming.stack = self.structure.name(stack)
            following = self.structure.next_stack(self.entered)
            self._coming = _Coming(self.structure.name(following))
            args, kwargs = self._with_source(self.structure.name(stack), args, kwargs)
        if self.rules.difference:
            self._refuse_positions_first(args, kwargs)
        self.cut = 2 * self.layers_entered + 1
        self.layers_entered += 1
        self.depth += 1
        return (
            (args, kwargs) if self.tracer is None else self.tracer.enter_layer(stack, args, kwargs)
        )

    def _with_source(
        self, name: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords]:
        """Make the states that enter a stack a source, unless they depend on one."""
        place = first_state(args, kwargs)
        hidden = None if place is None else args[place] if isinstance(place, int) else kwargs[place]
        if hidden is None or place is None or hidden.requires_grad:
            return args, kwargs
        state = self.source(name, "state", hidden)
        if isinstance(place, str):
            return args, {**kwargs, place: state}
        return (*args[:place], state, *args[place + 1 :]), kwargs

    def positions_first(self, state: Tensor) -> bool:
        """Return whether a (row, position, hidden) state has its first two dimensions exchanged."""
        if state.shape[0] != state.shape[1]:
            return state.shape[0] != self.rows == state.shape[1]
        return state.stride(0) < state.stride(1)

    def _refuse_positions_first(self, args: Arguments, kwargs: Keywords) -> None:
        states = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and _is_state(a)]
        if any(state.dim() == 3 and self.positions_first(state) for state in states):
            raise UnsupportedModelError(
                f"the layers of {self.structure.kind} take positions before rows, so that the "
                "input and its baseline cannot be told apart as rows of one batch; use "
                'method="frozen", without a baseline'
            )

    def leave_layer(self, output: Any) -> None:
        """Note that a layer has ended."""
        self.depth -= 1
        self.cut = 2 * self.layers_entered
        if self.tracer is not None:
            self.tracer.leave_layer(output)

    def _choose(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Choose entries of pairs: the largest, or those that both halves choose."""
        name, value = func.__name__, func(*args, **kwargs)
        if name in ("max", "min", "amax", "amin"):
            dim = kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None
            if isinstance(dim, int):
                keepdim = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
                extreme = SecantExtreme(dim, keepdim, largest=name.endswith("max"))(args[0])
                if isinstance(value, Tensor):
                    return extreme
                return type(value)((extreme, value.indices))
        if isinstance(value, tuple) or name.startswith("arg"):
            indices: Tensor = value[1] if isinstance(value, tuple) else value
            half = len(indices) // 2 if indices.dim() else 0
            if half and not self._differ(indices, half):
                return value
        raise self._choice_refused(name)

    def _choice_refused(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.structure.kind} chooses by {name}, and chooses differently for the input and "
            "for the baseline (experts of a mixture, a sorted order, or a mask that depends on the "
            'states), so their difference is not a sum over tokens; use method="frozen", without a '
            "baseline"
        )

    # ---- sources and constants

    @property
    def stage(self) -> str | None:
        """The stack whose first layer comes next, or None inside layers and after the last."""
        if self.depth or len(self.entered) >= len(self.structure.stacks):
            return None
        return self.structure.next_stack(self.entered)

    def _embed(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        ids, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        part = self.structure.embeddings.get(id(weight))
        args, kwargs, _ = without_parameters(args, kwargs)
        value: Tensor = func(*args, **kwargs)
        if self.depth or (self.structure.stacks and self.stage is None):
            return value
        stack = self.structure.name(self.structure.stack_of(weight, self.entered))
        rows_first = ids.dim() >= 2 and ids.shape[0] % self.rows == 0
        if part is None or not torch.is_grad_enabled():
            return value
        if not rows_first and self.rows > 1:
            return value  # a constant; its share is counted where it is added, for each row
        if part != "word" and not any(s.stack == stack and s.part == "word" for s in self.sources):
            return (
                value  # a constant too: of pixels and audio, the state that is read is the source
            )
        return self.source(stack, part, value)

    def source(self, stack: str, part: str, value: Tensor) -> Tensor:
        """Make a value a source, and return it as a state."""
        leaf = value.detach().clone().requires_grad_()
        self.sources.append(Source(stack, part, leaf))
        self.dtypes.add(leaf.dtype)
        state = leaf.clone()  # a leaf itself could not be changed in place
        if self.components is None:
            return state
        return forward_ad.make_dual(state, self.components(self.sources[-1]))

    def count(self, state: Tensor, constant: Any, part: str = "position") -> Tensor:
        """Count the share of a constant that is a summand of a state; return the state."""
        if not self.ledger.counting or (not isinstance(constant, Tensor) and constant == 0):
            return state
        stack = self.stage
        if (
            stack is not None
            and isinstance(constant, Tensor)
            and constant.dim() >= 2
            and state.dim() == 3
            and constant.shape[-2:] == state.shape[-2:]
        ):
            coming, shape = self._coming, state.shape[:-1]
            self.ledger.count_positions(
                state, constant, self.cut, lambda: self._place_of(coming.stack, part, shape)
            )
        else:
            self.ledger.count(state, constant, self.cut)
        return state

    def _place_of(self, stack: str, part: str, shape: torch.Size) -> tuple[str, str] | None:
        """Return stack and part of a constant at positions; None if the stack has others."""
        own = [source for source in self.sources if source.stack == stack]
        if all(source.leaf.shape[:-1] != shape for source in own):
            return None  # such as the columns of an image's features
        words = any(source.part == "word" for source in own)
        # Without words they are such as patches of an image, to which positions are added.
        return stack, part if words or part != "position" else "state"

    def _sum(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        value: Tensor = func(*args, **kwargs)
        first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
        alpha = kwargs.get("alpha", 1)
        signs = {"add": (1, alpha), "__rsub__": (-1, 1), "rsub": (-alpha, 1)}
        for summand, sign in zip(
            (first, second), signs.get(func.__name__, (1, -alpha)), strict=True
        ):
            if not _is_state(summand):
                value = self.count(value, summand if sign == 1 else sign * summand)
        return value

    def _fill(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Count what a function gives where all states are zero."""
        if self.rules.difference:
            self._refuse_other_masks(func, args, kwargs)
        constant = None
        whole = isinstance(args[0], list | tuple) and all(map(_is_state, args[0]))
        if self.ledger.counting and not whole:
            with torch.no_grad():
                zeros = [_map(argument, _zero) for argument in args]
                if func.__name__ in ("__setitem__", "copy_") and not _is_state(args[0]):
                    zeros[0] = args[0].clone()
                constant = func(*zeros, **{k: _map(v, _zero) for k, v in kwargs.items()})
                constant = zeros[0] if constant is None else constant
        if self.tracer is not None and func.__name__ in ("__setitem__", "copy_"):
            self.tracer.preserve(args[0])
        value = func(*args, **kwargs)
        # On a GPU, to count zeros is cheaper than to wait for the answer.
        if constant is not None and (constant.is_cuda or bool((constant != 0).any())):
            counted = self.count(args[0] if value is None else value, constant, part="word")
            if value is not None:
                value = counted
            elif counted is not args[0]:
                args[0].copy_(counted)
        return value

    def _refuse_other_masks(self, func: Any, args: Arguments, kwargs: Keywords) -> None:
        """Raise if a mask is not the same for the inputs and for their baselines."""
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        rows = {(state.dim(), len(state)) for state in tensors if _is_state(state) and state.dim()}
        for mask in tensors:
            in_rows = mask.dtype == torch.bool and mask.dim() and (mask.dim(), len(mask)) in rows
            if in_rows and self._differ(mask, len(mask) // 2):
                raise self._choice_refused(func.__name__)

    @staticmethod
    def _differ(choice: Tensor, half: int) -> bool:
        return not torch.equal(choice[:half], choice[half:])

    def _linear(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        if "weight" in kwargs:
            args = (*args, *(kwargs.pop(name) for name in ("weight", "bias") if name in kwargs))
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if _is_state(args[1]):
            return self._unknown(func, args, kwargs)
        if func is torch.nn.functional.linear and is_wide(args[1]):
            weight, rest = args[1].detach(), args[2:]
            project = WideProjection(lambda x: func(x, weight, *rest, **kwargs), weight)
            value: Tensor = project(args[0])
        else:
            value = func(*args, **kwargs)
        if bias is not None:
            value = unaliased(value)
            behind = functions.CONVOLUTIONS.get(func.__name__, 0)
            value = self.count(value, bias.view(-1, *[1] * behind) if behind else bias)
        return value

    def _biased_product(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        names = [name for name in kwargs if name not in ("alpha", "beta", "out_dtype")]
        args = (*args, *(kwargs.pop(name) for name in names))
        if sum(map(_is_state, args[1:])) == 2:
            product = torch.matmul if args[1].dim() > 2 else torch.mm
            with self:
                return kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product(*args[1:])
        value: Tensor = func(*args, **kwargs)
        if not _is_state(args[0]):
            value = self.count(value, kwargs.get("beta", 1) * args[0])
        return value

    def _batch_norm(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        value: Tensor = func(*args, **kwargs)
        zeros = torch.zeros_like(args[0][:1])
        return self.count(value, func(zeros, *args[1:], **kwargs))

    # ---- elementwise functions

    def _activation(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        kwargs.pop("inplace", None)
        if func.__name__ in CLAMPS and any(map(_is_tensor, (*args[1:], *kwargs.values()))):
            with self:
                return clamped(func.__name__, *args, **kwargs)
        rest = tuple(argument for argument in args[1:] if not isinstance(argument, bool))
        known = (func.__name__, repr(rest), repr(kwargs))
        return self.activate(lambda u: func(u, *rest, **kwargs), args[0], known)

    def activate(
        self,
        function: Callable[[Tensor], Tensor],
        u: Tensor,
        known: Any,
        value: Tensor | None = None,
    ) -> Tensor:
        """Return g(u), an elementwise function of a state, by the rule for activations."""
        if self.rules.activation == "tangent":
            return self.tangent(function, (u,))
        if self.rules.activation == "secant":
            return SecantSlope(function, value)(u)
        origin = self._origins.get(known)
        if origin is None:
            origin = self._origins[known] = Origin.of(function)
        output = self.count(Slope(function, origin, value)(u), origin.value)
        _mark(output, _Gate(function, origin, u.detach()))
        return output

    def _power(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        exponent = args[1] if len(args) > 1 else kwargs["exponent"]
        if not _is_state(args[0]) or isinstance(exponent, Tensor):
            return self._scale(func, args, kwargs)
        if exponent == 1:
            return func(*args, **kwargs)
        if exponent > 0 and exponent == int(exponent):
            return self._activation(func, args, kwargs)
        return self._scale(func, args, kwargs)

    def _scale(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        """Hold an elementwise function, which scales or gates other states."""
        if self.rules.norm == "held":
            held: Tensor = _held(func, args, kwargs)
            if self.rules.product != "ig" or not isinstance(args[0], Tensor):
                return _mark(held, _Gate())
            gate = _Gate(point=args[0].detach(), scale=of_first(func, args, kwargs))
            return _mark(held, gate)
        if self.rules.softmax == "secant":
            return SecantSlope(of_first(func, args, kwargs))(args[0])
        return self.tangent(of_first(func, args, kwargs), (args[0],))

    def tangent(
        self,
        function: Callable[..., Tensor],
        states: Sequence[Tensor],
        parts: Sequence[float] | None = None,
    ) -> Tensor:
        """Return a function of states by its derivative; what that leaves is a bias."""
        report = functools.partial(self.ledger.add, self.cut)
        live = [state.requires_grad for state in states]
        return Tangent(function, parts or [1.0] * len(states), live, report)(*states)

    # ---- products

    def _product(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        value = self._multiply(func, args, kwargs)
        weights = getattr(args[0], "_normscope_weights", False) and value.dim() >= 3
        if self.tracer is not None and weights and func.__name__ in ("matmul", "bmm"):
            self.tracer.attention(value, args[1], alpha=args[0].detach())
        return value

    def _multiply(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        places = [place for place, argument in enumerate(args) if _is_state(argument)]
        if len(places) == 1 and isinstance(args[places[0]], Tensor):
            value: Tensor = func(*args, **kwargs)
            gates = [gate for a in args if not _is_state(a) and (gate := _gate(a)) is not None]
            return _mark(value, _written_out(args[places[0]], gates[0])) if gates else value
        if len(places) != 2:
            return self._unknown(func, args, kwargs)
        first, second = (args[place] for place in places)
        # Not the states: a closure would keep them from being freed and recomputed.
        others = tuple(None if place in places else a for place, a in enumerate(args))
        product = functools.partial(_call_with, func, others, kwargs, places)
        rule = self.rules.product
        if rule == "tangent":
            return self.tangent(product, (first, second))
        if rule == "midpoint":
            return Midpoint(product)(first, second)
        if func.__name__ in functions.ELEMENTWISE_PRODUCTS:
            return ElementwiseProduct(product, self._gate_parts(first, second))(first, second)
        return Bilinear(product)(first, second)

    def _gate_parts(self, first: Tensor, second: Tensor) -> tuple[Any, Any]:
        """Return the parts of both factors; one of them may have come out of an activation."""
        rule, gate = self.rules.product, _gate(first) or _gate(second)
        if rule == "half" or gate is None:
            return 0.5, 0.5
        if rule == "ig":
            if gate.function is None or gate.origin is None or gate.point is None:
                return 0.5, 0.5
            kept = path_parts(gate.function, gate.origin, gate.point).to(first.dtype)
            parts: tuple[Any, Any] = (1 - kept, kept)
        else:
            parts = (0.0, 1.0) if rule == "gate" else (1.0, 0.0)
        return parts if _gate(first) else parts[::-1]

    def _quotient(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
        if func.__name__.startswith("__r"):
            first, second = second, first
        if not _is_state(second):
            return func(*args, **kwargs)
        if self.rules.norm == "held":
            held: Tensor = torch.div(first, second.detach())
            return held
        if not _is_state(first):
            with self:
                return torch.reciprocal(second) * first
        if self.rules.norm == "secant":
            return SecantQuotient(torch.div)(first, second)
        return self.tangent(torch.div, (first, second))

    # ---- softmax, norms, attention

    def _softmax(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if self.padded_left and dim is not None:
            args = (_with_a_key(args[0], dim, kwargs.get("dtype")), *args[1:])
        softmax = of_first(func, args, kwargs)
        if self.rules.softmax == "held":
            alpha: Tensor = _held(func, args, kwargs)
        elif self.rules.softmax == "secant":
            alpha = SecantSoftmax(softmax, dim)(args[0])
        else:
            alpha = self.tangent(softmax, (args[0],))
        if alpha.requires_grad:
            self.dtypes.add(alpha.dtype)
        mark_weights(alpha)
        return alpha

    def _statistic(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Hold a function of many entries; where it is not held, take it apart."""
        name = func.__name__
        if self.rules.norm == "held" and not (name == "logsumexp" and self.rules.softmax != "held"):
            return _held(func, args, kwargs)
        if name == "cdist":  # of which both arguments may be states
            with self:
                return COMPOSITE_SCALES[name](*args, **kwargs)
        if self.rules.norm != "secant":
            return self.tangent(of_first(func, args, kwargs), (args[0],))
        if name == "logsumexp":
            dim = kwargs["dim"] if "dim" in kwargs else args[1]
            keepdim = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
            return SecantLogSumExp(of_first(func, args, kwargs), dim, keepdim)(args[0])
        if name in COMPOSITE_SCALES:
            with self:
                return COMPOSITE_SCALES[name](*args, **kwargs)
        return self._unknown(func, args, kwargs)

    def _norm(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        x, norm = args[0], NormCall.of(func, args, kwargs)
        if self.rules.norm == "tangent":
            return self.tangent(norm.function, (x,))
        kind = SecantNorm if self.rules.norm == "secant" else HeldNorm
        value = kind(norm.function, norm.scale, norm.grouped, norm.eps, norm.centred)(x)
        if norm.bias is not None:
            value = self.count(value, norm.bias)
        return value

    def _attention(self, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v = (given.pop(name) for name in names[:3])
        # A mask that depends on the input is such as scores of relative positions.
        mask = given.pop("attn_mask", None)
        scores = [mask] if _is_state(mask) else []
        mask = mask if mask is None else mask.detach()

        def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = mask) -> Tensor:
            value: Tensor = func(q, k, v, attn_mask=mask, **given)
            return value

        call = Call(mask, given.get("is_causal", False), given.get("scale"))
        if self.rules.difference:
            context = SecantAttention(attention, call)(q, k, v, *scores)
        elif self.rules.attention == (0, 0, 1):
            held: Callable[..., Tensor] = attention
            if can_fuse(q, k, call):
                held = FusedAttention(attention, call)
            elif self.pushes:
                held = HeldAttention(attention, call)
            context = held(q.detach(), k.detach(), v)
        else:
            # As much of the product as values do not have is the scores'.
            parts = (*self.rules.attention, *[self.rules.attention[2]] * len(scores))
            context = self.tangent(attention, (q, k, v, *scores), parts)
        if self.tracer is not None:
            self.tracer.attention(context, v, scores=(q.detach(), k.detach(), call))
        return context

    # ---- functions made of others

    def _composite(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        with self:
            return COMPOSITES[func.__name__](*args, **kwargs)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, Tensor)


def _is_state(argument: Any) -> bool:
    if isinstance(argument, Tensor):
        return argument.requires_grad
    return isinstance(argument, list | tuple) and any(map(_is_state, argument))


def _map(argument: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply a function to a tensor, or to the tensors of a list."""
    if isinstance(argument, Tensor):
        return function(argument)
    if isinstance(argument, list | tuple) and any(isinstance(a, Tensor) for a in argument):
        return type(argument)(_map(a, function) for a in argument)
    return argument


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.requires_grad else tensor


def _call_with(
    func: Any, args: Arguments, kwargs: Keywords, places: Sequence[int], *states: Tensor
) -> Tensor:
    """Call a function with states in some places of its arguments."""
    arguments = list(args)
    for place, state in zip(places, states, strict=True):
        arguments[place] = state
    value: Tensor = func(*arguments, **kwargs)
    return value


def _held(func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Compute a value as a constant, without components either."""
    args, kwargs = _without_components(args, kwargs)
    return func(*args, **kwargs)


def _without_components(args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    args = tuple(_map(argument, Tensor.detach) for argument in args)
    return args, {name: _map(a, Tensor.detach) for name, a in kwargs.items()}


def without_parameters(args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords, bool]:
    """Detach parameters, and tell whether a state is among the arguments."""
    args = tuple(_map(argument, _constant_parameter) for argument in args)
    if kwargs:
        kwargs = {name: _map(a, _constant_parameter) for name, a in kwargs.items()}
    return args, kwargs, any(map(_is_state, args)) or any(map(_is_state, kwargs.values()))


def _constant_parameter(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad and tensor.is_leaf else tensor


def carry_weights(args: Arguments, value: Any) -> Any:
    """Note that a value is attention weights still, after a cast, a view or dropout."""
    if args and getattr(args[0], "_normscope_weights", False) and isinstance(value, Tensor):
        mark_weights(value)
    return value


def mark_weights(tensor: Tensor) -> None:
    """Note that a tensor is attention weights."""
    tensor._normscope_weights = True  # type: ignore[attr-defined]


def _mark(tensor: Tensor, gate: _Gate) -> Tensor:
    """Note that a tensor came out of an activation."""
    tensor._normscope_gate = gate  # type: ignore[attr-defined]
    return tensor


def _written_out(u: Tensor, held: _Gate) -> _Gate:
    """Return what is known of u · h, h held: an activation, if h is a function of c · u."""
    scale, scaled, u = held.scale, held.point, u.detach()
    if scale is None or scaled is None or scaled.shape != u.shape or not u.numel():
        return _Gate()
    largest = u.abs().argmax()
    factor = scaled.flatten()[largest] / u.flatten()[largest]
    if not torch.allclose(scaled, factor * u, rtol=1e-5, atol=0):
        return _Gate()
    number = float(factor)

    def function(point: Tensor) -> Tensor:
        return point * scale(number * point)

    return _Gate(function, Origin.of(function), u)


def _gate(tensor: Any) -> _Gate | None:
    return getattr(tensor, "_normscope_gate", None)


def _with_a_key(scores: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Return scores in which queries without a key have even weights instead of NaN.

    They are queries of padding, which do not reach what is explained, but 0 · NaN would.
    """
    masked = scores.detach().to(dtype or scores.dtype) == -torch.inf
    return scores.masked_fill(masked.all(dim, keepdim=True), 0.0)


@functools.cache
def _handlers() -> Mapping[str, Callable[..., Any]]:
    """Return the method that replaces each function."""
    kinds: list[tuple[Any, Callable[..., Any]]] = [
        (functions.SUMS, Network._sum),
        (functions.PRODUCTS, Network._product),
        (functions.QUOTIENTS, Network._quotient),
        (functions.FILLS, Network._fill),
        (functions.CONVOLUTIONS, Network._linear),
        (functions.BIASED_PRODUCTS, Network._biased_product),
        (functions.ACTIVATIONS, Network._activation),
        (functions.SCALES, Network._scale),
        (functions.SOFTMAX, Network._softmax),
        (functions.STATISTICS, Network._statistic),
        (functions.NORMS, Network._norm),
        (COMPOSITES, Network._composite),
        (("linear",), Network._linear),
        (("batch_norm",), Network._batch_norm),
        (("pow",), Network._power),
        (("scaled_dot_product_attention",), Network._attention),
        (("linalg_solve_triangular",), solve_triangular),
        (("grid_sample",), grid_sample),
    ]
    return {name: handler for names, handler in kinds for name in names}
