"""What `attribute` explains and how, declared once for Python and the command line.

This module imports neither torch nor transformers, so that the command line's help is fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from normscope.attribution.methods.table import TABLE, ChosenMethod, method_of, refuse
from normscope.errors import InputError
from normscope.linearisation.rules import GATES

FROZEN, SECANT = "frozen", "secant"
METHODS = tuple(TABLE)
LOGIT, LOGPROB = "logit", "logprob"
UNITS = (LOGIT, LOGPROB)
RECOMPUTE = ("auto", True, False)
SPAN = "span"  # the answer of a question-answering model that is its own best span
ZERO, MEAN = "zero", "mean"  # baselines that are embeddings, not tokens


@dataclass(frozen=True)
class Question:
    """What is explained of one text; the keyword arguments of `attribute` of the same names."""

    answer: Any = field(
        default=None,
        metadata={
            "metavar": "TEXT",
            "help": "What to explain: the next token or tokens of a language model (with the "
            "space before them), a label of a classifier or its number. Default: the model's own "
            "choice.",
        },
    )
    foil: Any = field(
        default=None,
        metadata={"metavar": "TEXT", "help": "Explain why the model prefers the answer to this."},
    )
    text_pair: Any = field(
        default=None,
        metadata={"metavar": "TEXT", "help": "A second text, for models that read pairs."},
    )
    target: str | None = field(
        default=None,
        metadata={
            "metavar": "TEXT",
            "help": "Explain each token of this text, which an encoder-decoder model writes.",
        },
    )
    continuation: str | None = field(
        default=None,
        metadata={"metavar": "TEXT", "help": "Explain each token of this text after the prompt."},
    )
    generate: Any = field(
        default=None,
        metadata={
            "metavar": "N",
            "help": "Let the model write up to N tokens, greedily, and explain each.",
            "min": 1,
        },
    )
    similar_to: str | None = field(
        default=None,
        metadata={
            "metavar": "TEXT",
            "help": "Explain the cosine of the sentence embeddings of the text and this text.",
        },
    )
    position: Any = field(
        default=None,
        metadata={
            "metavar": "N",
            "help": "The output position, counted from 0, or from the end if negative. Default: "
            "the "
            "last token of a language model, the mask of a masked one.",
        },
    )
    baseline: Any = field(
        default=None,
        metadata={
            "metavar": "TOKEN|TEXT|zero|mean",
            "help": "Explain the difference from this input: a token in place of every token, a "
            "text with the same number of tokens, or zero or mean embeddings. Implies --method "
            "secant, if none is given.",
        },
    )

    def checked(self) -> Question:
        """Return the question in a normal form; raise InputError for what does not go together."""
        if self.foil is not None and self.answer is None:
            raise InputError(
                f"a foil ({self.foil!r}) was given without an answer to compare it with: give "
                f"answer="
            )
        if self.foil is not None and callable(self.answer):
            raise InputError("a foil needs an answer in words; subtract it in the function instead")
        kinds = ("answer", "target", "continuation", "generate", "similar_to")
        chosen = [name for name in kinds if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise InputError(
                f"{' and '.join(chosen)} each specify what to explain: give only one of them"
            )
        if self.generate is not None and (
            isinstance(self.generate, bool) or not isinstance(self.generate, Integral)
        ):
            raise InputError(f"generate must be a number of tokens, not {self.generate!r}")
        if self.generate is not None and self.generate < 1:
            raise InputError(f"generate must be at least 1, not {self.generate}")
        if self.position is not None:
            if isinstance(self.position, bool) or not isinstance(self.position, Integral):
                raise InputError(f"position must be a whole number, not {self.position!r}")
            if multiple := [name for name in chosen if name != "answer"]:
                raise InputError(f"position applies to an answer, not to {multiple[0]}")
        numbers: dict[str, Any] = {
            name: int(number)
            for name, number in (("generate", self.generate), ("position", self.position))
            if number is not None
        }
        return replace(self, baseline=_baselines(self.baseline), **numbers)

    @property
    def baselines(self) -> tuple[Any, ...]:
        """The baselines of a checked question; empty if there is none."""
        return tuple(self.baseline or ())


def _baselines(baseline: Any) -> tuple[Any, ...]:
    if baseline is None:
        return ()
    several = isinstance(baseline, Sequence) and not isinstance(baseline, str)
    if several and baseline and all(isinstance(m, Mapping) and "role" in m for m in baseline):
        return (tuple(baseline),)  # the messages of a chat
    baselines = tuple(baseline) if several else (baseline,)
    if not baselines:
        raise InputError("baseline is an empty list: give at least one, or leave it out")
    for entry in baselines:
        if entry == "" or not (
            isinstance(entry, str | Mapping | int | tuple) and not isinstance(entry, bool)
        ):
            raise InputError(
                'a baseline must be a token such as "[MASK]", a text, "zero" or "mean", or a list '
                f"of these, not {entry!r:.60}"
            )
    return baselines


@dataclass(frozen=True)
class AttributionOptions:
    """How to explain; the keyword arguments of `attribute` of the same names."""

    method: str | None = field(
        default=None,
        metadata={
            "metavar": "NAME[:OPTIONS]",
            "help": "frozen: attention, norms and slopes held at their values. secant: the exact "
            "difference from a baseline. Default: frozen, or secant with --baseline. "
            "normscope methods lists all of them, with their options, as in "
            "integrated_gradients:steps=20.",
        },
    )
    gate: str = field(
        default="half",
        metadata={
            "metavar": "|".join(GATES),
            "help": "How a gated feed-forward divides its product: half to each factor; with the "
            "gate held (gate), with the other factor held (up), or by integrated gradients (ig).",
        },
    )
    units: str = field(
        default=LOGIT,
        metadata={
            "metavar": "|".join(UNITS),
            "help": "logprob: the logit minus the mean of all logits, weighted by their "
            "probabilities, which are held fixed; with a baseline, the log-probability itself.",
        },
    )
    trace: bool = field(
        default=False,
        metadata={"help": "Also compute the shares at every layer, by head and feed-forward."},
    )
    recompute: bool | str = "auto"

    def checked(self) -> AttributionOptions:
        """Return the options; raise InputError for invalid values."""
        valid = {"gate": GATES, "units": UNITS, "recompute": RECOMPUTE}
        for name, choices in valid.items():
            if (value := getattr(self, name)) not in choices:
                listing = ", ".join(str(choice) for choice in choices)
                raise InputError(f"{name} must be one of {listing}, not {value!r}")
        if self.method is not None:
            self._check_fits(method_of(self.method))
        return self

    def _check_fits(self, chosen: ChosenMethod) -> None:
        """Raise InputError for options that do not go with a method."""
        method = chosen.method
        if self.gate != "half" and not method.gates:
            raise refuse(
                method, f"has its own rule for products, so gate={self.gate!r} does not apply",
                gates=(True,),
            )  # fmt: skip
        if self.trace and not method.traces:
            raise refuse(method, "has no shares inside the model (trace=True)", traces=(True,))
        if self.recompute is True and not method.traces:
            raise refuse(method, "does not recompute activations", traces=(True,))

    def method_for(self, question: Question) -> ChosenMethod:
        """Return the method for a checked question; raise InputError if they do not fit."""
        has = bool(question.baselines)
        if self.method is None:
            chosen = method_of(SECANT if has else FROZEN)
            self._check_fits(chosen)
            return chosen
        chosen = method_of(self.method)
        if has and chosen.method.baseline == "no":
            raise refuse(
                chosen.method,
                "takes no baseline: leave out one of the two",
                baseline=("needed", "optional"),
            )
        if chosen.method.baseline == "needed" and not has:
            raise InputError(
                f'method="{chosen.name}" explains a difference: give baseline=, such as "[MASK]", '
                '"mean" or a text with the same number of tokens'
            )
        return chosen

    def describe(self, method: ChosenMethod) -> dict[str, str]:
        """Return the settings that belong in a signature."""
        return {**method.describe(self.gate), "units": self.units}
