"""`attribute_inputs` explains an output by the model's own inputs: ids, pixels, audio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.attribution.account import RowShares
from normscope.attribution.answers import (
    CallerValue,
    ChoiceValue,
    LogitValue,
    Term,
    Terms,
    span_terms,
)
from normscope.attribution.api import gradients, signature_of
from normscope.attribution.assembly import Labels, attribution
from normscope.attribution.baselines import EMBEDDINGS, default_baseline, embedded
from normscope.attribution.heads import (
    CAUSAL,
    CHOICES,
    LABELS,
    MASKED,
    NO_HEAD,
    SEQ2SEQ,
    SPANS,
    WORDS,
    detects,
    head_of,
    is_index,
    labels_of,
    no_head,
)
from normscope.attribution.labels import label_terms
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.table import ChosenMethod
from normscope.attribution.options import MEAN, ZERO, AttributionOptions, Question
from normscope.attribution.reading import join_tokens, spoken
from normscope.attribution.rows import position_in
from normscope.attribution.tracing import Segment
from normscope.capture import refuse_compiled
from normscope.engine.batch import is_vision
from normscope.engine.batches import out_of_memory
from normscope.engine.given import checked_inputs, model_failures, row_count
from normscope.engine.naming import SeenPositions, named
from normscope.errors import InputError
from normscope.linearisation.structure import structure_of
from normscope.models.left_padding import warn_of_left_padding
from normscope.models.loading import resolve
from normscope.models.processors import FEATURES, is_processor
from normscope.models.running import accepted_by, evaluating
from normscope.models.sides import tokenizer_in, tokenizers_of
from normscope.results.arrays import take
from normscope.results.attribution import Attribution
from normscope.text.pieces import label_ids
from normscope.text.tokens import Tokens, check_tokenizer

Mask = NDArray[np.bool_]


def attribute_inputs(
    model: Any,
    inputs: Mapping[str, Any],
    tokens: Sequence[Sequence[str]] | None = None,
    *,
    answer: Any = None,
    foil: Any = None,
    position: int | Sequence[int] | None = None,
    baseline: Any = None,
    method: str | None = None,
    units: str = "logit",
    gate: str = "half",
    trace: bool = False,
    recompute: bool | str = "auto",
    tokenizer: Any = None,
) -> list[Attribution]:
    """Explain an output by the model's own inputs: ids, pixels, audio, embeddings.

    Args:
        model: a transformers model with its head, a folder or a hub name.
        inputs: the keyword arguments of its forward pass, as tensors, arrays or lists.
        tokens: the names of the positions of each row, with or without its padding; by default,
            ids, patches ("patch 0,3"), frames or numbers.
        answer: an id, or a token if there is a tokenizer; a label or its index; (start, end) of a
            span; a function of the model's output for one row; a list of these, one for each row.
            None: the model's own choice.
        foil: what the answer is compared with.
        position: the output position among the real positions of a row. Default: the last one of
            a language model.
        baseline: another mapping of inputs with the same shapes; an id in place of all; "zero";
            "mean" of the embeddings; or a list of these, over which shares are averaged.
        method: as for :func:`attribute`, also the following.
        units: "logit" or "logprob".
        gate: "half", "gate", "up" or "ig".
        trace: also compute the shares at every layer.
        recompute: "auto", True or False.
        tokenizer: names ids by their pieces and words.

    Returns:
        One result for each row; positions that the attention mask marks as padding are removed.
    """
    options = AttributionOptions(method, gate, units, trace, recompute).checked()
    with gradients():
        model, _ = resolve(model)
        refuse_compiled(model)
        if tokens is not None and tokenizer is not None:
            raise InputError("tokens and tokenizer both name the positions: give one of them")
        checked = _explainable(model, inputs)
        warn_of_left_padding(model, checked, stacklevel=2)
        rows = InputRows(model, checked, tokens, tokenizer)
        per_row = {"answer": answer, "foil": foil, "position": position}
        questions = rows.questions(per_row, baseline)
        chosen = options.method_for(questions[0])
        value, kept = rows.value(questions, options, exact=not chosen.method.held)
        baselines = rows.baselines(questions[0], chosen)
        questions = [replace(question, baseline=baselines or None) for question in questions]
        shares = rows.explained(value, kept, baselines, chosen, options)
        settings = options.describe(chosen)
        return [
            rows.result(row, shares, value, questions[row], settings) for row in range(rows.count)
        ]


class InputRows:
    """The rows of a batch of tensors: which positions are real, and what they are called.

    Args:
        model: a transformers model.
        inputs: the keyword arguments of its forward pass.
        tokens: the names of the positions of each row, if known.
        tokenizer: the tokenizer of the ids, if known, or the processor that made the inputs.
    """

    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        tokens: Sequence[Sequence[str]] | None,
        tokenizer: Any = None,
    ) -> None:
        self.model, self.head = model, head_of(model)
        self.seen = SeenPositions(model, inputs, tokenizer)
        self.inputs = {name: _moved(model, value) for name, value in inputs.items()}
        self.count = row_count(self.inputs)
        self.choices = 1
        if self.head == CHOICES:
            self.choices = next(v for v in self.inputs.values() if isinstance(v, Tensor)).shape[1]
            self.inputs = {
                name: value.flatten(0, 1).unsqueeze(1) if isinstance(value, Tensor) else value
                for name, value in self.inputs.items()
            }
        self.two = bool(getattr(model.config, "is_encoder_decoder", False))
        self.tokens = tokens
        self.paths = _paths_of(model)
        reader = tokenizer_in(tokenizer)
        if not is_processor(reader):
            check_tokenizer(reader[0] if isinstance(reader, tuple | list) else reader)
        reads = reader is not None and not is_processor(reader)
        self.tokenizers: Any = tokenizers_of(model, reader) if reads else None
        self.signature = signature_of(model, reader if reads else None, {})
        if tokens is not None and len(tokens) != self.count:
            raise InputError(f"tokens has {len(tokens)} rows, and the inputs have {self.count}")

    # ---- positions

    def read(self, row: int) -> Mask:
        """Return the real positions of what an answer's position counts."""
        name = "decoder_input_ids" if self.head == SEQ2SEQ else "input_ids"
        mask = self.inputs.get(f"decoder_{MASK}" if self.head == SEQ2SEQ else MASK)
        ids = self.inputs.get(name, self.inputs.get(EMBEDDINGS[name]))
        if not isinstance(ids, Tensor):
            length = 0 if not isinstance(mask, Tensor) else mask.shape[-1]
            return np.ones(length, dtype=np.bool_)
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return np.ones(ids.shape[1], dtype=np.bool_)
        return mask[row].bool().cpu().numpy()

    def real(self, stack: str, row: int, length: int) -> Mask:
        """Return which of a stack's positions are real."""
        decoder = self.two and stack == "decoder"
        mask = self.inputs.get(f"decoder_{MASK}" if decoder else MASK)
        full = np.ones(length, dtype=np.bool_)
        if not isinstance(mask, Tensor) or is_vision(stack):
            return full
        if mask.ndim == 3:  # each choice is a row
            mask = mask.flatten(0, 1)
        if mask.shape[1] != length:
            shrink = getattr(self.model, "_get_feature_vector_attention_mask", None)
            if shrink is None:
                return full
            mask = shrink(length, mask)
        return mask[row].bool().cpu().numpy()

    def names(self, stack: str, row: int, real: Mask, first: bool) -> Tokens:
        """Return the names of the real positions of a row in a stack."""
        kept = np.flatnonzero(real).tolist()
        if self.tokens is not None and first:
            tokens = named(self.tokens[row])
            tokens = take(tokens, kept) if len(tokens) == len(real) else tokens
            if len(tokens) != len(kept):
                raise InputError(
                    f"tokens names {len(tokens)} positions of row {row}, but it has {len(kept)} "
                    f"real ones ({len(real)} with padding)"
                )
            return tokens
        path = self.paths.get(stack, stack)
        seen = self.seen.tokens(path, row * len(real), len(real), self._ids(stack, row, len(real)))
        if seen is None:
            return named([f"position {at}" for at in kept])
        return take(seen, kept)

    def _ids(self, stack: str, row: int, length: int) -> Tokens | None:
        """Return the names of a stack's positions as ids; None if they are no ids."""
        decoder = self.two and stack == "decoder"
        ids = self.inputs.get("decoder_input_ids" if decoder else "input_ids")
        if not isinstance(ids, Tensor) or ids.shape[-1] != length or is_vision(stack):
            return None
        chosen = [int(index) for index in ids.flatten(0, -2)[row].tolist()]
        if self.tokenizers is not None:
            return label_ids(self.tokenizers.side(as_target=decoder), chosen)
        return replace(named([str(index) for index in chosen]), ids=tuple(chosen))

    # ---- questions

    def questions(self, asked: Mapping[str, Any], baseline: Any) -> list[Question]:
        """Return the question of each row."""
        if isinstance(baseline, Mapping):
            baseline = [baseline]
        columns = {
            name: list(value) if _is_list(value) else [value] * self.count
            for name, value in asked.items()
        }
        for name, column in columns.items():
            if len(column) != self.count:
                raise InputError(
                    f"{name} is a list of {len(column)} for {self.count} rows: give one for each"
                )
        rows = zip(*columns.values(), strict=True)
        return [
            Question(**dict(zip(columns, row, strict=True)), baseline=baseline).checked()
            for row in rows
        ]

    def value(
        self, questions: Sequence[Question], options: AttributionOptions, *, exact: bool
    ) -> tuple[Any, list[int] | None]:
        """Return what is explained, and the positions that logits are kept of, if not all."""
        functions = [question.answer for question in questions if callable(question.answer)]
        if functions:
            if len(functions) != len(questions) or len({*map(id, functions)}) != 1:
                raise InputError("one function is the answer for all rows, or for none")
            return CallerValue(functions[0], self.count), None
        if self.head == NO_HEAD:
            raise no_head(self.model)
        terms = [[self._terms(row, question)] for row, question in enumerate(questions)]
        kept = self.kept(term.place for row in terms for step in row for term in step)
        valid = None
        if self.head == SPANS:
            valid = [np.flatnonzero(self.read(row)).tolist() for row in range(self.count)]
        how: dict[str, Any] = {"units": options.units, "exact": exact}
        if self.head == CHOICES:
            valid = [list(range(self.choices))] * self.count
            return ChoiceValue(self.head, terms, valid=valid, **how), None
        return LogitValue(self.head, terms, kept=kept, valid=valid, **how), kept

    def _terms(self, row: int, question: Question) -> Terms:
        if self.head == SPANS:
            return self._span(row, question)
        place = self._place(row, question)
        if self.head not in (*WORDS, CHOICES):
            terms, _, _ = label_terms(self.model, question, place)
            return terms
        if question.answer is None:
            return (Term(place, None),)
        given = [(question.answer, 1.0), (question.foil, -1.0)]
        terms_of: list[Term] = []
        for answer, weight in given:
            if answer is None:
                continue
            terms_of.append(Term(place, self._word_index(answer), weight))
        return tuple(terms_of)

    def _word_index(self, answer: Any) -> int:
        """Return the id of an answer, which may be a token if there is a tokenizer."""
        ids = [answer]
        if isinstance(answer, str) and self.tokenizers is not None:
            ids = self.tokenizers.target(answer, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or not is_index(ids[0]) or int(ids[0]) < 0:
            known = "one id" if self.tokenizers is None else "one id or one token"
            why = ", since there is no tokenizer" if self.tokenizers is None else ""
            raise InputError(f"an answer here is {known}{why}: not {answer!r:.60}")
        return int(ids[0])

    def _place(self, row: int, question: Question) -> int:
        """Return the column of an output position."""
        if self.head in (LABELS, CHOICES):
            if question.position is not None:
                raise InputError("the model has one output for a whole row: leave out position")
            return 0
        real = np.flatnonzero(self.read(row))
        if question.position is not None:
            if not len(real):
                return question.position
            return int(real[position_in(Tokens.positions(len(real)), question.position)])
        if self.head in (CAUSAL, SEQ2SEQ) and len(real):
            return int(real[-1])
        mask = getattr(self.model.config, "mask_token_id", None)
        ids = self.inputs.get("input_ids")
        if self.head == MASKED and mask is not None and isinstance(ids, Tensor):
            places = (ids[row] == mask).nonzero().flatten().tolist()
            if len(places) == 1:
                return int(places[0])
        if self.head == SEQ2SEQ:
            raise InputError(
                f"{type(self.model).__name__} is an encoder–decoder model: give what its decoder "
                "reads as decoder_input_ids"
            )
        raise InputError(
            f"{type(self.model).__name__} has an output at each position: give position="
        )

    def _span(self, row: int, question: Question) -> Terms:
        if question.answer is None or question.answer == "span":
            return (Term(0, None), Term(1, None))
        real = np.flatnonzero(self.read(row))
        terms: Terms = ()
        for span, weight in ((question.answer, 1.0), (question.foil, -1.0)):
            if span is None:
                continue
            if isinstance(span, str) or len(span) != 2:
                raise InputError(f"a span is (start, end), not {span!r:.60}")
            known = Tokens.positions(len(real))
            start, end = (int(real[position_in(known, int(at))]) for at in span)
            terms = (*terms, *span_terms(start, end, weight))
        return terms

    # ---- passes

    def explained(
        self,
        value: Any,
        kept: list[int] | None,
        baselines: Sequence[Any],
        chosen: ChosenMethod,
        options: AttributionOptions,
    ) -> list[RowShares]:
        """Return the shares of all rows, for each baseline.

        Args:
            value: what is explained.
            kept: the positions that logits are kept of, if not all.
            baselines: what differences are taken to; empty for shares of the value itself.
            chosen: the method.
            options: how to explain.
        """
        given = {**self.inputs, **({} if kept is None else {"logits_to_keep": kept})}
        shares = []
        for entry in baselines or (None,):
            real, others = self.pair(given, value, entry)
            try:
                how = (options.gate, options.trace, options.recompute)
                call = MethodCall(self.model, real, value, chosen, others, *how)
                with model_failures(self.model, real), evaluating(self.model):
                    work = partial(chosen.shares, call)
                    shares.append(self.signature.snapshot.settled(work))
            except torch.OutOfMemoryError as error:
                raise out_of_memory("this batch: give fewer rows at once") from error
        return shares

    def baselines(self, question: Question, chosen: ChosenMethod) -> tuple[Any, ...]:
        """Return the baselines of a question, or the one that its method has by itself."""
        if question.baselines or chosen.method.baseline == "no":
            return question.baselines
        mask = getattr(self.model.config, "mask_token_id", None)
        if self.tokenizers is not None:
            mask = getattr(self.tokenizers.source, "mask_token_id", None)
        return (default_baseline(chosen.name, mask),)

    def kept(self, places: Iterable[int]) -> list[int] | None:
        """Return the positions that logits are kept of, if the model can leave out others."""
        few = self.head == CAUSAL and "logits_to_keep" in accepted_by(self.model)
        return sorted(set(places)) if few else None

    def pair(
        self, given: Mapping[str, Any], value: Any, baseline: Any
    ) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Return the inputs and those of a baseline."""
        if baseline is None:
            return given, None
        if isinstance(baseline, Mapping):
            others = {**given, **{k: _moved(self.model, v) for k, v in baseline.items()}}
            for name, tensor in given.items():
                if isinstance(tensor, Tensor) and others[name].shape != tensor.shape:
                    raise InputError(
                        f"{name} of the baseline has shape {tuple(others[name].shape)}, and that "
                        f"of the inputs {tuple(tensor.shape)}: they must be equal"
                    )
            return given, others
        ids = [name for name in EMBEDDINGS if name in given]
        masks = {name: self._mask_of(name) for name in ids}
        if is_index(baseline):
            if not ids:
                raise InputError("a baseline that is an id needs inputs that are ids")
            changed = {
                name: torch.where(masks[name], torch.full_like(given[name], baseline), given[name])
                for name in ids
            }
            return given, {**given, **changed}
        if baseline not in (ZERO, MEAN):
            raise InputError(
                'a baseline here is a mapping of tensors, an id, "zero" or "mean", not '
                f"{baseline!r:.60}"
            )
        if ids:
            with evaluating(self.model):
                return embedded(self.model, given, value, {"kind": baseline, **masks})
        floats = {
            name: torch.zeros_like(tensor)
            for name, tensor in given.items()
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and MASK not in name
        }
        if baseline == MEAN or not floats:
            raise InputError('"mean" is the mean of the embeddings of ids, and there are none')
        return given, {**given, **floats}

    def _mask_of(self, name: str) -> Tensor:
        ids = self.inputs[name]
        mask = self.inputs.get(MASK if name == "input_ids" else f"decoder_{MASK}")
        usable = isinstance(mask, Tensor) and mask.shape == ids.shape
        return mask.bool() if usable and mask is not None else torch.ones_like(ids).bool()

    # ---- results

    def result(
        self,
        row: int,
        shares: Sequence[RowShares],
        value: Any,
        question: Question,
        settings: Mapping[str, str],
    ) -> Attribution:
        """Return the result of one row."""
        segments, parts, sides = self.segments(row, shares)
        tokens = parts[0]
        for names in parts[1:]:
            tokens = join_tokens(tokens, names)
        terms = value.rows[row][0] if isinstance(value, LogitValue) else ()
        words = [self._word(term) for term in terms]
        positive = sum(term.weight > 0 for term in terms)
        described = {**settings, "answer": ",".join(words[:positive]) or "function"}
        if words[positive:]:
            described["foil"] = ",".join(words[positive:])
        if question.baselines:
            described["baseline"] = ",".join(
                "inputs" if isinstance(b, Mapping) else str(b) for b in question.baselines
            )
        dtype = next(self.model.parameters()).dtype
        described["dtype"] = str(dtype).removeprefix("torch.")
        choices = self.choices
        labels = Labels(
            tokens=tokens,
            sides=sides,
            explained=None,
            answer=", ".join(words[:positive]),
            foil=", ".join(words[positive:]) or None,
            settings=described,
            signature=self.signature.with_settings(described),
        )
        rows = slice(row * choices, (row + 1) * choices)
        return attribution(shares, rows, segments, labels)

    def segments(
        self, row: int, shares: Sequence[RowShares]
    ) -> tuple[list[Segment], list[Tokens], list[str]]:
        """Return the positions of a row, the names of each segment, and the side of each name."""
        lengths = {source.stack: source.shares.shape[2] for source in shares[0].sources}
        segments, parts, sides = [], list[Tokens](), list[str]()
        for number, (stack, length) in enumerate(lengths.items()):
            for at in range(row * self.choices, (row + 1) * self.choices):
                real = self.real(stack, at, length)
                names = self.names(stack, at, real, number == 0 and self.choices == 1)
                if shares[0].trace is None:
                    real, names = self._without_placeholders(stack, at, real, names, shares)
                segments.append(Segment(stack, at, real))
                parts.append(names)
                sides += [self._side(stack, names)] * len(names)
        return segments, parts, sides

    def _without_placeholders(
        self, stack: str, row: int, real: Mask, names: Tokens, shares: Sequence[RowShares]
    ) -> tuple[Mask, Tokens]:
        """Leave out ids in whose places a model puts states of an image; they have no shares."""
        config, kinds = self.model.config, ("image", "video", "audio")
        known = [f"{kind}_token_{what}" for kind in kinds for what in ("id", "index")]
        places = {getattr(config, name, None) for name in known} - {None}
        if names.ids is None or not places & set(names.ids):
            return real, names
        own = [s.shares[row] for each in shares for s in each.sources if s.stack == stack]
        used = np.any([(array != 0).any(axis=0) for array in own], axis=0)[real]
        kept = [at for at, index in enumerate(names.ids) if used[at] or index not in places]
        without, real = np.isin(np.arange(len(names)), kept), real.copy()
        real[real] = without
        names = take(names, kept)
        return real, names if any(names.places or ()) else replace(names, places=None, pictures=())

    def _side(self, stack: str, names: Tokens) -> str:
        if names.ids is None and names.pictures:
            hears = any(isinstance(self.inputs.get(name), Tensor) for name in FEATURES)
            return "audio" if hears else "image"
        if stack == "decoder" and detects(self.model):
            return "objects"
        return ("target" if stack == "decoder" else "source") if self.two else "text"

    def _word(self, term: Term) -> str:
        index = str(term.index)
        if self.head in WORDS and term.index is not None and self.tokenizers is not None:
            return spoken(self.tokenizers.target, [term.index])
        if self.head in (*WORDS, SPANS, CHOICES) or term.index is None:
            return index
        return labels_of(self.model).get(term.index, index)


MASK = "attention_mask"
TARGETS = ("labels", "start_positions", "end_positions", "mc_labels", "next_sentence_label")


def _explainable(model: Any, inputs: Any) -> dict[str, Any]:
    """Return the inputs, checked; raise InputError for those that make the model return a loss."""
    for name in TARGETS:
        if isinstance(inputs, Mapping) and inputs.get(name) is not None:
            two = bool(getattr(model.config, "is_encoder_decoder", False))
            more = "; the target is given as decoder_input_ids" if two else ""
            raise InputError(
                f"{name} makes {type(model).__name__} compute a loss, which is not what is "
                f"explained: leave it out, and give answer={more}"
            )
    return checked_inputs(model, inputs, "attribute_inputs")


def _paths_of(model: Any) -> dict[str, str]:
    """Return the path of each stack of layers by its short name."""
    structure = structure_of(model)
    return {structure.name(path): path for path in reversed(structure.stacks)}


def _is_list(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, list)


def _moved(model: Any, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # A tensor made in inference mode cannot be part of a graph; its copy can.
    value = value.clone() if value.is_inference() else value
    return value.to(model.device)
