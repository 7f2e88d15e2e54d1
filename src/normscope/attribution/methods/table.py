"""The table of methods: what each is called, what it means, what it needs, where its code is.

To add a method, write a file in this folder with a class that has ``shares(call)``, and a row here.
This module imports neither torch nor transformers, so that the command line's help is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from normscope.errors import InputError
from normscope.linearisation.rules import RULES

if TYPE_CHECKING:
    from normscope.attribution.account import RowShares
    from normscope.attribution.methods.call import MethodCall

ONE, TWO, STEPS, TOKENS, LAYERS, FORWARD = (
    "1 forward, 1 backward",
    "2 rows forward, 1 backward",
    "steps × (forward, backward)",
    "tokens × forward",
    "1 forward, and maps of each layer",
    "1 forward",
)
NORMS = ("l2", "l1", "sum")
BIAS_RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot")
LINEARISED = "linearised:Linearised"


@dataclass(frozen=True)
class Option:
    """One option of a method, written ``method:name=value``.

    Attributes:
        name: its name.
        default: its value where it is left out; None if it must be given.
        valid: the values, or the smallest number that it may be.
        help: what it does.
    """

    name: str
    default: Any
    valid: tuple[str, ...] | int | float
    help: str

    def read(self, text: str, method: str) -> Any:
        """Return the value that a text means."""
        if isinstance(self.valid, tuple):
            if self.valid and text not in self.valid:
                raise InputError(
                    f"{self.name} of {method} must be one of {', '.join(self.valid)}, not {text!r}"
                )
            return text
        kind = type(self.default)
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not self.valid <= number < float("inf"):
            what = "a whole number" if kind is int else "a number"
            raise InputError(f"{self.name} of {method} is {what} from {self.valid:g}, not {text!r}")
        return number


@dataclass(frozen=True)
class Method:
    """One method of attribution.

    Attributes:
        name: what ``method=`` calls it.
        title: what it computes, in a few words.
        reference: where it comes from.
        signed: whether scores count for and against the answer; otherwise they are sizes.
        complete: whether scores and bias add up to the value.
        unit: the unit of the scores; "value" is that of the value that is explained.
        cost: the cost of one answer.
        code: module in this folder and class.
        options: what can be chosen; the first can be given without its name.
        baseline: "no", "needed", or "optional" where it has a default.
        held: whether ``units="logprob"`` holds the probabilities fixed.
        gates: whether ``gate=`` applies.
        traces: whether ``trace=True`` applies.
        alone: whether texts are computed one by one, for their size.
    """

    name: str
    title: str
    reference: str
    signed: bool
    complete: bool
    unit: str
    cost: str
    code: str
    options: tuple[Option, ...] = ()
    baseline: Literal["no", "needed", "optional"] = "no"
    held: bool = False
    gates: bool = False
    traces: bool = False
    alone: bool = False

    def option(self, name: str) -> Option:
        """Return the option of a name."""
        for option in self.options:
            if option.name == name:
                return option
        valid = ", ".join(option.name for option in self.options) or "none"
        raise InputError(f'method "{self.name}" has no option {name!r}; its options: {valid}')

    def with_options(self, given: str) -> ChosenMethod:
        """Return the method with options that are written ``value,name=value``."""
        chosen: dict[str, Any] = {option.name: option.default for option in self.options}
        for at, entry in enumerate(filter(None, given.split(","))):
            name, equals, text = entry.partition("=")
            if not equals:
                if at or not self.options:
                    raise InputError(
                        f'method "{self.name}" has no option for {entry!r}; write name=value with '
                        f"one of: {', '.join(option.name for option in self.options) or 'none'}"
                    )
                name, text = self.options[0].name, entry
            name = name.strip()
            chosen[name] = self.option(name).read(text.strip(), self.name)
        for name, value in chosen.items():
            if value is None:
                option = self.option(name)
                raise InputError(f"give the {name} of {self.name}: {option.help}")
        return ChosenMethod(self, tuple(chosen.items()))


@dataclass(frozen=True)
class ChosenMethod:
    """A method with the values of its options."""

    method: Method
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The method's name, without options."""
        return self.method.name

    def __getitem__(self, option: str) -> Any:
        return dict(self.values)[option]

    def describe(self, gate: str) -> dict[str, str]:
        """Return the settings that belong in a signature."""
        method = self.method
        settings = {"method": method.name, **{name: str(value) for name, value in self.values}}
        if method.gates or method.code == LINEARISED:
            settings["gate"] = gate
        if not method.signed:
            settings["signed"] = "no"
        if not method.complete:
            settings["complete"] = "no"
        if method.unit != "value":
            settings["unit"] = method.unit
        return settings

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of a batch."""
        module, _, name = self.method.code.partition(":")
        kind = getattr(import_module(f"normscope.attribution.methods.{module}"), name)
        shares: RowShares = kind().shares(call)
        return shares


_SEED = Option("seed", 0, 0, "the seed of the random numbers")
_NORM = Option("norm", "l2", NORMS, "how a gradient becomes a number: its ℓ2 or ℓ1 norm, or |sum|")


_DIVISION = (
    Option("bias", "absdot", BIAS_RULES, "how a bias is divided among the tokens; token: apart"),
    Option(
        "at",
        "residual",
        ("residual", "branch"),
        "where the biases of attention are divided: behind its residual sum, as released, or "
        "before it, as in the paper",
    ),
)


def _linearised(name: str, reference: str, unit: str = "value", **more: Any) -> Method:
    """Return the row of a method that is a row of the table of rules."""
    rules = RULES[name]
    cost = TWO if rules.difference else ONE
    facts: dict[str, Any] = {"held": not rules.difference, "traces": True, **more}
    gates = rules.product == "half"
    return Method(
        name, rules.title, reference, True, True, unit, cost, LINEARISED, gates=gates, **facts
    )


TABLE: Mapping[str, Method] = {
    method.name: method
    for method in (
        _linearised("frozen", "the frozen network; bias-token form of DecompX"),
        _linearised("secant", "the secant network", baseline="needed"),
        _linearised("attn_lrp", "Achtibat et al., ICML 2024"),
        _linearised("cp_lrp", "Ali et al., ICML 2022; Achtibat et al., ICML 2024"),
        _linearised("input_x_gradient", "Shrikumar et al., 2016"),
        Method(
            "decompx",
            "vectors of every token pushed forwards, biases divided among them",
            "Modarressi et al., ACL 2023",
            signed=True,
            complete=True,
            unit="value",
            cost=TOKENS,
            code="decompx:DecompX",
            options=(
                Option("bias", "absdot", (*BIAS_RULES, "token"), _DIVISION[0].help),
                _DIVISION[1],
            ),
            held=True,
            gates=True,
            alone=True,
        ),
        Method(
            "decompx_norm",
            "the lengths of DecompX's vectors behind the last layer, at the output position",
            "Modarressi et al., ACL 2023",
            signed=False,
            complete=False,
            unit="length",
            cost=TOKENS,
            code="decompx:DecompXNorm",
            options=_DIVISION,
            gates=True,
            alone=True,
        ),
        Method(
            "alti_logit",
            "what attention writes into the answer's direction, followed to the input by ALTI",
            "Ferrando et al., ACL 2023",
            signed=True,
            complete=True,
            unit="value",
            cost=LAYERS,
            code="direct:AltiLogit",
            held=True,
        ),
        Method(
            "direct_logit",
            "what attention writes into the answer's direction, by source; with the logit lens",
            "nostalgebraist 2020; Ferrando et al., ACL 2023",
            signed=True,
            complete=True,
            unit="value",
            cost=LAYERS,
            code="direct:DirectLogit",
            options=(
                Option("lens", "yes", ("yes", "no"), "whether to compute the logit lens as well"),
            ),
            held=True,
        ),
        Method(
            "gradient_norm",
            "the length of the gradient at each embedding",
            "Simonyan et al., 2014; Yin and Neubig, EMNLP 2022",
            signed=False,
            complete=False,
            unit="value per unit of embedding",
            cost=ONE,
            code="gradients:GradientNorm",
            options=(_NORM,),
        ),
        Method(
            "integrated_gradients",
            "gradients averaged along the straight line from a baseline, times the difference",
            "Sundararajan et al., ICML 2017",
            signed=True,
            complete=True,
            unit="value",
            cost=STEPS,
            code="gradients:IntegratedGradients",
            options=(Option("steps", 50, 1, "points of the Gauss–Legendre rule"),),
            baseline="optional",
        ),
        Method(
            "smoothgrad",
            "the length of the gradient averaged over noisy embeddings",
            "Smilkov et al., 2017",
            signed=False,
            complete=False,
            unit="value per unit of embedding",
            cost=STEPS,
            code="gradients:SmoothGrad",
            options=(
                Option("samples", 30, 1, "noisy copies"),
                Option("noise", 0.15, 0.0, "standard deviation, as a part of the range of a text"),
                _SEED,
                _NORM,
            ),
        ),
        Method(
            "chefer",
            "attention weights times their gradients, positive parts, accumulated over layers",
            "Chefer et al., ICCV 2021",
            signed=False,
            complete=False,
            unit="relevance",
            cost=ONE,
            code="chefer:Chefer",
        ),
        Method(
            "erasure",
            "the drop of the value when a token is masked as a key",
            "Yin and Neubig, EMNLP 2022",
            signed=True,
            complete=False,
            unit="value",
            cost=TOKENS,
            code="perturbation:Erasure",
        ),
        Method(
            "blank_out",
            "the drop of the value when a token is replaced",
            "Li et al., 2016; DeYoung et al., ACL 2020",
            signed=True,
            complete=False,
            unit="value",
            cost=TOKENS,
            code="perturbation:BlankOut",
            baseline="optional",
        ),
        Method(
            "rollout",
            "a token-to-token map multiplied over layers, at the output position",
            "Abnar and Zuidema, ACL 2020",
            signed=False,
            complete=False,
            unit="part of the row",
            cost=LAYERS,
            code="rolled:Rollout",
            options=(
                Option("map", None, (), "a map of analyze, by its name"),
                Option(
                    "normalize",
                    "auto",
                    ("auto", "yes", "no"),
                    "whether rows are divided by their sums; auto: but for lengths with the "
                    "residual",
                ),
            ),
        ),
        Method(
            "random",
            "random numbers, the same for the same text and seed: what any method must beat",
            "a baseline",
            signed=False,
            complete=False,
            unit="none",
            cost=FORWARD,
            code="random:Random",
            options=(_SEED,),
        ),
    )
}


def method_of(text: str) -> ChosenMethod:
    """Return the method that a text names, such as "rollout:attn_w", "smoothgrad:noise=0.1".

    Raises:
        InputError: there is no such method or option.
    """
    name, _, options = str(text).partition(":")
    if name not in TABLE:
        raise InputError(f"method must be one of {', '.join(TABLE)}, not {name!r}")
    return TABLE[name].with_options(options)


def refuse(method: Method, why: str, **fits: Any) -> InputError:
    """Return the error for a method that does not go with something, naming those that do."""
    names = [m.name for m in TABLE.values() if all(getattr(m, k) in v for k, v in fits.items())]
    return InputError(f'method="{method.name}" {why}; methods that work: {", ".join(names)}')


@dataclass(frozen=True, repr=False)
class Methods:
    """All methods of attribution; printed, they are a table.

    Attributes:
        rows: the methods.
    """

    rows: tuple[Method, ...] = field(default_factory=lambda: tuple(TABLE.values()))

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Method:
        return _named(name)

    def table(self) -> list[tuple[str, ...]]:
        """Return the rows as texts: name, title, signed, complete, unit, cost, reference."""
        return [
            (
                _spelling(method),
                method.title,
                "signed" if method.signed else "sizes",
                "complete" if method.complete else "no sum",
                method.unit,
                method.cost,
                method.reference,
            )
            for method in self.rows
        ]

    def __repr__(self) -> str:
        lines = []
        for name, title, *facts, reference in self.table():
            lines += [name, f"    {title}", f"    {'; '.join(facts)}", f"    {reference}"]
        return "\n".join(lines)


def _named(name: str) -> Method:
    """Return a method by its name alone."""
    if name not in TABLE:
        raise InputError(f"method must be one of {', '.join(TABLE)}, not {name!r}")
    return TABLE[name]


def _spelling(method: Method) -> str:
    """Return how a method is written, with its options and their defaults."""
    if not method.options:
        return method.name
    defaults = [
        option.name.upper() if option.default is None else f"{option.name}={option.default}"
        for option in method.options
    ]
    return f"{method.name}:{','.join(defaults)}"


def methods() -> Methods:
    """Return the methods that ``attribute(method=…)`` accepts; print them to read a table.

    >>> from normscope import methods
    >>> methods()["chefer"].signed
    False
    """
    return Methods()
