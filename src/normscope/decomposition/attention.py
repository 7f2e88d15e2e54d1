"""Attention as a sum of weighted vectors (Kobayashi et al., EMNLP 2020).

    y_i = Σ_h Σ_j α_ij^h f_h(x_j) + b_O,      f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h

b_V is part of f; b_O belongs to no token. The maps are α, ‖f‖, and ‖αf‖ for each head or for the
sum of the heads (the norm of the sum).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.capture.scores import Scores
from normscope.decomposition.cells import Cells
from normscope.foundation.caching import ModuleCache, tensor_state
from normscope.foundation.shapes import Float
from normscope.kernels import (
    Grams,
    Kernels,
    Linear,
    Scratch,
    cholesky,
    factor_norms,
    flash_norms,
    gram_matrices,
    product_grams,
    products_of,
    quadratic_norms,
    triton_for,
)
from normscope.kernels.products import LARGEST

Precision = Literal["model", "float64"]


class AttentionDecomposition:
    """One attention call, decomposed. No array is (query, key, hidden).

    In the precision of the model (at least float32), sums over keys are read from the model's own
    output, which the recorded weights and values are compared with, and lengths of cells come from
    factored Gram matrices. With ``precision="float64"``, and for float64 models, sums are
    recomputed from the recorded weights and values, and lengths are float64 throughout.

    Without ``maps`` there are no cells, and ‖f‖ comes from a small triangular factor of W_O: cheap,
    for statistics that are checked on a sample.
    """

    def __init__(
        self,
        captured: Capture,
        scratch: Scratch | None = None,
        kernels: Kernels = "auto",
        *,
        precision: Precision = "model",
        maps: bool = True,
    ) -> None:
        self.captured, self.kernels, self.maps = captured, kernels, maps
        wide = precision == "float64" or captured.output.dtype == torch.float64
        self.rebuilt = maps and wide
        self.scratch = Scratch() if scratch is None else scratch
        self.value = captured.value
        self.bias = captured.projection.bias
        self.context_checked = False  # whether a kernel compared Σ_j αv of all queries
        self._grams: Grams | None = None

    @cached_property
    def weight(self) -> Float[Tensor, "head head_size out"]:
        """W_O in float64."""
        return self.scratch.copy("weight", self.captured.projection.weight)

    @property
    def alpha(self) -> Float[Tensor, "batch head query key"]:
        """What multiplies f as a whole: the attention weights, times a scale that is held."""
        return self.captured.scaled_rows(slice(0, self.captured.shape[2]))

    # ---- Gram matrices

    @property
    def grams(self) -> Grams:
        """The Gram matrices and lengths of f, and the vectors on the diagonal."""
        return self.measure(()) if self._grams is None else self._grams

    def measure(self, chain: Sequence[Sequence[Linear]]) -> Grams:
        """Compute Gram matrices also of L_1 f, L_2 L_1 f, …, and keep them as ``grams``."""
        projection = self.captured.projection
        if self.products:
            assert projection.module is not None
            products = products_of(projection.module, projection.weight, chain)
            matrices = product_grams(self.value, products, self.scratch)
            single = matrices[0].diagonal(dim1=2, dim2=3).transpose(1, 2).sqrt()
            if not self.rebuilt:  # from the upper half, counted twice, to the whole
                matrices = [(upper + upper.mT).mul_(0.5) for upper in matrices]
            own = self.captured.own_vectors(torch.float64) if self.rebuilt else None
            self._grams = Grams(matrices, single, own)
        else:
            weight, own = self.weight, self.captured.own_weight()
            if not self.rebuilt:
                wide = torch.promote_types(projection.weight.dtype, torch.float32)
                weight = projection.weight if self.flash else projection.weight.to(wide)
                own = None
            self._grams = gram_matrices(self.value, weight, chain, own, self.scratch, self.kernels)
        return self._grams

    @property
    def products(self) -> bool:
        """Whether Gram matrices are made from products of W_O with itself."""
        projection, device = self.captured.projection, self.captured.device
        small = projection.weight.shape[0] * projection.weight.shape[1] <= LARGEST
        on_cpu = device.type == "cpu" and triton_for(self.kernels, device) is None
        return small and on_cpu and projection.module is not None

    @cached_property
    def flash(self) -> bool:
        """Whether the weights are made inside the kernels that need them, which are float32."""
        weights = self.captured.weights
        unwritten = isinstance(weights, Scores) and weights.query.element_size() == 2
        unwritten = unwritten and not self.rebuilt and self.captured.held is None
        return unwritten and triton_for(self.kernels, self.captured.device) is not None

    def rows(self, weights: bool) -> Iterator[tuple[slice, Tensor | None, list[Tensor]]]:
        """Yield blocks of queries: their weights if wanted, and ‖L Σ_h αf‖ for each L measured."""
        if self.flash:
            factors = [cholesky(grams) for grams in self.grams.matrices]
            for block in self.captured.blocks(written=weights):
                alpha = self.captured.rows(block) if weights else None
                yield block, alpha, flash_norms(self.captured.weights, factors, block)
            return
        factors = [] if self.rebuilt else [cholesky(grams) for grams in self.grams.matrices]
        for block in self.captured.blocks():
            alpha, scaled = self.captured.rows(block), self.captured.scaled_rows(block)
            if not self.rebuilt:
                yield block, alpha, factor_norms(scaled, factors, self.scratch)
                continue
            norms = quadratic_norms(scaled, self.grams.matrices, self.scratch, self.kernels)
            yield block, alpha, norms

    def head_norms(self) -> Float[Tensor, "batch head query key"]:
        """Compute ‖αf‖ of every head, in float64."""
        alpha = self.alpha.double()
        alpha = alpha.abs() if self.captured.signed else alpha
        return alpha * self.transformed_norm.unsqueeze(2)

    def own_parts(self) -> Float[Tensor, "batch query"]:
        """Compute Σ_h ‖α_ii f(x_i)‖, relative to which the sum of these vectors is accurate."""
        weight = self.captured.own_weight()
        assert weight is not None
        return (weight.double().abs() * self.transformed_norm).sum(dim=1)

    # ---- lengths and sums

    @cached_property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """‖f_h(x_j)‖."""
        if self.maps:
            return self.grams.single
        value, factor = self.value, _triangular_factor(self.captured)
        groups, heads = value.shape[1], len(factor)
        rows = value.to(factor.dtype).transpose(0, 1).flatten(1, 2)
        rows = rows.repeat_interleave(heads // groups, dim=0) if groups < heads else rows
        norms = torch.bmm(rows, factor).norm(dim=-1).double()
        return norms.unflatten(1, (value.shape[0], value.shape[2])).transpose(0, 1)

    @cached_property
    def reconstructed(self) -> Float[Tensor, "batch query out"]:
        """Σ αf + b_O; the model's own output unless the sums are recomputed."""
        if self.rebuilt:
            return self.captured.reconstruct(torch.float64)
        output = self.captured.output
        return output.to(torch.promote_types(output.dtype, torch.float32))

    @cached_property
    def own(self) -> Float[Tensor, "batch query out"] | None:
        """Σ_h αf of the query itself; None where no key is the query itself."""
        if not self.rebuilt:
            return self.captured.own_vectors()
        diagonal = self.grams.diagonal
        return None if diagonal is None else diagonal.to(self.reconstructed.dtype)

    @cached_property
    def others(self) -> Float[Tensor, "batch query out"]:
        """Σ αf over all other tokens."""
        if self.own is None:
            whole = self.reconstructed
            return whole if self.bias is None else whole - self.bias.to(whole.dtype)
        others = self.reconstructed - self.own
        return others if self.bias is None else others.sub_(self.bias.to(others.dtype))

    def bias_length(self) -> Float[Tensor, "batch query"]:
        """‖b_O‖: what belongs to no token, the same for every query."""
        batch, _, queries, _ = self.captured.shape
        if self.bias is None:
            return torch.zeros((batch, queries), dtype=torch.float64, device=self.captured.device)
        return self.bias.double().norm().to(self.captured.device).expand(batch, queries)

    # ---- proofs

    @cached_property
    def context_gap(self) -> Float[Tensor, "batch query"]:
        """The gap of Σ_j αv to what the output projection read; worst of all heads."""
        return self.captured.context_gap()

    def projection_gap(self, i: Tensor) -> Float[Tensor, " batch"]:
        """Return the gap of (Σ_j αv) W_O + b_O to the model's own output, for some queries.

        ``i``: (batch, some) queries. The worst of each row, relative to the parts of the heads.
        """
        captured, weight = self.captured, self.captured.projection.weight
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        # TF32 would round the factors of float32 products on a GPU.
        exact = torch.float64 if captured.device.type == "cuda" else torch.float32
        exact = torch.promote_types(captured.output.dtype, exact)
        merged = captured.merged[row, i].to(exact).flatten(0, 1)  # (batch some) features
        heads = merged.unflatten(1, (len(weight), -1)).transpose(0, 1)
        parts = torch.bmm(heads, weight.to(exact))
        difference = parts.sum(dim=0) - captured.output[row, i].flatten(0, 1)
        size = parts.norm(dim=-1).sum(dim=0)
        if self.bias is not None:
            difference += self.bias
            size += self.bias.norm()
        gap = difference.norm(dim=-1) / size.clamp_min(torch.finfo(exact).tiny)
        return gap.unflatten(0, i.shape).amax(dim=1).double()

    # ---- spot checks

    def at(self, i: Tensor, j: Tensor) -> Cells:
        """Build the vectors αf of some cells, (batch, cell) each, as a whole."""
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        weights = self.captured.weights
        context_gap: Tensor | None = None
        if isinstance(weights, Scores):
            rows = weights.some(i)  # batch head cell key
            alpha = rows.gather(3, j[:, None, :, None].expand(*rows.shape[:3], 1))[..., 0]
            alpha = alpha.transpose(1, 2).double()
            if not self.context_checked:
                context_gap = self._context_gap(rows, row, i)
        else:
            alpha = weights[row, :, i, j].double()  # batch cell head
        value = self.value[row, :, j].double()
        if value.shape[-2] != alpha.shape[-1]:
            value = value.repeat_interleave(alpha.shape[-1] // value.shape[-2], dim=-2)
        weighted, held = alpha.unsqueeze(-1) * value, self.captured.held
        scale = None if held is None or held.scale is None else held.scale[row, :, i].double()
        weighted = weighted if scale is None else weighted * scale.unsqueeze(-1)
        if held is not None and held.gate is not None:
            weighted = weighted * held.gate[row, i]
        scaled = weighted.flatten(0, 1).transpose(0, 1)  # head (batch cell) e
        vectors = torch.bmm(scaled, self.weight).transpose(0, 1).unflatten(0, i.shape)
        return Cells(row, i, j, alpha, vectors, context_gap, scale)

    def without_keys(self, i: Tensor, j: Tensor) -> Float[Tensor, "batch cell out"]:
        """Compute the attention's output at queries i as if the values of keys j were zero.

        ``i``, ``j``: (batch, cell). From the weights and values of all other keys, in float64.
        """
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        weights, held = self.captured.weights, self.captured.held
        of_queries = (
            weights.some(i).transpose(1, 2) if isinstance(weights, Scores) else weights[row, :, i]
        )
        alpha = of_queries.double()  # batch cell head key
        alpha = alpha.scatter(3, j[:, :, None, None].expand(*alpha.shape[:3], 1), 0.0)
        value = self.value.double().repeat_interleave(alpha.shape[2] // self.value.shape[1], dim=1)
        mixed = torch.einsum("bchk,bhke->bche", alpha, value)
        if held is not None and held.scale is not None:
            mixed = mixed * held.scale[row, :, i].double().unsqueeze(-1)
        if held is not None and held.gate is not None:
            mixed = mixed * held.gate[row, i].double()
        output = torch.einsum("bche,heo->bco", mixed, self.weight)
        return output if self.bias is None else output + self.bias.double()

    def _context_gap(self, alpha: Tensor, row: Tensor, i: Tensor) -> Float[Tensor, " batch"]:
        """Σ_j αv of some queries against what the model's fused attention computed for them."""
        assert isinstance(self.captured.weights, Scores)
        value = self.value.to(alpha.dtype)
        value = value.repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
        mixed = (alpha @ value).transpose(1, 2)  # batch cell head e
        gap = (mixed - self.captured.weights.context[row, i]).norm(dim=-1)
        size = (alpha @ value.norm(dim=-1, keepdim=True)).squeeze(-1).transpose(1, 2)
        return (gap / size.clamp_min(torch.finfo(size.dtype).tiny)).flatten(1).amax(dim=1).double()


_FACTORS: ModuleCache[Tensor] = ModuleCache(of_weights=True)


def _triangular_factor(captured: Capture) -> Float[Tensor, "head e e"]:
    """Rᵀ with W_O^h = Rᵀ Qᵀ, so that ‖v W_O^h‖ = ‖v Rᵀ‖; computed in float64."""
    module, weight = captured.projection.module, captured.projection.weight

    def compute() -> Tensor:
        factor = torch.linalg.qr(weight.double().transpose(1, 2), mode="r").R.transpose(1, 2)
        return factor.contiguous().to(torch.promote_types(weight.dtype, torch.float32))

    held = getattr(module, "weight", None)
    # What an adapter or a quantised layer computes anew each time has no state to go by.
    if module is None or not isinstance(held, Tensor) or held.data_ptr() != weight.data_ptr():
        return compute()
    # Comparing contents would let the CPU wait for a GPU in every layer.
    return _FACTORS.get(module, tensor_state(weight, contents=not weight.is_cuda), compute)
