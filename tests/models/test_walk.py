"""Walks over modules against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from normscope.models.architectures import FAMILIES, tiny_model
from normscope.models.walk import has, modules, named_modules, tensors


@pytest.mark.parametrize("name", ["albert", "bert", "t5", "clip", "deepseek_v3"])
def test_walks_are_those_of_torch(name: str) -> None:
    assert name in FAMILIES
    model = tiny_model(name)
    assert named_modules(model) == list(model.named_modules(remove_duplicate=False))
    assert modules(model) == list(model.modules())
    own = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    assert sorted(id(tensor) for tensor in tensors(model)) == sorted(own)
    for attribute in ("config", "in_features", "weight", "encoder", "nothing"):
        for module in modules(model):
            # Parameters are looked for nowhere: what is asked for is never one.
            if attribute not in (*module._parameters, *module._buffers):
                assert has(module, attribute) == hasattr(module, attribute)


def test_shared_and_missing_modules() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, nn.Identity()])})
    model.register_module("none", None)
    assert [name for name, _ in named_modules(model)] == ["", "a", "b", "b.0", "b.1"]
    assert modules(model) == list(model.modules())
    assert len(list(tensors(model))) == 2


class Delegating(nn.Module):
    """Answers for the module inside, as wrappers of adapters do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


class ByProperty(nn.Module):
    @property
    def in_features(self) -> int:
        return 4


@pytest.mark.parametrize("made", [Delegating, ByProperty, lambda: nn.Linear(1, 1)])
def test_attributes_that_come_from_elsewhere(made: Callable[[], nn.Module]) -> None:
    assert has(made(), "in_features")
    assert not has(made(), "something_else")
