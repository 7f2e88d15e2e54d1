"""The page's data against the result it was made from; the file; notebooks; the command line."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import types
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import normscope
from normscope import Contributions, InputError, LabelledArray
from normscope.decomposition.maps import NAMES
from normscope.models.architectures import tiny_model
from normscope.show.page import encode, formulas, gather, page, payload, show, write
from normscope.show.page.document import asset, code
from tests.helpers import pages
from tests.helpers.commands import run
from tests.helpers.tiny import tokenizer

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'",
    "a\0\u202eb",
)


def decoded(data: dict[str, Any], number: int) -> NDArray[np.float64]:
    """One array of a payload, as the page unpacks it."""
    slab = data["slabs"][number]
    if "mean" in slab:
        return decoded(data, slab["mean"]).mean(axis=1)
    if "times" in slab:
        weights = decoded(data, slab["times"])
        factor = np.frombuffer(base64.b64decode(slab["factor"]), "<f4")
        return weights * factor.reshape(*weights.shape[:2], 1, weights.shape[3])
    raw = np.frombuffer(zlib.decompress(base64.b64decode(slab["data"])), np.uint8)
    planes = raw.reshape(1 if slab["levels"] <= 255 else 2, *slab["shape"]).astype(np.float64)
    cells = planes[0] + (256 * planes[1] if len(planes) == 2 else 0)
    leading = slab["shape"][: len(slab["shape"]) - (1 if len(slab["shape"]) == 2 else 2)]
    largest = np.array(slab["largest"]).reshape(*leading, *[1] * (cells.ndim - len(leading)))
    return np.asarray((cells / slab["levels"]) ** 2 * largest)


def maps_of(data: dict[str, Any], part: int = 0) -> dict[tuple[str, str], NDArray[np.float64]]:
    return {
        (one["name"], kind): decoded(data, one[kind]["slab"])
        for one in data["parts"][part]["maps"]
        for kind in ("each", "sum")
        if kind in one
    }


def test_every_map_comes_back_to_the_grid_it_was_rounded_to() -> None:
    made = pages.results()
    data = json.loads(json.dumps(payload(made)))
    found = maps_of(data)
    assert set(found) == {
        *(("attn_w", "each"), ("attn_n", "each")),
        *(("attn_w", "sum"), ("attn_n", "sum"), ("attn_res_ln_n", "sum")),
    }
    for (name, kind), values in found.items():
        true = made[kind == "sum"][name].values
        # Of the largest of a layer or head; a mean over heads has that of its heads.
        largest = made[0][name].values.max() if name == "attn_w" else true.max()
        assert np.abs(values - true).max() <= largest * (1.01 / 65535 + 1e-6)
    # α‖f‖ and the mean of the weights are not stored a second time.
    assert sum("data" in slab for slab in data["slabs"]) == 1 + 2 + 1  # and the mixing ratio
    ratio = decoded(data, data["parts"][0]["mixing"]["attn_n"])
    np.testing.assert_allclose(ratio, made[1].mixing_ratio["attn_n"].values, atol=2e-5)
    assert data["parts"][0]["maps"][0]["each"]["error"] == 3e-8


def test_norms_that_are_not_weight_times_length_are_stored() -> None:
    each = pages.results()[0]
    other = LabelledArray(
        each["attn_n"].values * np.float32(1.01), each["attn_n"].axes, each["attn_n"].tokens
    )
    changed = Contributions(
        {"attn_w": each["attn_w"], "attn_n": other}, each.transformed_norm, each.tokens
    )
    found = maps_of(payload(changed))["attn_n", "each"]
    np.testing.assert_allclose(found, other.values, atol=1e-4)


def test_parts_words_and_special_tokens() -> None:
    data = payload(pages.results())
    tokens = data["tokens"][data["parts"][0]["tokens"]]
    assert tokens["pieces"] == list(pages.SENTENCE)
    assert tokens["texts"] == list(pages.TEXTS)
    assert tokens["word"] == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    assert tokens["words"] == list(pages.WORDS)
    assert tokens["special"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    data = payload(pages.translation())
    assert [part["name"] for part in data["parts"]] == ["encoder", "decoder", "cross"]
    cross = data["parts"][2]
    block = next(one for one in cross["maps"] if one["name"] == "attn_res_ln_n")
    assert data["tokens"][block["sum"]["keys"]]["pieces"][-1] == "residual"
    assert data["tokens"][cross["keys"]]["pieces"][-1] == "</s>"


def test_a_mixing_ratio_that_is_one_everywhere_is_left_out() -> None:
    model: Any = tiny_model("bart")
    result = normscope.analyze(
        model, tokenizer(pair=False), "the cats sat", target="the cats ran",
        maps=["attn_w", "attn_n", "attn_res_n"],
    )  # fmt: skip
    encoder, _, cross = payload(result)["parts"]
    assert list(cross["mixing"]) == ["attn_res_n"]
    assert list(encoder["mixing"]) == ["attn_w", "attn_n", "attn_res_n"]


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
    monkeypatch.setattr(encode, "BUDGET", 0)
    data = payload(Contributions({"attn_w": weights}, tokens=tokens))
    (slab,) = [one for one in data["slabs"] if "shape" in one]
    assert slab["levels"] == 255
    found = maps_of(data)
    for kind, true in (("each", alpha), ("sum", alpha.mean(axis=1))):
        shown = found["attn_w", kind]
        shares = shown / shown.sum(axis=-1, keepdims=True)
        assert np.abs(shares - true / true.sum(axis=-1, keepdims=True)).max() < 0.005


def test_the_code_is_small_and_names_no_address() -> None:
    shared = asset("viewer.css") + asset("page.html")
    for kind in ("page", "widget"):
        assert len((code(kind) + shared).encode()) < 150_000
    text = code("page") + code("widget") + shared
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in text


class Reader(HTMLParser):
    """What a browser would see: the elements, and the text of script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        about = dict(attrs)
        if about.get("http-equiv") == "Content-Security-Policy":
            self.policy = about["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1], []).append(data)


def test_the_policy_names_exactly_the_code_and_the_style_of_the_page() -> None:
    whole = page(pages.results(pages.tokens_of(HOSTILE)))
    reader = Reader()
    reader.feed(whole)
    data, script = reader.texts["script"][0], "".join(reader.texts["script"][1:]).rstrip("\n")
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    first = json.loads(data)["tokens"][0]["pieces"]
    assert tuple(first) == HOSTILE
    assert not set("<>&\u2028\u2029") & set(data)

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    script = re.search(r"<script>(.*?)</script>\s*</body>", whole, re.DOTALL)[1]  # type: ignore[index]
    style = re.search(r"<style>(.*?)</style>", whole, re.DOTALL)[1]  # type: ignore[index]
    assert f"script-src '{digest(script)}'" in reader.policy
    assert f"style-src '{digest(style)}'" in reader.policy
    assert reader.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in reader.policy


def test_tokens_that_look_like_the_pages_own_marks() -> None:
    whole = page(pages.results(pages.tokens_of(["%SCRIPT%", "%STYLE%", "%DATA%", "a"])))
    assert whole.count("function mountNormscope") == 1
    assert whole.count('"pieces":["%SCRIPT%","%STYLE%","%DATA%","a"]') == 1


def test_every_map_has_a_formula() -> None:
    assert set(formulas.TOGETHER) == set(NAMES)
    assert set(formulas.EACH) == {"attn_w", "attn_n"}
    for one in [*formulas.TOGETHER.values(), *formulas.EACH.values()]:
        assert one.formula.count("{") == one.formula.count("}")
        assert one.short
        assert one.says.endswith(".")


def test_what_cannot_be_shown_is_refused() -> None:
    one, other = pages.results(), pages.results(pages.tokens_of(["a", "b"]))
    with pytest.raises(InputError, match="different texts"):
        payload([one[0], other[1]])
    with pytest.raises(InputError, match="different parts"):
        payload([pages.translation()[0], one[0]])
    with pytest.raises(InputError, match="but was given nothing"):
        payload([])
    with pytest.raises(InputError, match="different layers"):
        payload([one[0], pages.results(layers=2)[1]])
    array = one[0]["attn_w"]
    for bad in (-0.1, np.nan):
        values = array.to_numpy()
        values[0, 0, 0, 0] = bad
        spoilt = LabelledArray(values, array.axes, array.tokens, name="attn_w")
        with pytest.raises(InputError, match="negative or not finite"):
            payload(Contributions({"attn_w": spoilt}, None, one[0].tokens))


def test_the_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = pages.results()[1]
    result.to_html(tmp_path / "x.html")
    before = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert before == page(result)
    with pytest.raises(InputError, match=r"it must end in one of: \.html"):
        result.to_html(tmp_path / "x.txt")
    with pytest.raises(InputError, match="there is no folder"):
        result.to_html(tmp_path / "none" / "x.html")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write(pages.results(seed=5)[1], tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_a_result_of_several_parts_is_one_page(tmp_path: Path) -> None:
    pages.translation()[1].to_html(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert '"name":"cross"' in text


def test_show_opens_the_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(show, "in_notebook", lambda: False)
    result = pages.results()[1]
    result.show()
    (path,) = tmp_path.rglob("*.html")
    assert opened == [path.as_uri()]
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_text(encoding="utf-8") == page(result)


def test_show_in_a_notebook_is_a_frame_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display = types.ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    result = pages.results(pages.tokens_of(HOSTILE))[1]
    result.show()
    (html,) = shown
    inside: list[tuple[str, dict[str, str | None]]] = []

    class Frame(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            inside.append((tag, dict(attrs)))

    Frame().feed(html)
    ((tag, about),) = inside
    assert (tag, about["sandbox"]) == ("iframe", "allow-scripts allow-downloads")
    assert about["srcdoc"] == page(result)


def test_short_html_of_a_result() -> None:
    html = pages.results(pages.tokens_of([*HOSTILE, *["word"] * 60]))[1]._repr_html_()
    assert "&lt;/script&gt;" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "a\\x00\\u202eb" in html
    assert "(64)" in html
    assert len(html) < 6000
    assert "3 layer × 10 query × 10 key" in pages.results()[1]._repr_html_()
    assert "4.0e-08" in pages.results()[1]._repr_html_()
    assert "<b>cross</b>" in pages.translation()[0]._repr_html_()


@pytest.mark.parametrize(
    "select",
    [
        lambda one: one,
        lambda one: one.sel(layer=1),
        lambda one: one.sel(layer=1, query=2),
        lambda one: one.sel(layer=1, query=2, key=3),
        lambda one: one.sel(query=2, key=3),
    ],
)
def test_short_html_of_an_array(select: Callable[[LabelledArray], LabelledArray]) -> None:
    array = select(pages.results(pages.tokens_of([*HOSTILE, "word"]))[1]["attn_n"])
    html = array._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    shown = np.asarray(array.values, dtype=np.float64)
    while shown.ndim > 2:
        shown = shown[0]
    cells = re.findall(r"<td[^>]*>([^<]+)</td>", html) or re.findall(r"<div>([\d.e-]+)</div>", html)
    np.testing.assert_allclose([float(one) for one in cells], shown.ravel(), rtol=6e-3)


def test_short_html_of_a_large_array_says_what_it_leaves_out() -> None:
    made = pages.results(pages.tokens_of([f"w{at}" for at in range(200)]), heads=2)
    html = made[0]["attn_w"]._repr_html_()
    assert html.count("<td") == 24 * 24
    assert "layer 0 of 3; head 0 of 2; the first 24 × 24 cells" in html


def test_the_widget_carries_its_code_and_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pages.results()
    widget = normscope.widget(made)
    assert json.loads(widget.data) == json.loads(json.dumps(payload(made)))
    assert "export default" in widget._esm
    assert ".normscope" in widget._css
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(normscope.MissingExtraError, match=r"normscope\[notebook\]"):
        normscope.widget(made)


def test_a_rich_page_has_every_head_and_the_whole_block() -> None:
    results = gather(None, text="The cats sat.")
    assert [list(one) for one in results] == [
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


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("analyze", "--text", "The cat sat.", "--output", "cat.html")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("wrote cat.html\nmodel:")
    text = (tmp_path / "cat.html").read_text(encoding="utf-8")
    assert '"name":"attn_res_ln_n"' in text
    assert '"heads":[0,1,2,3,4,5,6,7,8,9,10,11]' in text
    words = ("analyze", "--text", "The cat sat.", "--maps", "attn_n", "--layer", "2")
    assert run(*words, "-o", "one.html").exit_code == 0
    one = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert '"layers":[2]' in one
    assert '"name":"attn_w"' not in one
    assert run(*words, "-o", "cat.safetensors").exit_code == 0
    done = run("view", "cat.safetensors", "--output", "again.html")
    assert (done.exit_code, done.stderr) == (0, "wrote again.html\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == one
    for wrong in (("view", "none.safetensors"), ("view", "cat.safetensors", "-o", "x.png")):
        done = run(*wrong)
        assert done.exit_code == 2
        assert done.stderr.startswith("normscope: error: ")
        assert done.stderr.count("\n") == 1


def test_browser_tests_are_named_where_there_is_no_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.conftest import pytest_terminal_summary
    from tests.helpers import browsers

    said: list[str] = []
    terminal = types.SimpleNamespace(section=said.append, write_line=said.append)
    monkeypatch.setenv("NORMSCOPE_CHROMIUM", "")
    pytest_terminal_summary(terminal)
    names = browsers.tests()
    assert len(names) > 20
    assert said[0] == f"{len(names)} browser tests were not run: there is no Chromium"
    assert said[1:-1] == [f"not run: {name}" for name in names]
    assert "apt-get install chromium" in said[-1]
    said.clear()
    monkeypatch.setenv("NORMSCOPE_CHROMIUM", sys.executable)  # any program that is there
    pytest_terminal_summary(terminal)
    assert said == []
