"""The data of an attribution's page, and the page as a file."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope import InputError
from normscope.show.page import page, payload, write
from normscope.show.page.document import asset, code
from normscope.show.page.shares import FORMAT, MOST_TOKENS
from tests.helpers import pages
from tests.helpers.attributions import attribution, tokens_of, words
from tests.helpers.pages import HOSTILE

STEPS = tokens_of(["and", "left", "."])


def unpacked(data: dict[str, Any], name: str) -> Any:
    entry = data["arrays"][name]
    raw = zlib.decompress(base64.b64decode(entry["data"]))
    return np.frombuffer(raw, "<f4").reshape(entry["shape"])


@pytest.mark.parametrize("steps", [None, STEPS])
def test_every_array_comes_back_with_a_step_axis(steps: Any) -> None:
    result = attribution(words(30), steps, trace=True)
    data = json.loads(json.dumps(payload(result)))
    count = 1 if steps is None else 3
    for name in ("scores", "parts", "layers", "layer_bias", "layer_error", "heads", "feed_forward"):
        values = getattr(result, name).values.astype(np.float32)
        assert np.array_equal(unpacked(data, name), values.reshape(count, *values.shape[-2:])
                              if name in ("parts", "layers", "heads", "feed_forward")
                              else values.reshape(count, -1))  # fmt: skip
    assert data["value"] == np.atleast_1d(result.value).tolist()
    assert data["bias"] == np.atleast_1d(result.bias).tolist()
    assert data["steps"] == (None if steps is None else ["and", "left", "."])
    assert (data["error"], data["question"]) == (result.error, result.question)
    assert (data["parts"], data["cuts"]) == (["word", "position"], [0, 1, 2, 3, 4])
    assert "edges" not in data["arrays"]


def test_spaces_stand_where_the_text_has_them() -> None:
    data = payload(attribution())
    assert data["tokens"]["spaces"] == [0, 1, 1, 1, 1, 0]
    assert data["tokens"]["word"] == [0, 1, 2, 3, 4, 4]


def test_what_is_too_large_is_refused_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.show.page.shares.MOST_TRACED", 100)
    data = payload(attribution(words(30), trace=True))
    assert data["trace_left_out"]
    assert data["cuts"] == []
    assert set(data["arrays"]) == {"scores", "parts"}
    assert not payload(attribution(words(30)))["trace_left_out"]
    with pytest.raises(InputError, match=r"up to 20000 tokens, .* has 20001; see by_sentence"):
        payload(attribution(words(MOST_TOKENS + 1)))


def test_attributions_stand_alone_on_a_page() -> None:
    result = attribution()
    assert payload([result]) == payload(result)
    several: list[Any] = [[result, result], [result, *pages.results()]]
    for mixed in several:
        with pytest.raises(InputError, match="one result of attribute"):
            payload(mixed)


def test_the_code_is_small_and_names_no_address() -> None:
    text = code("page", FORMAT) + code("widget", FORMAT) + asset("viewer.css")
    assert len((code("page", FORMAT) + asset("viewer.css")).encode()) < 110_000
    # The name of SVG is an address that nothing is fetched from.
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in text


def test_hostile_tokens_cannot_leave_the_data(tmp_path: Path) -> None:
    settings = {"question": "</script><script>alert(1)</script>"}
    whole = page(attribution(tokens_of(list(HOSTILE)), settings=settings, signature="</script>"))
    assert whole.count("</script>") == 2
    assert whole.count("<script") == 2
    assert "<title>&lt;/script&gt;" in whole
    lone = attribution(tokens_of(["\ud800", "b"]), answer="\ud800", signature="\ud800")
    write(lone, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("<script") == 2


def test_results_write_their_page_and_the_widget_takes_them(tmp_path: Path) -> None:
    result = attribution(words(60), trace=True)
    result.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f'"format":"{FORMAT}"' in text
    widget = normscope.widget(result)
    assert json.loads(widget.data) == json.loads(json.dumps(payload(result)))
    assert "unpackShares" in widget._esm
    assert "export default" in widget._esm
