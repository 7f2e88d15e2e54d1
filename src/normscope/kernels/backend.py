"""Which kernels serve: torch's own operations everywhere, Triton's on CUDA where it is there."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from types import ModuleType
from typing import Literal

import torch

from normscope.errors import InputError

Kernels = Literal["auto", "torch", "triton"]
LOWEST = (3, 6)  # older ones lack what the kernels use
KERNELS: tuple[Kernels, ...] = ("auto", "torch", "triton")


def check_kernels(given: str) -> Kernels:
    """The choice, or an error that lists the valid ones."""
    for kernels in KERNELS:
        if given == kernels:
            return kernels
    raise InputError(f"kernels is one of {', '.join(KERNELS)}, but was given {given!r}")


def fused(kernels: Kernels, device: torch.device) -> ModuleType | None:
    """The Triton kernels if they are to serve on this device, otherwise None."""
    if kernels == "torch" or (kernels == "auto" and device.type != "cuda"):
        return None
    # Without a GPU there is Triton's interpreter, which is slow and for tests.
    runs = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    if not runs or not _has_triton():
        if kernels == "auto":
            return None
        lacking = f"the package triton (from {'.'.join(map(str, LOWEST))} on) is not installed"
        why = lacking if runs else f"{device} is no CUDA device"
        raise InputError(f'kernels="triton" cannot serve here: {why}; use kernels="auto"')
    from normscope.kernels import triton

    return triton


@functools.cache
def _has_triton() -> bool:
    try:
        found = importlib.metadata.version("triton").split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(found[0]), int(found[1])) >= LOWEST
