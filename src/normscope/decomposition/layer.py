"""A whole layer, taken apart: which scopes it has, and each of them measured.

A scope is how far the vectors are followed. Names of the 2021 paper: ``attn_n`` (attention alone),
``attn_res_n`` (with the residual), ``attn_res_ln_n`` (with the norm after it). Names of the 2024
paper say what has been passed: ``atb`` (the attention block), then ``ln`` (the norm before the
feed-forward), ``ff``, ``res`` and ``ln`` (the norm after it), each where the layout has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from normscope.capture.layers import LayerCapture
from normscope.capture.projection import affine
from normscope.decomposition.attention import AttentionDecomposition, Cells
from normscope.decomposition.block import Factored, Known, Norm, Parts
from normscope.decomposition.feedforward import FeedForward, FFBias, Measured, Weights
from normscope.decomposition.norms import norm_of
from normscope.foundation.shapes import Float
from normscope.kernels import Kernels, Linear, RowInputs, Scratch, triton_for
from normscope.models.layouts import Attention, Experts, Layout, activation_of, part

Kind = Literal["self", "cross"]


def scopes_of(layout: Layout, kind: Kind) -> tuple[str, ...]:
    """The maps that one attention of a layer has, in the order in which the layer makes them."""
    block = layout.cross if kind == "cross" else layout.attention
    assert block is not None
    names = ["attn_w", "attn_n", "attn_res_w", "attn_res_n"]
    names += ["attn_res_ln_n"] if block.after else []
    names += ["atb"]
    ff = layout.ff
    if isinstance(ff, Experts) or (kind == "self" and layout.cross is not None):
        return tuple(names)
    passed = "atb_ln_ff" if ff.before else "atb_ff"
    if layout.parallel:
        return (*names, f"{passed}_res")
    names += ["atb_ln"] if ff.before else []
    names += [passed, f"{passed}_res"]
    return (*names, f"{passed}_res_ln") if ff.after else tuple(names)


class LayerDecomposition:
    """One attention of one layer and what follows it up to the next."""

    def __init__(
        self,
        layer: LayerCapture,
        kind: Kind,
        *,
        ff_bias: FFBias = "path",
        memory: int = 2**31,
        scratch: Scratch | None = None,
        kernels: Kernels = "auto",
    ) -> None:
        captured = layer.cross if kind == "cross" else layer.attention
        block = layer.layout.cross if kind == "cross" else layer.layout.attention
        assert captured is not None
        assert block is not None
        self.layer, self.kind, self.captured, self.block = layer, kind, captured, block
        self.ff_bias, self.memory = ff_bias, memory
        self.scopes = scopes_of(layer.layout, kind)
        self.dtypes = {captured.output.dtype}  # in which the model computed what is compared
        self.alone = AttentionDecomposition(captured, scratch, kernels)
        self._norms: dict[str, Norm] = {}
        self._scales: dict[str, Linear] = {}

    # ---- the chain: steps that are linear, and the parts that they make

    def _steps(self, scope: str) -> tuple[Linear, ...]:
        """What is done to the vectors αf up to the end of a scope that has no activation."""
        block, before = self.block, self.layer.layout.ff.before
        if scope == "attn_n":
            return ()
        norms = [self._norm(block.branch)]
        scale = self._scale(block.scale)
        if scope in ("attn_res_ln_n", "atb", "atb_ln"):
            norms.append(self._norm(block.after))
        if scope == "atb_ln":
            norms.append(self._norm(before))
        branch, *rest = (() if norm is None else (norm.linear,) for norm in norms)
        return (*branch, *(() if scale is None else (scale,)), *(s for one in rest for s in one))

    @cached_property
    def attention(self) -> Parts:
        """s_ij."""
        return Parts.of_attention(self.alone)

    @cached_property
    def with_residual(self) -> Parts:
        """z_ij: branch norm and multiplier, if any, and the residual."""
        made = self.attention
        if (branch := self._norm(self.block.branch)) is not None:
            made = made.norm(branch)
        if (scale := self._scale(self.block.scale)) is not None:
            made = made.scaled(scale)
        assert self.captured.residual is not None
        return made.residual(self.captured.residual)

    @cached_property
    def whole_block(self) -> Parts:
        """The attention block: z_ij, or p_ij where a norm follows."""
        after = self._norm(self.block.after)
        return self.with_residual if after is None else self.with_residual.norm(after)

    @cached_property
    def into_ff(self) -> Parts:
        """What the feed-forward reads."""
        before = self._norm(self.layer.layout.ff.before)
        return self.whole_block if before is None else self.whole_block.norm(before)

    # ---- measuring

    def factored(self, wanted: Sequence[str]) -> dict[str, Factored]:
        """The scopes asked for that no activation comes before; always ``attn_n``."""
        chain: dict[str, Callable[[], Parts]] = {
            "attn_n": lambda: self.attention,
            "attn_res_n": lambda: self.with_residual,
            "attn_res_ln_n": lambda: self.whole_block,
            "atb": lambda: self.whole_block,
            "atb_ln": lambda: self.into_ff,
        }
        if self.layer.layout.parallel:
            # It reads the query's own state alone, so all that it adds is the query's own.
            last = self.scopes[-1]
            chain[last] = lambda: self.with_residual.residual(self._ff_output())
        chosen = ["attn_n", *(name for name in wanted if name in chain and name != "attn_n")]
        # Scopes with the same L differ off the diagonal by a factor for each query only; an L
        # goes on where the one before it ended.
        steps = {name: self._steps(name) for name in chosen}
        linear = sorted(set(steps.values()), key=len)
        self.alone.measure([after[len(before) :] for before, after in pairwise(linear)])
        levels = {name: linear.index(steps[name]) for name in chosen}
        known = self._known_in_one_pass(chosen)
        if known is not None:
            return {
                name: Factored(self.alone, levels[name], known[name], name != "attn_n",
                               partial(self._cells, steps[name], known[name]))
                for name in chosen
            }  # fmt: skip
        made = {name: chain[name]() for name in chosen}
        return {
            name: Factored(self.alone, levels[name], Known.of(parts, self.real(name)),
                           name != "attn_n", parts.cells)
            for name, parts in made.items()
        }  # fmt: skip

    def _cells(
        self, steps: Sequence[Linear], known: Known, cells: Cells
    ) -> Float[Tensor, "batch cell hidden"]:
        """v_ij = w_i L(Σ_h αf + δ_ij x_i) at some cells of a plain block."""
        assert self.captured.residual is not None
        states = self.captured.residual[cells.row, cells.i].double()
        made = cells.vectors.sum(dim=2) + states * (cells.i == cells.j).unsqueeze(-1)
        for step in steps:
            made = step(made)
        weight = known.weight
        return (
            made * weight[cells.row, cells.i].unsqueeze(-1) if isinstance(weight, Tensor) else made
        )

    def _known_in_one_pass(self, chosen: Sequence[str]) -> dict[str, Known] | None:
        """The lengths that scopes need, by one kernel, where the block is a plain one."""
        triton = triton_for(self.alone.kernels, self.captured.device)
        block, own, residual = self.block, self.alone.grams.diagonal, self.captured.residual
        plain = block.branch is None and block.scale is None and not self.layer.layout.parallel
        plain = plain and not (block.after and "atb_ln" in chosen)
        if triton is None or not plain or own is None or residual is None:
            return None
        path = block.after or (self.layer.layout.ff.before if "atb_ln" in chosen else None)
        how: dict[str, Any] = {}
        if len(chosen) > 1:
            how = {"residual": residual.flatten(0, 1), "after_residual": _rows(self._summed())}
        norm = self._norm(path) if how else None
        if norm is not None:
            form = norm.parameters
            how |= {"gamma": form.scale, "beta": form.bias, "centred": form.centred}
            how |= {"eps": form.eps, "after_norm": _rows(self.layer.output_of(path or ""))}
        rows = RowInputs(
            _rows(self.alone.reconstructed),
            _rows(self.captured.output),
            bias=self.alone.bias,
            own=_rows(own),
            **how,
        )
        found = triton.row_lengths(rows)
        shape = residual.shape[:2]

        def known(own: Tensor, others: Tensor, bias: Tensor, gap: Tensor, weight: Any) -> Known:
            return Known(own.view(shape), others.view(shape), bias, gap.view(shape), weight)

        share = self.alone.bias_share()
        made = {"attn_n": known(found.own, found.others, share, found.gap, 1.0)}
        if len(chosen) > 1:
            made["attn_res_n"] = known(
                found.own_residual, found.others, share, found.gap_residual, 1.0
            )
        if norm is not None:
            normed = known(
                found.own_norm,
                found.others_norm,
                found.bias_norm.view(shape),
                found.gap_norm,
                1 / found.sigma.view(shape),
            )
            made |= {"attn_res_ln_n": normed, "atb_ln": normed}
        made["atb"] = (
            made["attn_res_ln_n" if block.after else "attn_res_n"] if how else made["attn_n"]
        )
        return made

    def beyond(self, wanted: Sequence[str]) -> dict[str, Measured]:
        """The scopes asked for behind an activation."""
        after_ff = [scope for scope in self.scopes if "_ff" in scope]
        if self.layer.layout.parallel or not set(wanted) & set(after_ff):
            return {}
        made = dict(zip(after_ff, self._feed_forward().measure(), strict=True))
        return {name: made[name] for name in wanted if name in made}

    def real(self, scope: str) -> Float[Tensor, "batch query hidden"]:
        """The model's own hidden state at the end of a scope."""
        layer, block, ff = self.layer, self.block, self.layer.layout.ff
        if scope == "attn_n":
            return self.captured.output
        if scope == "attn_res_n" or (scope == "atb" and block.after is None):
            return self._summed()
        if scope in ("attn_res_ln_n", "atb"):
            assert block.after is not None
            return layer.output_of(block.after)
        if scope == "atb_ln":
            assert ff.before is not None
            return layer.output_of(ff.before)
        if scope.endswith("_ff"):
            return self._ff_output()
        if scope.endswith("_res") and ff.after is not None:
            return layer.given(ff.after)
        return layer.output

    def _summed(self) -> Tensor:
        """The residual sum of the attention block, where the model reads it next."""
        layer, layout = self.layer, self.layer.layout
        if self.block.after is not None:
            return layer.given(self.block.after)
        if layout.parallel:  # the model never has it: attention and feed-forward are added at once
            assert self.captured.residual is not None
            return self.captured.residual + self._branch_output()
        following = layout.cross if self.kind == "self" and layout.cross is not None else layout.ff
        if following.before is not None:
            return layer.given(following.before)
        assert not isinstance(following, Attention | Experts)
        return layer.given(following.gate or following.first)

    def _branch_output(self) -> Tensor:
        made = self.captured.output
        if self.block.branch is not None:
            made = self.layer.output_of(self.block.branch)
        scale = self._scale(self.block.scale)
        return made if scale is None else scale(made)

    def _ff_output(self) -> Tensor:
        """What the feed-forward's branch adds to the residual."""
        ff = self.layer.layout.ff
        assert not isinstance(ff, Experts)
        made = self.layer.output_of(ff.branch or ff.second)
        scale = self._scale(ff.scale)
        return made if scale is None else scale(made)

    # ---- reading the layer's modules

    def _norm(self, path: str | None) -> Norm | None:
        """The norm at a path, as it acted; always the same object for the same path."""
        if path is None:
            return None
        if path not in self._norms:
            module, given = self.layer.module.get_submodule(path), self.layer.given(path)
            name = f"{self.layer.name}.{path}"
            parameters = norm_of(module, given, self.layer.output_of(path), name)
            self.dtypes.add(parameters.dtype)
            self._norms[path] = Norm(parameters, given)
        return self._norms[path]

    def _scale(self, path: str | None) -> Linear | None:
        if path is None:
            return None
        if path not in self._scales:
            found = part(self.layer.module, path)
            if isinstance(found, Tensor):
                factor = found.detach().double()
            else:  # filled in on the device: nothing is sent there
                how: Any = {"dtype": torch.float64, "device": self.captured.device}
                factor = torch.full((), float(found), **how)
            self._scales[path] = Linear(False, factor)
        return self._scales[path]

    def _linear(self, path: str) -> tuple[Tensor, Tensor | None]:
        module = self.layer.module.get_submodule(path)
        return affine(module, f"{self.layer.name}.{path}", self.layer.given(path))

    def _feed_forward(self) -> FeedForward:
        ff, module = self.layer.layout.ff, self.layer.module
        assert not isinstance(ff, Experts)
        first, first_bias = self._linear(ff.first)
        gate: Tensor | None = None
        gate_bias: Tensor | None = None
        if ff.gate is not None:
            gate, gate_bias = self._linear(ff.gate)
        elif ff.packed is not None:
            halves = first.chunk(2, dim=1)
            biases = (None, None) if first_bias is None else first_bias.chunk(2)
            order = (0, 1) if ff.packed == "gate_first" else (1, 0)
            gate, first = halves[order[0]], halves[order[1]]
            gate_bias, first_bias = biases[order[0]], biases[order[1]]
        second, second_bias = self._linear(ff.second)
        weights = Weights(
            first, first_bias, gate, gate_bias, second, second_bias, activation_of(module, ff)
        )
        return FeedForward(
            weights,
            self.into_ff,
            self.whole_block,
            branch=self._norm(ff.branch),
            scale=self._scale(ff.scale),
            after=self._norm(ff.after),
            ff_bias=self.ff_bias,
            memory=self.memory,
            dtype=torch.promote_types(self.captured.output.dtype, torch.float32),
        )


def _rows(states: Float[Tensor, "batch query hidden"]) -> Float[Tensor, "rows hidden"]:
    return states.flatten(0, 1)
