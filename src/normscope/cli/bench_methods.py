"""What `normscope bench --methods` measures: the cost of every method of attribution, in one run.

forward           the model's plain forward pass
input × gradient  the yardstick: the input times the gradient by plain autograd
METHOD            one number of each row explained by the method, shares in hand
map MAP           one map of every layer that methods roll out, in hand, as by `analyze_inputs`

The number that is explained is the first entry of a row's last state. Methods with a number of
steps have few here (`STEPS`), and their time is proportional to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.table import TABLE, method_of
from normscope.cli.bench_attribution import input_x_gradient, one_output
from normscope.decomposition.scopes import ALTI, NORMS, RELATED, by_vectors

GRADIENT = "input × gradient"
STEPS = {"integrated_gradients": "steps=10", "smoothgrad": "samples=10", "rollout": ALTI}
# Norms of what attention adds, of the layer without its feed-forward, and maps that are no lengths.
MAPS = (NORMS, *(scope.name for scope in by_vectors() if scope.end == "kept"), *RELATED)


def method_passes(
    model: Any, inputs: Mapping[str, Tensor]
) -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Yield the name of each method, what runs it, and a note."""
    yield GRADIENT, lambda: input_x_gradient(model, inputs["input_ids"]), "plain autograd"
    baseline = {"input_ids": inputs["input_ids"].flip(-1)}
    for name, method in TABLE.items():
        spelled = f"{name}:{STEPS[name]}" if name in STEPS else name
        other = None if method.baseline == "no" else baseline
        chosen = method_of(spelled)
        call = MethodCall(model, inputs, one_output, chosen, other)
        yield spelled, partial(chosen.shares, call), method.cost
