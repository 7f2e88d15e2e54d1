"""Choice of kernels: torch's own operations on any device, Triton's on CUDA if it is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Literal

import torch

from normscope.errors import InputError
from normscope.foundation.interrupts import shielded

Kernels = Literal["auto", "torch", "triton"]
KERNELS: tuple[Kernels, ...] = ("auto", "torch", "triton")
LOWEST = (3, 6)  # the first Triton version that has everything the kernels use


def check_kernels(name: str) -> Kernels:
    """Return a valid choice of kernels, or raise InputError for any other name."""
    for kernels in KERNELS:
        if name == kernels:
            return kernels
    raise InputError(f"kernels must be one of {', '.join(KERNELS)}, not {name!r}")


def triton_for(kernels: Kernels, device: torch.device) -> ModuleType | None:
    """Return the module of Triton kernels if they are to be used on ``device``, else None.

    Raises:
        InputError: Triton was asked for by name and cannot run here.
    """
    if kernels == "torch" or (kernels == "auto" and device.type != "cuda"):
        return None
    # Without a GPU there is Triton's interpreter, which is slow and meant for tests.
    can_run = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    if not can_run or not _has_triton():
        if kernels == "auto":
            return None
        version = ".".join(map(str, LOWEST))
        reason = (
            f"the package triton (version {version} or later) is not installed"
            if can_run
            else f"{device} is not a CUDA device"
        )
        raise InputError(f'kernels="triton" cannot be used: {reason}; use kernels="auto"')
    from normscope.kernels import triton

    return triton


@shielded
def without_tf32(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU in full inside the context, also if TF32 is allowed."""
    products = torch.backends.cuda.matmul
    if device.type != "cuda" or not products.allow_tf32:
        yield
        return
    try:
        products.allow_tf32 = False
        yield
    finally:
        products.allow_tf32 = True


@functools.cache
def _has_triton() -> bool:
    try:
        version = importlib.metadata.version("triton").split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(version[0]), int(version[1])) >= LOWEST
