"""Arguments and results of the Triton kernels; importing them does not need Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normscope.foundation.shapes import Float, Int


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """What the attention weights softmax(scaling · q kᵀ + mask) are computed from.

    The queries are the last of the keys: with ``causal``, query i sees the keys up to
    i + keys − queries.
    """

    query: Float[Tensor, "batch head query size"]
    key: Float[Tensor, "batch kv_head key size"]
    scaling: float
    causal: bool
    mask: Tensor | None = None  # boolean (True: seen) or added; broadcast to the weights' shape


@dataclass(frozen=True, eq=False)
class Attended:
    """The result of ``attend``: what the weights exp2(scores − lse) are computed from."""

    scores: Float[Tensor, "batch head query key"]  # in base 2, masked
    lse: Float[Tensor, "batch head query"]  # +inf for a row that sees no key
    own: Float[Tensor, "batch head query"] | None  # α_ii
    gap: Float[Tensor, "batch head query"]  # of Σ_j αv to the model's, relative to Σ_j α‖v‖


@dataclass(frozen=True, eq=False)
class GapInputs:
    """What tells whether an output projection, and products made of its weight, are the model's."""

    merged: Float[Tensor, "batch query features"]  # what the projection read
    output: Float[Tensor, "batch query out"]  # and made of it
    weight: Float[Tensor, "head head_size out"]
    bias: Float[Tensor, " out"] | None
    chosen: Int[Tensor, "batch some"]  # the queries to compare
    random: Float[Tensor, " features"]  # a random vector
    probe: Float[Tensor, " out"]  # its product with the weight, when products were made of it
    scale: Float[Tensor, ""]  # the largest number of the probe
    gamma: Float[Tensor, " out"] | None = None  # the scale of a norm, as it is now
    known_gamma: Float[Tensor, " out"] | None = None  # and as it was then


@dataclass(frozen=True, eq=False)
class CellMap:
    """One map to compute from the weights of all heads: scale · length, or ``diagonal`` at i = j.

    With ``halved``, half of the mean weight and ½ at i = j.
    """

    level: int  # of the factors; −1: the mean of the weights
    scale: Float[Tensor, "batch query"] | None = None
    diagonal: Float[Tensor, "batch query"] | None = None
    halved: bool = False


@dataclass(frozen=True, eq=False)
class RowInputs:
    """The vectors that ``row_lengths`` measures, a row for each query.

    With ``residual`` and ``after_residual`` lengths after the residual connection are computed
    too; with ``after_norm``, those after the norm that follows it.
    """

    total: Float[Tensor, "row out"]  # Σ αf + b_O: the model's own output
    bias: Float[Tensor, " out"] | None = None  # b_O
    own: Float[Tensor, "row out"] | None = None  # Σ_h α_ii f_h(x_i)
    residual: Float[Tensor, "row out"] | None = None  # x
    after_residual: Float[Tensor, "row out"] | None = None  # the model's own sum
    after_norm: Float[Tensor, "row out"] | None = None  # the model's own normalised sum
    gamma: Float[Tensor, " out"] | None = None
    beta: Float[Tensor, " out"] | None = None
    centred: bool = True  # whether the norm subtracts the mean
    eps: float = 0.0


@dataclass(frozen=True, eq=False)
class RowLengths:
    """The result of ``row_lengths``: a number for each row."""

    own: Float[Tensor, " row"]  # ‖own‖
    others: Float[Tensor, " row"]  # ‖total − b_O − own‖
    ratio: Float[Tensor, " row"]  # ‖others‖ / (‖others‖ + ‖own‖)
    bias: Float[Tensor, " row"]  # ‖b_O‖
    # With the residual x:
    own_residual: Float[Tensor, " row"] | None = None  # ‖own + x‖
    gap_residual: Float[Tensor, " row"] | None = None  # ‖total + x − after_residual‖
    ratio_residual: Float[Tensor, " row"] | None = None
    # After the norm, L v = γ ⊙ (v − mean v):
    weight: Float[Tensor, " row"] | None = None  # 1/σ
    own_norm: Float[Tensor, " row"] | None = None  # ‖L(own + x)‖/σ
    others_norm: Float[Tensor, " row"] | None = None  # ‖L others‖/σ
    bias_norm: Float[Tensor, " row"] | None = None  # ‖L b_O/σ + β‖
    gap_norm: Float[Tensor, " row"] | None = None  # ‖L(total + x)/σ + β − after_norm‖
    ratio_norm: Float[Tensor, " row"] | None = None


@dataclass(frozen=True, eq=False)
class CellSums:
    """The sum Σ_h a_h f_h of every cell of a block, in factored form."""

    weights: Float[Tensor, "batch key head query"]  # a_h, times any factor of the query
    vectors: Float[Tensor, "batch key head out"]  # f_h


@dataclass(frozen=True, eq=False)
class CellLinear:
    """v ↦ w_i · scale ⊙ (v − mean v), or without the mean: a linear step on a cell's vector.

    ``weight`` must not be negative.
    """

    centred: bool
    scale: Float[Tensor, " out"] | None
    weight: Float[Tensor, "batch query"] | None  # w_i
