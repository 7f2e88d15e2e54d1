"""Values kept per module: reused while nothing changed, computed anew after any change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.foundation.caching import ModuleCache, tensor_state

CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "in place": lambda layer: layer.weight.detach().mul_(1.001),
    "new values": lambda layer: layer.load_state_dict({"weight": torch.rand(4, 4)}),
    "another parameter": lambda layer: setattr(layer, "weight", nn.Parameter(torch.rand(4, 4))),
    "another dtype": lambda layer: layer.double(),
    "another shape": lambda layer: setattr(layer, "weight", nn.Parameter(torch.rand(2, 8))),
}
UNCOUNTED: dict[str, Callable[[nn.Linear], Any]] = {
    "one element": lambda layer: layer.weight.data[0, 0].mul_(1.001),
    "two rows exchanged": lambda layer: layer.weight.data.copy_(layer.weight[[1, 0, 2, 3]]),
}


def _layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4, bias=False)


class _Counted:
    """A cache of copies of a layer's weight that counts how often one was made."""

    def __init__(self, *, contents: bool) -> None:
        self.cache: ModuleCache[Tensor] = ModuleCache()
        self.contents, self.computed = contents, 0

    def __call__(self, layer: nn.Linear, key: str = "") -> Tensor:
        def compute() -> Tensor:
            self.computed += 1
            return layer.weight.detach().clone()

        state = tensor_state(layer.weight, contents=self.contents)
        return self.cache.get(layer, state, compute, key=key)


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_weight_is_noticed(change: Callable[[nn.Linear], Any], contents: bool) -> None:
    layer, copies = _layer(), _Counted(contents=contents)
    assert copies(layer) is copies(layer)
    change(layer)
    assert torch.equal(copies(layer), layer.weight)
    assert copies(layer) is copies(layer)
    assert copies.computed == 2


@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED)
def test_writes_that_torch_does_not_count_are_noticed_by_contents(
    change: Callable[[nn.Linear], Any],
) -> None:
    layer, copies = _layer(), _Counted(contents=True)
    copies(layer)
    change(layer)
    assert torch.equal(copies(layer), layer.weight)


def test_a_small_matrix_beside_a_large_one_is_noticed() -> None:
    """As heads of W_O that differ in size by far more than the digits of float32."""
    torch.manual_seed(0)
    heads = torch.randn(2, 4, 5) * torch.tensor([1e6, 1e-6])[:, None, None]
    changed = heads.clone()
    changed[1] *= 2
    assert tensor_state(heads) == tensor_state(heads.clone())
    assert tensor_state(heads) != tensor_state(changed)


@pytest.mark.parametrize("contents", [True, False])
def test_a_parameter_at_the_address_of_a_freed_one_is_another_one(contents: bool) -> None:
    layer, copies = _layer(), _Counted(contents=contents)
    for number in range(20):
        layer.weight = nn.Parameter(torch.full((4, 4), float(number)))
        assert torch.equal(copies(layer), layer.weight)


def test_a_tensor_computed_again_is_recognised_by_its_contents() -> None:
    made = [tensor_state(2 * torch.arange(6.0).view(2, 3)) for _ in range(2)]
    assert made[0] == made[1]
    apart = [tensor_state(torch.arange(6.0), contents=False) for _ in range(2)]
    assert apart[0] != apart[1]


def test_tensors_of_inference_mode_have_contents_only() -> None:
    with torch.inference_mode():
        tensor = torch.rand(3)
    assert tensor_state(tensor) == tensor_state(tensor)
    assert tensor_state(tensor, contents=False) != tensor_state(tensor, contents=False)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (0, 3)])
def test_any_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    assert tensor_state(tensor) == tensor_state(tensor.clone())
    if tensor.numel():
        changed = torch.zeros(shape, dtype=dtype)
        assert tensor_state(tensor) != tensor_state(changed)
    assert tensor_state(tensor) != tensor_state(tensor[None])


def test_no_tensor_is_a_state_too() -> None:
    assert tensor_state(None) is None
    assert (tensor_state(None), 1) != (tensor_state(torch.ones(2)), 1)


def test_values_of_one_module_are_told_apart_by_their_keys() -> None:
    layer, copies = _layer(), _Counted(contents=True)
    first, second = copies(layer, "first"), copies(layer, "second")
    assert first is not second
    assert copies(layer, "first") is first
    copies.cache.forget(layer)
    assert copies(layer, "first") is not first


def test_values_go_with_their_module() -> None:
    layer, copies = _layer(), _Counted(contents=True)
    copies(layer)
    assert len(copies.cache) == 1
    del layer
    gc.collect()
    assert len(copies.cache) == 0
