"""How far the lengths of `normscope bench` are from a dense computation in float64.

The lengths and the recorded weights, values, residuals and norms come from the same forward pass.
At some queries of the first, the middle and the last layer, the vectors of every key are built in
float64 from the definition. The error of a length is relative to the lengths of what is summed in
its cell: Σ_h ‖α_h f_h‖, and ‖x_i‖ on the diagonal of maps with the residual. For a map behind a
norm, these are the lengths behind the norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.capture import AttentionMode, Capture
from normscope.capture.layers import LayerCapture
from normscope.capture.scores import Scores
from normscope.decomposition.layer import LayerView
from normscope.decomposition.norms import read_norm
from normscope.decomposition.scopes import Scope, by_vectors
from normscope.engine.batch import Batch
from normscope.engine.measure import Part
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import CallbackMeasure, run
from normscope.measures.maps import Maps, part_names
from normscope.models.layouts import part
from normscope.results.signature import Signature

ROWS = 2  # rows of a batch whose cells are compared
QUERIES = 8  # random queries of each of these rows and layers
BLOCK = 2**25  # numbers in the vectors of one block of keys
STATIONS = ("attention", "residual", "norm")  # up to which the vectors are followed


def accuracy(
    model: Any,
    inputs: Mapping[str, Tensor],
    maps: Sequence[str],
    calls: int,
    attention: AttentionMode = "auto",
) -> float | None:
    """Return the largest error of a length relative to its parts; None for maps without lengths.

    Args:
        model: the model.
        inputs: its inputs, without padding.
        maps: the maps that are computed together.
        calls: how many attention calls a forward pass makes.
        attention: how attention is captured.
    """
    scopes = [scope for scope in by_vectors(maps) if scope.end in STATIONS]
    if not scopes:
        return None
    options = AnalysisOptions(tuple(maps), attention=attention).checked()
    measure = Maps(options, Signature(model, None, {}))
    dense = DenseCells(scopes, {0, calls // 2, calls - 1})
    # The same needs, so that both measures read the same view; copying cannot be recorded.
    needs = replace(measure.needs, masks=False, recordable=False)
    second = CallbackMeasure(dense.observe, needs)
    batch = Batch(model, dict(inputs))
    (judged,) = run(model, [batch], [measure, second], attention=attention)
    return max(dense.errors(judged.results[0]), default=None)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The dense lengths of some queries of one row, layer and map, for all keys."""

    place: Part
    layer: int
    name: str
    row: int
    queries: Tensor
    lengths: Tensor  # (query, key), float64
    parts: Tensor  # the sum of the lengths of what is summed in each cell


class DenseCells:
    """Dense float64 lengths at some cells of chosen attention calls of a forward pass."""

    def __init__(self, scopes: Sequence[Scope], chosen: set[int]) -> None:
        self.scopes, self.chosen = scopes, chosen
        self.places: list[Part] = []  # the kind of each attention call
        self.cells: list[_Cells] = []

    def observe(self, view: LayerView) -> None:
        """Compute the dense lengths of one attention call if it is among the chosen ones."""
        captured, place = view.captured, (view.captured.stack, view.captured.kind)
        self.places.append(place)
        if len(self.places) - 1 not in self.chosen:
            return
        batch, _, queries, _ = captured.shape
        draw = torch.Generator().manual_seed(len(self.places))
        for row in range(min(ROWS, batch)):
            drawn = torch.randperm(queries, generator=draw)[:QUERIES].sort().values
            call = DenseCall(captured, view.layer, row, drawn.to(captured.device))
            for scope in self.scopes:
                if scope.name not in view.scopes:
                    continue
                lengths, parts = (tensor.cpu() for tensor in call.lengths(scope))
                self.cells.append(
                    _Cells(place, captured.layer, scope.name, row, drawn, lengths, parts)
                )

    def errors(self, results: Sequence[Any]) -> Iterator[float]:
        """Yield the largest relative error of each layer and map of some results."""
        names = part_names(list(dict.fromkeys(self.places)))
        for cells in self.cells:
            result = results[cells.row]
            result = result.parts.get(names[cells.place]) if result.parts else result
            if result is None or cells.name not in result:
                continue
            array = result[cells.name].values[cells.layer]
            values = torch.tensor(array, dtype=torch.float64)
            keys = cells.lengths.shape[1]  # a cross map may have a column for the residual
            gap = (values[cells.queries, :keys] - cells.lengths).abs()
            # Where nothing is summed, as above the diagonal of a decoder, the length must be zero.
            relative = torch.where(gap == 0, 0, gap / cells.parts)
            yield float(relative.max())


