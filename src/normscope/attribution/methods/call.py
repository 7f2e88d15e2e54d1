"""What a method is given: a batch of rows, what is explained of them, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.table import ChosenMethod
from normscope.attribution.passes import Explained
from normscope.engine.given import row_count
from normscope.errors import InputError, UnsupportedModelError
from normscope.linearisation.structure import structure_of
from normscope.models.running import accepted_by, evaluating

MASKS = {"encoder": "attention_mask", "": "attention_mask", "decoder": "decoder_attention_mask"}
IDS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
TOKENS = 2048  # positions in one batch of changed rows


@dataclass(frozen=True)
class MethodCall:
    """One batch, and the method that explains it.

    Attributes:
        model: an unmodified model.
        inputs: keyword arguments of its forward pass, on its device.
        value: returns the scalars, (row, step), given the model's output.
        chosen: the method and its options.
        baseline: the baseline of each row, as inputs.
        gate: the rule of gated feed-forwards.
        trace: whether shares inside the model are asked for.
        recompute: whether states are computed again in the backward pass.
        alone: whether the model reads one row at a time only.
    """

    model: nn.Module
    inputs: Mapping[str, Any]
    value: Explained
    chosen: ChosenMethod
    baseline: Mapping[str, Any] | None = None
    gate: str = "half"
    trace: bool = False
    recompute: bool | str = "auto"
    alone: bool = False

    @property
    def rows(self) -> int:
        """The number of rows."""
        return row_count(self.inputs)

    def refuse(self, why: str) -> UnsupportedModelError:
        """Return the error for a model that a method is not defined for."""
        return UnsupportedModelError(
            f'method="{self.chosen.name}" is not defined for {type(self.model).__name__}: {why}'
        )

    # ---- positions

    def places(self) -> dict[str, str]:
        """Return the stacks that read tokens, and the inputs that hold them."""
        structure = structure_of(self.model)
        two = structure.two_sided and len(structure.stacks) > 1
        found: dict[str, str] = {}
        for name in IDS:
            tensor = self.inputs.get(name)
            if isinstance(tensor, Tensor) and tensor.dim() == (3 if "embeds" in name else 2):
                decoder = name.startswith("decoder")
                found.setdefault("" if not two else "decoder" if decoder else "encoder", name)
        if not found:
            raise InputError(
                f'method="{self.chosen.name}" changes or reads the tokens of a text, and these '
                "inputs have none, or several choices"
            )
        return found

    def real(self, stack: str, length: int) -> NDArray[np.bool_]:
        """Return which positions of a stack are real, (row, position)."""
        mask = self.inputs.get(MASKS.get(stack, "attention_mask"))
        if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape != (self.rows, length):
            return np.ones((self.rows, length), dtype=np.bool_)
        return mask.bool().cpu().numpy()

    # ---- passes

    def plain(self, inputs: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
        """Return the model's own values, (row, step)."""
        given = dict(self.inputs if inputs is None else inputs)
        if "use_cache" in accepted_by(self.model):
            given.setdefault("use_cache", False)
        with evaluating(self.model), torch.no_grad():
            return self.value(self.model(**given)).double().cpu().numpy()

    def chunks(self, count: int, length: int) -> Iterator[range]:
        """Divide so many copies of the batch into parts that are run together."""
        size = 1 if self.alone else max(1, TOKENS // max(1, self.rows * length))
        for start in range(0, count, size):
            yield range(start, min(start + size, count))

    def repeated(
        self, copies: int, inputs: Mapping[str, Any] | None = None, **changed: Tensor
    ) -> dict[str, Any]:
        """Return the inputs of several copies of the batch, one after the other."""
        given = dict(self.inputs if inputs is None else inputs)
        for name, tensor in given.items():
            if isinstance(tensor, Tensor) and tensor.dim():
                given[name] = torch.cat([tensor] * copies)
        return {**given, **changed}

    def sizes(self, value: NDArray[np.float64], sources: Iterable[SourceShares]) -> RowShares:
        """Return scores that do not add up to the value."""
        sources = list(sources)
        return RowShares(value, np.zeros_like(value), np.full_like(value, np.nan), sources)

    def signed(
        self,
        value: NDArray[np.float64],
        sources: Iterable[SourceShares],
        bias: NDArray[np.float64] | None = None,
    ) -> RowShares:
        """Return scores in the unit of the value, with their gap to it as the error."""
        sources = list(sources)
        bias = np.zeros_like(value) if bias is None else bias
        return RowShares(value, bias, gap_of(value, sources, bias), sources)


def gap_of(
    value: NDArray[np.float64], sources: Iterable[SourceShares], bias: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return |value − Σ shares − bias| / (Σ|shares| + |bias|), (row, step)."""
    total, size = bias.copy(), np.abs(bias)
    for source in sources:
        total = total + source.shares.sum(-1)
        size = size + np.abs(source.shares).sum(-1)
    return np.asarray(np.abs(value - total) / np.where(size > 0, size, 1))
