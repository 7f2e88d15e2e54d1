"""What each map is, in the words and the formula that the page shows.

In a formula `_{…}` is set low and `^{…}` high.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class About:
    """One map: a short name for buttons, a title, its formula and a sentence."""

    short: str
    title: str
    formula: str
    says: str
    unit: str = "norm"  # or "weight"


_FF = "through the feed-forward, its activation split by integrated gradients"

# With the heads taken together.
TOGETHER = {
    "attn_w": About(
        "weights",
        "Attention weights",
        "ᾱ_{ij} = mean_{h} α_{ij}^{h}",
        "How much each token is looked at, mean over heads. It does not say how long the vector "
        "is that comes from there.",
        "weight",
    ),
    "attn_n": About(
        "norms",
        "Attention norms",
        "‖s_{ij}‖,  s_{ij} = Σ_{h} α_{ij}^{h} f_{h}(x_{j})",
        "The length of the vector that the attention really adds, heads summed before the length "
        "is taken.",
    ),
    "attn_res_w": About(
        "weights + residual",
        "Weights with the residual",
        "½ ᾱ_{ij} + ½ δ_{ij}",
        "The weights, with the residual connection counted as half.",
        "weight",
    ),
    "attn_res_n": About(
        "+ residual",
        "Norms with the residual",
        "‖z_{ij}‖,  z_{ij} = s_{ij} + δ_{ij} x_{i}",
        "What the attention adds, and what the token keeps of itself through the residual "
        "connection.",
    ),
    "attn_res_ln_n": About(
        "block",
        "The attention block: residual and layer norm",
        "‖p_{ij}‖,  p_{ij} = γ ⊙ (z_{ij} − mean z_{ij}) / σ_{i}",
        "The whole attention block, as its layer norm hands it on.",
    ),
    "atb": About(
        "attention block",
        "The attention block (ATB)",
        "‖p_{ij}‖, or ‖z_{ij}‖ where no norm follows",
        "The attention block, where the feed-forward takes over.",
    ),
    "atb_ln": About(
        "block + norm",
        "The attention block and the norm after it",
        "‖γ ⊙ (z_{ij} − mean z_{ij}) / σ_{i}‖",
        "What the feed-forward reads. An RMS norm takes no mean off.",
    ),
    "atb_ff": About(
        "feed-forward",
        "Through the feed-forward",
        "‖F_{ij}‖,  F_{ij} = FF(p_{i}) split over j",
        f"What the feed-forward adds: {_FF}.",
    ),
    "atb_ff_res": About(
        "feed-forward + residual",
        "The feed-forward with its residual",
        "‖F_{ij} + p_{ij}‖",
        f"Further {_FF}, and the residual around it.",
    ),
    "atb_ff_res_ln": About(
        "whole layer",
        "The whole layer",
        "‖γ_{2} ⊙ (r_{ij} − mean r_{ij}) / σ_{i}‖,  r_{ij} = F_{ij} + p_{ij}",
        "From the layer's input to its output: attention block, feed-forward, residual, norm.",
    ),
    "atb_ln_ff": About(
        "feed-forward",
        "Through norm and feed-forward",
        "‖F_{ij}‖,  F_{ij} = FF(LN(z_{i})) split over j",
        f"What the feed-forward adds: {_FF}.",
    ),
    "atb_ln_ff_res": About(
        "whole layer",
        "The whole layer",
        "‖F_{ij} + z_{ij}‖",
        "From the layer's input to its output: attention block, feed-forward, residual.",
    ),
}

# Of one head.
EACH = {
    "attn_w": About(
        "weights",
        "Attention weights of one head",
        "α_{ij}^{h}",
        "How much each token is looked at by this head. It does not say how long the vector is "
        "that comes from there.",
        "weight",
    ),
    "attn_n": About(
        "norms",
        "Attention norms of one head",
        "‖α_{ij}^{h} f_{h}(x_{j})‖ = α_{ij}^{h} ‖f_{h}(x_{j})‖",
        "The length of the vector that this head really adds.",
    ),
}


# Where no key is the query itself, as in cross-attention: the residual is a column of its own.
COLUMN = {
    "attn_res_w": "½ ᾱ_{ij};  ½ for the residual",
    "attn_res_n": "‖s_{ij}‖;  ‖x_{i}‖ for the residual",
    "attn_res_ln_n": "‖γ ⊙ (s_{ij} − mean s_{ij}) / σ_{i}‖;  the same of x_{i} for the residual",
}


def about(name: str, *, each: bool, column: bool = False) -> About:
    """What the page says of a map; of one it does not know, its name."""
    known = (EACH if each else TOGETHER).get(name, About(name, name, name, ""))
    return replace(known, formula=COLUMN[name]) if column and name in COLUMN else known
