"""Group rows of similar lengths into batches, and split batches that do not fit in GPU memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from normscope.errors import InputError

Item = TypeVar("Item")

ADVICE = (
    'a shorter text, fewer maps, a smaller dtype, attention="fused" with reduce=, or device="cpu" '
    "needs less"
)


def by_length(
    lengths: Sequence[tuple[int, ...]], budget: int | Callable[[int], int], multiple: int = 1
) -> Iterator[list[int]]:
    """Yield batches of row indices with similar lengths, longest first.

    Each row has one length for each of its sides (one, or source and target). A batch has at most
    ``budget`` padded tokens, all sides together, and at least one row; the budget can be a function
    of the padded length. Lengths count as the next ``multiple``: batches of the same padded length
    then have the same number of rows.
    """
    lengths = [tuple(-(-n // multiple) * multiple for n in row) for row in lengths]
    batch: list[int] = []
    longest: tuple[int, ...] = ()
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True):
        padded = tuple(map(max, longest, lengths[row])) if batch else lengths[row]
        most = budget if isinstance(budget, int) else budget(sum(padded))
        if batch and (len(batch) + 1) * sum(padded) > most:
            yield batch
            batch, padded = [], lengths[row]
        batch.append(row)
        longest = padded
    if batch:
        yield batch


def padded_length(lengths: Sequence[int], multiple: int, limit: int | None) -> int:
    """Return the length that rows are padded to: a multiple, but at most ``limit``.

    Rows of equal length need no padding, and get none.
    """
    longest = max(lengths)
    if longest == min(lengths):
        return longest
    rounded = -(-longest // multiple) * multiple
    return rounded if limit is None else max(longest, min(rounded, limit))


def halves(batch: Sequence[Item], what: str) -> tuple[list[Item], list[Item]]:
    """Split a batch that does not fit in GPU memory; raise InputError for a single row.

    Call it outside the ``except`` block: the traceback keeps alive the tensors to be freed.
    """
    if len(batch) < 2:
        raise out_of_memory(f"even one of {what}")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(batch) // 2
    warnings.warn(
        f"{len(batch)} of {what} do not fit in GPU memory at once; continuing with "
        f"{len(batch) - half} at a time, which may change the last digits of the results",
        RuntimeWarning,
        stacklevel=3,
    )
    return list(batch[:half]), list(batch[half:])


def out_of_memory(what: str) -> InputError:
    """Return the error for a batch that does not fit in memory and cannot be split."""
    return InputError(f"not enough GPU memory for {what}; {ADVICE}")
