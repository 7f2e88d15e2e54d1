"""Packed numbers: small pages, and shares that are still right."""

from __future__ import annotations

import numpy as np
import pytest

from normscope import Contributions, LabelledArray
from normscope.show.page import page, payload, slabs
from tests.helpers import pages
from tests.helpers.pages import decoded, maps_of


def test_a_large_result_stays_small() -> None:
    tokens = pages.tokens_of([f"word{at}" for at in range(128)])
    made = pages.results(tokens, layers=12, heads=12)
    whole = page(made)
    assert len(whole) < 3_000_000
    data = payload(made)
    each = decoded(data, data["parts"][0]["maps"][0]["each"]["slab"])
    gap = np.abs(each - made[0]["attn_w"].values).max(axis=(2, 3))
    assert (gap <= made[0]["attn_w"].values.max(axis=(2, 3)) * (1.01 / 127)).all()
    fine = [slab["levels"] for slab in data["slabs"] if len(slab.get("shape", ())) == 3]
    assert min(fine) >= 1023


def test_shares_of_a_long_text_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a row is many small cells: on a coarse grid of equal steps they would be lost."""
    tokens = pages.tokens_of([f"word{at}" for at in range(300)])
    rng = np.random.default_rng(0)
    raw = np.exp(rng.normal(0, 1.5, (2, 12, 300, 300)))
    raw[..., 0] *= rng.uniform(1, 400, (2, 12, 300))
    raw[:, :, 0, 1:] = 0  # the largest of every slice is 1
    alpha = (raw / raw.sum(axis=-1, keepdims=True)).astype(np.float32)
    names = {"query": tokens, "key": tokens}
    weights = LabelledArray(alpha, ("layer", "head", "query", "key"), names, name="attn_w")
    monkeypatch.setattr(slabs, "BUDGET", 0)
    data = payload(Contributions({"attn_w": weights}, tokens=tokens))
    (slab,) = [entry for entry in data["slabs"] if "shape" in entry]
    assert slab["levels"] == 255
    found = maps_of(data)
    for kind, true in (("each", alpha), ("sum", alpha.mean(axis=1))):
        shown = found["attn_w", kind]
        shares = shown / shown.sum(axis=-1, keepdims=True)
        assert np.abs(shares - true / true.sum(axis=-1, keepdims=True)).max() < 0.005


@pytest.mark.parametrize("budget", [slabs.BUDGET, 0])
def test_negative_cells_keep_their_sign(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "BUDGET", budget)
    made = pages.signed_result()
    values = made["effective"].values
    found = maps_of(payload(made))["effective", "sum"]
    assert (np.sign(found) == np.sign(values))[np.abs(found) > 0].all()
    assert (found[:, :, 2] == 0).all()
    largest = np.abs(values).max(axis=(1, 2), keepdims=True)
    assert (np.abs(found - values) <= largest * (1.01 / 500)).all()
