"""The results that the command line shows on a page."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.show.page import gather, payload
from tests.helpers.pages import maps_of


def test_a_rich_page_has_every_head_and_the_whole_block() -> None:
    results = gather(None, text="The cats sat.")
    assert [list(result) for result in results] == [
        ["attn_w", "attn_n"],
        ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"],
    ]
    found = maps_of(payload(results))
    for (name, kind), values in found.items():
        true = results[kind == "sum"][name].values
        np.testing.assert_allclose(values, true, atol=3e-5 * true.max())


def test_a_long_text_has_no_single_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.show.page.story.LARGEST", 1000)
    (only,) = gather(None, text="The cats sat.")
    assert only["attn_w"].axes == ("layer", "query", "key")
