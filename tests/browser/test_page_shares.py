"""The page of an attribution: numbers, choosing tokens and answers, keyboard, hostile tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from normscope.show.page.document import page_of
from normscope.show.page.shares import shares_payload
from tests.browser.conftest import Open, watch
from tests.browser.test_page_access import HOSTILE
from tests.helpers.attributions import LAYERS, attribution, tokens_of, words

STEPS = tokens_of(["and", "they", "left", "."])
LIST = ".ns-list tbody tr"
SVG = "{http://www.w3.org/2000/svg}"


def amounts(page: Page) -> dict[str, float]:
    """The list beside the text: token -> share."""
    rows: list[list[str]] = page.eval_on_selector_all(
        LIST, "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {row[1]: float(row[2].replace("−", "-")) for row in rows}


def chip(page: Page, at: int, box: str = "Text") -> Any:
    return page.get_by_role("listbox", name=box).get_by_role("option").nth(at)


def chosen(page: Page) -> str:
    return page.locator(".ns-chosen-sum").inner_text()


def fragment(page: Page) -> dict[str, str]:
    address: str = page.evaluate(
        "() => new Promise(done => setTimeout(() => done(location.hash), 150))"
    )
    return dict(pair.split("=") for pair in address.removeprefix("#").split("&") if "=" in pair)


def test_the_list_the_bias_and_the_proof_have_the_numbers(open_page: Open) -> None:
    result = attribution()
    page = open_page(result)
    shown = amounts(page)
    for at, text in enumerate(result.tokens.texts):
        assert shown[text] == pytest.approx(result.scores[at], abs=0.006)
    assert shown["bias (no token)"] == pytest.approx(result.bias, abs=0.006)
    assert shown["sum"] == pytest.approx(result.value, abs=0.006)
    expect(page.locator(".ns-question")).to_have_text(result.question)
    expect(page.locator(".ns-proof")).to_have_text(
        "Shares 6.76 + bias 0.41 = 7.17, the model’s own value (logit); gap 2e−7."
    )
    expect(page.locator(".ns-bias .ns-chip")).to_have_text("bias +0.41")
    assert page.title() == "What made the model say ' are' rather than ' is' · normscope"
    assert page.get_by_role("listbox", name="Answer").count() == 0
    assert page.get_by_role("slider").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_diverge_from_the_ground_and_letters_are_legible(
    open_page: Open, theme: str
) -> None:
    result = attribution(words(60))
    page = open_page(result, f"#theme={theme}")
    colours: list[list[list[float]]] = page.eval_on_selector_all(
        ".ns-passage[aria-label=Text] .ns-chip",
        """chips => chips.map(chip => [getComputedStyle(chip).backgroundColor,
            getComputedStyle(chip).color].map(text => text.match(/[\\d.]+/g).map(Number)))""",
    )
    largest = np.abs(result.scores.values).max()
    neutral = 0 if theme == "light" else 39 - 25
    for share, (ground, ink) in zip(result.scores.values, colours, strict=True):
        red, _, blue = ground[:3]
        if abs(share) > 0.02 * largest:
            assert (blue - red > neutral) == (share > 0)
        light = [sum(w * (c / 255) ** 2.2 for w, c in zip((0.21, 0.72, 0.07), rgb[:3], strict=True))
                 for rgb in (ground, ink)]  # fmt: skip
        assert (max(light) + 0.05) / (min(light) + 0.05) > 4.5
    zero = attribution(tokens_of(["a", "b"]), parts=[[0.0, 1.0], [0.0, 0.0]], bias=0.0, value=1.0)
    page = open_page(zero, f"#theme={theme}")
    ground = page.evaluate("getComputedStyle(document.querySelector('.ns-chip')).backgroundColor")
    rgb = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    wanted = (255, 255, 255) if theme == "light" else (25, 29, 39)
    assert np.abs(np.subtract(rgb, wanted)).max() <= 2


def test_an_answer_is_chosen_alone_in_a_range_or_all_together(open_page: Open) -> None:
    result = attribution(words(30), STEPS)
    page = open_page(result)
    assert amounts(page)["sum"] == pytest.approx(result.value.sum(), abs=0.01)
    chip(page, 1, "Answer").click()
    expect(page.locator(".ns-question")).to_have_text("What made the model write ‘they’")
    assert amounts(page)["sum"] == pytest.approx(result.value[1], abs=0.01)
    top, share = result.top(1, step=1)[0]
    assert amounts(page)[top] == pytest.approx(share, abs=0.01)
    chip(page, 3, "Answer").click(modifiers=["Shift"])
    assert fragment(page) == {"answers": "1-4"}
    assert amounts(page)["sum"] == pytest.approx(result.span(1, 4).value, abs=0.01)
    page.get_by_role("button", name="all together").click()
    assert amounts(page)["sum"] == pytest.approx(result.value.sum(), abs=0.01)
    page.keyboard.press("s")
    page.keyboard.press("s")
    assert fragment(page) == {"answers": "1-2"}


def test_ranges_of_tokens_are_summed_by_pointer_and_by_keyboard(open_page: Open) -> None:
    result = attribution(words(60))
    page = open_page(result)

    def said(a: int, b: int) -> bool:
        words = chosen(page).split()
        count, number = words[0], float(words[3 if b - a == 1 else 4].rstrip(":").replace("−", "-"))
        return int(count) == b - a and number == pytest.approx(result.spans([(a, b)])[0], abs=0.006)

    expect(page.locator(".ns-chosen-sum")).to_contain_text("Drag over tokens")
    chip(page, 4).hover()
    page.mouse.down()
    chip(page, 9).hover()
    page.mouse.up()
    assert said(4, 10)
    assert page.locator(".ns-in").count() == 6
    chip(page, 2).click()
    chip(page, 20).click(modifiers=["Shift"])
    assert said(2, 21)
    chip(page, 30).click()
    assert said(30, 31)
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert said(30, 33)
    page.keyboard.press("ArrowLeft")
    assert said(31, 32)
    page.keyboard.press("Shift+Home")
    assert said(0, 32)
    assert fragment(page) == {"tokens": "0-32"}
    page.keyboard.press("Escape")
    expect(page.locator(".ns-in")).to_have_count(0)
    chip(page, 5).click()
    chip(page, 5).click()  # again: nothing is chosen
    expect(page.locator(".ns-in")).to_have_count(0)
    page.locator(".ns-pick").first.click()
    at = int(np.abs(result.scores.values).argmax())
    assert said(at, at + 1)


def test_two_taps_choose_a_range(open_page: Open) -> None:
    result = attribution(words(60))
    page = open_page(result, width=390, has_touch=True, is_mobile=True)
    chip(page, 3).tap()
    chip(page, 7).tap()
    expect(page.locator(".ns-in")).to_have_count(5)
    chip(page, 12).tap()
    expect(page.locator(".ns-in")).to_have_count(1)


def test_words_parts_and_layers(open_page: Open) -> None:
    result = attribution(trace=True)
    page = open_page(result)
    page.get_by_role("radio", name="words").check()
    merged = result.words()
    assert amounts(page)["cabinet"] == pytest.approx(merged.scores[4], abs=0.006)
    page.get_by_role("radio", name="position").check()
    shown = amounts(page)
    word_part = float(result.parts[0].sum())
    assert shown["other parts"] == pytest.approx(word_part, abs=0.006)
    assert shown["sum"] == pytest.approx(result.value, abs=0.006)
    slider = page.get_by_role("slider", name="Layer")
    assert slider.get_attribute("aria-valuetext") == "input"
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "before layer 2"
    assert page.evaluate("document.activeElement.name") == "layer"
    shown = amounts(page)
    assert shown["keys"] == pytest.approx(result.layers[2, 1], abs=0.006)
    assert shown["bias (no token)"] == pytest.approx(result.layer_bias[2], abs=0.006)
    assert shown["sum"] == pytest.approx(result.value, abs=0.006)
    expect(page.locator(".ns-proof")).to_contain_text("Before layer 2: shares")
    page.keyboard.press("End")
    assert slider.get_attribute("aria-valuetext") == f"after layer {LAYERS - 1}"
    expect(page.locator("h3", has_text="Shares of the states")).to_have_text(
        f"Shares of the states after layer {LAYERS - 1}"
    )
    assert fragment(page) == {"unit": "words", "layer": str(LAYERS)}


def test_heads_and_feed_forward_are_summed_for_the_chosen_answer(open_page: Open) -> None:
    result = attribution(words(30), STEPS, trace=True)
    page = open_page(result, "#answers=2-3")
    heads = page.get_by_role("img", name="Heads, sums:")
    expect(heads).to_have_attribute(
        "aria-label", f"Heads, sums: {spoken(result.heads[2].sum(axis=-1))}"
    )
    forward = page.get_by_role("img", name="Feed-forward, sums:")
    assert spoken(result.feed_forward[2].sum(axis=-1)) in str(forward.get_attribute("aria-label"))
    page.get_by_role("button", name="show before layer 3").click()
    assert fragment(page) == {"answers": "2-3", "layer": "3"}


def spoken(sums: Any) -> str:
    decimals = max(2, 2 - int(np.floor(np.log10(np.abs(sums).max()))))
    said = [f"{value:+.{decimals}f}".replace("-", "−") for value in sums]
    return ", ".join(f"layer {at} {text}" for at, text in enumerate(said))


def test_hostile_tokens_are_text(open_page: Open, tmp_path: Path) -> None:
    tokens = tokens_of(list(HOSTILE))
    settings = {"baseline": "</script><b>", "method": "<i>"}
    steps = tokens_of(["<script>alert(5)</script>", "\u202e"])
    page = open_page(
        attribution(tokens, steps, trace=True, settings=settings, signature="model:<u>|x:</script>")
    )
    shown = page.locator(".ns-passage[aria-label=Text] .ns-chip").all_inner_texts()
    assert shown[0] == "</script><script>alert(1)</script>"
    assert shown[5] == "a\\u{0}b"
    assert shown[12] == "·"
    for at in range(len(HOSTILE)):
        chip(page, at).hover()
    chip(page, 0).click()
    chip(page, 19).click(modifiers=["Shift"])
    chip(page, 0, "Answer").click()
    expect(page.locator(".ns-question")).to_contain_text("<script>alert(5)</script>")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    download.value.save_as(tmp_path / "shares.csv")
    assert "bias" in (tmp_path / "shares.csv").read_text(encoding="utf-8")
    assert page.locator("script").count() == 2  # the data and the code
    assert page.locator("main img, main svg, main b:not([class])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_pictures_have_the_tokens_with_their_colours_and_the_proof(
    open_page: Open, tmp_path: Path
) -> None:
    result = attribution(words(60))
    page = open_page(result, width=800)
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        download.value.save_as(tmp_path / f"shares.{kind.lower()}")
    picture = ElementTree.parse(tmp_path / "shares.svg").getroot()
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    texts = [node.text or "" for node in picture.iter(f"{SVG}text")]
    headline = page.locator(".ns-headline").inner_text()
    assert "".join(headline.split()) in "".join("".join(texts).split())
    assert page.locator(".ns-proof").inner_text().split()[0] in " ".join(texts)
    for node in picture.iter(f"{SVG}text"):
        assert 0 < float(node.attrib["x"]) < width
        assert 0 < float(node.attrib["y"]) < height
    fills = [node.attrib["fill"].replace(" ", "") for node in picture.iter(f"{SVG}rect")]
    for at, text in enumerate(result.tokens.texts):
        assert text in texts
        colour = chip(page, at).evaluate("chip => getComputedStyle(chip).backgroundColor")
        assert colour.replace(" ", "") in fills
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [6, 60, 600])
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_never_scrolls_sideways(open_page: Open, width: int, count: int) -> None:
    page = open_page(attribution(words(count), STEPS, trace=True), width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_text_from_the_right_goes_to_the_right(open_page: Open) -> None:
    page = open_page(attribution(tokens_of(["שלום", "עולם", "זה", "מבחן", "."])))
    text = page.get_by_role("listbox", name="Text")
    assert text.get_attribute("dir") == "rtl"
    left = [chip(page, at).bounding_box()["x"] for at in range(4)]
    assert left == sorted(left, reverse=True)
    chip(page, 0).click()
    page.keyboard.press("ArrowLeft")  # the next one
    expect(chip(page, 1)).to_be_focused()


def test_a_screen_reader_finds_names_and_hears_changes(open_page: Open) -> None:
    result = attribution(trace=True)
    page = open_page(result)
    expect(chip(page, 1)).to_have_attribute("aria-label", "keys, +1.02")
    for role in ("radio", "button", "slider", "img"):
        for element in page.get_by_role(role).all():
            name = element.evaluate(
                "e => e.getAttribute('aria-label') || e.textContent || e.labels?.[0]?.textContent"
            )
            assert name
            assert name.strip()
    chip(page, 1).click()
    expect(chip(page, 1)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("status")).to_have_text("keys: +1.02")
    assert page.locator(".ns-passage[aria-label=Text] [tabindex='0']").count() == 1
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_the_address_keeps_the_view_and_nonsense_is_ignored(open_page: Open) -> None:
    result = attribution(words(30), STEPS, trace=True)
    page = open_page(result, "#answers=1-2&tokens=3-5&layer=2&unit=words&colours=root&theme=dark")
    assert page.locator(".normscope").get_attribute("data-theme") == "dark"
    expect(page.get_by_role("radio", name="root")).to_be_checked()
    expect(page.get_by_role("slider")).to_have_value("3")
    assert amounts(page)["sum"] == pytest.approx(result.value[1], abs=0.01)
    page = open_page(result, "#answers=9-2&tokens=0-999&layer=77&part=x&unit=%E0%A4%A&theme=pink")
    assert amounts(page)["sum"] == pytest.approx(result.value.sum(), abs=0.01)
    expect(page.get_by_role("slider")).to_have_value("0")


def test_differences_name_their_baseline(open_page: Open) -> None:
    result = attribution(
        bias=0.0, value=attribution().scores.sum(), settings={"baseline": "[MASK]"}
    )
    page = open_page(result)
    expect(page.locator(".ns-proof")).to_have_text(
        "Shares 6.76 = 6.76, the model’s own value minus that of the baseline [MASK] (logit); "
        "gap 2e−7."
    )
    expect(page.locator(".ns-bias")).to_be_hidden()
    assert "bias (no token)" not in amounts(page)


def test_damaged_data_is_said(chromium: Browser, tmp_path: Path) -> None:
    data = shares_payload(attribution())
    data["arrays"]["scores"]["shape"] = [1, 7]
    (tmp_path / "page.html").write_text(page_of(data), encoding="utf-8")
    page = chromium.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    expect(page.get_by_role("alert")).to_contain_text("the numbers of scores are damaged")
    page.close()


def test_the_widget_draws_the_same_view(chromium: Browser) -> None:
    import normscope

    widget: Any = normscope.widget(attribution(words(60), trace=True))
    page = chromium.new_page(viewport={"width": 700, "height": 900})
    wrong = watch(page, lambda url: url.startswith(("about:", "blob:")))
    page.evaluate(
        """async ([code, style, data]) => {
            const sheet = document.createElement("style");
            sheet.textContent = style;
            document.head.append(sheet);
            const address = URL.createObjectURL(new Blob([code], {type: "text/javascript"}));
            const module = await import(address);
            const el = document.createElement("div");
            document.body.append(el);
            module.default.render({model: {get: () => data, on() {}, off() {}}, el});
        }""",
        [widget._esm, widget._css, widget.data],
    )
    expect(page.locator(".normscope[data-ready]")).to_have_count(1)
    chip(page, 3).click()
    expect(page.locator(".ns-in")).to_have_count(1)
    assert page.url == "about:blank"
    assert wrong == []
    page.close()
