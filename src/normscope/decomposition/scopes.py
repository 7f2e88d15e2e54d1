"""The table of scopes: every map, what it means and what it needs.

A scope says how far the vectors α·f(x) are followed through a layer. A layer passes its scopes in
the order of the table, and no layer has all of them. No other module parses the name of a scope:
whatever depends on a scope is a field of its row. Plots, pages and reports read their titles and
formulas from here.

In a formula, `_{…}` is a subscript and `^{…}` a superscript.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

# Where in a layer a scope ends, in the order in which a layer passes these stations.
Station = Literal[
    "attention",  # Σ_h αf, before the residual
    "residual",  # the residual sum of the attention block
    "norm",  # the norm after that sum (post-norm layers)
    "block",  # the end of the attention block: "norm" where there is one, else "residual"
    "ff_input",  # the norm before the feed-forward (pre-norm layers)
    "ff",  # the output of the feed-forward's branch
    "ff_residual",  # the residual sum of the feed-forward block
    "ff_norm",  # the norm after that sum
    "layer",  # the layer's output, whatever came last
    "kept",  # the layer's output without what its feed-forward added
]

# What a cell of a map is.
CellKind = Literal[
    "length",  # ‖v_ij‖
    "weight",  # made of attention weights alone
    "projected",  # the attention weights that reach the output
    "closeness_1",  # how much closer v_ij comes to Σ_j v_ij + bias than zero is, in ℓ1
    "closeness_2",  # the same in ℓ2
    "zeroed",  # how far the layer's output turns when a key's values are zero
    "routed",  # closeness in ℓ1, summed over the heads' vectors
]


@dataclass(frozen=True)
class Scope:
    """One map: how far it follows the vectors, and the words and formulas that explain it."""

    name: str
    end: Station
    short: str  # for buttons
    label: str  # for legends and axes
    title: str
    formula: str
    meaning: str
    whole: str = ""  # what a row's cells are shares of, in a sentence
    cell: CellKind = "length"
    ff_norm_before: bool | None = None  # whether a norm must (or must not) precede the feed-forward
    formula_with_column: str = ""  # in cross-attention, the residual being a column of its own
    head_title: str = ""  # the same for a single head, where that is defined
    head_formula: str = ""
    head_meaning: str = ""

    @property
    def weight(self) -> bool:
        """Whether the map is made of attention weights alone, not of vectors."""
        return self.cell == "weight"

    @property
    def related(self) -> bool:
        """Whether a cell is neither a length nor a weight, but compares vectors with others."""
        return self.cell not in ("length", "weight")

    @property
    def signed(self) -> bool:
        """Whether cells may be negative."""
        return self.cell == "projected"

    @property
    def shares(self) -> bool:
        """Whether the rows are shares that add up to 1."""
        return self.related and not self.signed

    @property
    def adds_residual(self) -> bool:
        """Whether a rollout has to add the residual connection, which is not in the map."""
        return not self.related and not self.with_residual

    @property
    def rows_divided(self) -> bool:
        """Whether a rollout divides rows by their sums, as in the paper of the map."""
        return self.cell != "length" or self.adds_residual

    @property
    def per_head(self) -> bool:
        """Whether single heads have this map; residuals, norms and feed-forwards have no heads."""
        return self.end == "attention"

    @property
    def behind_feed_forward(self) -> bool:
        """Whether the vectors pass an activation, so that they have to be built one by one."""
        return self.cell == "length" and self.end in ("ff", "ff_residual", "ff_norm", "layer")

    @property
    def with_residual(self) -> bool:
        """Whether a residual connection is passed; in cross-attention it adds a column."""
        return self.end not in ("attention", "ff") and self.cell != "zeroed"

    @property
    def unit(self) -> str:
        """Name what the numbers are: "weight", "norm" or "share"."""
        if self.shares:
            return "share"
        return "norm" if self.cell == "length" else "weight"


_FF = "its activation is divided among the tokens by integrated gradients"

_TABLE = (
    Scope(
        "attn_w",
        "attention",
        short="weights",
        label="weight α",
        title="Attention weights",
        formula="ᾱ_{ij} = mean_{h} α_{ij}^{h}",
        whole="the attention weight",
        meaning="How much attention each token gets, averaged over heads. It says nothing about "
        "the length of the vector that comes from the token.",
        cell="weight",
        head_title="Attention weights of one head",
        head_formula="α_{ij}^{h}",
        head_meaning="How much attention each token gets from this head. It says nothing about "
        "the length of the vector that comes from the token.",
    ),
    Scope(
        "attn_n",
        "attention",
        short="norms",
        label="norm ‖αf(x)‖",
        title="Attention norms",
        formula="‖s_{ij}‖,  s_{ij} = Σ_{h} α_{ij}^{h} f_{h}(x_{j})",
        whole="what is added",
        meaning="The length of the vector that attention adds, with heads summed before the "
        "length is computed.",
        head_title="Attention norms of one head",
        head_formula="‖α_{ij}^{h} f_{h}(x_{j})‖ = α_{ij}^{h} ‖f_{h}(x_{j})‖",
        head_meaning="The length of the vector that this head adds.",
    ),
    Scope(
        "attn_res_w",
        "residual",
        short="weights + residual",
        label="weight, residual",
        title="Weights with the residual",
        formula="½ ᾱ_{ij} + ½ δ_{ij}",
        whole="the weight with the residual",
        meaning="The weights, with the residual connection counted as half.",
        cell="weight",
        formula_with_column="½ ᾱ_{ij};  ½ for the residual",
    ),
    Scope(
        "attn_res_n",
        "residual",
        short="+ residual",
        label="norm, residual",
        title="Norms with the residual",
        formula="‖z_{ij}‖,  z_{ij} = s_{ij} + δ_{ij} x_{i}",
        whole="the sum with the residual",
        meaning="What attention adds, and what the token keeps of itself through the residual "
        "connection.",
        formula_with_column="‖s_{ij}‖;  ‖x_{i}‖ for the residual",
    ),
    Scope(
        "attn_res_ln_n",
        "norm",
        short="block",
        label="norm, residual, layer norm",
        title="The attention block: residual and layer norm",
        formula="‖p_{ij}‖,  p_{ij} = γ ⊙ (z_{ij} − mean z_{ij}) / σ_{i}",
        whole="the attention block’s output",
        meaning="The output of the whole attention block, after its layer norm.",
        formula_with_column="‖γ ⊙ (s_{ij} − mean s_{ij}) / σ_{i}‖;  "
        "the same of x_{i} for the residual",
    ),
    Scope(
        "atb",
        "block",
        short="attention block",
        label="attention block",
        title="The attention block (ATB)",
        formula="‖p_{ij}‖, or ‖z_{ij}‖ where no norm follows",
        whole="the attention block’s output",
        meaning="The output of the attention block, where the feed-forward begins.",
    ),
    Scope(
        "atb_ln",
        "ff_input",
        short="block + norm",
        label="attention block, norm",
        title="The attention block and the norm after it",
        formula="‖γ ⊙ (z_{ij} − mean z_{ij}) / σ_{i}‖",
        whole="what the feed-forward reads",
        meaning="What the feed-forward reads. An RMS norm does not subtract the mean.",
        ff_norm_before=True,
    ),
    Scope(
        "atb_ff",
        "ff",
        short="feed-forward",
        label="feed-forward",
        title="Through the feed-forward",
        formula="‖F_{ij}‖,  F_{ij} = FF(p_{i}) split over j",
        whole="what the feed-forward adds",
        meaning=f"What the feed-forward adds: {_FF}.",
        ff_norm_before=False,
    ),
    Scope(
        "atb_ff_res",
        "ff_residual",
        short="feed-forward + residual",
        label="feed-forward, residual",
        title="The feed-forward with its residual",
        formula="‖F_{ij} + p_{ij}‖",
        whole="the sum with the feed-forward",
        meaning=f"What the feed-forward adds, and the residual around it; {_FF}.",
        ff_norm_before=False,
    ),
    Scope(
        "atb_ff_res_ln",
        "ff_norm",
        short="whole layer",
        label="whole layer",
        title="The whole layer",
        formula="‖γ_{2} ⊙ (r_{ij} − mean r_{ij}) / σ_{i}‖,  r_{ij} = F_{ij} + p_{ij}",
        whole="the layer’s output",
        meaning="From the layer's input to its output: attention block, feed-forward, residual, "
        "norm.",
        ff_norm_before=False,
    ),
    Scope(
        "atb_ln_ff",
        "ff",
        short="feed-forward",
        label="norm, feed-forward",
        title="Through norm and feed-forward",
        formula="‖F_{ij}‖,  F_{ij} = FF(LN(z_{i})) split over j",
        whole="what the feed-forward adds",
        meaning=f"What the feed-forward adds: {_FF}.",
        ff_norm_before=True,
    ),
    Scope(
        "atb_ln_ff_res",
        "ff_residual",
        short="whole layer",
        label="whole layer",
        title="The whole layer",
        formula="‖F_{ij} + z_{ij}‖",
        whole="the layer’s output",
        meaning="From the layer's input to its output: attention block, feed-forward, residual.",
        ff_norm_before=True,
    ),
    Scope(
        "whole_layer",
        "layer",
        short="whole layer",
        label="whole layer",
        title="The whole layer, whatever its wiring",
        formula="‖y_{ij}‖,  y_{i} = Σ_{j} y_{ij} + bias, the layer’s output",
        whole="the layer’s output",
        meaning="From the layer's input to its output, whatever is in between: attention weights, "
        "the scales of norms, gates and routing are held, and activations are divided among the "
        "tokens by integrated gradients.",
    ),
    Scope(
        "effective",
        "attention",
        short="effective",
        label="effective attention",
        title="Effective attention",
        formula="mean_{h} α_{⊥ij}^{h},  α_{⊥}^{h} F_{h} = α^{h} F_{h}",
        whole="the effective attention",
        meaning="The attention weights without the part that changes nothing, because the vectors "
        "f(x) of the keys cancel. Cells may be negative, and rows need not add up to 1.",
        cell="projected",
        head_title="Effective attention of one head",
        head_formula="α_{⊥ij}^{h},  α_{⊥}^{h} F_{h} = α^{h} F_{h}",
        head_meaning="This head's attention weights without the part that changes nothing.",
    ),
    Scope(
        "alti",
        "block",
        short="ALTI",
        label="ALTI",
        title="ALTI: closeness to the attention block’s output",
        formula="[‖Y_{i}‖_{1} − ‖Y_{i} − v_{ij}‖_{1}]_{+}, as a share of the row",
        whole="the closeness",
        meaning="How much closer a token's vector brings the sum to the attention block’s output, "
        "in the ℓ1 norm, as a share of all tokens.",
        cell="closeness_1",
    ),
    Scope(
        "alti_l2",
        "block",
        short="ALTI ℓ2",
        label="ALTI ℓ2",
        title="ALTI with the ℓ2 norm",
        formula="[‖Y_{i}‖ − ‖Y_{i} − v_{ij}‖]_{+}, as a share of the row",
        whole="the closeness",
        meaning="How much closer a token's vector brings the sum to the attention block’s output, "
        "in the ℓ2 norm, as a share of all tokens.",
        cell="closeness_2",
    ),
    Scope(
        "globenc",
        "kept",
        short="GlobEnc",
        label="norm, without feed-forward",
        title="GlobEnc: the layer without its feed-forward (N-Enc)",
        formula="‖γ_{2} ⊙ (p_{ij} − mean p_{ij}) / σ_{2i}‖, or ‖z_{ij}‖ where no norm follows",
        whole="the layer’s output",
        meaning="The layer's output without what its feed-forward adds, through both norms.",
    ),
    Scope(
        "globenc_ff",
        "layer",
        short="GlobEnc + FF",
        label="norm, with feed-forward",
        title="GlobEnc with the feed-forward",
        formula="‖γ_{2} ⊙ (r_{ij} − mean r_{ij}) / σ_{2i}‖,  r_{ij} = F_{ij} + p_{ij}",
        whole="the layer’s output",
        meaning="The layer's output with the feed-forward divided among the tokens by the slope "
        "of its activation from zero: the same vectors as those of the whole layer.",
    ),
    Scope(
        "value_zeroing",
        "layer",
        short="value zeroing",
        label="value zeroing",
        title="Value zeroing",
        formula="1 − cos(y_{i}, y_{i} without the values of j), as a share of the row",
        whole="the change",
        meaning="How far the layer's output turns when a token's values are set to zero, as a "
        "share of all tokens. The residual connection is not cut.",
        cell="zeroed",
    ),
    Scope(
        "flow_routes",
        "residual",
        short="flow routes",
        label="flow routes",
        title="Information flow routes",
        formula="Σ_{h} [‖Y_{i}‖_{1} − ‖Y_{i} − α_{ij}^{h} f_{h}(x_{j})‖_{1}]_{+}, "
        "as a share of all parts",
        whole="the flow",
        meaning="How much closer each head's vector brings the residual stream to its value after "
        "attention, summed over the heads, as a share of all heads' vectors and the residual.",
        cell="routed",
    ),
)

SCOPES = {scope.name: scope for scope in _TABLE}
NAMES = tuple(SCOPES)

WEIGHTS, NORMS = "attn_w", "attn_n"  # what the 2020 paper compares
ALTI = "alti"  # what is rolled out by default
HEAD_MAPS = (WEIGHTS, NORMS)
# The maps that single heads have, and all maps that need nothing beyond the attention itself.
PER_HEAD = tuple(scope.name for scope in _TABLE if scope.per_head)
# The five analyses of the 2021 paper.
ANALYSES = tuple(
    s.name for s in _TABLE if s.end in ("attention", "residual", "norm") and not s.related
)
# The maps of the 2024 paper, of which a layer has some.
BLOCK_MAPS = tuple(
    s.name
    for s in _TABLE
    if not s.related and s.name not in ANALYSES and s.end not in ("layer", "kept")
)
# The maps whose rows are shares that add up to 1, or signed: neither lengths nor weights.
RELATED = tuple(scope.name for scope in _TABLE if scope.related)


def scope_of(name: str) -> Scope | None:
    """Return the row of a map, or that of the map that was rolled out; None if unknown."""
    kind, _, rest = name.partition("_")
    scope = SCOPES.get(rest)
    if name in SCOPES or scope is None or kind not in ("rollout", "flow"):
        return SCOPES.get(name)
    rolled = kind == "rollout"
    return replace(
        scope,
        name=name,
        short=f"{kind} of {scope.short}",
        label=f"{kind} of {scope.label}",
        title=f"{kind.capitalize()} through the layers: {scope.label}",
        formula="R^{l} = C^{l} R^{l−1}" if rolled else "max-flow from (l, i) to (0, j)",
        whole=f"the {kind}",
        meaning="What a position takes from each input position, through all layers up to this "
        f"one: {'the product' if rolled else 'the most that can flow through the graph'} of the "
        "layers' maps. The paths inside a layer are those that the map sees.",
        formula_with_column="",
    )


def by_vectors(names: Iterable[str] = NAMES) -> list[Scope]:
    """List the rows of some scopes that are lengths of vectors."""
    return [SCOPES[name] for name in names if SCOPES[name].cell == "length"]


def need_whole_layers(names: Iterable[str]) -> bool:
    """Tell whether any of these scopes goes beyond the attention itself."""
    return any(not SCOPES[name].per_head for name in names)


def related(names: Iterable[str]) -> list[str]:
    """List those of these scopes that are neither lengths nor weights."""
    return [name for name in names if SCOPES[name].related]


def behind_feed_forward(names: Iterable[str]) -> list[str]:
    """List those of these scopes that lie behind a feed-forward's activation."""
    return [name for name in names if SCOPES[name].behind_feed_forward]
