"""The stations of a layer, read from what its modules took and gave.

What is read may be the states of the model, or components of them: a station is a linear function
of what the modules around it took and gave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.decomposition.scopes import Station
from normscope.kernels import Linear
from normscope.models.layouts import Attention, FeedForward, Layout, Opaque, Wiring, factor_at


class LayerStates(ABC):
    """States of one layer in one run, or components of them, (batch, query, hidden)."""

    @property
    @abstractmethod
    def residual(self) -> Tensor:
        """What the residual connection around the attention carries."""

    @property
    @abstractmethod
    def attended(self) -> Tensor:
        """The output of the attention's projection."""

    @property
    @abstractmethod
    def output(self) -> Tensor:
        """The layer's output."""

    @abstractmethod
    def given(self, path: str) -> Tensor:
        """Return the input of a module."""

    @abstractmethod
    def output_of(self, path: str) -> Tensor:
        """Return the output of a module."""


def entry_of(block: Attention | FeedForward | Opaque) -> str | None:
    """Return the path of the module that reads what a block without a norm before it reads."""
    if isinstance(block, Opaque):
        return block.module
    return (block.gate or block.first) if isinstance(block, FeedForward) else None


def factor_of(layer: nn.Module, factor: str | float | None, device: torch.device) -> Linear | None:
    """Return the multiplication by a vector or number of a layer."""
    if factor is None:
        return None
    multiplier = factor_at(layer, factor)
    if isinstance(multiplier, Tensor):
        return Linear(False, multiplier.detach().double())
    # torch.full on the device avoids a copy from the CPU
    like: Any = {"dtype": torch.float64, "device": device}
    return Linear(False, torch.full((), float(multiplier), **like))


class Stations:
    """The stations of one attention of a layer and of what follows it.

    Args:
        layout: the layer's; None if it is not known, then there are only the ends of the layer.
        block: the attention block that the stations belong to.
        states: what the modules took and gave.
        factor: returns the multiplication by a vector or number of the layer, None for None.
    """

    def __init__(
        self,
        layout: Layout | None,
        block: Attention | None,
        states: LayerStates,
        factor: Callable[[str | float | None], Linear | None],
    ) -> None:
        self._layout, self._block, self.states = layout, block, states
        self.factor = factor

    @property
    def layout(self) -> Layout:
        """The layer's layout."""
        assert self._layout is not None
        return self._layout

    @property
    def block(self) -> Attention:
        """The attention block."""
        assert self._block is not None
        return self._block

    def at(self, end: Station) -> Tensor:
        """Return the state at a station."""
        states = self.states
        if end == "attention":
            return states.attended
        if end == "layer":
            return states.output
        block, ff = self.block, self.layout.ff
        if end == "residual" or (end == "block" and block.after is None):
            return self.residual_sum()
        if end in ("norm", "block"):
            assert block.after is not None
            return states.output_of(block.after)
        if end == "ff_input":
            assert ff.before is not None
            return states.output_of(ff.before)
        if end == "ff":
            return self.ff_output()
        if end == "ff_residual" and ff.after is not None:
            return states.given(ff.after)
        return states.output

    def residual(self) -> Tensor:
        """Return what the residual connection around the attention carries."""
        entering = self.states.residual
        return entering if self._block is None else self._carried(self._block, entering)

    def _carried(self, block: Wiring, entering: Tensor) -> Tensor:
        """Return what the residual connection of a block carries, given the block's input."""
        if block.before is not None:
            read = self.states.output_of if block.normed else self.states.given
            entering = read(block.before)
        carry = self.factor(block.carry)
        return entering if carry is None else carry(entering)

    def residual_sum(self) -> Tensor:
        """Return the residual sum of the attention block, as the next module receives it."""
        layout, block = self.layout, self.block
        if block.after is not None:
            return self.states.given(block.after)
        following = layout.ff if block is layout.cross else layout.cross or layout.ff
        reader = following.before or entry_of(following)
        if layout.parallel or reader is None:  # no module receives it
            return self.residual() + self._branch_output()
        return self.states.given(reader)

    def _branch_output(self) -> Tensor:
        branch = self.block.branch
        output = self.states.attended if branch is None else self.states.output_of(branch)
        scale = self.factor(self.block.scale)
        return output if scale is None else scale(output)

    def ff_output(self) -> Tensor:
        """Return what the feed-forward's branch adds to the residual."""
        ff = self.layout.ff
        made_by = ff.branch or (ff.second if isinstance(ff, FeedForward) else ff.module)
        if made_by is None:  # no single module makes it
            whole = self.states.output if ff.after is None else self.states.given(ff.after)
            block = self.at("block")
            return whole - (block if self.layout.parallel else self._carried(ff, block))
        output, scale = self.states.output_of(made_by), self.factor(ff.scale)
        return output if scale is None else scale(output)