class DenseCall:
    """One attention call of one row: its vectors at some queries, built in float64."""

    def __init__(
        self, captured: Capture, layer: LayerCapture | None, row: int, queries: Tensor
    ) -> None:
        self.captured, self.layer, self.row, self.queries = captured, layer, row, queries
        self.alpha = weights_of(captured, row, queries)
        value = captured.value[row].double()
        self.value = value.repeat_interleave(self.alpha.shape[0] // value.shape[0], dim=0)
        self.weight = captured.projection.weight.double()
        self.square = captured.kind != "cross" and captured.shape[2] == captured.shape[3]

    def lengths(self, scope: Scope) -> tuple[Tensor, Tensor]:
        """Return the length of every vector and of its parts, each (query, key)."""
        heads, _, hidden = self.weight.shape
        step = max(1, BLOCK // ((heads + len(self.queries)) * hidden))
        lengths, sums = [], []
        for start in range(0, self.alpha.shape[-1], step):
            block = slice(start, start + step)
            vectors, parts = self._block(scope, block)
            lengths.append(vectors.norm(dim=-1).T)
            sums.append(parts.T)
        return torch.cat(lengths, dim=1), torch.cat(sums, dim=1)

    def _block(self, scope: Scope, block: slice) -> tuple[Tensor, Tensor]:
        """Return the vectors (key, query, hidden) and the sums of parts (key, query)."""
        f = torch.einsum("hke,heo->kho", self.value[:, block], self.weight)
        alpha = self.alpha[..., block].permute(2, 1, 0)  # (key, query, head)
        keys = torch.arange(block.start, block.start + len(f), device=f.device)
        own = (keys.unsqueeze(1) == self.queries).unsqueeze(-1)  # the query itself
        divisor = torch.ones(len(self.queries), 1, dtype=f.dtype, device=f.device)
        added = torch.zeros_like(divisor)
        if scope.end != "attention":
            f, divisor = self._branch(f, divisor)
            assert self.captured.residual is not None
            added = self.captured.residual[self.row, self.queries].double()
        vectors = alpha @ f / divisor
        own_part = added.norm(dim=-1)
        if scope.end == "norm":
            f, sigma = self._norm(self._wiring().after, f)
            added, _ = self._norm(self._wiring().after, added)
            vectors, _ = self._norm(self._wiring().after, vectors)
            vectors, added, divisor = vectors / sigma, added / sigma, divisor * sigma
            own_part = added.norm(dim=-1)
        parts = (alpha @ f.norm(dim=-1, keepdim=True) / divisor).squeeze(-1)
        if self.square:
            vectors = vectors + own * added
            parts = parts + own.squeeze(-1) * own_part
        return vectors, parts

    def _wiring(self) -> Any:
        """Return where the norms of this attention block are."""
        assert self.layer is not None
        layout = self.layer.layout
        assert layout is not None
        return layout.cross if self.captured.kind == "cross" else layout.attention

    def _branch(self, f: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the norm and the multiplier of the branch, where there are any."""
        assert self.layer is not None
        wiring = self._wiring()
        if wiring.branch is not None:
            f, divisor = self._norm(wiring.branch, f)
        if wiring.scale is not None:
            scale = part(self.layer.module, wiring.scale)
            f = f * (scale.detach().double() if isinstance(scale, Tensor) else float(scale))
        return f, divisor

    def _norm(self, path: str, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return γ ⊙ (v − mean v) of some vectors, and σ of the queries, (query, 1)."""
        assert self.layer is not None
        inputs, module = self.layer.given(path), self.layer.module.get_submodule(path)
        form = read_norm(module, inputs, self.layer.output_of(path))
        normed = form.centre(vectors)
        if form.scale is not None:
            normed = normed * form.scale.double()
        return normed, form.sigma(inputs[self.row, self.queries].double())


def weights_of(captured: Capture, row: int, queries: Tensor) -> Tensor:
    """Return the weights of some queries of one row in float64, (head, query, key).

    Weights that were not recorded are the softmax, in float64, of the recorded queries and keys.
    """
    scores = captured.weights
    if not isinstance(scores, Scores):
        return scores[row][:, queries].double()
    key = scores.key[row].double()
    key = key.repeat_interleave(scores.shape[1] // key.shape[0], dim=0)
    products = scores.query[row][:, queries].double() * scores.scaling @ key.transpose(1, 2)
    if scores.mask is not None:
        mask = scores.mask.expand(scores.shape[0], *scores.mask.shape[1:])[row][:, queries]
        hidden = mask.dtype == torch.bool
        products = products.masked_fill(~mask, -torch.inf) if hidden else products + mask.double()
    if scores.causal:
        last = queries.unsqueeze(1) + scores.shape[3] - scores.shape[2]
        later = torch.arange(scores.shape[3], device=queries.device) > last
        products = products.masked_fill(later, -torch.inf)
    return products.softmax(dim=-1)
