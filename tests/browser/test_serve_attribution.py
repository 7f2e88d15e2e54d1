"""Attributions in the web app: what is offered, shares, clicks on the answer, errors, a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

import normscope
from normscope.models.architectures import tiny_model
from tests.browser.conftest import SLOW
from tests.browser.test_serve_browser import HOSTILE, analysed, opened
from tests.helpers.heads import classifier, language_model, masked_tokenizer, tiny_head, translator
from tests.helpers.serving import Server, server
from tests.helpers.tiny import tokenizer

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    models = {
        "writer": (language_model(), tokenizer(pair=False)),
        "classifier": (classifier(), tokenizer()),
        "masked": (tiny_head("bert", "BertForMaskedLM"), masked_tokenizer()),
        "translator": (translator(), tokenizer(pair=False)),
        "encoder": (tiny_model("bert"), tokenizer()),
    }
    for name, (model, its_tokenizer) in models.items():
        model.save_pretrained(path / name)
        its_tokenizer.save_pretrained(path / name)
    return path


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    names = ("writer", "classifier", "masked", "translator", "encoder")
    models = [argument for name in names for argument in ("--model", str(folder / name))]
    with server(*models, "--max-length", "30") as program:
        yield program


def choose(page: Page, model: str, question: str) -> None:
    page.get_by_role("radio", name=question).check()
    page.get_by_label("Model", exact=True).select_option(model)
    expect(page.get_by_role("radio", name=question)).to_be_checked()


def open_advanced(page: Page) -> None:
    page.locator("#advanced").evaluate("details => { details.open = true; }")


def ask(page: Page) -> None:
    page.get_by_role("button", name="Analyse").click()


def asked(page: Page) -> FrameLocator:
    """Ask, wait for the view of the shares and return its frame."""
    ask(page)
    frame: FrameLocator = analysed(page)
    frame.locator(".normscope[data-ready]").wait_for(timeout=SLOW)
    return frame


def refused(page: Page, message: str) -> None:
    """Ask and expect an error, without the result of an earlier question below it."""
    ask(page)
    expect(page.locator("#status.wrong")).to_contain_text(message, timeout=SLOW)
    expect(page.locator("#result")).to_be_hidden()


def headline(frame: FrameLocator) -> Locator:
    return frame.locator(".ns-question")


def amounts(frame: FrameLocator) -> dict[str, float]:
    rows = frame.locator(".ns-list tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {row[1]: float(row[2].replace("−", "-")) for row in rows}


def expected(folder: Path, name: str, **question: Any) -> Any:
    model, its_tokenizer = normscope.models.load(folder / name)
    return normscope.attribute(model, its_tokenizer, **question)


def titles(page: Page) -> list[str]:
    return page.locator("#questions input").evaluate_all(
        "boxes => boxes.map(box => document.getElementById(box.getAttribute('aria-labelledby'))"
        ".textContent)"
    )


def test_a_model_offers_what_its_head_can_answer(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    model = page.get_by_label("Model", exact=True)
    maps = "What does each word get from the others?"
    made = {
        "Which words made this answer?": "writer",
        "How does it continue?": "writer",
        "Which words made this continuation?": "writer",
        "Which words made this label?": "classifier",
        "Which words made the missing word?": "masked",
        "Which words made this translation?": "translator",
        "How similar are two texts?": "encoder",
    }
    assert titles(page) == [maps, *made]
    # A question goes to a model that can answer it, and to the selected one if that can.
    for question, name in made.items():
        page.get_by_role("radio", name=question).check()
        expect(model).to_have_value(name)
        expect(page.get_by_role("radio", name=question)).to_be_checked()
    page.get_by_role("radio", name=maps).check()
    expect(model).to_have_value("encoder")
    model.select_option("translator")
    page.get_by_role("radio", name="What does the model write?").check()
    expect(model).to_have_value("translator")
    model.select_option("classifier")
    expect(page.get_by_role("radio", name=maps)).to_be_checked()
    open_advanced(page)
    expect(page.get_by_text("What to measure", exact=True)).to_be_visible()
    page.get_by_role("radio", name="similar").check()
    expect(page.get_by_text("What to measure", exact=True)).to_be_hidden()
    expect(page.get_by_role("textbox", name="Answer (")).to_be_hidden()
    expect(page.get_by_label("The other text")).to_have_value("Someone makes music.")


def test_an_example_never_replaces_what_was_written(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    text = page.locator("#text")
    choose(page, "writer", "Which words made this answer?")
    expect(text).to_have_value("The keys to the cabinet")
    page.get_by_role("radio", name="How does it continue?").check()
    expect(text).to_have_value("Once upon a time, there was a")
    text.fill(TEXT)
    choose(page, "encoder", "How similar are two texts?")
    expect(text).to_have_value(TEXT)
    page.get_by_label("Model", exact=True).select_option("writer")
    expect(page.get_by_role("radio", name="What does each word get")).to_be_checked()


def test_answer_and_foil_then_downloads(
    running: Server, watched: Page, folder: Path, tmp_path: Path
) -> None:
    page = opened(watched, running.url)
    choose(page, "writer", "Which words made this answer?")
    page.get_by_label("Prompt").fill(TEXT)
    page.get_by_role("textbox", name="Answer (").fill("dog")
    page.get_by_role("textbox", name="Rather than").fill("cat")
    frame = asked(page)
    expect(headline(frame)).to_have_text("What made the model say 'dog' rather than 'cat'")
    expect(page.locator("#status")).to_contain_text("The shares add up to the model's output")
    result = expected(folder, "writer", text=TEXT, answer="dog", foil="cat")
    shown = amounts(frame)
    assert shown["sum"] == pytest.approx(result.value, abs=0.006)
    assert shown["sat"] == pytest.approx(result.scores[3], abs=0.006)
    with page.expect_download() as coming:
        page.get_by_role("link", name="safetensors").click()
    coming.value.save_as(tmp_path / "result.safetensors")
    assert normscope.load(tmp_path / "result.safetensors") == result
    assert page.frames[1].evaluate("origin") == "null"


def test_the_model_writes_and_a_click_shows_what_made_a_token(
    running: Server, watched: Page, folder: Path
) -> None:
    page = opened(watched, running.url)
    choose(page, "writer", "How does it continue?")
    page.get_by_label("Prompt").fill(TEXT)
    page.get_by_label("Tokens to write").fill("4")
    open_advanced(page)
    page.get_by_label("Look inside the model too").check()
    frame = asked(page)
    result = expected(folder, "writer", text=TEXT, generate=4, trace=True)
    answer = frame.get_by_role("listbox", name="Answer").get_by_role("option")
    expect(answer).to_have_count(len(result.steps))
    assert amounts(frame)["sum"] == pytest.approx(result.value.sum(), abs=0.02)
    answer.nth(2).click()
    written = result.steps.texts[2]
    expect(headline(frame)).to_have_text(f"What made the model write ‘{written}’")
    assert amounts(frame)["sum"] == pytest.approx(result.value[2], abs=0.006)
    expect(frame.get_by_role("slider", name="Layer")).to_be_visible()


def test_labels_similarity_and_translations(running: Server, watched: Page, folder: Path) -> None:
    page = opened(watched, running.url)
    page.locator("#text").fill(TEXT)
    choose(page, "classifier", "Which words made this label?")
    expect(page.get_by_role("combobox", name="Label")).to_have_value("")  # the model's own choice
    own = expected(folder, "classifier", text=TEXT)
    expect(headline(asked(page))).to_have_text(f"What makes the text '{own.answer}'")
    page.get_by_role("combobox", name="Label").select_option("positive")
    page.get_by_role("combobox", name="Rather than").select_option("neutral")
    frame = asked(page)
    expect(headline(frame)).to_have_text("What makes the text 'positive' rather than 'neutral'")
    choose(page, "encoder", "How similar are two texts?")
    page.get_by_label("The other text").fill("the dog ran")
    open_advanced(page)
    page.get_by_label("Compare with another input").fill("zero")
    frame = asked(page)
    similar = expected(folder, "encoder", text=TEXT, similar_to="the dog ran", baseline="zero")
    expect(frame.locator(".ns-proof")).to_contain_text("baseline zero")
    assert amounts(frame)["sum"] == pytest.approx(similar.value, abs=0.006)
    page.get_by_label("Compare with another input").fill("")
    choose(page, "translator", "Which words made this translation?")
    page.get_by_role("textbox", name="Translation").fill("the dog ran")
    frame = asked(page)
    result = expected(folder, "translator", text=TEXT, target="the dog ran")
    frame.get_by_role("listbox", name="Answer").get_by_role("option").nth(2).click()
    assert amounts(frame)["sum"] == pytest.approx(result.value[2], abs=0.006)


def test_errors_in_words_and_no_old_result_below_them(running: Server, watched: Page) -> None:
    watched.expected = ["400"]  # type: ignore[attr-defined]
    page = opened(watched, running.url)
    choose(page, "masked", "Which words made the missing word?")
    page.locator("#text").fill("the sun sat on the mat")  # "sun" is this tokenizer's mask
    page.get_by_role("textbox", name="Answer (").fill("cat")
    frame = asked(page)
    expect(headline(frame)).to_have_text("What made the model say 'cat'")
    page.get_by_role("textbox", name="Answer (").fill("big cat")
    refused(page, "the answer 'big cat' is 2 tokens")
    page.get_by_role("textbox", name="Answer (").fill("")
    asked(page)
    page.get_by_role("textbox", name="Rather than").fill("dog")
    refused(page, "there is a foil, but no answer")
    page.get_by_role("textbox", name="Rather than").fill("")
    page.locator("#text").fill(TEXT)
    refused(page, "the text has no mask token; put sun once where the word is missing")
    choose(page, "writer", "Which words made this answer?")
    page.get_by_label("Prompt").fill("cat " * 40)
    refused(page, "the text has 42 tokens including special tokens")
    page.get_by_role("radio", name="How does it continue?").check()
    page.get_by_label("Prompt").fill("cat " * 20)
    refused(page, "the prompt has 22 tokens and 12 may follow")
    page.get_by_label("Prompt").fill(TEXT)
    open_advanced(page)
    page.get_by_label("Compare with another input").fill("the dog")
    refused(page, "the text has 7 tokens and the baseline 3")
    page.get_by_label("Compare with another input").fill("the dog sat on the mat")
    asked(page)


def test_a_space_is_put_before_a_new_word(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    sent: list[Any] = []
    page.on("request", lambda r: sent.append(r.post_data_json) if r.method == "POST" else None)
    choose(page, "writer", "Which words made this answer?")
    answer = page.get_by_role("textbox", name="Answer (")
    for prompt, written in {
        TEXT: "dog",
        f"{TEXT} and": " dog",
        f"{TEXT} the": ".",
        f"{TEXT} ": "dog",
        f"{TEXT} a": "猫",
    }.items():
        page.get_by_label("Prompt").fill(prompt)
        answer.fill(written)
        asked(page)
    page.get_by_label("starts a new word").uncheck()
    page.get_by_label("Prompt").fill(TEXT)
    answer.fill("dog")
    asked(page)
    assert [fields["answer"] for fields in sent] == [" dog", " dog", ".", "dog", "猫", "dog"]


def test_hostile_text_is_only_shown(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    choose(page, "encoder", "How similar are two texts?")
    page.locator("#text").fill("<img src=x onerror=alert(1)>")
    page.get_by_label("The other text").fill(HOSTILE[:40])
    frame = asked(page)
    expect(headline(frame)).to_contain_text("<img src=x")
    assert page.frames[1].evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(running: Server, watched: Page, scheme: Any) -> None:
    watched.set_viewport_size({"width": 390, "height": 800})
    watched.emulate_media(color_scheme=scheme)
    page = opened(watched, running.url)
    open_advanced(page)
    for question in titles(page):
        page.get_by_role("radio", name=question).check()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("radio", name="How does it continue?").check()
    page.get_by_label("Prompt").fill(TEXT)
    frame = asked(page)
    frame.get_by_role("listbox", name="Answer").get_by_role("option").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.frames[1].evaluate("document.documentElement.scrollWidth <= innerWidth")
