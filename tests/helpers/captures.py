"""What the tests of capture() share: running a model, comparing captures, a model's whole state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.models.inventory import configs_of

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def model_of(name: str, **how: Any) -> Any:
    """A tiny model, untyped: its modules are not known to the type checker."""
    return tiny_model(name, **how)


def unpadded(name: str, **sizes: Any) -> dict[str, Tensor]:
    """Ids alone: without a mask, transformers leaves the causal one to sdpa's own kernel."""
    return {"input_ids": tiny_inputs(name, **sizes)["input_ids"]}


def replaced(make: Callable[[Any], nn.Module], layers: tuple[int, ...] = (0, 1, 2)) -> Any:
    """A tiny llama (four heads of 12, hidden size 32) with its output projections wrapped."""
    model = model_of("llama")
    for i in layers:
        attention = model.model.layers[i].self_attn
        attention.o_proj = make(attention.o_proj).to(torch.float64).eval()
    return model


class Around(nn.Module):
    """Something around a linear layer, unlike one from outside."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner


def run(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of a forward pass without gradients, by its place in the output."""
    with torch.no_grad():
        return dict(tensors("", model(**copy.copy(inputs))))


def tensors(name: str, output: Any) -> list[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        return [(name, output)]
    if isinstance(output, Mapping):
        return [t for key, value in output.items() for t in tensors(f"{name}.{key}", value)]
    if isinstance(output, list | tuple):
        return [t for i, value in enumerate(output) for t in tensors(f"{name}.{i}", value)]
    return []


def captured(model: Any, inputs: Mapping[str, Any]) -> list[Capture]:
    """The captures of one forward pass without gradients."""
    with torch.no_grad(), capture(model) as captures:
        model(**copy.copy(inputs))
    return captures


def identical(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two outputs are the same bit for bit, and there is something in them."""
    same = first.keys() == second.keys() and bool(first)
    return same and all(torch.equal(first[name], second[name]) for name in first)


def same_captures(first: Sequence[Capture], second: Sequence[Capture]) -> bool:
    """Whether two lists of captures are the same bit for bit, steps left aside."""
    if len(first) != len(second) or not first:
        return False
    for a, b in zip(first, second, strict=True):
        if (a.name, a.stack, a.layer, a.kind, a.path) != (b.name, b.stack, b.layer, b.kind, b.path):
            return False
        for one, other in zip(_parts(a), _parts(b), strict=True):
            if (one is None) != (other is None):
                return False
            if one is not None and other is not None and not torch.equal(one, other):
                return False
    return True


def _parts(a: Capture) -> list[Tensor | None]:
    return [a.alpha, a.value, a.residual, a.output, a.projection.weight, a.projection.bias]


def gap(a: Capture) -> float:
    """‖Σ αf + b_O − output‖ of the worst query, relative to the largest output."""
    difference = (a.reconstruct() - a.output).double().norm(dim=-1).max()
    return float(difference / a.output.double().norm(dim=-1).max())


def state(model: nn.Module) -> list[Any]:
    """All that a capture could leave behind in a model or in this thread."""
    configs = configs_of(model).values()
    return [
        [(id(c), type(c._attn_implementation_internal), c._attn_implementation) for c in configs],
        [c.to_dict() for c in configs],
        [[list(vars(m)[hooks].items()) for hooks in HOOKS] for m in model.modules()],
        [(m.training, sorted(vars(m))) for m in model.modules()],
        torch._C._len_torch_function_stack(),
    ]


def drop(model: nn.Module, p: float) -> None:
    """Set every dropout of a model in training mode, however its family spells it."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        for name in ("dropout", "attention_dropout", "attn_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, p)


def checkpoint(model: Any, *, reentrant: bool) -> None:
    """Let layers drop their activations and run again; transformers 5.23 renamed the method."""
    old = "gradient_checkpointing_enable"
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
    enable({"use_reentrant": reentrant})
