"""The palette: contrast of text, and ramps that work without colour."""

from __future__ import annotations

import itertools

import pytest

from normscope.show.palette import (
    CATEGORIES,
    CATEGORIES_DARK,
    DIVERGING,
    INKS,
    SEQUENTIAL,
    css_variables,
    diverging_levels,
    text_on,
)

SURFACES = ("ground", "panel", "soft", "warning")
TEXTS = ("ink", "muted", "accent", "plus", "minus", "good", "wrong")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", INKS)
def test_every_ink_is_legible_on_every_surface(theme: str) -> None:
    inks = INKS[theme]
    for surface, text in itertools.product(SURFACES, TEXTS):
        assert contrast(inks[surface], inks[text]) >= 4.5, (surface, text)


@pytest.mark.parametrize("theme", SEQUENTIAL)
def test_a_sequential_ramp_changes_its_lightness_one_way(theme: str) -> None:
    steps = [luminance(colour) for colour in SEQUENTIAL[theme]]
    assert steps == sorted(steps, reverse=theme == "light")


@pytest.mark.parametrize("theme", DIVERGING)
def test_a_diverging_ramp_changes_its_lightness_away_from_zero(theme: str) -> None:
    steps = [luminance(colour) for colour in DIVERGING[theme]]
    middle = len(steps) // 2
    brightest_first = theme == "light"
    assert steps[middle:] == sorted(steps[middle:], reverse=brightest_first)
    assert steps[middle::-1] == sorted(steps[middle::-1], reverse=brightest_first)


def test_categories_are_visible_on_their_ground() -> None:
    assert len(CATEGORIES) == len(CATEGORIES_DARK) == len({*CATEGORIES, *CATEGORIES_DARK}) / 2
    assert min(contrast(colour, INKS["light"]["panel"]) for colour in CATEGORIES) > 2
    assert min(contrast(colour, INKS["dark"]["panel"]) for colour in CATEGORIES_DARK) > 4.5


def test_css_variables() -> None:
    assert css_variables("dark").startswith("--ground: #11141b; --panel:")


def test_levels_go_from_pale_to_the_ends_of_the_diverging_ramp() -> None:
    ramp = DIVERGING["light"]
    for levels, end in zip(diverging_levels(6), (ramp[0], ramp[-1]), strict=True):
        assert len(set(levels)) == 6
        assert levels[-1] == end
        lightness = [luminance(colour) for colour in levels]
        assert lightness == sorted(lightness, reverse=True)
    assert diverging_levels(3) == (ramp[2::-1], ramp[4:])


def test_text_on_a_colour_is_legible() -> None:
    """WCAG asks for a contrast of 4.5: black or white, one of them has it on any colour."""
    greys = [text_on(f"#{grey:02x}{grey:02x}{grey:02x}") for grey in (0, 102, 128, 255)]
    assert greys == ["white", "white", "black", "black"]
    assert text_on("#ff0000") == "black"  # 5.25 against 4.0
    assert text_on("#0000ff") == "white"
    for colour in (*SEQUENTIAL["light"], *DIVERGING["dark"], *CATEGORIES):
        text = {"black": "#000000", "white": "#ffffff"}[text_on(colour)]
        assert contrast(colour, text) >= 4.5
