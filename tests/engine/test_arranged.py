"""How positions of an attention are made of those of the ids: repeated, padded, with globals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from normscope.engine.arranged import Arrangement


@pytest.mark.parametrize(
    ("config", "length", "extra", "expected"),
    [
        ({"ngram": 2}, 15, 0, Arrangement(3, 0, 0)),
        ({"attention_window": 4}, 8, 0, Arrangement(1, 3, 0)),
        ({"attention_window": [2, 4]}, 8, 0, Arrangement(1, 3, 0)),
        ({"block_size": 5}, 7, 2, Arrangement(1, 0, 2)),
        ({"block_size": 3}, 9, 3, Arrangement(1, 1, 3)),
        ({"attention_window": 0}, 5, 0, Arrangement(1, 0, 0)),
        ({"attention_window": [0]}, 6, 1, Arrangement(1, 0, 1)),
        ({}, 5, 0, Arrangement(1, 0, 0)),
        ({}, 6, 0, None),
        ({"attention_window": 4}, 9, 0, None),
    ],
)
def test_arrangements_of_five_ids(
    config: dict[str, Any], length: int, extra: int, expected: Arrangement | None
) -> None:
    assert Arrangement.of(SimpleNamespace(**config), length, 5, extra) == expected


def test_padding_is_masked_and_globals_are_real() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    assert Arrangement(2, 1, 1).mask(mask).tolist() == [
        [True, True, True, True, False, True],
        [True, False, True, False, False, True],
    ]
