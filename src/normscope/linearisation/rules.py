"""How each kind of operation passes relevance back: a table, of which every method is one row.

At one input, a rule replaces an operation by a linear map with the same value. A *held* factor is
a constant. A *slope* g(u)/u is that of the line through the origin. A *tangent* is the derivative;
what it leaves of the value is an offset, which is counted as a bias. A *secant* or *midpoint* map
is exact for the difference of two inputs. So the shares of every method add up to the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normscope.errors import InputError

GATES = ("half", "gate", "up", "ig")


@dataclass(frozen=True)
class Rules:
    """One method: a rule for each kind of operation.

    Attributes:
        name: the method's name.
        title: the method in a few words.
        attention: the shares of queries, keys and values in the product of attention.
        softmax: "held", "tangent" or "secant"; also for exponentials, sigmoids and the like.
        norm: whether the scale of a norm is "held", or the norm has its "tangent" or "secant".
        activation: "slope" (from the origin), "tangent" or "secant".
        product: the rule for a product of two states: "half" to each, or all to one factor of a
            gated feed-forward: "gate" holds the gate, "up" holds the other one, "ig" integrates
            along a straight path; "tangent", "midpoint".
        difference: whether the method explains the difference of two inputs.
        reference: where the method comes from.
    """

    name: str
    title: str
    attention: tuple[float, float, float]
    softmax: str
    norm: str
    activation: str
    product: str
    difference: bool = False
    reference: str = ""


RULES = {
    rules.name: rules
    for rules in (
        Rules(
            "frozen",
            "attention weights, norm scales and activation slopes held at their values",
            attention=(0.0, 0.0, 1.0),
            softmax="held",
            norm="held",
            activation="slope",
            product="half",
        ),
        Rules(
            "secant",
            "the exact difference between two inputs, attention included",
            attention=(0.5, 0.5, 0.5),
            softmax="secant",
            norm="secant",
            activation="secant",
            product="midpoint",
            difference=True,
        ),
        Rules(
            "attn_lrp",
            "layer-wise relevance propagation, half of it through queries and keys",
            attention=(0.25, 0.25, 0.5),
            softmax="tangent",
            norm="held",
            activation="slope",
            product="half",
            reference="Achtibat et al., ICML 2024",
        ),
        Rules(
            "cp_lrp",
            "layer-wise relevance propagation with attention weights and gates held",
            attention=(0.0, 0.0, 1.0),
            softmax="held",
            norm="held",
            activation="slope",
            product="gate",
            reference="Ali et al., ICML 2022",
        ),
        Rules(
            "input_x_gradient",
            "the input times the gradient; offsets of the tangents are biases",
            attention=(1.0, 1.0, 1.0),
            softmax="tangent",
            norm="tangent",
            activation="tangent",
            product="tangent",
            reference="Shrikumar et al., 2016",
        ),
    )
}


def rules_of(method: str, gate: str = "half") -> Rules:
    """Return the rules of a method, with a rule for gated feed-forwards where it has a choice.

    Raises:
        InputError: there is no such method or gate rule, or the method has its own rule for gates.
    """
    if method not in RULES:
        raise InputError(f"there is no method {method!r}; valid: {', '.join(RULES)}")
    if gate not in GATES:
        raise InputError(f"there is no gate rule {gate!r}; valid: {', '.join(GATES)}")
    rules = RULES[method]
    if gate == "half":
        return rules
    if rules.product != "half":
        raise InputError(
            f'gate={gate!r} applies only to methods that hold a factor fixed; "{method}" has its '
            "own rule for products. Leave gate= out"
        )
    return replace(rules, product=gate)
