"""What a GPU's memory does not hold at once goes through in halves, and that is told."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeVar

import torch

from normscope.errors import InputError

T = TypeVar("T")

ADVICE = (
    'a shorter text, fewer maps, a smaller dtype, attention="fused" with reduce=, or device="cpu" '
    "takes less"
)


def halves(batch: Sequence[T], what: str) -> tuple[list[T], list[T]]:
    """Both halves of a batch that did not fit; one text alone is refused.

    To be called outside the handler of the error: its traceback holds what is to be freed.
    """
    if len(batch) < 2:
        raise out_of_memory(f"{what} alone")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(batch) // 2
    warnings.warn(
        f"the GPU's memory does not hold {len(batch)} of {what} at once; going on with "
        f"{len(batch) - half} at a time, which may change the last digit of a number",
        RuntimeWarning,
        stacklevel=3,
    )
    return list(batch[:half]), list(batch[half:])


def out_of_memory(what: str) -> InputError:
    """The error for what cannot be halved."""
    return InputError(f"the GPU's memory does not hold {what}; {ADVICE}")
