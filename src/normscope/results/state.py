"""What a model is at one moment: its modules and their attributes, its configurations, its weights.

A :class:`ModelState` tells whether a recorded CUDA graph may be replayed. A :class:`Snapshot` is
taken when a call begins: every number of the call belongs to it, and so does the signature, which
is computed later. Neither refers to the model strongly once it is kept.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normscope.errors import NormscopeError, UnsupportedModelError
from normscope.foundation.caching import ModuleCache, forget_weights
from normscope.foundation.probes import bit_sums, same_samples, samples
from normscope.models import layouts
from normscope.models.inventory import search_of
from normscope.models.walk import ModuleTree, tensors, weights

Result = TypeVar("Result")

_PLAIN = (int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_TORCHS_OWN = frozenset(vars(nn.Module()))  # parameters, children, hooks, the mode
# transformers' own hooks collect hidden states for the output, which is not used.
_HARMLESS_HOOKS = "transformers.utils.output_capturing"
_OWN = "normscope."  # hooks of a capture that another thread has open


class ModelState:
    """Everything of a model that its forward pass depends on, at one moment.

    Attributes:
        recordable: whether all of it can be compared, and no hook of the user's is in the model.
        tensors: the parameters and buffers; not kept, see :meth:`kept`.
    """

    def __init__(self, model: nn.Module) -> None:
        structure = ModuleTree(model)
        places = structure.places
        self.tensors: list[Tensor] = tensors(model)
        configs = search_of(model, structure).configs(places).values()
        attributes = _ATTRIBUTES.get(model, structure.kept(), lambda: Attributes(places))
        others = attributes.others(places)
        hooks = hooks_of(places)
        self.recordable = others is not None and not hooks
        users = [(at, number) for at, number, hook in hooks if not _module(hook).startswith(_OWN)]
        self._weights = _facts(self.tensors)
        self._configs = [_contents(config) for config in configs]
        self._rest: tuple[Any, ...] = (
            structure.kept(),
            [getattr(cls, "forward", None) for cls in attributes.classes],
            attributes.plain(places),
            others,
            dict(layouts.LAYOUTS),
            users,
        )

    def kept(self) -> ModelState:
        """Return the same state with copies and without strong references, for a cache."""
        kept = object.__new__(ModelState)
        kept.tensors, kept.recordable = [], self.recordable
        kept._weights, kept._rest = self._weights, self._rest
        kept._configs = copy.deepcopy(self._configs)
        return kept

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelState):
            return NotImplemented
        same = self._weights == other._weights
        return same and _equal((self._rest, self._configs), (other._rest, other._configs))

    def same_structure(self, other: ModelState) -> bool:
        """Return whether all but the tensors is the same.

        Which attention runs is left out too: the signature names it, and another thread may have a
        capture open, which changes it for a while.
        """
        mine, theirs = (list(map(_without_attention, x._configs)) for x in (self, other))
        return _equal((self._rest, mine), (other._rest, theirs))

    __hash__ = None  # type: ignore[assignment]


class Attributes:
    """Which attributes the modules of a model have beside torch's own, by place and kind."""

    def __init__(self, places: Sequence[nn.Module]) -> None:
        self.classes = list(dict.fromkeys(map(type, places)))
        self._plain: list[tuple[int, Callable[[Any], Any]]] = []
        self._others: list[tuple[int, str]] = []
        for at, module in enumerate(places):
            own = own_attributes(module)
            plain = [name for name, value in own.items() if isinstance(value, _PLAIN)]
            if plain:
                self._plain.append((at, itemgetter(*plain)))
            self._others += [(at, name) for name in own if name not in plain]

    def plain(self, places: Sequence[nn.Module]) -> list[Any]:
        """Return all numbers, strings and flags."""
        return [get(vars(places[at])) for at, get in self._plain]

    def others(self, places: Sequence[nn.Module]) -> list[Any] | None:
        """Return what tells whether the other attributes are the same; None if nothing does."""
        try:
            return [_described(vars(places[at])[name]) for at, name in self._others]
        except TypeError:  # an object that cannot be referred to weakly
            return None


_ATTRIBUTES: ModuleCache[Attributes] = ModuleCache()


