"""Methods that change one token at a time, and run the model again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MASKS, MethodCall
from normscope.models.running import accepted_by

Replacement = Callable[
    [list[int]], dict[str, Any]
]  # positions -> inputs of a copy of the batch for each


class Erasure:
    """The value less that with one key masked: for all queries, in all layers.

    Position ids stay as they are. The query of the token remains, and so does its residual: only
    what others read of it is gone.
    """

    def shares(self, call: MethodCall) -> RowShares:
        """Return the drop of the value for every real position."""
        value = call.plain()
        sources = []
        for stack, name in call.places().items():
            length = call.inputs[name].shape[1]
            mask_name = MASKS[stack]
            if mask_name not in accepted_by(call.model):
                raise call.refuse(f"it accepts no {mask_name}, so no key can be masked")
            real = call.real(stack, length)
            mask = torch.from_numpy(real).to(call.inputs[name].device).long()
            given = _numbered(call, name, {**call.inputs, mask_name: mask})

            def erased(positions: list[int], given: Any = given, name: str = mask_name) -> Any:
                copies = call.repeated(len(positions), given)
                for at, position in enumerate(positions):
                    copies[name][at * call.rows : (at + 1) * call.rows, position] = 0
                return copies

            sources.append(SourceShares(stack, "word", _drops(call, value, real, erased)))
        return call.signed(value, sources)


class BlankOut:
    """The value less that with one token replaced by that of the baseline."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the drop of the value for every position at which the baseline differs."""
        assert call.baseline is not None
        value = call.plain()
        sources = []
        for stack, name in call.places().items():
            own, other = call.inputs[name], call.baseline[name]
            differs = (own != other).reshape(*own.shape[:2], -1).any(-1).cpu().numpy()

            def blanked(
                positions: list[int], own: Tensor = own, other: Tensor = other, name: str = name
            ) -> Any:
                replaced = torch.cat([own] * len(positions))
                for at, position in enumerate(positions):
                    rows = slice(at * call.rows, (at + 1) * call.rows)
                    replaced[rows, position] = other[:, position]
                return call.repeated(len(positions), None, **{name: replaced})

            sources.append(SourceShares(stack, "word", _drops(call, value, differs, blanked)))
        return call.signed(value, sources)


def _drops(call: MethodCall, value: Any, changed: Any, change: Replacement) -> np.ndarray:
    """Return the drop of the value for each position, (row, step, position)."""
    scores = np.zeros((*value.shape, changed.shape[1]))
    positions = np.flatnonzero(changed.any(axis=0)).tolist()
    for part in call.chunks(len(positions), changed.shape[1]):
        chosen = [positions[at] for at in part]
        values = call.plain(change(chosen)).reshape(len(chosen), *value.shape)
        for at, position in enumerate(chosen):
            scores[:, :, position] = value - values[at]
    return np.where(changed[:, None], scores, 0.0)


def _numbered(call: MethodCall, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return inputs with position ids, where the model would count them by its mask."""
    known = "decoder_position_ids" if name.startswith("decoder") else "position_ids"
    if known in given or known not in accepted_by(call.model):
        return given
    tensor = given[name]
    mask = given[MASKS["decoder" if name.startswith("decoder") else ""]]
    by_mask = (mask.cumsum(1) - 1).clamp_min(0)
    plain = torch.arange(tensor.shape[1], device=tensor.device).expand_as(by_mask)
    own = call.plain(given)
    for numbers in (plain, by_mask):
        numbered = {**given, known: numbers.contiguous()}
        if np.allclose(call.plain(numbered), own, rtol=1e-6, atol=1e-9):
            return numbered
    return given
