"""How a layer is wired, as data: where its norms are, and what its feed-forward consists of.

A layer is an attention block, in decoders of encoder–decoder models a cross-attention block, and a
feed-forward block. From its input x, a block computes

    branch = scale · branch_norm(core(before(x)));   out = after(carry · x + branch)

where core is the attention up to the output of its output projection, or the feed-forward. Any norm
and the factors may be missing. In a few models the residual is before(x) in place of x. The output
of one block is the input x of the next; only in a parallel layer do attention and feed-forward read
the same x, and out = x + attention + feed-forward.

Names are paths below the layer's module. Layouts are not listed by class: they are read from one
pass of the model (`normscope.capture.wiring`). For a layer that cannot be read so, call
`register_layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor, nn

from normscope.errors import UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What is around the core of a block; None for what is missing."""

    before: str | None = None  # the norm on the block's input (pre-norm)
    branch: str | None = None  # the norm on the core's output, before the residual is added
    scale: str | float | None = None  # a vector or a number that multiplies the branch
    after: str | None = None  # the norm on the residual sum (post-norm)
    carry: str | float | None = None  # a vector or a number that multiplies the residual
    normed: bool = False  # whether the residual is before(x)


@dataclass(frozen=True, kw_only=True)
class Attention(Wiring):
    """An attention block, self or cross."""

    module: str  # the attention module, as in `Capture.name`
    output: str  # its output projection, as in `Capture.projection.name`


@dataclass(frozen=True, kw_only=True)
class FeedForward(Wiring):
    """second(act(first(h))), or second(act(gate(h)) · first(h)) where it is gated."""

    first: str
    second: str
    # A path, transformers' name of a function that the code calls, or such a function.
    activation: str | Callable[[Tensor], Tensor]
    gate: str | None = None
    packed: Literal["gate_first", "gate_last"] | None = None  # gate and first as halves of `first`


@dataclass(frozen=True, kw_only=True)
class Opaque(Wiring):
    """Whatever else is in place of a feed-forward, such as a mixture of experts."""

    module: str | None = None  # whose output is the core's output, if it is a single one


@dataclass(frozen=True)
class Layout:
    """The wiring of one layer."""

    attention: Attention
    ff: FeedForward | Opaque
    cross: Attention | None = None  # left out for layers that do not have its module
    parallel: bool = False


# Layouts that were registered, by the name of the layer's class.
LAYOUTS: dict[str, tuple[Layout, ...]] = {}

REMEDY = (
    "If the equations in normscope.layouts describe such a layer, say where its parts are with "
    "normscope.layouts.register_layout(the name of its class, Layout(...))"
)


def register_layout(class_name: str, *layouts: Layout) -> None:
    """Set the layouts of a layer class, for this process; they count instead of what is seen.

    Args:
        class_name: the name of the layer's class; classes derived from it have the layout too.
        layouts: the first that fits a layer is used. They replace earlier ones of the class.
    """
    LAYOUTS[class_name] = layouts


def registered_layout(layer: nn.Module) -> Layout | None:
    """Return the layout that was registered for a layer, without missing and idle parts.

    Raises:
        UnsupportedModelError: there are layouts for its class, and none fits.
    """
    names = [cls.__name__ for cls in type(layer).__mro__]
    listed = next((LAYOUTS[name] for name in names if name in LAYOUTS), None)
    if listed is None:
        return None
    misfits = []
    for layout in (_present(layer, layout) for layout in listed):
        misfits.append(_misfit(layer, layout))
        if not misfits[-1]:
            return layout
    why = "; ".join(misfits)
    raise UnsupportedModelError(f"{names[0]} is not wired as was registered: {why}. {REMEDY}")


def blocks_of(layout: Layout) -> list[Attention | FeedForward | Opaque]:
    """Return the blocks of a layer in their order."""
    return [b for b in (layout.attention, layout.cross, layout.ff) if b is not None]


def paths_of(layout: Layout) -> list[str]:
    """Return the paths of the modules whose input or output a decomposition needs."""
    paths = [path for b in blocks_of(layout) for path in (b.before, b.branch, b.after)]
    if isinstance(layout.ff, Opaque):
        paths.append(layout.ff.module)
    else:
        paths += [layout.ff.first, layout.ff.gate, layout.ff.second]
    return list(dict.fromkeys(path for path in paths if path is not None))


def part(layer: nn.Module, path: str) -> Any:
    """Return the module, parameter, function or number at a path below a layer; None if missing."""
    value: Any = layer
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def factor_at(layer: nn.Module, factor: str | float) -> Any:
    """Return the vector or number of a layer that multiplies a branch or a residual."""
    return part(layer, factor) if isinstance(factor, str) else factor


def activation_of(layer: nn.Module, ff: FeedForward) -> Callable[[Tensor], Tensor]:
    """Return the activation of a feed-forward, as a function of tensors."""
    from transformers.activations import ACT2FN

    if not isinstance(ff.activation, str):
        return ff.activation
    return part(layer, ff.activation) or ACT2FN[ff.activation]


def _present(layer: nn.Module, layout: Layout) -> Layout:
    """The layout without a cross-attention that the layer does not have, and without idle norms."""

    def without_idle_norms(block: Any) -> Any:
        norms = [name for name in ("before", "branch", "after") if getattr(block, name)]
        idle = [n for n in norms if isinstance(part(layer, getattr(block, n)), nn.Identity)]
        return replace(block, **dict.fromkeys(idle))

    has_cross = layout.cross is not None and part(layer, layout.cross.module) is not None
    return replace(
        layout,
        attention=without_idle_norms(layout.attention),
        cross=without_idle_norms(layout.cross) if has_cross else None,
        ff=without_idle_norms(layout.ff),
    )


def _misfit(layer: nn.Module, layout: Layout) -> str:
    """Why a layout does not fit a layer; empty if it does."""
    from transformers.activations import ACT2FN

    blocks = blocks_of(layout)
    named = (getattr(b, f.name) for b in blocks for f in fields(b) if f.name != "packed")
    paths = [path for path in named if isinstance(path, str)]
    for path in paths:
        if part(layer, path) is None and path not in ACT2FN:
            return f"it has no {path}"
    unnamed = isinstance(layout.ff, Opaque) and layout.ff.module is None
    for name, _ in () if unnamed else layer.named_parameters():
        if not any(f"{name}.".startswith(f"{path}.") for path in paths):
            return f"it has {name} too"
    return ""
