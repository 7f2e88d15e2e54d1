"""`faithfulness` measures which methods find the tokens that a model needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from normscope.attribution.api import questions_of, resolved, texts_of
from normscope.errors import InputError
from normscope.faithfulness.conventions import DEFAULT_METRICS, conventions_for
from normscope.faithfulness.evaluation import FaithfulnessMeter, TextRecord
from normscope.faithfulness.methods import calls_of
from normscope.faithfulness.result import RESAMPLES, MethodFigures
from normscope.foundation.progress import progress_bar

CHUNK = 64  # texts whose outcomes are in memory together
DEFAULT_METHODS = ("frozen", "attn_lrp", "input_x_gradient", "random")
QUESTIONS = ("answer", "foil", "text_pair", "target", "continuation", "generate", "position")


def faithfulness(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    methods: Any = DEFAULT_METHODS,
    metrics: Sequence[str] | str = DEFAULT_METRICS,
    conventions: Any = None,
    replacement: str | None = None,
    answer: Any = None,
    foil: Any = None,
    text_pair: Any = None,
    target: str | Sequence[str] | None = None,
    continuation: str | Sequence[str] | None = None,
    generate: int | None = None,
    position: Any = None,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> MethodFigures:
    """Measure how faithful methods are: what the model loses without the tokens they name.

        >>> r = faithfulness(classifier, tokenizer, texts, methods=("frozen", "secant@[MASK]"))
        ... # doctest: +SKIP
        >>> r.show()                                                           # doctest: +SKIP

    Tokens are changed in the order of each method's scores, and the model reads what is left. All
    methods explain the same answer, and their texts go through one engine, so that they are
    compared on the same terms.

    Args:
        model: a transformers model with its head, a folder or a hub name.
        tokenizer: the model's tokenizer; loaded with the model if that is a folder or a name.
        text: a list of texts (or one).
        methods: names of methods of :func:`attribute`, also with a baseline ("secant@[MASK]",
            "secant@zero"), and "random"; or a mapping from names of your own to such names, to
            keyword arguments of :func:`attribute`, or to functions (model, tokenizer, texts) that
            return a score for each token of each text.
        metrics: "aopc", "comprehensiveness", "sufficiency", "blank_out", "logprob_drop".
        conventions: None: each metric's usual conventions. The name of a preset ("decompx",
            "alti", "alti-released", "jacobian"), fields of
            :class:`~normscope.faithfulness.conventions.Convention`, or a mapping from metrics to
            either of these.
        replacement: what becomes of a token in every metric: "mask", "pad", "delete", "zero" or
            "attention".
        answer: as in :func:`attribute`; None is what the model chooses, right or wrong. The
            arguments from here to ``position`` are one for all texts or a list with one for each.
        foil: what the answer is compared with. The outcome is then p(answer) − p(foil).
        text_pair: as in :func:`attribute`.
        target: as in :func:`attribute`; the outcome is the probability of the whole target.
        continuation: as in :func:`attribute`; the outcome is the probability of all of it.
        generate: as in :func:`attribute`.
        position: as in :func:`attribute`.
        resamples: bootstrap resamples of the texts for the intervals; 0 for no intervals.
        confidence: the share of the resamples within an interval.
        seed: the seed of the resampling and of the random order.
        truncate: cut texts that are too long for the model, instead of raising InputError.
        device: device of a model given by name, such as "cuda". Default: the CPU.
        dtype: dtype of a model given by name. Default: that of its file.
        revision: revision of a model on the hub.
        strict: refuse a model given by name that is not loaded whole.

    Returns:
        A :class:`~normscope.faithfulness.result.MethodFigures`: a number for each method, figure
        and text, with means, intervals and paired differences.
    """
    chosen = conventions_for(metrics, conventions, replacement)
    texts, single = texts_of(text)
    asked = dict(zip(QUESTIONS, (answer, foil, text_pair, target, continuation, generate, position),
                     strict=True))  # fmt: skip
    questions = questions_of(
        {**asked, "similar_to": None, "baseline": None}, None if single else len(texts)
    )
    where: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    model, tokenizer = resolved(model, tokenizer, similar=False, strict=strict, **where)
    calls = calls_of(methods, tokenizer, seed)
    meter = FaithfulnessMeter(model, tokenizer, calls, chosen, truncate=truncate)
    records: list[TextRecord] = []
    with progress_bar(len(texts), unit="text", description="faithfulness") as bar:
        for start in range(0, len(texts), CHUNK):
            part = slice(start, start + CHUNK)
            records += meter.records(texts[part], questions[part])
            bar.update(len(records) - bar.n)
    return collected(meter, records, sampling=(resamples, confidence, seed))


def collected(
    meter: FaithfulnessMeter,
    records: Sequence[TextRecord],
    *,
    texts: Sequence[str] | None = None,
    problems: Sequence[str] = (),
    sampling: tuple[int, float, int] = (RESAMPLES, 0.95, 0),
) -> MethodFigures:
    """Return the result of the records of all texts."""
    if not records:
        first = f"; the first: {problems[0]}" if problems else ""
        raise InputError(f"there is nothing to measure: no text could be used{first}")
    settings = meter.settings()
    return MethodFigures(
        meter.figures,
        {call.name: np.array([r.figures[call.name] for r in records]) for call in meter.calls},
        texts=texts,
        settings=settings,
        signature=meter.signature.with_settings(settings).text(),
        problems=problems,
        sampling=sampling,
    )
