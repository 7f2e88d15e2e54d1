"""The result of an attribution: every input token's signed share of an output, and the proof."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.files import check_file, write_file
from normscope.foundation.texts import csv_lines, json_line, printable
from normscope.results.arrays import (
    LabelledArray,
    abridged,
    import_tables,
    is_int,
    merge_words,
)
from normscope.results.contributions import SignatureSource
from normscope.results.passages import piece_texts, sentences
from normscope.results.traced import (
    TRACE_AXES,
    Edge,
    EdgeSource,
    TracedShares,
    check_gap,
    relative_gap,
    with_gaps,
)
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Attribution", "EdgeSource", "TracedShares"]

Numbers = int | float | np.generic | NDArray[Any] | Sequence[Any] | LabelledArray
QUOTED = 60  # characters of the answer in the headline
SIDES = ("text", "pair", "continuation", "source", "target", "image", "audio", "objects")
FIRST_COLUMNS = ("step", "answer", "position", "token", "text", "side", "share")


class Attribution:
    """The share of every input token in an output: ``scores.sum() + bias == value``.

    With one answer `scores` has the axis "token", and `value` and `bias` are floats. With several
    (a continuation, a translation) there is an axis "step" before it, `steps` has the explained
    tokens, and `value` and `bias` are arrays with one entry a step.

    Args:
        tokens: The input tokens, special tokens included.
        value: What was explained: a float, or one for each step.
        bias: The share of the model's biases, which belongs to no token.
        scores: (token,) or (step, token); by default, the sum of `parts`.
        parts: (part, token) or (step, part, token): the shares of each token's embeddings by kind;
            by default, the scores as the only part.
        part_names: The names of the parts; ("word",) for a single part.
        error: The worst relative gap, |value − Σ shares − bias| / (Σ|shares| + |bias|); by
            default, that of the given numbers. NaN for scores that are sizes, not shares.
        sides: For each token "text", "pair", "continuation", "source", "target", "image", "audio"
            or "objects" (what a detector asks an image for); "text" by default.
        steps: The explained tokens if there are several; None for one answer.
        answer: What was explained: a token's text, a label, or the tokens' texts.
        foil: What the answer is compared with, if anything.
        settings: How it was computed: "method", "units", "baseline", "gate". "question" is the
            headline that shows what was asked; by default it is made from answer and foil.
            "signed" and "complete" are "no" for scores that are sizes, or that do not add up to
            the value; "unit" is the unit of scores that do not have the value's.
        spread: The standard deviation of the scores over several baselines.
        lens: (layer,) or (step, layer): the value that the states entering each layer, and leaving
            the last, would give: the logit lens.
        trace: Shares inside the model.
        signature: A line of text, or an object whose ``text()`` gives it when it is first read.

    Raises:
        InputError: If shapes differ, or shares that are complete do not add up to the value.
    """

    def __init__(
        self,
        *,
        tokens: Tokens,
        value: Numbers,
        bias: Numbers = 0.0,
        scores: Numbers | None = None,
        parts: Numbers | None = None,
        part_names: Sequence[str] | None = None,
        error: float | None = None,
        sides: Sequence[str] | None = None,
        steps: Tokens | None = None,
        answer: str | Sequence[str] = "",
        foil: str | None = None,
        settings: Mapping[str, str] | None = None,
        spread: Numbers | None = None,
        lens: Numbers | None = None,
        trace: TracedShares | None = None,
        signature: SignatureSource | str = "",
    ) -> None:
        self.sides = ("text",) * len(tokens) if sides is None else tuple(sides)
        self.tokens, self.steps = _words_of_sides(tokens, self.sides), steps
        self.answer = answer if isinstance(answer, str) else tuple(answer)
        self.foil = foil
        self.settings = {str(name): str(setting) for name, setting in (settings or {}).items()}
        self._signature = signature
        self.parts = self._checked_parts(scores, parts, part_names)
        if scores is None:
            scores = self.parts.sum("part")
        self.scores = self._array("scores", scores, ("token",))
        self.spread = None if spread is None else self._array("spread", spread, ("token",))
        self.lens = None if lens is None else self._array("lens", lens, ("layer",))
        self.value, self.bias = self._number("value", value), self._number("bias", bias)
        self._trace = None if trace is None else self._checked_trace(trace)
        self.error = self._checked_error(error)

    # ---- checking

    def _array(self, name: str, values: Any, axes: tuple[str, ...]) -> LabelledArray:
        """Return values as a signed array with these axes, after a step axis if there are steps."""
        if self.steps is not None:
            axes = ("step", *axes)
        known = {"token": self.tokens, "query": self.tokens, "key": self.tokens, "step": self.steps}
        if isinstance(values, LabelledArray):
            labels, own = values.labels, dict(values.tokens)
            if values.axes != axes:
                raise InputError(f"{name} has the axes {values.axes}; valid: {axes}")
            for axis, along in own.items():
                if known.get(axis, along) != along:
                    raise InputError(f"the tokens of {name} along {axis!r} are not the result's")
        else:
            labels, own = {}, {}
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.ndim != len(axes):
            raise InputError(
                f"{name} has shape {numbers.shape}; give one dimension for each of {axes}"
            )
        if not np.isfinite(numbers).all():
            raise InputError(f"{name} has values that are not finite")
        for axis, tokens in known.items():
            if axis in axes and tokens is not None:
                own[axis] = tokens
        signed = self.signed or name not in ("scores", "parts")
        return LabelledArray(numbers, axes, own, labels, name=name, signed=signed)

    def _number(self, name: str, value: Numbers) -> Any:
        """Return a float, or with several steps a read-only array with one entry for each."""
        numbers = np.array(value, dtype=np.float64)
        shape = () if self.steps is None else (len(self.steps),)
        if numbers.ndim == 0 and self.steps is not None and name == "bias":
            numbers = np.full(shape, float(numbers))
        if numbers.shape != shape or not np.isfinite(numbers).all():
            raise InputError(
                f"{name} has shape {numbers.shape}, or is not finite; give a finite number"
                + (f" for each of the {shape[0]} steps" if shape else "")
            )
        numbers.flags.writeable = False
        return numbers if shape else float(numbers)

    def _checked_parts(self, scores: Any, parts: Any, names: Sequence[str] | None) -> LabelledArray:
        if len(self.sides) != len(self.tokens) or not set(self.sides) <= set(SIDES):
            raise InputError(
                f"sides are {self.sides!r:.80} for {len(self.tokens)} tokens; give one of {SIDES} "
                "for each token"
            )
        answers = (self.answer,) if isinstance(self.answer, str) else self.answer
        if not all(isinstance(text, str) for text in (*answers, self.foil or "")):
            raise InputError(f"answer is {answers!r:.80} and foil {self.foil!r:.80}; give texts")
        if self.steps is not None and len(answers) not in (1, len(self.steps)):
            raise InputError(f"there are {len(self.steps)} steps but {len(answers)} answers")
        if parts is None:
            if scores is None:
                raise InputError("an attribution needs scores or parts")
            place = 0 if self.steps is None else 1
            parts = np.expand_dims(np.asarray(scores, dtype=np.float64), place)
        if names is None and isinstance(parts, LabelledArray) and "part" in parts.tokens:
            names = parts.tokens["part"].strings
        array = self._array("parts", parts, ("part", "token"))
        count = array.shape[array.axes.index("part")]
        names = tuple(names or ("word",))
        if len(names) != count or len(set(names)) != count:
            raise InputError(f"part_names are {names}; give {count} different names")
        labels = Tokens(names, None, (True,) * count, names, tuple(range(count)), names)
        return replace(array, tokens={**array.tokens, "part": labels})

    def _checked_trace(self, trace: TracedShares) -> TracedShares:
        arrays = {}
        for name, axes in TRACE_AXES.items():
            values = getattr(trace, name)
            lazy = name == "edges" and isinstance(values, EdgeSource)
            arrays[name] = values if values is None or lazy else self._array(name, values, axes)
        checked = TracedShares(**arrays)
        cuts = checked.layers.shape[-2]
        if not checked.layer_bias.shape[-1] == checked.layer_error.shape[-1] == cuts:
            raise InputError(f"layers has {cuts} cuts; give layer_bias and layer_error for each")
        # Along the layers, the value of each step.
        value = np.asarray(self.value)[..., None]
        gap = relative_gap(value, checked.layers.values, checked.layer_bias.values)
        check_gap(gap, checked.layer_error.values, "the shares of a layer")
        return checked

    def _checked_error(self, error: float | None) -> float:
        missing = np.abs(self.scores.values - self.parts.sum("part").values)
        size = np.abs(self.scores.values).sum(axis=-1, keepdims=True)
        check_gap(missing / np.where(size > 0, size, 1.0), 0.0, "the parts of a token")
        if not self.signed:
            return math.nan
        gap = relative_gap(np.asarray(self.value), self.scores.values, np.asarray(self.bias))
        if not self.complete:
            return float(gap.max(initial=0.0))
        if error is not None:
            if not (np.isfinite(error) and error >= 0):
                raise InputError(f"error is {error}; give a number that is not negative")
            check_gap(gap, error, "the shares of the tokens")
        return float(max(gap.max(initial=0.0), error or 0.0))

    # ---- reading

    @property
    def part_names(self) -> tuple[str, ...]:
        """The kinds of embeddings that `parts` tells apart."""
        return self.parts.tokens["part"].strings

    @property
    def method(self) -> str:
        """The name of the method, such as "frozen" or "secant"."""
        return self.settings.get("method", "frozen")

    @property
    def units(self) -> str:
        """The units of the value: "logit" or "logprob"; see `unit` for those of the scores."""
        return self.settings.get("units", "logit")

    @property
    def signed(self) -> bool:
        """Whether scores count for and against the answer; otherwise they are sizes."""
        return self.settings.get("signed") != "no"

    @property
    def complete(self) -> bool:
        """Whether scores and bias add up to the value."""
        return self.settings.get("complete") != "no"

    @property
    def unit(self) -> str:
        """The unit of the scores; for most methods that of the value, `units`."""
        return self.settings.get("unit", self.units)

    @property
    def question(self) -> str:
        """What the shares answer, as a headline."""
        if "question" in self.settings:
            return self.settings["question"]
        answer = self.answer if isinstance(self.answer, str) else "".join(self.answer)
        if not answer:
            return "What made the model's output"
        if len(answer) > QUOTED:
            answer = f"{answer[: QUOTED - 1]}…"
        verb = "say" if self.steps is None else "write"
        rather = f" rather than {self.foil!r}" if self.foil is not None else ""
        return f"What made the model {verb} {answer!r}{rather}"

    @property
    def signature(self) -> str:
        """How these numbers were computed, in one line; made when first read, then cached."""
        if not isinstance(self._signature, str):
            self._signature = self._signature.text()
        return self._signature

    @property
    def traced(self) -> bool:
        """Whether there are shares inside the model: `layers`, `heads`, `feed_forward`."""
        return self._trace is not None

    def _traced(self, name: str) -> Any:
        array = getattr(self._trace, name, None)
        if array is None:
            why = "this model has none" if self._trace else "attribute with trace=True"
            raise InputError(f"this result has no {name}: {why}")
        return array

    @property
    def layers(self) -> LabelledArray:
        """(layer, token): shares of the states that enter each layer, and leave the last one."""
        return self._traced("layers")

    @property
    def layer_bias(self) -> LabelledArray:
        """(layer,): the share of the biases above each cut of `layers`."""
        return self._traced("layer_bias")

    @property
    def layer_error(self) -> LabelledArray:
        """(layer,): the relative gap at each cut of `layers`."""
        return self._traced("layer_error")

    @property
    def heads(self) -> LabelledArray:
        """(layer, head): what each head added to the value."""
        return self._traced("heads")

    @property
    def heads_error(self) -> LabelledArray:
        """(layer,): the relative gap of the shares of heads."""
        return self._traced("heads_error")

    @property
    def feed_forward(self) -> LabelledArray:
        """(layer, token): what each feed-forward added to the value at each token."""
        return self._traced("feed_forward")

    @property
    def feed_forward_error(self) -> LabelledArray:
        """(layer,): the relative gap of the shares of feed-forwards."""
        return self._traced("feed_forward_error")

    def edges(
        self, layer: int, top: int | None = None, step: int | None = None
    ) -> LabelledArray | list[Edge]:
        """Return what each head of a layer moved from key to query, as shares of the value.

        Args:
            layer: The layer, counted from 0.
            top: Return only so many, the largest in absolute value.
            step: Which answer; needed if there are several.

        Returns:
            An array (head, query, key), or with `top` a list of (head, query, key, share).
        """
        edges = self._traced("edges")
        if top is not None and (not is_int(top) or top < 1):
            raise InputError(f"top is {top!r}; give at least 1 edge")
        if self.steps is not None:
            self._check_step(step, needed=True)
        if isinstance(edges, EdgeSource):
            return edges.edges(layer, top=top, step=step)
        array = edges.sel(layer=layer) if self.steps is None else edges.sel(layer=layer, step=step)
        if top is None:
            return array
        order = np.argsort(-np.abs(array.values), axis=None, kind="stable")[:top]
        places = np.stack(np.unravel_index(order, array.shape), axis=-1).tolist()
        return [(*place, float(array.values[tuple(place)])) for place in places]

    # ---- summing

    def _check_step(self, step: int | None, *, needed: bool = False) -> None:
        count = 1 if self.steps is None else len(self.steps)
        if (step is None and needed) or (
            step is not None and not (is_int(step) and 0 <= step < count)
        ):
            raise InputError(f"step is {step!r}; valid: 0 to {count - 1}")

    def _shares(self, step: int | None = None) -> NDArray[np.float64]:
        """Return the share of each token: in one answer, or in the sum of all of them."""
        self._check_step(step)
        scores = np.atleast_2d(self.scores.values)
        return np.asarray(scores.sum(axis=0) if step is None else scores[step])

    def top(self, n: int = 10, step: int | None = None) -> list[tuple[str, float]]:
        """Return the `n` tokens with the largest shares in absolute value, as (text, share).

        Args:
            n: How many.
            step: Which answer; by default, the sum of all of them.
        """
        if not is_int(n) or n < 1:
            raise InputError(f"n is {n!r}; give at least 1 token")
        shares = self._shares(step)
        order = np.argsort(-np.abs(shares), kind="stable")[:n].tolist()
        return [(self.tokens.texts[at], float(shares[at])) for at in order]

    def span(self, a: int, b: int) -> Attribution:
        """Return the attribution of the steps `a` to `b` − 1 together: their shares summed.

        Its error is at least that of the steps. Spread and edges are left out.
        """
        if self.steps is None:
            raise InputError("span sums answers, and this result has one; spans sums tokens")
        if not (is_int(a) and is_int(b) and 0 <= a < b <= len(self.steps)):
            raise InputError(
                f"({a!r}, {b!r}) is not a range of steps; valid: 0 <= a < b <= {len(self.steps)}"
            )

        def summed(values: Any) -> Any:
            return None if values is None else np.asarray(values)[a:b].sum(axis=0)

        trace = None
        if self._trace is not None:
            kept = {name: getattr(self._trace, name) for name in TRACE_AXES if name != "edges"}
            sums = {name: summed(array) for name, array in kept.items()}
            for name, array in kept.items():
                if array is not None and name.endswith("_error"):
                    sums[name] = array.values[a:b].max(axis=0)
            trace = with_gaps(TracedShares(**sums), summed(self.value))
        answer = "".join(self.answer[a:b]) if isinstance(self.answer, tuple) else self.answer
        together = Attribution(
            tokens=self.tokens,
            value=summed(self.value),
            bias=summed(self.bias),
            scores=summed(self.scores),
            parts=summed(self.parts),
            part_names=self.part_names,
            sides=self.sides,
            answer=answer,
            foil=self.foil,
            settings={**self.settings, "steps": f"{a}:{b}"},
            lens=summed(self.lens),
            trace=trace,
            signature=self._signature,
        )
        together.error = float(np.fmax(together.error, self.error))
        return together

    def spans(self, ranges: Sequence[tuple[int, int]], step: int | None = None) -> list[float]:
        """Return the summed share of each range of tokens (first, end), end excluded.

        Args:
            ranges: Ranges of token positions, e.g. of retrieved passages.
            step: Which answer; by default, the sum of all of them.
        """
        shares = self._shares(step)
        sums = []
        for a, b in ranges:
            if not (is_int(a) and is_int(b) and 0 <= a < b <= len(shares)):
                raise InputError(
                    f"({a!r}, {b!r}) is not a range of tokens; valid: 0 <= a < b <= {len(shares)}"
                )
            sums.append(float(shares[a:b].sum()))
        return sums

    def by_sentence(self, step: int | None = None) -> list[tuple[str, float]]:
        """Return each sentence of the text with the sum of its tokens' shares.

        The sums and the bias add up to the value, since every token belongs to one entry; special
        tokens have entries of their own. A sentence ends after ".", "!" or "?" before a space, and
        at the end of a line, but not after a common abbreviation or before a small letter.

        Args:
            step: Which answer; by default, the sum of all of them.
        """
        pieces = piece_texts(self.tokens)
        ranges = sentences(self.tokens, self.sides)
        texts = ["".join(space + text for space, text in pieces[a:b]).strip() for a, b in ranges]
        return list(zip(texts, self.spans(ranges, step), strict=True))

    def words(self) -> Attribution:
        """Return the same result with the pieces of each input word summed.

        Its error is at least that of the pieces. Spread and edges are left out.
        """
        groups, tokens = merge_words(self.tokens)
        trace = None
        if self._trace is not None:
            kept = {name: getattr(self._trace, name) for name in TRACE_AXES if name != "edges"}
            for name in ("layers", "feed_forward"):
                if kept[name] is not None:
                    kept[name] = kept[name]._merge_pieces("token")
            trace = with_gaps(TracedShares(**kept), self.value)
        merged = Attribution(
            tokens=tokens,
            value=self.value,
            bias=self.bias,
            scores=self.scores._merge_pieces("token"),
            parts=self.parts._merge_pieces("token"),
            sides=[self.sides[group[0]] for group in groups],
            steps=self.steps,
            answer=self.answer,
            foil=self.foil,
            settings=self.settings,
            lens=self.lens,
            trace=trace,
            signature=self._signature,
        )
        merged.error = float(np.fmax(merged.error, self.error))
        return merged

    def _trace_arrays(self) -> dict[str, LabelledArray]:
        """Return the arrays of the trace, without edges that are computed on demand."""
        kept = {} if self._trace is None else vars(self._trace)
        return {name: array for name, array in kept.items() if isinstance(array, LabelledArray)}

    def _arrays(self) -> dict[str, LabelledArray]:
        """Return every stored array by name: scores, parts, spread, and trace/layers etc."""
        traced = {f"trace/{name}": array for name, array in self._trace_arrays().items()}
        own = {"scores": self.scores, "parts": self.parts}
        more = {"spread": self.spread, "lens": self.lens}
        return own | {name: array for name, array in more.items() if array is not None} | traced

    # ---- comparing

    def _facts(self) -> tuple[Any, ...]:
        """Return everything but the signature, in a form that compares bit for bit."""
        numbers = [np.asarray(x).tobytes() for x in (self.value, self.bias, self.error)]
        about = (self.tokens, self.steps, self.sides, self.answer, self.foil, self.settings)
        return (*about, numbers, self.traced, self._arrays())

    def __eq__(self, other: object) -> bool:
        """Compare everything but edges that are computed on demand, the numbers bit for bit."""
        if not isinstance(other, Attribution):
            return NotImplemented
        # The signature comes last, because it may have to be computed first.
        return self._facts() == other._facts() and self.signature == other.signature

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # What computes signature and edges refers to the model, so it stays behind.
        trace = self._trace
        if trace is not None and isinstance(trace.edges, EdgeSource):
            trace = replace(trace, edges=None)
        return {**self.__dict__, "_signature": self.signature, "_trace": trace}

    def __repr__(self) -> str:
        steps = "" if self.steps is None else f"{len(self.steps)} steps, "
        value = np.sum(self.value)
        return (
            f"Attribution of {printable(str(self.answer))!s:.60}: value {value:.4g}, {steps}"
            f"{len(self.tokens)} tokens ({abridged(self.tokens)}), "
            f"bias {np.sum(self.bias):.4g}, {self._proof()}"
        )

    def _proof(self) -> str:
        if math.isnan(self.error):
            return f"{self.method}: no sum"
        return f"error {self.error:.1e}"

    # ---- converting

    def to_dict(self) -> dict[str, Any]:
        """Return the result in plain lists, dicts, strings and floats, ready for JSON."""
        plain: dict[str, Any] = {
            "question": self.question,
            "answer": self.answer if isinstance(self.answer, str) else list(self.answer),
            "foil": self.foil,
            "tokens": list(self.tokens.strings),
            "texts": list(self.tokens.texts),
            "sides": list(self.sides),
            "steps": None if self.steps is None else list(self.steps.texts),
            "scores": self.scores.values.tolist(),
            "part_names": list(self.part_names),
            "parts": self.parts.values.tolist(),
            "value": np.asarray(self.value).tolist(),
            "bias": np.asarray(self.bias).tolist(),
            "error": None if math.isnan(self.error) else self.error,
            "settings": dict(self.settings),
            "signature": self.signature,
        }
        for name, array in (("spread", self.spread), ("lens", self.lens)):
            if array is not None:
                plain[name] = array.values.tolist()
        if self._trace is not None:
            kept = self._trace_arrays()
            kept.pop("edges", None)
            plain["trace"] = {name: array.values.tolist() for name, array in kept.items()}
        return plain

    def _json(self) -> bytes:
        """Return `to_dict` as JSON, in UTF-8; edges are left out."""
        return json_line(self.to_dict())

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` as JSON; edges are left out."""
        check_file(path, (".json",))
        write_file(path, self._json())

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each step and token, and one for each step's bias, if it has one."""
        rows: list[tuple[Any, ...]] = []
        scores = np.atleast_2d(self.scores.values)
        parts = self.parts.values.reshape(len(scores), len(self.part_names), -1)
        bias = np.atleast_1d(self.bias)
        labels = [str(self.answer)] if self.steps is None else list(self.steps.texts)
        about = list(zip(self.tokens.strings, self.tokens.texts, self.sides, strict=True))
        for step, answer in enumerate(labels):
            for at, facts in enumerate(about):
                shares = (float(scores[step, at]), *parts[step, :, at].tolist())
                rows.append((step, answer, at, *facts, *shares))
            nothing = ("",) * len(self.part_names)
            if not self.complete:
                continue
            rows.append((step, answer, "", "", "", "bias", float(bias[step]), *nothing))
        return rows

    def _columns(self) -> tuple[str, ...]:
        return (*FIRST_COLUMNS, *(f"share_{name}" for name in self.part_names))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with a row for each step and token; floats with all their digits.

        A last row of each step, with "bias" as its side, has the bias's share: so the column
        "share" adds up to the value. Scores that do not add up have no such row. A text that a
        spreadsheet would take for a formula (it begins with "=", "+", "-", "@", a tab or a line
        end) has an apostrophe before it.
        """
        check_file(path, (".csv",))
        write_file(path, "".join(csv_lines([self._columns(), *self._rows()])))

    def to_pandas(self) -> Any:
        """Return the table of `to_csv` as a pandas.DataFrame."""
        return import_tables("pandas").DataFrame(self._rows(), columns=list(self._columns()))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write an interactive page: one HTML file that needs no network."""
        from normscope.show.page import write

        write(self, path)

    def show(self, console: Console | None = None) -> None:
        """Print the text coloured by share, the largest shares and the proof.

        In a notebook, show the interactive page below the cell instead.

        Args:
            console: A rich console to print to; standard output by default.
        """
        from normscope.show.shares import show

        show(self, console)

    def _repr_html_(self) -> str:
        from normscope.show.page.static import attribution_html

        return attribution_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything, bit for bit, to one safetensors file; `load` reads it back.

        An existing file is replaced only when the new one is complete. Edges that are computed on
        demand are not saved.
        """
        from normscope.results.saved import save

        save(self, path)


def _words_of_sides(tokens: Tokens, sides: tuple[str, ...]) -> Tokens:
    """Return tokens of which no word has pieces of several sides, of prompt and continuation."""
    if tokens.word_of is None or tokens.words is None or len(sides) != len(tokens):
        return tokens
    pieces: dict[tuple[int, str], list[int]] = {}
    for at, place in enumerate(zip(tokens.word_of, sides, strict=True)):
        pieces.setdefault(place, []).append(at)
    if len(pieces) == len({word for word, _ in pieces}):
        return tokens
    split = [word for word, _ in pieces]
    words = tuple(
        "".join(tokens.texts[at] for at in group).strip()
        if split.count(word) > 1
        else tokens.words[word]
        for (word, _), group in pieces.items()
    )
    number = {place: index for index, place in enumerate(pieces)}
    word_of = tuple(number[place] for place in zip(tokens.word_of, sides, strict=True))
    return replace(tokens, word_of=word_of, words=words)
