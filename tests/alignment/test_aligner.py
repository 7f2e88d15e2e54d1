"""From soft alignments to links: averaged matrices, and choices stored with a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normscope import InputError, align
from tests.helpers.alignment_pairs import SOURCE, TARGET, linked
from tests.helpers.tiny import tokenizer


def test_combined_candidates_are_averaged_as_shares(marian: Any) -> None:
    alignments = align(SOURCE, TARGET, marian, tokenizer(pair=False), combine=3, soft=True)
    assert len(alignments.choices) == 3
    assert alignments.choices == tuple(candidate.choice for candidate in alignments.ranking[:3])
    total: Any = 0
    for choice in alignments.choices:
        how: Any = {"layer": choice.layer, "reading": choice.reading}
        how["head"] = "sum" if choice.head is None else choice.head
        matrix = align(SOURCE[0], TARGET[0], marian, tokenizer(pair=False), soft=True, **how)[
            0
        ].soft
        assert matrix is not None
        total = total + matrix / matrix.sum(axis=1, keepdims=True) / 3
    assert alignments[0].soft is not None
    np.testing.assert_allclose(alignments[0].soft, total, rtol=1e-5)
    with pytest.raises(InputError, match=r"combine must be at least 1"):
        linked(SOURCE, TARGET, marian, combine=0)
