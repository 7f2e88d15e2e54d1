"""Every control of the page, from disk and offline, against the numbers it was made from."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.helpers import pages

SVG = "{http://www.w3.org/2000/svg}"


def fragment(page: Page) -> dict[str, str]:
    """Of the address, which follows the state 120 ms later; the page's own clock tells when."""
    address: str = page.evaluate(
        "() => new Promise(done => setTimeout(() => done(location.hash), 130))"
    )
    return dict(pair.split("=") for pair in address.removeprefix("#").split("&") if "=" in pair)


def listed(page: Page) -> list[list[str]]:
    """The rows of the list: rank, token, values."""
    rows: list[list[str]] = page.eval_on_selector_all(
        ".ns-list tbody tr:not(.ns-rest)",
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))",
    )
    return rows


def value_of(text: str) -> float:
    number = float(text.replace("−", "-").replace("+", "").removesuffix(" pts").rstrip("%"))
    return number / 100 if text.endswith(("%", "pts")) else number


def values(page: Page, column: int = 2) -> dict[str, float]:
    return {row[1]: value_of(row[column]) for row in listed(page)}


def choose(page: Page, legend: str, text: str) -> None:
    group = page.get_by_role("group", name=legend, exact=True)
    group.get_by_role("radio", name=text, exact=True).check()


def check_row(page: Page, row: Any, names: Any) -> None:
    """The list shows the ten largest of the row, in order, with their numbers."""
    wanted = np.argsort(-np.asarray(row), kind="stable")[:10]
    shown = listed(page)
    assert [one[1] for one in shown] == [names[at] for at in wanted]
    for one, at in zip(shown, wanted, strict=True):
        # As many digits as are written: 12.3% and 1.23%, or three of a norm.
        share = 5.1e-4 if abs(row[at]) > 0.0999 else 5.1e-5
        tolerance = share if one[2].endswith("%") else 5.1e-3 * abs(float(row[at])) + 1e-4
        assert value_of(one[2]) == pytest.approx(float(row[at]), abs=tolerance + 2e-5)


