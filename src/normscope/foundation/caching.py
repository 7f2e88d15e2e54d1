"""Values computed from a module, kept until the module changes.

A :class:`ModuleCache` keeps each value together with the state it was computed from. A state is
anything that compares equal as long as the value is still right: usually a tuple of
:func:`tensor_state` for the tensors that were read, and of whatever else matters (dtypes, flags).

    >>> norms: ModuleCache[Tensor] = ModuleCache()
    >>> def row_norms(layer: nn.Linear) -> Tensor:
    ...     state = tensor_state(layer.weight)
    ...     return norms.get(layer, state, lambda: layer.weight.detach().norm(dim=1))
    >>> layer = nn.Linear(2, 2)
    >>> row_norms(layer) is row_norms(layer)
    True
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import without_grad

Value = TypeVar("Value")


_USED: ContextVar[list[object] | None] = ContextVar("normscope_values_used", default=None)


@shielded
def values_used() -> Iterator[list[object]]:
    """Collect every value that caches return inside the context.

    Whoever stores the address of such a value must hold the value too: its cache drops it as soon
    as the module changes.
    """
    used: list[object] = []
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)


class ModuleCache(Generic[Value]):
    """Values by module, or by model; they are dropped when the module is.

    A value must not refer to its module, or neither is ever freed. Threads may compute the same
    value twice; either result is right.

    Args:
        of_weights: whether the values are computed from weights but are not compared with all of
            them each time; :func:`forget_weights` drops them.
    """

    def __init__(self, *, of_weights: bool = False) -> None:
        if of_weights:
            _OF_WEIGHTS.append(self)
        self._entries: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[object, Value]]] = (
            WeakKeyDictionary()
        )

    def get(
        self,
        module: nn.Module,
        state: object,
        compute: Callable[[], Value],
        *,
        key: Hashable = None,
    ) -> Value:
        """Return the value kept for ``module``, or compute it anew if ``state`` has changed.

        Args:
            module: what the value belongs to.
            state: what the value depends on, as it is now; compared with ``==`` to the state
                that the kept value was computed from.
            compute: called without arguments where nothing is kept or the state differs.
            key: tells several values of one module apart; only the last of each is kept.
        """
        entries = self._entries.setdefault(module, {})
        entry = entries.get(key)
        if entry is None or entry[0] != state:
            entry = entries[key] = state, compute()
        used = _USED.get()
        if used is not None:
            used.append(entry[1])
        return entry[1]

    def forget(self, module: nn.Module) -> None:
        """Drop everything kept for a module."""
        self._entries.pop(module, None)

    def __len__(self) -> int:
        """The number of modules for which something is kept."""
        return len(self._entries)


_OF_WEIGHTS: list[ModuleCache[Any]] = []


def forget_weights(model: nn.Module) -> None:
    """Drop what was computed from the weights of a model, because they may have changed."""
    for module in model.modules():
        for cache in _OF_WEIGHTS:
            cache.forget(module)


@dataclass(frozen=True, eq=False)
class TensorState:
    """What a tensor was at one moment; equal to another state if it has not changed in between.

    Made by :func:`tensor_state`.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    contents: Tensor | None  # products with a random vector; None if memory is compared
    memory: Tensor | None  # the tensor, held so that no other tensor gets its address
    version: int | None  # torch's count of changes; None in inference mode, which has none

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorState):
            return NotImplemented
        if (self.shape, self.dtype, self.device) != (other.shape, other.dtype, other.device):
            return False
        if self.contents is not None and other.contents is not None:
            return torch.equal(self.contents, other.contents)
        return (
            self.memory is not None
            and other.memory is not None
            and self.memory.data_ptr() == other.memory.data_ptr()
            and self.memory.stride() == other.memory.stride()
            and self.version is not None
            and self.version == other.version
        )


@without_grad
def tensor_state(tensor: Tensor | None, *, contents: bool = True) -> TensorState | None:
    """Describe a tensor as it is now, for comparison with a later description of it.

    Args:
        tensor: a parameter, a buffer or a tensor computed from them; None gives None.
        contents: compare what the tensor holds, by its product with a fixed random vector along
            the axis before the last. This notices every change beyond the rounding of the products,
            also those that torch does not count (``weight.data.mul_(2)``), and recognises a tensor
            that was computed again with the same result. It reads the whole tensor, and comparing
            waits for the device. With ``False`` the address and
            torch's count of changes are compared instead, which costs nothing; writes through
            ``.data`` are then not noticed, and a tensor of inference mode always counts as
            changed.
    """
    if tensor is None:
        return None
    return TensorState(
        shape=tensor.shape,
        dtype=tensor.dtype,
        device=tensor.device,
        contents=_probe(tensor) if contents else None,
        memory=None if contents else tensor.detach(),
        version=None if tensor.is_inference() else tensor._version,
    )


def _probe(tensor: Tensor) -> Tensor:
    """The product of a random vector with the rows of each matrix, in float32 or float64.

    Matrices are kept apart, so that large heads of W_O do not hide a change in small ones.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    floating = tensor.is_floating_point()
    wide = torch.promote_types(tensor.dtype, torch.float32) if floating else torch.float64
    rows = tensor.detach() if tensor.dim() > 1 else tensor.detach().view(1, -1)
    columns = rows.movedim(-1, 0).to(wide)  # in the memory order of a Linear's weight
    return columns @ random_vector(columns.shape[-1], wide, tensor.device)


@functools.lru_cache(64)
def random_vector(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return random numbers, always the same for the same arguments."""
    numbers = torch.randn(length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return numbers.to(device, dtype)
