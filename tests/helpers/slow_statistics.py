"""A small corpus and what the papers' equations say of it: one sequence at a time, by loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.capture.layers import LayerCapture, capture_layers
from normscope.measures.statistics import (
    Measurer,
    Row,
    StatisticSettings,
    StatisticState,
    Table,
    choose,
    merge,
)
from normscope.measures.statistics.hashing import masked_positions
from normscope.models.architectures import tiny_model
from tests.helpers import reference, tiny

Array = NDArray[Any]
BEGIN, END, MASK = 0, 2, 3
COMMA, PERIOD = 12, 13
LENGTHS = (9, 5, 11, 4, 7, 11, 6, 8, 10)


def tokenizer() -> Any:
    made = tiny.tokenizer()
    made.mask_token = "<unk>"
    assert (made.convert_tokens_to_ids(","), made.convert_tokens_to_ids(".")) == (COMMA, PERIOD)
    return made


def corpus(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Row]:
    """<s> … </s> … </s> of random ids; commas and periods in some of them only."""
    draw = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        ids = draw.choice([*range(4, COMMA), *range(PERIOD + 1, 60)], length)
        middle = length // 2
        ids[0], ids[middle], ids[-1] = BEGIN, END, END
        if number % 3 != 1 and length > 5:
            ids[1], ids[length - 2] = COMMA, PERIOD
        special = np.isin(np.arange(length), (0, middle, length - 1))
        types = (np.arange(length) > middle).astype(int)
        key = 10 * number  # not the place in the list
        rows.append(Row(key, tuple(ids.tolist()), tuple(types.tolist()), tuple(special.tolist())))
    return rows


def bert() -> Any:
    return tiny_model("bert")


def measured(
    names: Any,
    rows: list[Row],
    settings: StatisticSettings | None = None,
    split: Any = None,
    model: Any = None,
) -> dict[str, dict[str, Table]]:
    """Tables by statistic and name, from batches of the rows numbered in ``split``."""
    settings = StatisticSettings() if settings is None else settings
    statistics = choose(names, settings)
    measurer = Measurer(bert() if model is None else model, tokenizer(), statistics, settings)
    state: dict[str, StatisticState] = {}
    for batch in [range(len(rows))] if split is None else split:
        state = merge(statistics, state, measurer.measure([rows[i] for i in batch]))
    return {one.name: one.result(state[one.name]) for one in statistics}


@dataclass(frozen=True)
class Slow:
    """One sequence: arrays with a layer axis first."""

    row: Row
    ids: Array
    masked: Array
    alpha: Array  # layer head query key
    f: Array  # layer head key hidden
    x: Array  # layer query hidden
    s: Array  # layer query key hidden
    z: Array
    p: Array
    sigma: Array  # layer query
    gamma: Array  # layer hidden

    @property
    def norm(self) -> Array:
        return np.linalg.norm(self.f, axis=-1)

    def ratios(self) -> dict[str, Array]:
        """(layer, query) of each analysis."""
        mean = self.alpha.mean(axis=1)
        weights = mean.sum(axis=-1) - np.diagonal(mean, axis1=1, axis2=2)
        by_norm = {"attn_n": self.s, "attn_res_n": self.z, "attn_res_ln_n": self.p}
        made = {n: np.stack([reference.mixing_ratio(v) for v in vs]) for n, vs in by_norm.items()}
        return {
            "attn_w": weights,
            "attn_n": made["attn_n"],
            "attn_res_w": weights / 2,
            "attn_res_n": made["attn_res_n"],
            "attn_res_ln_n": made["attn_res_ln_n"],
        }


def slowly(row: Row, model: Any, masking: float = 0.0) -> Slow:
    """One sequence alone through the model, and its vectors from the definition."""
    ids = np.array(row.ids)
    free = np.flatnonzero(~np.array(row.special))
    masked = np.isin(np.arange(len(ids)), masked_positions(row.key, free, masking, 0))
    ids = np.where(masked, MASK, ids)
    found: list[dict[str, Array]] = []

    def take(layer: LayerCapture) -> None:
        captured = layer.attention
        assert captured is not None
        assert captured.residual is not None
        f = reference.vectors_from_values(
            captured.value[0].numpy(), captured.projection.weight.numpy()
        )
        alpha, x = captured.alpha[0].numpy(), captured.residual[0].numpy()
        s = reference.attention_vectors(alpha, f)
        z = reference.add_residual(s, x)
        norm: Any = layer.module.get_submodule("attention.output.LayerNorm")
        bias = captured.projection.bias
        assert bias is not None
        whole = z.sum(axis=1) + bias.numpy()
        gamma = norm.weight.detach().numpy()
        p = reference.layer_norm(z, whole, gamma, norm.eps)
        sigma = np.sqrt(whole.var(axis=-1) + norm.eps)
        found.append(
            {"alpha": alpha, "f": f, "x": x, "s": s, "z": z, "p": p, "sigma": sigma, "gamma": gamma}
        )

    types = torch.tensor([row.types])
    with torch.no_grad(), capture_layers(model, take):
        model(input_ids=torch.from_numpy(ids)[None], token_type_ids=types)
    stacked = {name: np.stack([one[name] for one in found]) for name in found[0]}
    return Slow(row, ids, masked, **stacked)


def slow_corpus(rows: list[Row], masking: float = 0.0) -> list[Slow]:
    model = bert()
    return [slowly(row, model, masking) for row in rows]


def column(table: Table, name: str, **where: Any) -> Array:
    """A column, of the rows with these labels."""
    chosen = np.ones(len(table), dtype=bool)
    for label, value in where.items():
        chosen &= np.asarray(table.columns[label]) == value
    return np.asarray(table.columns[name])[chosen]