def test_of_two_maps_the_list_is_sorted_by_any_column(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&vs=attn_n&layer=1&query=3")
    weights, norms = (pages.shares(made[1][name].values)[1, 3] for name in ("attn_w", "attn_n"))
    names = [row[1] for row in listed(page)]
    by_place = dict(enumerate(made[1].tokens.texts))
    for column, wanted, told in (
        ("norms", norms, None),  # as it opens
        ("weights", weights, "first"),
        ("difference", norms - weights, "difference"),
    ):
        if told:
            page.get_by_role("button", name=column, exact=True).click()
        order = np.argsort(-np.abs(wanted), kind="stable")[:10]
        assert [row[1] for row in listed(page)] == [by_place[at] for at in order]
        expect(page.locator(".ns-list [aria-sort=descending]")).to_have_text(f"{column} ▾")
        expect(page.get_by_role("button", name=column, exact=True).first).to_be_visible()
        assert fragment(page).get("by") == told
        widths: list[float] = page.eval_on_selector_all(
            ".ns-list .ns-share", "bars => bars.map(bar => parseFloat(bar.style.width))"
        )
        assert widths == sorted(widths, reverse=True)  # the bars are of the column that sorts
    assert page.evaluate("document.activeElement.textContent") == "difference ▾"  # focus stays
    assert names != [row[1] for row in listed(page)]
    choose(page, "Map", "norms")  # which is the one compared with: alone now, nothing to choose
    expect(page.locator(".ns-sort")).to_have_count(0)
    assert "by" not in fragment(page)


def test_it_opens_with_weights_beside_norms_where_they_differ_most(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made)
    expect(page.locator(".ns-panel h3")).to_have_text(
        ["weights · mean over heads", "norms · heads together", "norms − weights"]
    )
    weights, norms = (pages.shares(made[1][name].values) for name in ("attn_w", "attn_n"))
    layer = int(np.abs(weights - norms).sum(axis=(1, 2)).argmax())
    expect(page.get_by_role("slider", name="Layer")).to_have_value(str(layer))
    difference = (norms - weights)[layer].mean(axis=0)
    shown = values(page, column=4)
    assert shown["cat"] == pytest.approx(difference[2], abs=1e-4)
    assert page.title() == "[CLS] The cats sat on the mat . [SEP] · normscope"


def test_the_list_has_the_numbers_of_the_chosen_token(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_n&layer=1")
    norms = made[1]["attn_n"].values[1]
    page.locator(".ns-queries .ns-token").nth(4).click()  # sat
    expect(page.locator(".ns-list caption")).to_have_text("Largest contributors to sat")
    check_row(page, pages.shares(norms)[4], pages.TEXTS)
    choose(page, "Numbers", "absolute")
    check_row(page, norms[4], pages.TEXTS)
    assert fragment(page)["scale"] == "absolute"
    page.locator(".ns-keys .ns-token").nth(2).click()  # what "cat" gives
    expect(page.locator(".ns-list caption")).to_have_text("Tokens to which cat contributes most")
    check_row(page, norms[:, 2], pages.TEXTS)
    page.locator(".ns-keys .ns-token").nth(2).click()  # again: let go
    expect(page.locator(".ns-list caption")).to_have_text("Largest contributors, on average")
    check_row(page, norms.mean(axis=0), pages.TEXTS)


def test_words_are_merged_as_the_result_merges_them(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_n&layer=2&query=2")
    choose(page, "Tokens", "words")
    words = made[1]["attn_n"].words().values[2]
    expect(page.locator(".ns-queries .ns-token")).to_have_text(list(pages.WORDS))
    expect(page.locator(".ns-list caption")).to_have_text("Largest contributors to cats")
    check_row(page, pages.shares(words)[2], pages.WORDS)
    choose(page, "Numbers", "absolute")
    check_row(page, words[2], pages.WORDS)
    ratio = made[1].mixing_ratio["attn_n"].words().values
    mixing = page.get_by_role("img", name="Mixing ratio by layer")
    label = mixing.get_attribute("aria-label") or ""
    means = [float(one) for one in re.findall(r"([\d.]+)%", label)]
    assert means == pytest.approx((100 * ratio.mean(axis=1)).tolist(), abs=0.06)


def test_special_tokens_and_the_token_itself_can_be_hidden(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_res_ln_n&layer=0&query=4")
    share = pages.shares(made[1]["attn_res_ln_n"].values)[0, 4]
    assert listed(page)[0][1] == "sat"
    page.get_by_label("the token itself").check()
    shown = values(page)
    assert "sat" not in shown
    assert shown["cat"] == pytest.approx(share[2], abs=1e-4)  # still a share of the whole row
    page.get_by_label("special tokens").check()
    assert "[CLS]" not in values(page)
    expect(page.locator(".ns-queries .ns-token")).to_have_count(8)
    assert fragment(page) | {"special": "hide", "own": "hide"} == fragment(page)
    page.get_by_label("special tokens").uncheck()
    expect(page.locator(".ns-queries .ns-token")).to_have_count(10)


def test_heads_layers_and_maps(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&layer=0&query=1")
    page.get_by_label("Heads").select_option("head 3")
    check_row(page, made[0]["attn_w"].values[0, 3, 1], pages.TEXTS)
    page.get_by_role("slider", name="Layer").fill("2")
    check_row(page, made[0]["attn_w"].values[2, 3, 1], pages.TEXTS)
    page.get_by_role("button", name="previous layer").click()
    choose(page, "Map", "norms")
    expect(page.locator(".ns-panel h3")).to_have_text("norms · head 3")
    check_row(page, pages.shares(made[0]["attn_n"].values)[1, 3, 1], pages.TEXTS)
    choose(page, "Numbers", "absolute")
    check_row(page, made[0]["attn_n"].values[1, 3, 1], pages.TEXTS)
    choose(page, "Map", "block")  # no head has it: the heads together are shown
    expect(page.get_by_label("Heads")).to_be_disabled()
    check_row(page, made[1]["attn_res_ln_n"].values[1, 1], pages.TEXTS)
    page.get_by_role("button", name="next layer").click()
    expect(page.get_by_role("button", name="next layer")).to_be_disabled()
    found = fragment(page)
    assert (found["layer"], found["map"]) == ("2", "attn_res_ln_n")


def test_two_maps_and_their_difference(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_n&layer=1&query=4&scale=absolute")
    page.get_by_label("Compare with").select_option("block")
    one, other = (made[1][name].values[1, 4] for name in ("attn_n", "attn_res_ln_n"))
    for column, wanted in ((2, one), (3, other), (4, other - one)):
        shown = values(page, column)
        assert {name: shown[name] for name in ("sat", "cat")} == pytest.approx(
            {"sat": wanted[4], "cat": wanted[2]}, rel=6e-3, abs=1e-3
        )
    # A weight and a norm have no common unit: their difference is one of shares.
    page.get_by_label("Compare with").select_option("weights")
    weight = made[1]["attn_w"].values[1, 4]
    shown = values(page, 4)
    wanted = pages.shares(weight) - pages.shares(one)
    assert shown["cat"] == pytest.approx(wanted[2], abs=6e-4)
    page.get_by_label("Compare with").select_option("nothing")
    expect(page.locator(".ns-panel")).to_have_count(1)


def test_the_matrix_shows_and_reads_its_cells(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_n&layer=1")
    page.get_by_role("tab", name="Matrix").click()
    share = pages.shares(made[1]["attn_n"].values)[1]
    canvas = page.locator(".ns-matrix")
    box = canvas.bounding_box()
    assert box is not None
    size = 30  # of a cell, on a page as wide as this
    left, top = box["width"] - 2 - 10 * size, box["height"] - 2 - 10 * size
    query, key = 6, 3
    spot: Any = {"x": left + (key + 0.5) * size, "y": top + (query + 0.5) * size}
    canvas.hover(position=spot)
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("from \u2068s\u2069 to \u2068the\u2069")
    percent = re.search(r"([\d.]+)%", tip.inner_text())
    assert percent is not None
    assert float(percent[1]) / 100 == pytest.approx(share[query, key], abs=1e-3)
    canvas.click(position=spot)
    found = fragment(page)
    assert (found["query"], found["key"]) == ("6", "3")
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    pixels = canvas.evaluate(
        """(canvas, [left, top, size]) => {
            const scale = canvas.width / canvas.clientWidth;
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext("2d", {willReadFrequently: true});
            context.drawImage(canvas, 0, 0);
            return Array.from({length: 100}, (_, at) => [...context.getImageData(
                (left + (at % 10 + .3) * size) * scale,
                (top + (Math.floor(at / 10) + .3) * size) * scale, 1, 1).data].slice(0, 3));
        }""",
        [left, top, size],
    )
    light = np.array(pixels).sum(axis=1)
    assert light.argmin() == share.argmax()
    order = np.argsort(share.ravel())
    assert np.all(np.diff(light[order]) <= 6)  # darker and darker


def test_the_overview_leads_to_a_layer_and_a_head(open_page: Open) -> None:
    page = open_page(pages.results(), "#view=overview&map=attn_n")
    expect(page.locator(".ns-thumb")).to_have_count(3 * 3 + 3 * 4)
    expect(page.locator(".ns-overview")).to_have_attribute("data-drawn", "21")
    page.get_by_role("button", name="layer 2, norms of head 3").click()
    found = fragment(page)
    assert [found[name] for name in ("view", "layer", "head", "map")] == [
        *("tokens", "2", "3", "attn_n")
    ]
    page.get_by_role("tab", name="Overview").click()
    here = page.locator(".ns-thumb[aria-current]")
    expect(here).to_have_attribute("aria-label", "layer 2, norms of head 3")
    page.get_by_role("button", name="layer 1, The attention block: residual and layer norm").click()
    assert fragment(page)["map"] == "attn_res_ln_n"


def test_the_mixing_strip_goes_to_a_layer(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_n&layer=0")
    strip = page.get_by_role("img", name="Mixing ratio by layer")
    box = strip.bounding_box()
    assert box is not None
    strip.click(position={"x": box["width"] * 0.45, "y": box["height"] * 0.9})
    found = fragment(page)
    assert (found["layer"], found["query"]) == ("2", "4")
    page.get_by_role("button", name="go to layer 1").click()
    assert fragment(page)["layer"] == "1"
    choose(page, "Map", "weights")  # for which it was not computed
    expect(page.get_by_role("img", name="Mixing ratio by layer")).to_be_hidden()


def test_formula_error_and_signature_are_shown(open_page: Open) -> None:
    page = open_page(pages.results(), "#map=attn_res_ln_n&layer=0")
    about = page.locator(".ns-card").last
    expect(about).to_contain_text("‖pij‖,  pij = γ ⊙ (zij − mean zij) / σi")
    expect(about).to_contain_text("Reconstruction error: 4.0e−8")
    about.get_by_text("Signature and precision").click()
    expect(about.locator(".ns-signature")).to_have_text(
        ["model:tiny|heads:each", "model:tiny|heads:sum"]
    )


def test_source_above_target_with_the_largest_link_of_each(open_page: Open, tmp_path: Path) -> None:
    made = pages.translation()
    page = open_page(made, "#map=attn_n&layer=1")
    expect(page.get_by_role("group", name="Part").get_by_role("radio")).to_have_count(3)
    expect(page.get_by_role("radio", name="cross")).to_be_checked()
    source, target = page.locator(".ns-keys"), page.locator(".ns-queries")
    expect(source.locator(".ns-token")).to_have_text(["Guten", "Tag", ",", "Welt", "</s>"])
    expect(target.locator(".ns-token")).to_have_text(["<s>", "Good", "day", ",", "world"])
    above, below = source.bounding_box(), target.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] < below["y"]
    # The curves of the picture end at the key that gives most.
    drawing = saved(page, "SVG", tmp_path)
    root = ElementTree.fromstring(drawing.read_text())
    links = []
    for path in root.iter(f"{SVG}path"):
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", path.attrib["d"])]
        links.append((numbers[0], numbers[-2]))
    centres = {
        text.text: float(text.attrib["x"]) for text in root.iter(f"{SVG}text") if "x" in text.attrib
    }
    best = made[1].cross["attn_n"].values[1].argmax(axis=1)
    strings = made[1].cross.key_tokens.strings
    wanted = sorted(
        (centres[query], centres[strings[key]])
        for query, key in zip(made[1].cross.tokens.strings, best, strict=True)
        if query != ","  # is in both rows
    )
    found = sorted(links)
    assert len(found) == 5
    for one in wanted:
        assert any(one == pytest.approx(link, abs=0.6) for link in found)
    choose(page, "Map", "block")  # has the decoder's own state as one more key
    expect(source.locator(".ns-token")).to_have_text(
        ["Guten", "Tag", ",", "Welt", "</s>", "residual"]
    )
    page.get_by_label("Compare with").select_option("norms")
    expect(page.locator(".ns-panel").last.locator(".ns-keys .ns-token")).to_have_count(6)
    page.get_by_label("special tokens").check()
    expect(page.locator(".ns-panel").first.locator(".ns-keys .ns-token")).to_have_count(5)
    choose(page, "Part", "encoder")
    expect(page.locator(".ns-panel").first.locator(".ns-queries .ns-token")).to_have_text(
        ["Guten", "Tag", ",", "Welt", "</s>"]
    )


def saved(page: Page, kind: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=kind, exact=True).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_what_is_shown_can_be_saved(open_page: Open, tmp_path: Path) -> None:
    made = pages.results()
    page = open_page(made, "#view=matrix&map=attn_n&vs=attn_res_ln_n&layer=1&scale=absolute")
    table = saved(page, "CSV", tmp_path)
    assert table.name == "normscope-layer1-attn_n-attn_res_ln_n.csv"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(rows) == 100
    assert [row["query_token"] for row in rows[::10]] == list(pages.SENTENCE)
    for name in ("attn_n", "attn_res_ln_n"):
        found = np.array([float(row[name]) for row in rows]).reshape(10, 10)
        np.testing.assert_allclose(found, made[1][name].values[1], atol=1e-4)
    for view in ("tokens", "matrix", "overview"):
        page.get_by_role("tab", name=view.capitalize()).click()
        root = ElementTree.fromstring(saved(page, "SVG", tmp_path).read_text())
        texts = [text.text or "" for text in root.iter(f"{SVG}text")]
        assert any("norms" in text for text in texts)
        assert view == "overview" or "mat" in texts
        data = saved(page, "PNG", tmp_path).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        wide, high = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        assert wide == pytest.approx(2 * float(root.attrib["width"]), abs=3)
        assert high == pytest.approx(2 * float(root.attrib["height"]), abs=3)
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", tmp_path).read_text())))
    assert len(rows) == 21
    for row in rows:
        source = made[1] if row["head"] == "sum" else made[0]
        array = source[row["map"]].values[int(row["layer"])]
        cells = array if row["head"] == "sum" else array[int(row["head"])]
        assert float(row["largest"]) == pytest.approx(float(cells.max()), rel=1e-3)


def test_a_saved_table_says_what_each_column_is(open_page: Open, tmp_path: Path) -> None:
    made = pages.results()
    page = open_page(made, "#view=matrix&map=attn_w&vs=attn_res_ln_n&layer=1&head=2&scale=absolute")
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", tmp_path).read_text())))
    # The block has no heads, and a weight and a norm have no common unit.
    assert list(rows[0])[-3:] == ["attn_w", "attn_res_ln_n (sum)", "difference of shares"]
    weights, block = made[0]["attn_w"].values[1, 2], made[1]["attn_res_ln_n"].values[1]
    shares = block / block.sum(axis=1, keepdims=True) - weights / weights.sum(axis=1, keepdims=True)
    expected = {
        "head": np.full((10, 10), 2),
        "attn_w": weights,
        "attn_res_ln_n (sum)": block,
        "difference of shares": shares,
    }
    for name, values in expected.items():
        found = np.array([float(row[name]) for row in rows]).reshape(10, 10)
        np.testing.assert_allclose(found, values, atol=1e-4)


def test_the_address_keeps_the_view(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#view=matrix&map=attn_w&head=2&layer=1&unit=words&special=hide&query=4")
    page.keyboard.press("n")
    address = fragment(page)
    assert address == {
        "view": "matrix",
        "map": "attn_w",
        "layer": "1",
        "head": "2",
        "scale": "absolute",
        "unit": "words",
        "special": "hide",
        "own": "show",
        "query": "4",
    }
    page.evaluate("location.hash = '#map=attn_n&layer=2&head=1'")
    expect(page.locator(".ns-panel h3")).to_have_text("norms · head 1")
    for nonsense in (
        "#layer=99&head=zz&map=__proto__&part=nope&view=%E0%A4%A&query=-1&theme=<b>",
        "#%&&&=&layer",
    ):
        page = open_page(made, nonsense)
        expect(page.locator(".ns-panel").first).to_be_visible()
        assert "NaN" not in page.locator(".normscope").inner_text()


def test_dark_and_light(open_page: Open) -> None:
    ground = "getComputedStyle(document.querySelector('.normscope')).backgroundColor"
    page = open_page(pages.results(), color_scheme="dark")
    assert page.evaluate(ground) == "rgb(17, 20, 27)"
    page.get_by_role("button", name="light colours").click()
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
    assert fragment(page)["theme"] == "light"
    page = open_page(pages.results(), color_scheme="light")
    assert page.evaluate(ground) == "rgb(246, 247, 249)"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tokens_are_legible_at_every_strength(open_page: Open, theme: str) -> None:
    page = open_page(pages.results(), f"#map=attn_w&vs=attn_n&layer=0&theme={theme}")
    pairs = page.evaluate(
        """() => [...document.querySelectorAll(".ns-queries .ns-token")].flatMap(one => {
            one.click();
            return [...document.querySelectorAll(".ns-token")].map(chip => {
                const style = getComputedStyle(chip);
                return [style.color, style.backgroundColor];
            });
        })"""
    )

    def luminance(colour: str) -> float:
        channels = np.array([float(one) for one in re.findall(r"[\d.]+", colour)[:3]]) / 255
        linear = np.where(
            channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    worst = min(
        (max(a, b) + 0.05) / (min(a, b) + 0.05)
        for a, b in ((luminance(ink), luminance(ground)) for ink, ground in pairs)
    )
    assert worst >= 4.5


def test_what_is_hidden_is_not_called_nothing(open_page: Open, tmp_path: Path) -> None:
    page = open_page(pages.results(), "#view=matrix&map=attn_n&layer=1&own=hide")
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", tmp_path).read_text())))
    assert len(rows) == 100
    assert all((row["attn_n"] == "") == (row["query"] == row["key"]) for row in rows)
    page.locator("canvas.ns-matrix").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("status")).to_contain_text(re.compile("from .* to .*hidden"))


def test_the_residual_can_be_chosen_where_one_map_lacks_it(open_page: Open) -> None:
    page = open_page(pages.translation(), "#part=cross&map=attn_res_ln_n&vs=attn_n&layer=1")
    page.locator(".ns-keys .ns-token", has_text="residual").first.click()
    expect(page.get_by_role("status")).to_contain_text("residual contributes most to")
