"""Check that normscope decomposes a model exactly; for tests and for your own models.

>>> from normscope.testing import check_architecture
>>> check_architecture(model).worst                                         # doctest: +SKIP
3.1e-16
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.capture import eager
from normscope.capture.inventory import configs_of
from normscope.decomposition.available import check_available
from normscope.decomposition.feedforward import FF_BIASES
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ANALYSES, HEAD_MAPS, SCOPES
from normscope.engine.judge import bound_of
from normscope.engine.measure import Needs
from normscope.engine.run import look
from normscope.errors import ExactnessError
from normscope.models.architectures import randomize_
from normscope.models.random_inputs import random_inputs
from normscope.models.running import evaluating

__all__ = [
    "FullPrecision",
    "Proof",
    "check_architecture",
    "check_layers",
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

    1. the model's outputs under capture are bit for bit those of its own eager attention;
    2. for every attention call Σ_h Σ_j α f(x_j) + b_O is the real output, within ``bound`` of
       the parts' size (default: rounding in the model's dtype);
    3. the factored norms are those of the vectors themselves, at random cells of every map;
    4. the model's configuration, hooks and modes are afterwards what they were before.

    Raises ExactnessError or UnsupportedModelError otherwise. Freshly initialised weights hide
    mistakes (zero biases, unit scales): call ``randomize_`` first, in float64.
    """
    kind = type(model).__name__
    inputs = random_inputs(model) if inputs is None else inputs
    calls: Counter[str] = Counter()
    dtypes: set[torch.dtype] = set()

    def check(view: LayerView) -> None:
        calls[f"{view.captured.stack} {view.kind}"] += 1
        dtypes.add(view.captured.output.dtype)
        view.maps(HEAD_MAPS)
        view.head_maps(HEAD_MAPS)

    before = _state(model)
    with evaluating(model), torch.no_grad(), eager(model):
        expected = _tensors(model(**inputs))
    judged, output = look(model, inputs, check, bound=bound)
    if _state(model) != before:
        raise ExactnessError(f"{kind} was not left as it was before the capture")
    outputs = _tensors(output)
    for name, tensor in expected.items():
        if name not in outputs or not torch.equal(tensor, outputs[name]):
            raise ExactnessError(
                f"{kind}: {name} under capture differs from the model's own eager attention"
            )
    worst = max(judged.gaps[0].values())
    limit = bound_of(dtypes) if bound is None else bound
    return Proof(kind, dict(calls), tuple(sorted(judged.paths)), worst, limit)


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
    check_available(model, [name for name in ANALYSES if SCOPES[name].end == "residual"])
    worst: dict[str, float] = {}
    for ff_bias in FF_BIASES:
        needs = Needs(whole_layers=True, weights=True)
        needs = replace(needs, how=replace(needs.how, ff_bias=ff_bias))
        judged, _ = look(model, inputs, _all_maps, needs=needs, bound=bound)
        for name, gap in judged.gaps[0].items():
            worst[name] = max(gap, worst.get(name, 0.0))
    return worst


def _all_maps(view: LayerView) -> None:
    view.maps(view.scopes)


def _state(model: nn.Module) -> list[Any]:
    """Return what a capture changes and must restore."""
    return [
        [(c._attn_implementation_internal, c.to_dict()) for c in configs_of(model).values()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
    ]


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
