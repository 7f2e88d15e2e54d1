"""The judge of exactness: raise unless the parts add up to what the model itself computed.

The bounds are the largest relative gaps that rounding explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from normscope.engine.batch import Batch
from normscope.errors import ExactnessError, InputError

BOUNDS = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
TF32 = 5e-3  # TF32 rounds the inputs of a product to 10 bits; allow for it where it is enabled


def bound_of(dtypes: Iterable[torch.dtype]) -> float:
    """Return the largest gap that rounding explains in computations with these dtypes."""
    bound = max(BOUNDS.get(dtype, BOUNDS[torch.float32]) for dtype in dtypes)
    return max(bound, TF32) if torch.backends.cuda.matmul.allow_tf32 else bound


def judge(
    model: nn.Module,
    batch: Batch,
    layers: Sequence[str],
    dtypes: Sequence[set[torch.dtype]],
    gaps: Mapping[str, np.ndarray],
    bound: float | None = None,
) -> None:
    """Raise for the first layer whose gaps are not finite, or larger than rounding explains.

    Args:
        model: the model that ran.
        batch: its inputs.
        layers: the name of each layer.
        dtypes: the dtypes in which each layer's states were computed.
        gaps: (layer, row) for each quantity measured, relative to the size of the parts.
        bound: the largest gap to accept; by default that of the dtypes.
    """
    smallest = min(map(bound_of, dtypes), default=0.0) if bound is None else bound
    smallest = min(smallest, float(np.finfo(np.float64).max))
    if all(by_layer.max(initial=0.0) <= smallest for by_layer in gaps.values()):
        return  # not if a gap is NaN or infinite
    for index, layer in enumerate(layers):
        for by_layer in gaps.values():
            if not np.isfinite(by_layer[index]).all():
                row = int(np.argmax(~np.isfinite(by_layer[index])))
                _refuse_not_finite(model, f"{batch.row_name(row)}: {layer}", dtypes[index])
        limit = bound_of(dtypes[index]) if bound is None else bound
        for name, by_layer in gaps.items():
            worst = int(by_layer[index].argmax())
            gap = float(by_layer[index][worst])
            if not gap <= limit:
                raise ExactnessError(
                    f"{batch.row_name(worst)}: {name} of {layer}: the parts differ from the "
                    f"model's own output by {gap:.1e} of their size, more than {limit:.0e}, the "
                    f"bound for {_listed(dtypes[index])}. The numbers would be wrong, so none are "
                    "returned."
                )


def _refuse_not_finite(model: nn.Module, where: str, dtypes: set[torch.dtype]) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(
                f"{where} gives NaN or infinity: the model's parameter {name} contains NaN or "
                "infinity. The results would be meaningless; load or train the model again."
            )
    raise InputError(
        f"{where} gives NaN or infinity although all parameters are finite: an overflow in "
        f"{_listed(dtypes)}. {_wider(dtypes)}"
    )


def _wider(dtypes: set[torch.dtype]) -> str:
    """Say in which dtype there may be no overflow: one with a larger range."""
    if torch.float16 in dtypes:
        return "Use bfloat16 or float32, which have a larger range: model.float(), --dtype float32."
    if torch.float64 in dtypes:
        return "No dtype has a larger range: the model itself overflows for this input."
    return (
        "Use float64, which has a larger range: model.double(), --dtype float64. If that gives the "
        "same, the model itself overflows for this input."
    )


# Gaps add up over all layers of a model.
SHARE_BOUNDS = {**BOUNDS, torch.float64: 1e-10, torch.float32: 1e-4}
DIFFERENCE = 10.0  # the shares of a difference may be as small as the rounding of its two outputs


def share_bound(dtypes: set[torch.dtype], difference: bool) -> float:
    """Return the largest gap of a whole model's shares that rounding explains."""
    bound = max(SHARE_BOUNDS.get(dtype, SHARE_BOUNDS[torch.float32]) for dtype in dtypes)
    bound = max(bound, TF32) if torch.backends.cuda.matmul.allow_tf32 else bound
    return min(bound * DIFFERENCE, 0.1) if difference else bound


def judge_shares(
    kind: str,
    gaps: np.ndarray,
    dtypes: set[torch.dtype],
    *,
    difference: bool,
    explain_gap: Callable[[], str],
) -> None:
    """Raise if the shares of a whole model's output do not add up.

    Args:
        kind: the model's class.
        gaps: (row, quantity), relative to the sizes of the shares.
        dtypes: the dtypes that the states were computed in.
        difference: whether the shares are of a difference of two outputs.
        explain_gap: says which operation does not pass shares on; called for a gap that is too
            large.
    """
    if not np.isfinite(gaps).all():
        row = int(np.argmax(~np.isfinite(gaps).all(1)))
        raise InputError(
            f"row {row}: {kind} gives NaN or infinity (an overflow in {_listed(dtypes)}, or "
            f"parameters that are not finite), so there is nothing to explain. {_wider(dtypes)} If "
            "parameters are not finite, load the model again"
        )
    bound = share_bound(dtypes, difference)
    row = int(gaps.max(1).argmax())
    if not gaps[row].max() <= bound:
        raise ExactnessError(
            f"row {row}: the shares of {kind} do not add up to its output: the gap is "
            f"{gaps[row].max():.1e} of their size, more than {bound:.0e}, the bound for "
            f"{_listed(dtypes)}; {explain_gap()}. The numbers would be wrong, so none are returned."
        )


def check_masks(
    batch: Batch, layer: str, blocked: Tensor | None, leaked: tuple[Tensor, Tensor] | None
) -> None:
    """Raise InputError if a real query is blocked from all keys, or attends to padding."""
    if blocked is not None and bool(blocked.any()):
        row, query = blocked.nonzero()[0].tolist()
        raise InputError(
            f"{batch.row_name(row)}, position {query} is a real token but its attention mask "
            f"admits no key in {layer}; its weights would be meaningless. Correct the mask."
        )
    if leaked is not None and bool((leaked[0] > 0).any()):
        row, query = (leaked[0] > 0).nonzero()[0].tolist()
        raise InputError(
            f"{batch.row_name(row)}, position {query} attends to position "
            f"{int(leaked[1][row, query])}, which the attention mask marks as padding, in {layer}: "
            "the model does not apply the mask it was given, or the row is masked as a whole. Run "
            "each row by itself, unpadded."
        )


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
