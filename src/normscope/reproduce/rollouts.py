"""GlobEnc's question: how far rollouts of maps agree with the sizes of embedding × gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.faithfulness.conventions import Figure
from normscope.faithfulness.result import MethodFigures
from normscope.foundation.progress import stage
from normscope.foundation.ranks import spearman
from normscope.measures.analysis import analyze
from normscope.measures.rollout import rollout
from normscope.reproduce.comparisons import described, measured_rows
from normscope.reproduce.options import ReproduceOptions
from normscope.reproduce.yardsticks import l2, products
from normscope.results.contributions import Contributions
from normscope.results.signature import Signature

Rows = NDArray[np.float64]
MAPS = ("attn_w", "attn_n", "attn_res_n", "attn_res_ln_n", "globenc", "globenc_ff", "alti")
FIGURES = (
    Figure("spearman", "Spearman's ρ with ‖embedding × gradient‖, all tokens", True),
    Figure("spearman_without_specials", "the same without special tokens", True),
)


def _plain(name: str) -> Callable[[Contributions], Rows]:
    """Return the first row of the product of a map over layers, without a residual."""

    def row(result: Contributions) -> Rows:
        found = np.eye(len(result.tokens))[:1]
        for layer in result[name].values[::-1].astype(np.float64):
            found = found @ layer
            found = found / max(np.abs(found).max(), 1e-300)  # lengths grow from layer to layer
        return np.asarray(found[0])

    return row


def _rolled(name: str, normalize: bool) -> Callable[[Contributions], Rows]:
    def row(result: Contributions) -> Rows:
        rolled = rollout(result, map=name, normalize=normalize, query=0)
        return np.asarray(rolled[f"rollout_{name}"].values[0, 0], dtype=np.float64)

    return row


def _mixed(result: Contributions) -> Rows:
    """Return the rollout of weights whose diagonal is one minus the mixing ratio of N-Enc."""
    ratios = result.mixing_ratio["globenc"].values.astype(np.float64)
    found = np.eye(len(result.tokens))[:1]
    for layer, ratio in zip(result["attn_w"].values[::-1], ratios[::-1], strict=True):
        others = layer.astype(np.float64)
        np.fill_diagonal(others, 0)
        others /= np.maximum(others.sum(-1, keepdims=True), 1e-300)
        found = found @ (others * ratio[:, None] + np.diag(1 - ratio))
    return np.asarray(found[0])


ROWS: dict[str, Callable[[Contributions], Rows]] = {
    "W": _plain("attn_w"),
    "W-FixedRes": _rolled("attn_w", True),
    "W-Res": _mixed,
    "N": _plain("attn_n"),
    "N-FixedRes": _rolled("attn_n", True),
    "N-Res": _rolled("attn_res_n", False),
    "N-ResLN": _rolled("attn_res_ln_n", False),
    "N-Enc": _rolled("globenc", False),
    "N-Enc + FFN": _rolled("globenc_ff", False),
    "ALTI": _rolled("alti", True),
}


def correlations(
    model: Any,
    tokenizer: Any,
    sentences: Sequence[str],
    labels: NDArray[np.int64],
    options: ReproduceOptions,
) -> MethodFigures:
    """Return ρ of every rollout's first row with the gradient of the gold label's logit."""
    header = {
        "signature": Signature(model, tokenizer, {"maps": ",".join(MAPS)}).text(),
        "rollouts": list(ROWS),
        "data": described(options.valid),
    }

    def work(chunk: list[int], count: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts = [sentences[at] for at in chunk]
        sizes = [l2(p) for p in products(model, tokenizer, texts, labels[chunk].tolist())]
        results = analyze(model, tokenizer, texts, maps=MAPS)
        count(len(chunk))
        for at, result, size in zip(chunk, results, sizes, strict=True):
            kept = ~np.asarray(result.tokens.special, dtype=bool)
            rows = {name: row(result) for name, row in ROWS.items()}
            yield at, {name: [spearman(r, size), spearman(r[kept], size[kept])]
                       for name, r in rows.items()}  # fmt: skip

    stage("correlating rollouts with gradients")
    found = measured_rows(options, "rollouts", header, len(sentences), work)
    values = {
        name: np.array([[np.nan if v is None else v for v in row[name]] for row in found])
        for name in ROWS
    }
    return MethodFigures(FIGURES, values)
