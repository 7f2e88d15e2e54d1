"""Find which pixels each position of a model reads, by running it with attention cut.

A vision tower has a position for each patch, and some without pixels; a language model reads what
merging, pooling or reordering has made of them. Which position reads which pixels is therefore not
computed from a configuration but seen. If layers hand on what they read, every pixel reaches one
position of a stack, and the gradient of the sum of all positions, each with its number as a
factor, has this number in it. Behind a backbone of convolutions many positions read a pixel; what
they form then is the grid of its feature map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from normscope.engine.feature_maps import feature_map
from normscope.engine.grids import IMAGES, Grid, PixelLayout, layouts_of_pixels
from normscope.foundation.caching import ModuleCache
from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import torch_settings_kept
from normscope.linearisation.structure import first_state
from normscope.models.inventory import Inventory
from normscope.models.running import accepted_by, evaluating
from normscope.text.pictures import PatchPlace

# Parameters that stand at positions of their own, by the beginning of their names.
_LEARNT = re.compile(r"(cls|class|dist|reg|det)[a-z]*_(token|embedding)s?$")
_LABELS = {"cls": "CLS", "class": "CLS", "dist": "DIST", "reg": "REG", "det": "DET"}
SEVERAL = -2  # the reader of pixels that several positions read


@dataclass(frozen=True)
class Footprint:
    """What the positions of one stack read, in the order of rows and positions.

    Attributes:
        rows: the number of rows, by which positions are divided.
        places: the patch of each position: number of the image, row and column; None for others.
        grids: the grid of each image.
        names: what positions without pixels are called, as far as that is known.
        layout: where the pixels are in the inputs.
    """

    rows: int
    places: tuple[PatchPlace | None, ...]
    grids: Mapping[int, Grid]
    names: Mapping[int, str]
    layout: PixelLayout


_SEEN: ModuleCache[dict[str, Footprint]] = ModuleCache()


def footprints_of(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Footprint]:
    """Return what the positions of each stack of layers read of images, by the stack's path.

    Stacks whose positions have no rectangles of pixels of their own are left out.
    """
    if images_in(inputs) is None:
        return {}
    state = [(name, _state(value)) for name, value in inputs.items() if isinstance(value, Tensor)]
    try:
        return _SEEN.get(model, state, lambda: _seen(model, inputs))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # A model that fails on these inputs will say so when it runs; one through which no gradient
        # can be computed (quantised, say) has positions by number.
        return {}


def images_in(inputs: Mapping[str, Any]) -> str | None:
    """Return the name of the input that has images, or None."""
    return next((name for name in IMAGES if isinstance(inputs.get(name), Tensor)), None)


def _state(value: Tensor) -> Any:
    """Return what places depend on: the shape of images, and the values of ids."""
    whole = None if value.is_floating_point() else value.cpu().numpy().tobytes()
    return tuple(value.shape), whole


def _seen(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Footprint]:
    name = images_in(inputs)
    assert name is not None
    layouts = layouts_of_pixels(model, inputs, name)
    if not layouts or not inputs[name].is_floating_point():
        return {}
    with _differentiable(model):
        pixels = inputs[name].detach().clone().requires_grad_()
        learnt = {
            path: parameter.detach().clone().requires_grad_()
            for path, parameter in model.named_parameters()
            if _LEARNT.match(path.rpartition(".")[2]) and parameter.is_floating_point()
        }
        entered = _entering_states(model, {**inputs, name: pixels}, learnt)
        sums = {
            stack: products
            for stack, states in entered.items()
            if (products := _products(states)) is not None
        }
        read = {stack: _readers(products, pixels, layouts[0]) for stack, products in sums.items()}
        special = {stack: _special(products[0], learnt) for stack, products in sums.items()}
        spread = {
            stack: None if read[stack] is not None else feature_map(sums[stack], pixels)
            for stack in sums
        }
    for layout in layouts:
        known = {
            stack: (layout.places(readers, sums[stack].numel()), stack)
            for stack, readers in read.items()
            if readers is not None
        }
        if all(found is not None for found, _ in known.values()):
            break
    seen = {
        stack: Footprint(len(sums[stack]), *found, {}, layouts[0])
        for stack, found in spread.items()
        if found is not None
    }
    for stack, (found, _) in known.items():
        if found is not None:
            names = {at: n for at, n in special[stack].items() if found[0][at] is None}
            seen[stack] = Footprint(len(sums[stack]), *found, names, layout)
    return seen


@shielded
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Allow gradients, whatever the caller has disabled, and put the model into evaluation mode."""
    with ExitStack() as stack:
        stack.enter_context(torch_settings_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(evaluating(model))
        yield


class _AllEnteredError(Exception):
    """Ends a forward pass in which every stack has begun."""


def _entering_states(
    model: nn.Module, inputs: Mapping[str, Any], learnt: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the states that enter each stack if all layers hand on what they read."""
    layers = Inventory(model).elements
    waiting = set(layers.values())
    entered: dict[str, Tensor] = {}
    read: dict[nn.Module, Tensor] = {}

    def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        place = first_state(args, kwargs)
        if place is None:
            return None
        read[layer] = args[place] if isinstance(place, int) else kwargs[place]
        entered.setdefault(layers[layer], read[layer])
        waiting.discard(layers[layer])
        if not waiting:
            raise _AllEnteredError
        cut = read[layer].detach()  # so that nothing of the layer is kept for a backward pass
        if isinstance(place, str):
            return args, {**kwargs, place: cut}
        return (*args[:place], cut, *args[place + 1 :]), kwargs

    def after(layer: nn.Module, _: Any, output: Any) -> Any:
        own, first = read.pop(layer, None), output[0] if isinstance(output, tuple) else output
        if own is None or not isinstance(first, Tensor) or first.shape != own.shape:
            return None
        handed = first.detach() + (own - own.detach()).to(first.dtype)
        return (handed, *output[1:]) if isinstance(output, tuple) else handed

    handles = []
    try:
        for layer in layers:
            handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            # Before the hooks by which transformers collects the states of layers.
            handles.append(layer.register_forward_hook(after, prepend=True))
        cached = {"use_cache": False} if "use_cache" in accepted_by(model) else {}
        functional_call(model, dict(learnt), (), {**cached, **inputs})
    except _AllEnteredError:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return entered


def _products(states: Tensor) -> Tensor | None:
    """Return a random combination of each state, (row, position); None for constants."""
    if not states.requires_grad or states.dim() < 2:
        return None
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(states.shape, generator=draw).to(states)
    return (states * weights).sum(-1).reshape(len(states) if states.dim() > 2 else 1, -1)


def _readers(products: Tensor, pixels: Tensor, layout: PixelLayout) -> NDArray[np.int64] | None:
    """Return the position that reads each entry of the pixels; None if several read one."""
    grads = _numbered_gradients(products.flatten(), [pixels])[0]
    if grads is None:
        return None
    readers = _decoded(np.stack([layout.entries(grad) for grad in grads]), products)
    return None if (readers == SEVERAL).any() or not (readers >= 0).any() else readers


def _special(products: Tensor, learnt: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the names of the positions that parameters of their own stand at."""
    names: dict[int, str] = {}
    grads = _numbered_gradients(products, list(learnt.values()))
    for path, of_parameter in zip(learnt, grads, strict=True):
        if of_parameter is None:
            continue
        match = _LEARNT.match(path.rpartition(".")[2])
        assert match is not None
        size = of_parameter[0].shape[-1]
        entries = [grad.double().cpu().reshape(-1, size).numpy() for grad in of_parameter]
        readers = _decoded(np.stack(entries), products).tolist()
        for number, position in enumerate(readers):
            if position >= 0:
                several = f" {number}" if len(readers) > 1 else ""
                names[position] = f"[{_LABELS[match[1]]}{several}]"
    return names


def _base(products: Tensor) -> int:
    """Return in which base positions are numbered: quotients of gradients have few digits."""
    return 32 if torch.finfo(products.dtype).eps < 1e-4 else 4


def _numbered_gradients(products: Tensor, leaves: list[Tensor]) -> list[list[Tensor] | None]:
    """Return the gradients of the sum, and of sums with a digit of each position as its factor."""
    base, numbers = _base(products), torch.arange(products.numel(), device=products.device)
    factors = [torch.ones_like(numbers)]
    while (numbers >= base ** (len(factors) - 1)).any():
        factors.append(numbers // base ** (len(factors) - 1) % base)
    grads: list[list[Tensor]] = [[] for _ in leaves]
    for factor in factors if leaves else ():
        total = (products * factor.to(products)).sum()
        found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        for kept, grad in zip(grads, found, strict=True):
            kept += [] if grad is None else [grad.detach()]
    return [kept or None for kept in grads]


def _decoded(grads: NDArray[np.float64], products: Tensor) -> NDArray[np.int64]:
    """Return the position in gradients (factor, entry, channel): −1 for none, or SEVERAL."""
    base = _base(products)
    whole, digits = grads[0], grads[1:]
    size = (whole**2).sum(-1)
    alive = size > 0
    known = np.where(alive, size, 1.0)
    positions, clear = np.zeros(len(size), dtype=np.int64), alive.copy()
    for place, digit in enumerate(digits):
        number = np.round((digit * whole).sum(-1) / known)
        rest = ((digit - number[:, None] * whole) ** 2).sum(-1)
        near = 0.01 if base == 32 else 0.2
        clear &= (rest <= near**2 * size) & (number >= 0) & (number < base)
        positions += number.astype(np.int64) * base**place
    return np.where(clear, positions, np.where(alive, SEVERAL, -1))
