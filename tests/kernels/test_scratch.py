"""Working memory: taken again under its name, and kept by the C library when it is freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import torch

from normscope.kernels import Scratch


def test_working_memory_is_taken_again() -> None:
    scratch, like = Scratch(), torch.zeros(1)
    one = scratch.take("a", (2, 3), like)
    assert (one.shape, one.dtype) == ((2, 3), torch.float64)
    assert scratch.take("a", (3, 2), like).data_ptr() == one.data_ptr()
    assert scratch.take("b", (2, 3), like).data_ptr() != one.data_ptr()
    assert scratch.take("a", (2, 3), like, torch.float32).dtype == torch.float32
    large = scratch.take("a", (50,), like)
    assert scratch.take("a", (49,), like).data_ptr() == large.data_ptr()
    turned = torch.randn(3, 4, 5, dtype=torch.float64).permute(2, 0, 1)
    copied = scratch.copy("c", turned.float())
    assert torch.equal(copied, turned.float().double())
    assert copied.stride() == turned.stride()


FAULTS = """
import resource
import torch
from normscope.kernels import Scratch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        [torch.ones(3 * 2**20) for _ in range(4)]  # 12 MiB each, 12288 pages together
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
Scratch()
print(given_back, faults())
"""


def test_freed_memory_is_kept_for_the_next_array() -> None:
    """What a C library other than glibc does with it is its own affair."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    given_back, kept = map(int, done.stdout.split())
    if platform.libc_ver()[0] == "glibc":
        assert given_back > kept
        assert kept <= 12288  # at most once, for all eight rounds
