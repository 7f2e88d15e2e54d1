"""What a linearised network must know of a model: its layers, activations and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normscope.foundation.caching import ModuleCache
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import Inventory
from normscope.models.walk import modules

if TYPE_CHECKING:
    from normscope.linearisation.network import Network

_POSITIONS = ("position", "wpe", "pos_emb", "embed_pos")
_TYPES = ("token_type", "segment")
_NOT_TOKENS = ("relative", "rel_", "_bias", "bucket")
_ACTIVATION_MODULES = ("transformers.activations", "torch.nn.modules.activation")


class Structure:
    """The parts of one model that a linearised network treats in a way of their own.

    Attributes:
        kind: the name of the model's class.
        stacks: the path of each list of layers, in the order of the modules.
        layers: each layer and the path of its list.
        activations: modules that compute an elementwise function.
        embeddings: id of an embedding's weight -> "word", "position", "token_type".
    """

    def __init__(self, model: nn.Module) -> None:
        inventory = Inventory(model)
        self.kind = type(model).__name__
        self.layers = dict(inventory.elements)
        self.stacks = [name for name in inventory.named if name in {*self.layers.values()}]
        self.paths = {module: path for path, module in reversed(inventory.named.items()) if path}
        self.activations = [m for m in self.paths if _is_activation(m)]
        self._homes: dict[int, set[str]] = {}
        self.embeddings: dict[int, str] = {}
        for path, module in inventory.named.items():
            if isinstance(weight := getattr(module, "weight", None), Tensor) and weight.dim() == 2:
                part = _part(path)
                if part is not None:
                    self.embeddings.setdefault(id(weight), part)
                    self._homes.setdefault(id(weight), set()).add(path)
        self.two_sided = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))

    def stack_of(self, weight: Tensor, entered: list[str]) -> str | None:
        """Return the stack that reads an embedding: the nearest one, or the next to run."""
        pairs = [(stack, path) for path in self._homes.get(id(weight), ()) for stack in self.stacks]
        nearest = max((_common(*pair) for pair in pairs), default=0)
        # A tied output layer is near to no stack in particular.
        homes = {stack for stack, path in pairs if _common(stack, path) == nearest}
        homes -= {*entered}
        return homes.pop() if len(homes) == 1 else self.next_stack(entered)

    def next_stack(self, entered: list[str]) -> str | None:
        """Return the first list of layers that has not run yet, or None."""
        return next((stack for stack in self.stacks if stack not in entered), None)

    def name(self, stack: str | None) -> str:
        """Return a short name: "" for the only stack, else "encoder", "decoder" or what is its own.

        The towers of "text_model.encoder.layers" and "vision_model.encoder.layers" are
        "text_model" and "vision_model".
        """
        if stack is None or len(self.stacks) <= 1:
            return ""
        if self.two_sided:
            return "decoder" if "decoder" in stack else "encoder"
        paths = [path.split(".") for path in self.stacks]
        own = stack.split(".")
        while len(own) > 1 and len({path[-1] for path in paths}) == 1:
            own, paths = own[:-1], [path[:-1] or path for path in paths]
        return ".".join(own)

    @shielded
    def watched(self, network: Network) -> Iterator[None]:
        """Let a network see layers begin and end, and replace activations as a whole."""
        handles = []
        try:
            for module in self.activations:
                handles += _hook_activation(module, network)
            for layer, stack in self.layers.items():
                handles += _hook_layer(layer, stack, network)
            yield
        finally:
            for handle in handles:
                handle.remove()


_STRUCTURES: ModuleCache[Structure] = ModuleCache()


def structure_of(model: nn.Module) -> Structure:
    """Return the structure of a model, read again only if its modules or weights are others."""
    state = [(id(module), *map(id, module._parameters.values())) for module in modules(model)]
    return _STRUCTURES.get(model, state, lambda: Structure(model))


def first_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    """Return the place of the states among the arguments of a layer: a position or a name."""
    for at, value in enumerate(args):
        if isinstance(value, Tensor):
            return at
    names = [name for name, v in kwargs.items() if isinstance(v, Tensor) and v.is_floating_point()]
    return "hidden_states" if "hidden_states" in names else next(iter(names), None)


def _common(path: str, other: str) -> int:
    """Return how many names two paths have in common at their beginning."""
    pairs = zip(path.split("."), other.split("."), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), path.count(".") + 1)


def _part(path: str) -> str | None:
    lower = path.lower()
    if any(word in lower for word in _NOT_TOKENS):
        return None
    if any(word in lower for word in _POSITIONS):
        return "position"
    return "token_type" if any(word in lower for word in _TYPES) else "word"


def _is_activation(module: nn.Module) -> bool:
    """Return whether a module computes an elementwise function; tries it on a grid."""
    if type(module).__module__ == _ACTIVATION_MODULES[0]:
        return True
    if module._modules or module._parameters or isinstance(module, nn.Identity | nn.Dropout):
        return False
    grid = torch.linspace(-3, 3, 13, dtype=torch.float64)
    try:
        with torch.no_grad():  # and without the hooks of others
            whole, part = module.forward(grid), module.forward(grid[:5])
    except Exception:  # it takes something else
        return False
    elementwise = isinstance(whole, Tensor) and whole.shape == grid.shape
    return elementwise and torch.equal(whole[:5], part) and not torch.equal(whole, grid)


def _hook_activation(module: nn.Module, network: Network) -> list[Any]:
    """Run an activation on a constant, and make its output a function of the state again."""
    waiting: list[Tensor | None] = []

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not network.active:
            return None
        given = args[0] if args and isinstance(args[0], Tensor) else None
        state = given is not None and given.requires_grad and not given.is_leaf  # no parameter
        replace = state and torch.is_grad_enabled()
        waiting.append(args[0] if replace else None)
        return (args[0].detach(), *args[1:]) if replace else None

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not network.active:
            return None
        state = waiting.pop()
        if state is None:
            return None
        function: Callable[[Tensor], Tensor] = module.forward
        with torch._C.DisableTorchFunction():  # hooks run in the mode, handlers do not
            return network.activate(function, state, module, output)

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]


def _hook_layer(layer: nn.Module, stack: str, network: Network) -> list[Any]:
    def before(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not network.active or not torch.is_grad_enabled():
            return None
        with torch._C.DisableTorchFunction():
            return network.enter_layer(stack, args, kwargs)

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if network.active and torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                network.leave_layer(output)

    return [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(after),
    ]
