"""`attribute` explains an output of a model by its input tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import nn

from normscope.attribution.answers import LogitValue, Terms
from normscope.attribution.assembly import Labels, attribution
from normscope.attribution.baselines import baseline_of, default_baseline
from normscope.attribution.batches import ExplainedBatch, Runner, Task
from normscope.attribution.methods.table import ChosenMethod
from normscope.attribution.options import AttributionOptions, Question
from normscope.attribution.questions import row_of
from normscope.attribution.reading import Reader, is_chat, join_tokens
from normscope.attribution.rows import AskedRow
from normscope.attribution.tracing import Segment
from normscope.attribution.wording import answer_in_words, headline_of, terms_in_words
from normscope.capture import refuse_compiled
from normscope.engine.items import GivenItems, MediaGiven
from normscope.errors import InputError
from normscope.foundation.interrupts import shielded
from normscope.foundation.torch_settings import torch_settings_kept
from normscope.models.loading import resolve
from normscope.models.running import check_reads_text
from normscope.models.sides import tokenizers_of
from normscope.models.unwrapping import check_mean_pooling
from normscope.results.attribution import Attribution
from normscope.results.signature import Signature

CONVENTIONS = "sources:before-embedding-norm;biases:apart"


Chat = Sequence[Mapping[str, Any]]  # messages with role and content


@overload
def attribute(
    model: Any, tokenizer: Any = ..., text: str | Chat = ..., **options: Any
) -> Attribution: ...


@overload
def attribute(
    model: Any, tokenizer: Any, text: Sequence[str] | Sequence[Chat], **options: Any
) -> list[Attribution]: ...


def attribute(  # type: ignore[misc]  # the overloads leave out the keyword-only options
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    answer: Any = None,
    foil: Any = None,
    text_pair: Any = None,
    target: str | Sequence[str] | None = None,
    continuation: str | Sequence[str] | None = None,
    generate: int | None = None,
    similar_to: str | Sequence[str] | None = None,
    position: Any = None,
    baseline: Any = None,
    images: Any = None,
    audio: Any = None,
    sampling_rate: int | None = None,
    method: str | None = None,
    units: str = "logit",
    gate: str = "half",
    trace: bool = False,
    recompute: bool | str = "auto",
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> Attribution | list[Attribution]:
    """Compute the share of every input token in an output of a model: exact, signed, proved.

        >>> r = attribute(lm, tokenizer, "The keys to the cabinet", answer=" are", foil=" is")
        ... # doctest: +SKIP
        >>> r.scores.sum() + r.bias - r.value        # zero, up to r.error      # doctest: +SKIP

    Args:
        model: a transformers model with its head, a folder or a hub name; None is the default
            language model, or with ``similar_to`` the default sentence encoder.
        tokenizer: the model's tokenizer, or a pair (source, target) of them, or its processor;
            loaded with the model if that is a folder or a name.
        text: one text, or a list of texts, which is computed in batches. A list of messages,
            {"role": …, "content": …}, is one chat; the tokenizer's template makes it a prompt.
        answer: what is explained. Of a language model, the next tokens, as a string that is
            tokenised as the text goes on (" are" with its space) or as ids; of several tokens, the
            sum of their logits, each with the earlier ones given. Of a classifier, a label or its
            index. Of a question-answering model, words of the text, (start, end), or "span" for
            its own. Of a multiple-choice model, a choice or its index. A function gets the model's
            output for one text and returns one number. None: what the model itself chooses.
        foil: what the answer is compared with, at the first token that differs.
        text_pair: a second text in the same input; for multiple choice, the list of choices.
        target: the text that an encoder–decoder model writes; each token is explained.
        continuation: the text that a language model writes; each token is explained.
        generate: the number of tokens that the model writes itself, greedily, up to its end token;
            each is explained.
        similar_to: explain the cosine of the text's mean embedding with that of this text, which
            is held fixed.
        position: the output position, counted from 0, or from the end if negative. Default: the
            last token of a language model, the mask of a masked one.
        baseline: explain the difference from another input of the same length: a token's name
            ("[MASK]"), which replaces all but special tokens, a text, "zero" or "mean" for
            embeddings, or a list of these, over which shares are averaged. Of images and
            recordings, "zero" is one in which every number that the model reads is zero.
        images: an image, or a list: a path, an image of Pillow, an array or a tensor. Without a
            text there is a result for each; all images of a list belong to one text; for a list of
            texts, give an image, or a list of images, for each. The source of a patch is the state
            that enters the first layer. A model that compares images with texts is explained by
            the logit with which they belong together.
        audio: a recording, or a list: the path of a WAV file, or samples.
        sampling_rate: samples in a second, of samples with another rate than the model's.
        method: "frozen" (the default), "secant" (the default with a baseline) or another name of
            :func:`normscope.methods`, with options behind a colon:
            "integrated_gradients:steps=20", "rollout:alti".
        units: "logit", or "logprob": the logit less the mean of all logits, weighted by their
            probabilities, which are held fixed; with a baseline, the log-probability itself.
        gate: how a gated feed-forward divides its product: "half", "gate", "up" or "ig".
        trace: also compute the shares at every layer, by head and by feed-forward.
        recompute: compute activations again in the backward pass instead of storing them; "auto"
            does so on a GPU when the input is long.
        truncate: cut a text that is too long for the model, instead of raising InputError.
        device: device of a model given by name, such as "cuda". Default: the CPU.
        dtype: dtype of a model given by name, such as "bfloat16". Default: that of its file.
        revision: revision of a model on the hub.
        strict: refuse a model given by name that is not loaded whole, or whose answer depends on a
            head that is not in its file (see :func:`normscope.models.load`).

    With a list of texts, each of the arguments from ``answer`` to ``baseline`` is one for all texts
    or a list with one for each.

    Returns:
        An :class:`Attribution`; a list of them for a list of texts.
    """
    options = AttributionOptions(method, gate, units, trace, recompute).checked()
    asked = {"answer": answer, "foil": foil, "text_pair": text_pair, "target": target}
    asked |= {"continuation": continuation, "generate": generate, "similar_to": similar_to}
    asked |= {"position": position, "baseline": baseline}
    media = MediaGiven(images, audio, sampling_rate)
    where: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    if media:
        given = media.items(text, None, truncate=truncate)
        return _attribute_items((model, tokenizer), given, asked, options, strict=strict, **where)
    texts, single = texts_of(text)
    questions = questions_of(asked, None if single else len(texts))
    for question in questions:
        options.method_for(question)
    similar = any(question.similar_to is not None for question in questions)
    loaded = isinstance(model, str | os.PathLike)
    with gradients():
        model, tokenizer = resolved(model, tokenizer, similar=similar, strict=strict, **where)
        explainer = Explainer(model, tokenizer, options, truncate=truncate)
        results: list[Any] = [None] * len(texts)
        for at, result in explainer.explain(list(zip(texts, questions, strict=True))):
            results[at] = result
    if loaded:  # hash the weights now, because the model is deleted on return
        for result in results:
            _ = result.signature
    return results[0] if single else results


def _attribute_items(
    model_and_processor: tuple[Any, Any],
    given: GivenItems,
    asked: dict[str, Any],
    options: AttributionOptions,
    **where: Any,
) -> Attribution | list[Attribution]:
    """Explain outputs by images and recordings, one after the other."""
    from normscope.attribution.items import ItemExplainer

    questions = questions_of(asked, None if given.single else len(given.items))
    for question in questions:
        options.method_for(question)
        if question.similar_to is not None:
            raise InputError("similar_to compares texts; leave out images= and audio=")
    loaded = isinstance(model_and_processor[0], str | os.PathLike)
    results = []
    with gradients():
        model, processor = resolve(*model_and_processor, processor=True, **where)
        if processor is None:
            raise InputError(
                "no processor was given; use attribute(model, processor, images=…), or give the "
                "model's folder or name, and its processor is loaded with it"
            )
        refuse_compiled(model)
        explainer = ItemExplainer(model, processor, options)
        for at, (item, question) in enumerate(zip(given.items, questions, strict=True)):
            prepared = given.prepared(model, processor, at)
            results.append(explainer.explain(item, prepared, question))
    if loaded:  # hash the weights now, because the model is deleted on return
        for result in results:
            _ = result.signature
    return results[0] if given.single else results


@shielded
def gradients() -> Iterator[None]:
    """Allow gradients, whatever the caller has disabled."""
    with torch_settings_kept(), torch.inference_mode(False), torch.enable_grad():
        yield


def resolved(model: Any, tokenizer: Any, *, similar: bool, **where: Any) -> tuple[nn.Module, Any]:
    """Return the model, which may be the default one, and its tokenizer."""
    if similar:
        check_mean_pooling(model)
    model, tokenizer = resolve(model, tokenizer, kind="encoder" if similar else "language", **where)
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; use attribute(model, tokenizer, text), or give the model's "
            "folder or name, and its tokenizer is loaded with it; attribute_inputs() takes tensors"
        )
    refuse_compiled(model)
    check_reads_text(model, "give images= or audio=, with its processor in the tokenizer's place")
    return model, tokenizer


# ---- texts and questions


def texts_of(text: Any) -> tuple[list[Any], bool]:
    """Return the texts, and whether it was a single one."""
    if text is None:
        raise InputError('no text was given; use attribute(model, tokenizer, "some text")')
    if isinstance(text, str) or is_chat(text):
        return [text], True
    if not isinstance(text, Sequence):
        raise InputError(f"text is a string, a chat or a list of them, not {type(text).__name__}")
    return list(text), False


def questions_of(asked: dict[str, Any], count: int | None) -> list[Question]:
    """Return the question of each text; with a list of texts, arguments may be lists too."""
    if count is None:
        return [Question(**asked).checked()]
    columns: dict[str, list[Any]] = {}
    for name, value in asked.items():
        if isinstance(value, list):
            if len(value) != count:
                raise InputError(
                    f"{name} is a list of {len(value)} for {count} texts: give one for each text"
                )
            columns[name] = value
        elif isinstance(value, str) and name in ("text_pair", "target", "continuation"):
            raise InputError(
                f"{name} must match the text: give a list of {count} strings, not one string"
            )
        else:
            columns[name] = [value] * count
    return [
        Question(**{name: column[at] for name, column in columns.items()}).checked()
        for at in range(count)
    ]


# ---- from questions to results


class Explainer:
    """Answer questions about texts, with one model.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        options: checked options.
        truncate: cut texts that are too long for the model.
    """

    def __init__(
        self, model: Any, tokenizer: Any, options: AttributionOptions, *, truncate: bool = False
    ) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.truncate = truncate
        both = tokenizers_of(model, tokenizer)
        self._signature = signature_of(model, both.given, {})

    def explain(self, asked: Sequence[tuple[Any, Question]]) -> Iterator[tuple[int, Attribution]]:
        """Yield the number of a text and its result, when its batch is done."""
        similar = [question.similar_to is not None for _, question in asked]
        for wanted in (False, True):
            chosen = [at for at, flag in enumerate(similar) if flag is wanted]
            if chosen:
                model = encoder_of(self.model) if wanted else self.model
                yield from self._explain(model, asked, chosen)

    def _explain(
        self, model: Any, asked: Sequence[tuple[Any, Question]], chosen: list[int]
    ) -> Iterator[tuple[int, Attribution]]:
        reader = Reader(model, self.tokenizer, truncate=self.truncate)
        tasks = [self._task(reader, model, *asked[at]) for at in chosen]
        runner = Runner(model, reader.tokenizer, self.options, self._signature.snapshot)
        for explained in runner.run(tasks):
            for at, number in enumerate(explained.indices):
                result = self._result(reader, runner, explained, at, tasks[number])
                yield chosen[number], result

    def _task(self, reader: Reader, model: Any, text: Any, question: Question) -> Task:
        method = self.options.method_for(question)
        row = row_of(reader, text, question, model)
        baselines = tuple(
            baseline_of(reader, row, text, question, given)
            for given in self._baselines(reader, question, method)
        )
        return Task(row, method, baselines)

    @staticmethod
    def _baselines(reader: Reader, question: Question, chosen: ChosenMethod) -> tuple[Any, ...]:
        """Return the baselines of a question, or the one that its method has by itself."""
        if question.baselines or chosen.method.baseline == "no":
            return question.baselines
        return (default_baseline(chosen.name, getattr(reader.tokenizer, "mask_token", None)),)

    def _result(
        self, reader: Reader, runner: Runner, explained: ExplainedBatch, at: int, task: Task
    ) -> Attribution:
        row, value = task.row, explained.value
        steps = value.rows[at] if isinstance(value, LogitValue) else []
        terms = steps[0] if steps else ()
        answer = row.answer
        if answer is None:
            answer = answer_in_words(self.model, reader, row, terms)
        stacks = {source.stack for shares in explained.shares for source in shares.sources}
        tokens = row.text.tokens
        for more in (*row.texts[1:], *([] if row.decoder is None else [row.decoder])):
            tokens = join_tokens(tokens, more.tokens)
        settings = self._settings(reader, task, terms, answer)
        labels = Labels(
            tokens=tokens,
            sides=row.sides,
            explained=row.explained,
            answer=answer,
            foil=row.foil,
            settings={**settings, **headline_of(runner.head, row, answer, "text")},
            signature=self._signature.with_settings(settings),
        )
        rows = slice(at * len(row.texts), (at + 1) * len(row.texts))
        return attribution(explained.shares, rows, _segments(row, at, stacks), labels)

    def _settings(self, reader: Reader, task: Task, terms: Terms, answer: str) -> dict[str, str]:
        row = task.row
        settings = self.options.describe(task.method) | terms_in_words(row, terms, answer)
        if task.baselines:
            settings["baseline"] = ",".join(_plain_text(b.name) for b in task.baselines)
        parameter = next(self.model.parameters())
        settings["dtype"] = str(parameter.dtype).removeprefix("torch.")
        return settings


def signature_of(model: nn.Module, tokenizer: Any, settings: dict[str, str]) -> Signature:
    """Return the signature of a result with these settings."""
    return Signature(model, tokenizer, settings, None, conventions=CONVENTIONS)


def _plain_text(text: str) -> str:
    """Return a text without the characters that separate the fields of a signature."""
    return text.replace("|", "/").replace("\n", " ")


def encoder_of(model: Any) -> Any:
    """Return the part of a model that encodes texts: without heads and decoders."""
    base = getattr(model, "base_model", model)
    two = getattr(base.config, "is_encoder_decoder", False) and hasattr(base, "get_encoder")
    return base.get_encoder() if two else base


def _segments(row: AskedRow, at: int, stacks: set[str]) -> list[Segment]:
    """Return the segments of a row: its texts, then what its decoder reads."""
    two = row.decoder is not None and "decoder" in stacks
    source = "encoder" if two else ""
    count = len(row.texts)
    segments = [
        Segment(source, at * count + number, _first(len(text)))
        for number, text in enumerate(row.texts)
    ]
    if row.decoder is not None:
        segments.append(Segment("decoder", at, _first(len(row.decoder))))
    return segments


def _first(count: int) -> Any:
    """Return the mask of a row that is padded on the right, as far as it is real."""
    return np.ones(count, dtype=np.bool_)
