"""From the engine's arrays to results: padding removed, positions named, baselines averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.tracing import Segment, Shares, along_tokens, traced
from normscope.errors import InputError
from normscope.results.attribution import Attribution
from normscope.text.tokens import Tokens

PADDING = 1e-6  # relative shares of padding that rounding may leave


@dataclass(frozen=True)
class Labels:
    """What a row's numbers are about.

    Attributes:
        tokens: the names of the real positions of all segments, in their order.
        sides: which text each token is of.
        explained: the tokens that are explained, if there are several answers.
        answer: what is explained, in words.
        foil: what it is compared with, in words.
        settings: how it was explained.
        signature: the signature of the result.
    """

    tokens: Tokens
    sides: Sequence[str] | None
    explained: Tokens | None
    answer: str
    foil: str | None
    settings: Mapping[str, str]
    signature: Any


def attribution(
    shares: Sequence[RowShares], rows: slice, segments: Sequence[Segment], labels: Labels
) -> Attribution:
    """Return the result of one input: the mean over its baselines, if it has several.

    Args:
        shares: the engine's arrays, for each baseline.
        rows: the rows of the input: one, or one for each choice, whose values are added up.
        segments: its positions.
        labels: what the numbers are about.
    """
    steps = 1 if labels.explained is None else len(labels.explained)
    names = _part_names(shares)
    parts = [_parts(each.sources, segments, names, steps) for each in shares]
    values = np.stack([each.value[rows, :steps].sum(axis=0) for each in shares])
    bias = np.stack([each.bias[rows, :steps].sum(axis=0) for each in shares])
    errors = np.stack([each.error[rows, :steps] for each in shares])
    error = None if np.isnan(errors).any() else float(errors.max())
    lenses = [each.lens[rows, :steps].sum(axis=0) for each in shares if each.lens is not None]
    scores = np.stack([each.sum(axis=1) for each in parts])  # (baseline, step, token)
    single = labels.explained is None
    traces = [each.trace for each in shares if each.trace is not None]

    def shaped(array: NDArray[Any]) -> Any:
        return array[0] if single else array

    return Attribution(
        tokens=labels.tokens,
        value=shaped(values.mean(axis=0)),
        bias=shaped(bias.mean(axis=0)),
        parts=shaped(np.mean(parts, axis=0)),
        part_names=names,
        error=error,
        sides=labels.sides,
        steps=labels.explained,
        answer=labels.answer,
        foil=labels.foil,
        settings=labels.settings,
        spread=shaped(scores.std(axis=0)) if len(shares) > 1 else None,
        lens=shaped(np.mean(lenses, axis=0)) if lenses else None,
        trace=traced(traces, rows, segments, labels, single) if traces else None,
        signature=labels.signature,
    )


def _part_names(shares: Sequence[RowShares]) -> tuple[str, ...]:
    """Return the kinds of embeddings, words first."""
    names = dict.fromkeys(source.part for each in shares for source in each.sources)
    return tuple(sorted(names, key=lambda name: name != "word")) or ("word",)


def _parts(
    sources: Sequence[SourceShares],
    segments: Sequence[Segment],
    names: Sequence[str],
    steps: int,
) -> Shares:
    """Return the shares of an input as (step, part, token), without padding."""
    _check_padding(sources, segments, steps)
    parts: list[Shares] = []
    for name in names:
        by_stack = {source.stack: source.shares for source in sources if source.part == name}
        parts.append(along_tokens(by_stack, segments, steps))
    return np.stack(parts, axis=1)


def _check_padding(
    sources: Sequence[SourceShares], segments: Sequence[Segment], steps: int
) -> None:
    """Raise InputError if positions that are left out as padding have shares."""
    for source in sources:
        for segment in segments:
            if segment.stack == source.stack:
                shares = np.abs(source.shares[segment.row, :steps])
                total, real = shares.sum(), segment.of(np.abs(source.shares), steps).sum()
                if total - real > PADDING * total:
                    raise InputError(
                        f"the output depends on padding, which has {(total - real) / total:.1%} of "
                        "the shares: give each row alone and without padding, or correct the mask "
                        "or the function"
                    )
