"""What a measurer reads, what it refuses, and that its states are plain data."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from normscope.capture.layers import layers_of
from normscope.errors import InputError, UnsupportedModelError
from normscope.measures.statistics import NAMES, Measurer, Row, StatisticSettings, choose
from normscope.models.architectures import tiny_model
from tests.helpers import tiny
from tests.helpers.slow_statistics import bert, corpus, tokenizer

ROWS = corpus()


def test_the_model_reads_masks() -> None:
    model, read = bert(), []
    layers_of(model)  # whose layouts are read from a pass
    model.register_forward_pre_hook(
        lambda m, a, k: read.append(k["input_ids"].numpy()), with_kwargs=True
    )
    statistics = choose(["mixing", "dispersion"])
    Measurer(model, tokenizer(), statistics, StatisticSettings()).measure(ROWS)
    plain, masked = read
    for row, before, after in zip(ROWS, plain, masked, strict=True):
        assert before[: len(row.ids)].tolist() == list(row.ids)
        changed = np.flatnonzero(before != after)
        assert (after[changed] == 3).all()
        assert not np.array(row.special)[changed].any()
        assert len(changed) == max(1, round(0.12 * (len(row.ids) - sum(row.special))))


def test_encoder_decoders_are_refused() -> None:
    with pytest.raises(InputError, match="get_encoder"):
        Measurer(tiny_model("bart"), tokenizer(), choose("dispersion"), StatisticSettings())


def test_no_mask_token() -> None:
    with pytest.raises(InputError, match="masking=0"):
        Measurer(bert(), tiny.tokenizer(), choose("mixing"), StatisticSettings())


def test_no_feed_forward_to_take_apart() -> None:
    measurer = Measurer(
        tiny_model("mixtral"), tiny.tokenizer(), choose("change"), StatisticSettings()
    )
    with pytest.raises(InputError, match="no feed-forward that can be decomposed"):
        measurer.measure(ROWS[:1])


@pytest.mark.parametrize("name", NAMES)
def test_nan_is_refused_with_the_row(name: str) -> None:
    model = bert()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[59] = torch.nan
    rows = [ROWS[0], Row(77, (0, 5, 59, 2), None, (True, False, False, True))]
    measurer = Measurer(model, tokenizer(), choose(name), StatisticSettings())
    with pytest.raises(InputError, match=r"row 77: .*NaN"):
        measurer.measure(rows)


def test_an_output_that_is_no_number_is_refused_whatever_is_measured() -> None:
    """Of the last layer's output no later layer tells, and these statistics do not read it."""
    model: Any = bert()
    with torch.no_grad():
        model.encoder.layer[2].attention.output.dense.bias[0] = torch.nan
    rows = [row for row in ROWS if row.key != 0]  # none of them is computed a second time
    measurer = Measurer(model, tokenizer(), choose("dispersion"), StatisticSettings())
    with pytest.raises(InputError, match=r"row \d+: .*NaN"):
        measurer.measure(rows)


def test_the_model_is_left_as_it_was() -> None:
    model = bert().train()
    Measurer(model, tokenizer(), choose(NAMES), StatisticSettings()).measure(ROWS[:2])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiubU"
    return type(value) in (int, float, str)


def test_states_are_plain_data() -> None:
    state = Measurer(bert(), tokenizer(), choose(NAMES), StatisticSettings()).measure(ROWS[:3])
    assert set(state) == set(NAMES)
    assert plain(state)
    file = io.BytesIO()
    np.savez(file, names=state["mixing"]["names"])
    file.seek(0)
    assert np.load(file, allow_pickle=False)["names"].tolist() == state["mixing"]["names"].tolist()


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="at least one row"):
        Measurer(bert(), tokenizer(), choose("dispersion"), StatisticSettings()).measure([])


def test_a_run_is_of_one_state_of_the_weights() -> None:
    model: Any = bert()
    measurer = Measurer(model, tokenizer(), choose("mixing"), StatisticSettings())
    measurer.measure(ROWS)
    measurer.measure(ROWS)
    model.encoder.layer[0].output.dense.weight.data.mul_(2)
    with pytest.raises(UnsupportedModelError, match="changed while it was measured"):
        measurer.measure(ROWS)
    Measurer(model, tokenizer(), choose("mixing"), StatisticSettings()).measure(ROWS)
