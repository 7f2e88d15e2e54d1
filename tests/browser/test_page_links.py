"""The page of alignments: words and links, filter, search, gold links, keyboard, layout."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from normscope.alignment.links import Links
from normscope.alignment.result import Alignment, Alignments
from tests.browser.conftest import Open
from tests.helpers.alignments import SIGNATURE, links, pair, several
from tests.helpers.pages import HOSTILE

HEADLINE = ".ns-headline"
CURVES = ".ns-wire"
ROWS = ".ns-links tbody tr"


def word(page: Page, text: str, side: str = "Source") -> Any:
    group = page.get_by_role("group", name=f"{side} sentence")
    return group.get_by_role("button").filter(has_text=text).first


def near(page: Page) -> set[str]:
    """The links that are drawn in full while a word is pointed at or chosen."""
    found: list[str] = page.eval_on_selector_all(
        f"{CURVES}.ns-near", "all => all.map(path => path.dataset.link)"
    )
    return set(found)


def table(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.eval_on_selector_all(
        ROWS, "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def fragment(page: Page) -> dict[str, str]:
    address: str = page.evaluate(
        "() => new Promise(done => setTimeout(() => done(location.hash), 160))"
    )
    return dict(field.split("=") for field in address.removeprefix("#").split("&") if "=" in field)


def listed(page: Page) -> int:
    return int(page.locator(".ns-listcard h3").inner_text().strip("Pairs ()").replace(",", ""))


# ---- one pair


def test_a_pair_has_its_words_links_and_headline(open_page: Open) -> None:
    one = pair(gold=False)
    page = open_page(one)
    expect(page.locator(HEADLINE)).to_have_text(one.headline)
    assert page.title() == "The cat slept well . · normscope"
    assert page.locator(CURVES).count() == 4
    assert table(page) == [
        ["Die", "The", "56%"],
        ["Katze", "cat", "84%"],
        ["Katze", "slept", "32%"],
        ["gut", "well", "70%"],
    ]
    expect(page.locator(".ns-linkcard")).to_contain_text("Not linked in the source: “schlief”")
    widths: dict[str, float] = dict(
        page.eval_on_selector_all(
            CURVES,
            "all => all.map(path => [path.dataset.link, parseFloat(path.style.strokeWidth)])",
        )
    )
    assert sorted(widths, key=widths.__getitem__) == ["1-2", "0-0", "4-3", "1-1"]
    assert page.get_by_role("listbox").count() == 0
    page.get_by_text("Signature").click()
    expect(page.locator(".ns-signature")).to_have_text(SIGNATURE)
    expect(page.locator(".ns-model")).to_have_text("tiny-translator")


def test_curves_end_at_their_words(open_page: Open) -> None:
    page = open_page(pair(gold=False))
    ends: list[list[float]] = page.evaluate(
        """() => [...document.querySelectorAll(".ns-wire")].map(path => {
            const [s, t] = path.dataset.link.split("-").map(Number);
            const box = document.querySelector(".ns-wired").getBoundingClientRect();
            const middle = (side, at) => {
              const word = document.querySelectorAll(`.ns-side${side} .ns-word`)[at];
              const place = word.getBoundingClientRect();
              return place.left + place.width / 2 - box.left;
            };
            const end = path.getPointAtLength(path.getTotalLength());
            return [path.getPointAtLength(0).x - middle(0, s), end.x - middle(1, t)];
        })"""
    )
    assert len(ends) == 4
    assert max(abs(gap) for both in ends for gap in both) < 1


def test_a_word_shows_its_links_by_pointer_focus_and_click(open_page: Open) -> None:
    page = open_page(pair(gold=False))
    word(page, "Katze").hover()
    assert near(page) == {"1-1", "1-2"}
    expect(page.locator(".ns-tip")).to_have_text("Katzecat, 84%slept, 32%")
    assert page.locator(f"{ROWS}.ns-near").count() == 2
    page.mouse.move(5, 5)
    assert near(page) == set()
    word(page, "well", "Target").focus()
    assert near(page) == {"4-3"}
    word(page, "cat", "Target").click()
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    assert near(page) == {"1-1"}, "a word that is clicked stays chosen"
    assert word(page, "cat", "Target").get_attribute("aria-pressed") == "true"
    assert fragment(page) == {"word": "target-2"}
    page.keyboard.press("Escape")
    assert near(page) == set()
    assert fragment(page) == {}


def test_words_are_walked_by_keyboard(open_page: Open) -> None:
    page = open_page(pair(gold=False))

    def focused() -> str:
        return str(page.evaluate("document.activeElement.textContent"))

    word(page, "Die").focus()
    for key, expected in (
        ("ArrowRight", "Katze"),
        ("ArrowDown", "cat"),  # the surer of its two links
        ("ArrowUp", "Katze"),
        ("End", "."),
        ("Home", "Die"),
        ("ArrowLeft", "Die"),
    ):
        page.keyboard.press(key)
        assert focused() == expected
    page.keyboard.press("Enter")
    assert fragment(page) == {"word": "source-1"}
    stops = page.eval_on_selector_all(".ns-word", "all => all.filter(w => w.tabIndex === 0).length")
    assert stops == 2, "each sentence is one stop of the Tab key"


def test_words_and_links_have_names_for_screen_readers(open_page: Open) -> None:
    page = open_page(pair())
    names = page.eval_on_selector_all(".ns-word", "all => all.map(w => w.ariaLabel)")
    assert names[1] == "Katze: linked to cat 84% (sure, found), slept 32% (wrong)"
    assert names[3] == "heute: not linked"
    assert names[2] == "schlief: linked to slept (sure, missing)"
    expect(page.get_by_role("group", name="Target sentence")).to_be_visible()
    word(page, "gut").click()
    expect(page.locator(".ns-live")).to_have_text("gut: well, 70%, possible, found")


def test_weak_links_are_hidden_by_score(open_page: Open) -> None:
    page = open_page(pair(gold=False))
    slider = page.get_by_role("slider", name="Score")
    for _ in range(7):
        slider.press("ArrowRight")
    assert [row[1] for row in table(page)] == ["The", "cat", "well"]
    assert page.locator(CURVES).count() == 3
    expect(page.locator(HEADLINE)).to_have_text(
        "3 of 5 target words are linked; “Katze” – “cat” is the surest link (84%)."
    )
    expect(slider).to_have_attribute("aria-valuetext", "from 35%")
    assert fragment(page) == {"score": "35"}
    page.get_by_role("button", name="previous score").click()
    assert len(table(page)) == 4
    page = open_page(pair(gold=False), "#score=85")
    expect(page.locator(HEADLINE)).to_have_text("No words are linked.")


def test_gold_links_are_beside_the_links(open_page: Open) -> None:
    page = open_page(pair())
    expect(page.locator(HEADLINE)).to_have_text(pair().headline)
    marks = [row[3] for row in table(page)]
    assert marks == ["sure", "sure", "wrong", "missing", "possible", "missing"]
    assert page.locator(f"{CURVES}.ns-missing").count() == 2
    dashes = page.eval_on_selector(
        f"{CURVES}.ns-missing", "path => getComputedStyle(path).strokeDasharray"
    )
    assert dashes != "none"
    expect(page.locator(".ns-marks")).to_have_text(
        "sure, found 2possible, found 1wrong 1sure, missing 2"
    )
    page.get_by_role("radio", name="off").check()
    assert page.locator(f"{CURVES}.ns-missing").count() == 0
    expect(page.locator(HEADLINE)).to_contain_text("surest link")
    page.keyboard.press("g")
    assert page.locator(f"{CURVES}.ns-missing").count() == 2
    assert fragment(page) == {}


def test_the_soft_matrix_has_the_shares(open_page: Open) -> None:
    page = open_page(pair())
    soft = page.get_by_role("table", name="Soft alignment")
    cells = soft.get_by_role("cell")
    assert soft.get_by_role("columnheader").all_inner_texts()[-1] == "</s>"
    expect(soft.locator("tbody tr").nth(1).locator("td").nth(1)).to_have_text("84")
    expect(soft.locator("tbody tr").nth(1).locator("td").nth(1)).to_have_attribute(
        "aria-label", "Katze to cat: 84%, linked, gold sure"
    )
    assert cells.count() >= 35
    soft.locator("tbody tr").nth(3).locator("td").nth(4).hover()
    expect(page.locator(".ns-tip")).to_have_text("gut – well70% of the row")
    assert page.locator(".ns-cell-possible").count() == 1
    assert open_page(pair(soft=False)).locator(".ns-soft table").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_in_the_matrix_are_legible(open_page: Open, theme: str) -> None:
    one = replace(pair(), links=links({(0, 0): 1.0}))
    page = open_page(one, f"#theme={theme}")
    contrasts: list[float] = page.evaluate(
        """() => {
          const canvas = document.createElement("canvas")
            .getContext("2d", { willReadFrequently: true });
          const light = (colour) => {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            const part = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255)
              .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
          };
          return [...document.querySelectorAll(".ns-soft tbody td")].map((cell) => {
            const style = getComputedStyle(cell);
            const [a, b] = [light(style.backgroundColor), light(style.color)];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          });
        }"""
    )
    assert min(contrasts) > 4.5


def test_a_long_pair_is_two_columns_and_the_layout_can_be_chosen(open_page: Open) -> None:
    words = tuple(f"Wort{at}" for at in range(50))
    page = open_page(Alignment(words, words, links({(at, at): 0.5 for at in range(50)})))
    box = page.locator(".ns-scroller")
    expect(box).to_have_attribute("data-layout", "down")
    page.get_by_label("Layout").select_option("across")
    expect(box).to_have_attribute("data-layout", "across")
    wide: list[int] = box.evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert wide[0] > wide[1], "rows that are too long scroll"
    page.get_by_label("Layout").select_option("down")
    word(page, "Wort0").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert near(page) == {"1-1"}
    assert fragment(page)["layout"] == "down"
    short = open_page(Alignment(words[:9], words[:9], links({(0, 0): 0.5})))
    expect(short.locator(".ns-scroller")).to_have_attribute("data-layout", "across")
    short.set_viewport_size({"width": 390, "height": 800})
    expect(short.locator(".ns-scroller")).to_have_attribute("data-layout", "down")


def test_rows_follow_the_direction_of_their_script(open_page: Open) -> None:
    page = open_page(
        Alignment(("שלום", "עולם"), ("你好", "世界"), links({(0, 0): 0.9, (1, 1): 0.8}))
    )
    places: list[float] = page.eval_on_selector_all(
        ".ns-word", "all => all.map(word => word.getBoundingClientRect().left)"
    )
    assert places[0] > places[1]
    assert places[2] < places[3]
    word(page, "שלום").focus()
    page.keyboard.press("ArrowLeft")
    assert near(page) == {"1-1"}


# ---- many pairs


def test_a_list_of_pairs_with_the_headline_of_all(open_page: Open) -> None:
    all_pairs = several()
    page = open_page(all_pairs)
    expect(page.locator(HEADLINE)).to_have_text(all_pairs.headline)
    expect(page.locator(".ns-pairline")).to_have_text(all_pairs[0].headline)
    assert listed(page) == 40
    page.keyboard.press("n")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 2")
    assert fragment(page) == {"pair": "2"}
    page.get_by_role("button", name="next pair").click()
    page.get_by_role("button", name="next pair").click()
    page.keyboard.press("p")
    expect(page.locator(".ns-pairline")).to_have_text(all_pairs[2].headline)
    options = page.locator(".ns-pairrow")
    options.nth(5).click()
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 6")
    expect(options.nth(5)).to_have_attribute("aria-selected", "true")
    box = page.get_by_role("listbox", name="Sentence pairs")
    box.press("End")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 40")
    expect(page.locator(".ns-pairrow.ns-here")).to_be_visible()
    box.press("ArrowUp")
    box.press("PageUp")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 31")
    assert page.get_by_role("button", name="next pair").is_enabled()


def test_the_headline_without_gold_is_that_of_python(open_page: Open) -> None:
    all_pairs = several(gold=False)
    all_pairs = Alignments(tuple(replace(one, gold=None) for one in all_pairs), how=SIGNATURE)
    page = open_page(all_pairs)
    expect(page.locator(HEADLINE)).to_have_text(all_pairs.headline)
    assert page.get_by_label("Pairs", exact=True).locator("option").all_inner_texts() == [
        *("all", "with unlinked words"),
    ]
    page.get_by_label("Order").select_option("worst")
    rates = [text.strip("%") for text in page.locator(".ns-rate").all_inner_texts()]
    assert rates[0] == "too long"
    scores = [int(rate) for rate in rates[1:]]
    assert scores == sorted(scores)


def test_pairs_are_searched_filtered_and_sorted(open_page: Open) -> None:
    page = open_page(several())
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    assert listed(page) == 1
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 7")
    expect(page.locator(".ns-word.ns-hit")).to_have_text("needle")
    assert fragment(page) == {"pair": "7", "find": "NEEDLE"}
    page.keyboard.type("x")
    expect(page.locator(".ns-none")).to_be_visible()
    assert listed(page) == 0
    page.keyboard.press("Escape")
    assert listed(page) == 40
    page.get_by_label("Pairs", exact=True).select_option("errors")
    wrong = sum(
        bool((one.links.possible - one.gold.possible) or (one.gold.sure - one.links.possible))
        for one in several()
        if one.gold is not None
    )
    assert listed(page) == wrong
    page.get_by_label("Order").select_option("worst")
    rates = [
        int(text.removeprefix("AER ").strip("%"))
        for text in page.locator(".ns-rate").all_inner_texts()
        if text != "too long"
    ]
    assert rates == sorted(rates, reverse=True)
    page = open_page(several(), "#pair=9")
    expect(page.locator(".ns-pairline")).to_have_text("Not aligned: too long.")


def test_the_aer_follows_the_score(open_page: Open) -> None:
    all_pairs = several()
    page = open_page(all_pairs, "#score=60")
    kept = [
        replace(one, links=links({link: x for link, x in one.links.scores.items() if x >= 0.6}))
        for one in all_pairs
    ]
    expect(page.locator(HEADLINE)).to_have_text(Alignments(tuple(kept)).headline)
    expect(page.locator(".ns-proof")).to_have_text(
        "40 of 40 pairs, links with a score of at least 60%"
    )


def test_ten_thousand_pairs_stay_fast(open_page: Open) -> None:
    page = open_page(several(10_000))
    assert listed(page) == 10_000
    assert page.locator(".ns-pairrow").count() < 40, "only the rows in view are in the page"
    page.locator(".ns-pairs").evaluate("box => { box.scrollTop = 5000 * 58; }")
    expect(page.locator(".ns-pairrow").filter(has_text="wort5000_0")).to_be_visible()
    took: float = page.evaluate(
        """() => {
          const start = performance.now();
          for (let at = 0; at < 5; at++)
            document.dispatchEvent(new KeyboardEvent("keydown", { key: "n" }));
          return (performance.now() - start) / 5;
        }"""
    )
    assert took < 400, f"{took:.0f} ms for the next pair"


def test_the_matrix_of_a_pair_in_a_list(open_page: Open) -> None:
    page = open_page(Alignments((pair(), pair(soft=False)), how=SIGNATURE))
    page.keyboard.press("m")
    expect(page.get_by_role("table", name="Soft alignment")).to_be_visible()
    assert page.locator(".ns-scroller").is_hidden()
    assert fragment(page) == {"pair": "1", "view": "matrix"}
    page.keyboard.press("n")
    expect(page.locator(".ns-scroller")).to_be_visible()


def test_links_are_saved_as_csv(open_page: Open) -> None:
    page = open_page(Alignments((pair(), pair(gold=False)), how=SIGNATURE), "#score=50")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="CSV").click()
    with downloading.value.path().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["source"], row["target"], row["gold"]) for row in rows[:3]] == [
        ("Die", "The", "sure"),
        ("Katze", "cat", "sure"),
        ("schlief", "slept", "missing"),
    ]
    assert float(rows[1]["score"]) == pytest.approx(0.84)
    assert [row["pair"] for row in rows].count("2") == 3


def test_help_themes_and_a_broken_address(open_page: Open) -> None:
    page = open_page(several(), "#pair=99&score=7&view=x&layout=y&word=source-900&theme=z&find=%E0")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 1")
    page.keyboard.press("t")
    expect(page.locator(".normscope")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="light colours").click()
    expect(page.locator(".normscope")).to_have_attribute("data-theme", "light")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("next pair, previous pair")
    page.keyboard.press("n")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 1")
    page.get_by_role("button", name="Close").click()
    assert fragment(page)["theme"] == "light"  # written before the address is changed by hand
    page.evaluate("location.hash = '#pair=3'")
    expect(page.locator(".ns-pairpanel h3")).to_have_text("Pair 3")


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_wider_than_the_window(open_page: Open, width: int) -> None:
    long = ("Donaudampfschifffahrtsgesellschaftskapitänsmütze",) * 8
    wide = Alignment(long, long, links({(at, at): 0.5 for at in range(8)}))
    for shown in (several(), wide, pair()):
        page = open_page(shown, width=width)
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0


def test_hostile_words_stay_text(open_page: Open) -> None:
    one = Alignment(HOSTILE, HOSTILE, links({(0, 1): 0.5}), gold=Links.of({(1, 1)}))
    page = open_page(Alignments((one, one), how=f"model:{HOSTILE[0]}"))
    word(page, "alert(1)").hover()
    expect(page.locator(".ns-word").first).to_contain_text("</script>")
    expect(page.locator(".ns-word").nth(3)).to_contain_text("\\u{202e}")


def test_a_page_of_another_version_says_so(open_page: Open) -> None:
    class Later:
        def page_payload(self) -> dict[str, Any]:
            return pair().page_payload() | {"version": 2}

    with pytest.raises(Exception, match="data-ready"):
        open_page(Later())
