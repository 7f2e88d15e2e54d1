"""Run a model: the names of its inputs, and a context for evaluation mode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import torch_settings_kept
from normscope.models.walk import places


def accepted_by(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments that a model's forward takes."""
    return _parameters(type(model).forward)


@functools.cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


@shielded
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and give every module its own mode back on leaving.

    What the model and its measurement set in torch is restored as well, so that it does not matter
    where in them an interrupt comes.
    """
    training = [module for module in places(model) if module.training]
    try:
        if training:
            model.eval()
        with torch_settings_kept():
            yield
    finally:
        for module in training:
            module.training = True
