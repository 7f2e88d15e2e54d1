"""Masks that are left out while a CUDA graph of a batch without padding is recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.capture.interface import _is_skipped
from normscope.engine.batch import Batch
from normscope.models.architectures import tiny_inputs, tiny_model

SHAPES = frozenset({(2, 5)})


@pytest.mark.parametrize(
    ("kwargs", "skipped"),
    [
        ({"allow_is_bidirectional_skip": True, "kv_length": 5}, True),
        ({"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}, False),
        ({"allow_is_causal_skip": True, "q_length": 5, "kv_length": 5}, True),
        ({"allow_is_causal_skip": True, "q_length": 2, "kv_length": 5}, False),
        ({"allow_is_causal_skip": True, "q_length": 5, "kv_length": 5, "local_size": 4}, False),
        ({"allow_is_causal_skip": True, "q_length": 5, "kv_length": 5, "local_size": 9}, True),
        ({"allow_is_bidirectional_skip": True, "attention_mask": torch.ones(2, 5)}, True),
        ({"allow_is_bidirectional_skip": True, "attention_mask": torch.ones(2, 7)}, False),
    ],
)
def test_which_masks_are_left_out(kwargs: dict[str, Any], skipped: bool) -> None:
    assert _is_skipped(kwargs, SHAPES) is skipped
    assert not _is_skipped(kwargs, None)


def test_masks_that_were_looked_at() -> None:
    model, inputs = tiny_model("bert"), dict(tiny_inputs("bert"))
    ids = inputs["input_ids"]
    full = torch.ones_like(ids)
    assert Batch(model, {"input_ids": ids}).unpadded_masks() == frozenset()
    batch = Batch(model, {"input_ids": ids, "attention_mask": full})
    assert batch.unpadded_masks() == frozenset({tuple(ids.shape)})
    padded = full.clone()
    padded[0, -1] = 0
    assert Batch(model, {"input_ids": ids, "attention_mask": padded}).unpadded_masks() is None
    other = {"input_ids": ids, "pixel_attention_mask": padded}
    assert Batch(model, other).unpadded_masks() is None