def _described(value: Any) -> Any:
    """What tells whether an attribute is the same: contents, address, or a weak reference."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        version = 0 if value.is_inference() else value._version
        return value.data_ptr(), version, value.dtype, value.shape
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [_described(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(key, _described(item)) for key, item in value.items()]
    return weakref.ref(value)


def _contents(config: Any) -> dict[str, Any]:
    """The fields of a configuration, without configurations in it, which are listed themselves."""
    return {name: v for name, v in vars(config).items() if not hasattr(v, "sub_configs")}


def _without_attention(contents: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in contents.items() if not name.startswith("_attn_implementation")}


def _equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except (RuntimeError, ValueError):  # a number became an array, which has no single truth
        return False


def _facts(listed: Iterable[Tensor]) -> list[tuple[Any, ...]]:
    """What torch tells about tensors: their places, counts of changes, dtypes and shapes."""
    return [(t.data_ptr(), 0 if t.is_inference() else t._version, t.dtype, t.shape) for t in listed]


def hooks_of(places: Sequence[nn.Module]) -> list[tuple[int, int, Any]]:
    """Return all forward hooks that do something: their place in the model, number, function."""
    return [
        (at, number, hook)
        for at, module in enumerate(places)
        if module._forward_hooks or module._forward_pre_hooks
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for number, hook in hooks.items()
        if _module(hook) != _HARMLESS_HOOKS
    ]


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are not torch's own."""
    return {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}


def _module(hook: Any) -> str:
    return getattr(hook, "__module__", None) or ""


# ---- the state of a whole call


class WeightState:
    """The weights of a model at one moment: what torch tells about them, and some numbers."""

    def __init__(self, model: nn.Module) -> None:
        listed = weights(model)
        self._facts = _facts(listed)
        self.samples = samples(listed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightState):
            return NotImplemented
        return self._facts == other._facts and same_samples(self.samples, other.samples)

    __hash__ = None  # type: ignore[assignment]

    def holds(self, model: nn.Module, later: Sequence[Tensor]) -> bool:
        """Return whether the weights are the same after a pass that took samples at its end."""
        if self._facts != _facts(weights(model)):
            return False
        if any(a.device != b.device for a, b in zip(self.samples, later, strict=False)):
            self.samples = [sample.cpu() for sample in self.samples]
        return same_samples(self.samples, later)


class Snapshot:
    """What a model is when a call begins; every result of the call belongs to it.

    Samples do not notice every single number that is changed through ``.data``. The sums of all
    bits do; they are computed when a model is first seen with these weights.

    Args:
        model: the model.
        used: whether something refers to this state already, so that the model may not change
            even in its first pass.

    Attributes:
        weights: what a pass is compared with at its end.
        sums: the sums of all bits, the same object as long as no change was noticed.
    """

    def __init__(self, model: nn.Module, *, used: bool = False) -> None:
        self._model, self._used = weakref.ref(model), used
        self._take(model)

    def _take(self, model: nn.Module) -> None:
        self._structure = ModelState(model).kept()
        self.weights = WeightState(model)
        self._others = _Buffers(model)
        self.sums = _SUMS.get(model, self.weights, lambda: _first_sums(model))

    def holds(self, later: Sequence[Tensor] | None = None) -> bool:
        """Return whether the weights are still the same; otherwise look at the model anew.

        In the second case what was computed is to be computed again: some models change their own
        weights in the first pass (a router is rounded to float32, say).

        Args:
            later: the samples at the end of a pass; by default they are taken now.

        Raises:
            UnsupportedModelError: the weights have changed, and there are results from before.
        """
        model = self._model()
        if model is None or self.weights.holds(model, later or samples(weights(model))):
            self._used = True
            return True
        if self._used:
            raise UnsupportedModelError(
                f"the weights of {type(model).__name__} were changed while it was measured, by "
                "another thread or by a hook, so the numbers would belong to no single state of "
                "the model. Wait until the call returns before you change weights, or measure a "
                "copy: copy.deepcopy(model)"
            )
        self._used = True  # once
        self._take(model)
        return False

    def settled(self, compute: Callable[[], Result]) -> Result:
        """Return what a function computes with the same weights from its begin to its end."""
        while True:
            try:
                result = compute()
            except NormscopeError:
                if self.holds():  # otherwise the change explains the error
                    raise
                continue
            if self.holds():
                return result

    def changed_weights(self, model: nn.Module) -> bool:
        """Return whether the weights are others now; reads all of them."""
        if self.weights != WeightState(model):
            return True
        if self.sums == bit_sums(weights(model)):
            return False
        _SUMS.forget(model)  # the sums may have been computed before an earlier change
        return True

    def changed_structure(self, model: nn.Module) -> bool:
        """Return whether anything else that the numbers depend on is different now."""
        same = self._structure.same_structure(ModelState(model))
        return not same or self._others != _Buffers(model)


class _Buffers:
    """The buffers that are not saved with the weights, such as the frequencies of rotations."""

    def __init__(self, model: nn.Module) -> None:
        saved = set(map(id, weights(model)))
        self._samples = samples(t for t in tensors(model) if id(t) not in saved)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Buffers):
            return NotImplemented
        return same_samples(self._samples, other._samples)

    __hash__ = None  # type: ignore[assignment]


_SUMS: ModuleCache[list[int]] = ModuleCache()


def _first_sums(model: nn.Module) -> list[int]:
    """Return the sums for weights that were not seen before; what was computed from others goes."""
    forget_weights(model)
    return bit_sums(weights(model))
