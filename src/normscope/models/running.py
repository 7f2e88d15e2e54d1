"""Run a model: the names of its inputs, and a context for evaluation mode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from normscope.errors import InputError
from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import torch_settings_kept
from normscope.models.walk import places


def accepted_by(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments that a model's forward takes."""
    return _parameters(type(model).forward)


def check_reads_text(model: Any, instead: str) -> None:
    """Raise InputError for a model whose input is no text.

    Args:
        model: a transformers model.
        instead: what to do with such a model.
    """
    reads = getattr(model, "main_input_name", "input_ids")
    if reads not in ("input_ids", "decoder_input_ids") and reads in accepted_by(model):
        raise InputError(f"{type(model).__name__} reads {reads}, not text: {instead}")


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
