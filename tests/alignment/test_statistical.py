"""Eflomal behind align()."""

from __future__ import annotations

import numpy as np
import pytest

from normscope import InputError, align


def test_eflomal_learns_from_the_text() -> None:
    # Every word has one translation, and the order is turned round.
    words = [f"w{i}" for i in range(12)]
    draw = np.random.default_rng(0)
    source = [[words[i] for i in draw.permutation(12)[:5]] for _ in range(300)]
    target = [[word.upper() for word in reversed(line)] for line in source]
    alignments = align([*source, []], [*target, ["X"]], method="eflomal")
    right = sum(set(pair.links) == {(i, 4 - i) for i in range(5)} for pair in alignments)
    assert right > 290
    assert alignments[300].skipped == "empty"
    assert alignments.signature.startswith("method:eflomal|symmetrize:grow-diag-final-and")
    with pytest.raises(InputError, match=r"eflomal uses no model"):
        align(source, target, method="eflomal", reverse_model="x")
