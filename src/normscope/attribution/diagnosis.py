"""Name the operation at which shares stop adding up."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.linearisation import functions
from normscope.linearisation.network import Network
from normscope.linearisation.operators import inner
from normscope.models.failures import first_line

_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
TOLERANCE = 1e-3


def diagnose(network: Network, forward: Callable[[Network], Tensor]) -> str:
    """Run a model again, check every operation by itself, and describe the first that fails.

    Args:
        network: a network that has not run.
        forward: runs the model in a network.
    """
    checked = _CheckedNetwork(network)
    try:
        with _watched(checked):
            forward(checked)
    except _Failed as failure:
        return str(failure)
    return (
        "every torch function that the model calls passes them on, so either something that is not "
        "a torch function (an autograd function or a kernel of its own, detached states) does not, "
        "or the gap is rounding, which float64 (model.double()) would show"
    )


def failure(kind: str, error: Exception) -> UnsupportedModelError:
    """Describe an error that a model raises as a linearised network, and not by itself."""
    walked = traceback.extract_tb(error.__traceback__)
    frames = [f for f in walked if not f.filename.startswith(_FOLDERS)]
    place = f" in {frames[-1].name} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return UnsupportedModelError(
        f"{kind} does{place if frames else ''} what cannot be replaced by linear maps: "
        f"{type(error).__name__}: {first_line(error)}. Explain a part of the model without it, or "
        "use normscope.analyze, which looks at single layers"
    )


@shielded
def _watched(checked: _CheckedNetwork) -> Iterator[None]:
    """Tell a network which module runs."""
    with ExitStack() as installed:
        for module, path in checked.structure.paths.items():
            hook = checked.entered_module(path)
            installed.callback(module.register_forward_pre_hook(hook).remove)
            installed.callback(module.register_forward_hook(checked.left_module).remove)
        yield


class _Failed(Exception):
    """The description of an operation that fails."""


class _CheckedNetwork(Network):
    """A network that tests every operation on its own, with a random cotangent."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.structure, network.rules, network.rows)
        self._path: list[str] = []

    def entered_module(self, path: str) -> Callable[..., None]:
        """Return a hook that notes which module runs."""

        def note(*_: Any) -> None:
            self._path.append(path)

        return note

    def left_module(self, *_: Any) -> None:
        """Note that a module has ended."""
        self._path.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        states = [t for t in tensors if t.requires_grad and not t.is_leaf]
        safe = name in functions.PLAIN | functions.FILLS | functions.SUMS or name.endswith("_")
        if states and not safe and torch.is_grad_enabled():
            gap = self._gap(func, args, kwargs)
            if gap > TOLERANCE:
                where = f"{self._path[-1] or 'the model itself'}" if self._path else "the model"
                raise _Failed(
                    f"torch's {name} in {where} does not pass them on (it leaves {gap:.0e} of them)"
                )
        return super().__torch_function__(func, types, args, kwargs)

    def _gap(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        trial = Network(self.structure, self.rules, self.rows)
        trial.ledger.rows = 1
        trial.cut, trial.entered, trial.depth = 0, [*self.structure.stacks], 1
        leaves: list[Tensor] = []

        def fresh(argument: Any) -> Any:
            if isinstance(argument, Tensor) and argument.requires_grad and not argument.is_leaf:
                leaves.append(argument.detach().clone().requires_grad_())
                return leaves[-1].clone()
            if isinstance(argument, list | tuple):
                return type(argument)(fresh(a) for a in argument)
            return argument

        value = trial.__torch_function__(
            func, (), tuple(map(fresh, args)), {k: fresh(v) for k, v in kwargs.items()}
        )
        value = value[0] if isinstance(value, tuple | list) else value
        if not isinstance(value, Tensor) or not value.requires_grad:
            return 0.0
        generator = torch.Generator().manual_seed(0)
        g = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        if self.rules.difference and g.dim():
            g[len(g) // 2 :] = 0
        grads = torch.autograd.grad(value, leaves, g, allow_unused=True)
        parts = [
            inner(self._change(leaf.detach()), self._first(grad))
            for leaf, grad in zip(leaves, grads, strict=True)
            if grad is not None
        ]
        whole = inner(self._change(value.detach()), self._first(g))
        total = sum((part.sum() for part in parts), whole.new_zeros(()))
        total = total + sum((b.sum() for b in trial.ledger.bias.values()), whole.new_zeros(()))
        size = whole.abs().sum() + sum((part.abs().sum() for part in parts), whole.new_zeros(()))
        gap = float((whole.sum() - total).abs() / (size + 1e-30))
        return gap if gap == gap else 0.0

    def _change(self, values: Tensor) -> Tensor:
        if not self.rules.difference or not values.dim():
            return values
        half = len(values) // 2
        return values[:half] - values[half:]

    def _first(self, cotangent: Tensor) -> Tensor:
        if not self.rules.difference or not cotangent.dim():
            return cotangent
        return cotangent[: len(cotangent) // 2]
