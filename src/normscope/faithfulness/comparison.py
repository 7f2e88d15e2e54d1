"""Compare methods on the same texts: agreement, time, memory, completeness."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.attribution.api import questions_of, resolved, texts_of
from normscope.attribution.options import Question
from normscope.attribution.rows import AskedRow
from normscope.errors import InputError
from normscope.faithfulness.agreement import Agreement, MethodRecord, ScoredText
from normscope.faithfulness.evaluation import TextReader
from normscope.faithfulness.methods import ComparedMethod, calls_of, text_scores
from normscope.faithfulness.result import RESAMPLES
from normscope.foundation.progress import progress_bar
from normscope.foundation.ranks import spearman
from normscope.results.attribution import Attribution

CHUNK = 32  # texts that are explained together
STATUS = Path("/proc/self/statm")  # sizes of this process in pages, on Linux
INTERVAL = 0.002  # seconds between two looks at the memory
DEFAULT_METHODS = ("frozen", "attn_lrp", "input_x_gradient")


def compare(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    methods: Any = DEFAULT_METHODS,
    answer: Any = None,
    foil: Any = None,
    text_pair: Any = None,
    target: str | Sequence[str] | None = None,
    continuation: str | Sequence[str] | None = None,
    position: Any = None,
    absolute: bool = False,
    specials: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    truncate: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    strict: bool = True,
) -> Agreement:
    """Compare methods on the same texts: rank correlations, time, memory and completeness.

        >>> r = compare(None, text=texts, methods=("frozen", "attn_lrp"))      # doctest: +SKIP
        >>> r.show()                                                           # doctest: +SKIP
        >>> r.to_html("methods.html")                                          # doctest: +SKIP

    Args:
        model: a transformers model with its head, a folder or a hub name; None is the default
            language model.
        tokenizer: the model's tokenizer; loaded with the model if that is a folder or a name.
        text: a list of texts (or one).
        methods: as in :func:`faithfulness`.
        answer: as in :func:`attribute`; all methods explain the same answer. The arguments from
            here to ``position`` are one for all texts or a list with one for each.
        foil: as in :func:`attribute`.
        text_pair: as in :func:`attribute`.
        target: as in :func:`attribute`; scores of several answers are summed.
        continuation: as in :func:`attribute`; scores of several answers are summed.
        position: as in :func:`attribute`.
        absolute: compare the absolute values of the scores.
        specials: whether special tokens count.
        resamples: bootstrap resamples of the texts for the intervals.
        seed: the seed of the resampling and of "random".
        truncate: cut texts that are too long for the model, instead of raising InputError.
        device: device of a model given by name, such as "cuda". Default: the CPU.
        dtype: dtype of a model given by name. Default: that of its file.
        revision: revision of a model on the hub.
        strict: refuse a model given by name that is not loaded whole.

    Returns:
        An :class:`~normscope.faithfulness.agreement.Agreement`.
    """
    texts, single = texts_of(text)
    asked = {"answer": answer, "foil": foil, "text_pair": text_pair, "target": target}
    asked |= {"continuation": continuation, "position": position}
    rest = {"generate": None, "similar_to": None, "baseline": None}
    questions = questions_of({**asked, **rest}, None if single else len(texts))
    where: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    model, tokenizer = resolved(model, tokenizer, similar=False, strict=strict, **where)
    calls = calls_of(methods, tokenizer, seed)
    meter = AgreementMeter(model, tokenizer, calls, Ranking(absolute, specials), truncate=truncate)
    records: list[MethodRecord] = []
    with progress_bar(len(texts), unit="text", description="compare") as bar:
        for start in range(0, len(texts), CHUNK):
            part = slice(start, start + CHUNK)
            records += meter.records(texts[part], questions[part])
            bar.update(len(records) - bar.n)
    return meter.result(records, resamples=resamples, seed=seed)


@dataclass(frozen=True)
class Ranking:
    """What is compared: absolute values or signed scores, with special tokens or without."""

    absolute: bool = False
    specials: bool = False


class AgreementMeter(TextReader):
    """Score texts with several methods, and compare them text by text.

    Args:
        model: a loaded model.
        tokenizer: its tokenizer.
        calls: the methods.
        ranking: what is compared.
        truncate: cut texts that are too long.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        calls: Sequence[ComparedMethod],
        ranking: Ranking | None = None,
        *,
        truncate: bool = False,
    ) -> None:
        super().__init__(model, tokenizer, truncate=truncate)
        self.calls, self.ranking = tuple(calls), ranking or Ranking()
        self._warm: set[str] = set()
        if not self.calls:
            raise InputError("no method was given")

    def settings(self) -> dict[str, str]:
        """Return everything that the numbers depend on, beside the model and the texts."""
        kind = "absolute" if self.ranking.absolute else "signed"
        specials = "yes" if self.ranking.specials else "no"
        return {
            "methods": " ".join(call.text() for call in self.calls),
            "correlation": f"spearman;ties=average-rank;scores={kind};specials={specials}",
        }

    def records(self, texts: Sequence[Any], questions: Sequence[Question]) -> list[MethodRecord]:
        """Return what is compared of each text."""
        rows = self.settled(texts, questions).rows
        asked = self.asked(rows, questions)
        measured = {call.name: self._measured(call, texts, rows, asked) for call in self.calls}
        return [self._record(at, row, measured) for at, row in enumerate(rows)]

    def result(
        self,
        records: Sequence[MethodRecord],
        *,
        problems: Sequence[str] = (),
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> Agreement:
        """Return the comparison over the texts of some records."""
        settings = self.settings()
        return Agreement(
            [call.name for call in self.calls],
            records,
            settings=settings,
            signature=self.signature.with_settings(settings).text(),
            problems=problems,
            resamples=resamples,
            seed=seed,
        )

    def _measured(
        self,
        call: ComparedMethod,
        texts: Sequence[Any],
        rows: Sequence[AskedRow],
        asked: Mapping[str, Any],
    ) -> tuple[list[Any], float, float | None]:
        """Return results of a method, seconds for each text, and its peak memory in MB."""
        if call.is_random:
            return [call.random_scores(row) for row in rows], 0.0, 0.0
        if call.name not in self._warm:  # the first call checks and caches things of the model
            first = {n: v[:1] if isinstance(v, list) else v for n, v in asked.items()}
            call.attributions(self.model, self.tokenizer, texts[:1], first)
            self._warm.add(call.name)
        with peak_memory(self.model.device) as peak:
            began = time.perf_counter()
            results = call.attributions(self.model, self.tokenizer, texts, asked)
            if self.model.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        if len(results) != len(rows):
            raise InputError(
                f"the method {call.name!r} gave {len(results)} results for {len(rows)} texts"
            )
        return list(results), seconds / len(rows), peak.get("mb")

    def _record(
        self,
        at: int,
        row: AskedRow,
        measured: Mapping[str, tuple[list[Any], float, float | None]],
    ) -> MethodRecord:
        ranked = self.ranked(row, specials=self.ranking.specials)
        scores, errors = {}, {}
        for call in self.calls:
            result = measured[call.name][0][at]
            scores[call.name] = text_scores(call, row, result)
            error = result.error if isinstance(result, Attribution) else math.nan
            errors[call.name] = None if math.isnan(error) else float(error)
        own = {n: np.abs(s) if self.ranking.absolute else s for n, s in scores.items()}
        correlations = [
            [spearman(own[a.name][ranked], own[b.name][ranked]) for b in self.calls]
            for a in self.calls
        ]
        return MethodRecord(
            correlations=np.array(correlations),
            seconds={name: measured[name][1] for name in scores},
            peak_mb={name: measured[name][2] for name in scores},
            errors=errors,
            example=ScoredText(row.text.tokens, scores),
        )


@contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Measure the peak memory of a block beyond that held before, in MB, under "mb".

    On a GPU it is torch's; elsewhere the resident memory of this process is looked at every two
    milliseconds, on Linux. Memory that the process held before and reuses is not seen.
    """
    peak: dict[str, float] = {}
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield peak
        torch.cuda.synchronize()
        peak["mb"] = (torch.cuda.max_memory_allocated() - before) / 1e6
        return
    if not STATUS.is_file():
        yield peak
        return
    page, done = os.sysconf("SC_PAGE_SIZE"), threading.Event()
    before = largest = _resident()

    def watch() -> None:
        nonlocal largest
        while not done.wait(INTERVAL):
            largest = max(largest, _resident())

    watcher = threading.Thread(target=watch, name="normscope-memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak["mb"] = (max(largest, _resident()) - before) * page / 1e6


def _resident() -> int:
    """Return the pages of this process that are in memory."""
    return int(STATUS.read_text(encoding="ascii").split()[1])
