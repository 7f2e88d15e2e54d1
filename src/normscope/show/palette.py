"""The colours of every picture, page and report.

The ramps differ mainly in lightness, and the categories are those of Okabe and Ito: readers with
any colour vision can tell them apart, and the ramps survive printing in grey. Plots, pages and
reports read their colours from here.
"""

from __future__ import annotations

from typing import Final

# Categories: lines, bars, heads. Without yellow, which is too pale for a line on white.
CATEGORIES: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The same on a dark ground: black becomes nearly white, and dark colours become lighter.
CATEGORIES_DARK: Final = (
    *("#4DA6E0", "#F0803C", "#2FC49A", "#DE9BC1", "#F0B63A", "#8CCBF2", "#F2F4F8"),
)

# From nothing to the largest value.
SEQUENTIAL: Final = {
    "light": ("#ffffff", "#d8e6fb", "#8db8f2", "#3f7de0", "#1b4fae", "#0b255f"),
    "dark": ("#191d27", "#1d3766", "#2a5fb8", "#5595ee", "#9cc8ff", "#eaf4ff"),
}
# From the most negative value over zero to the most positive.
DIVERGING: Final = {
    "light": ("#7f3b08", "#c9660f", "#f2b163", "#ffffff", "#8db8f2", "#2a66cf", "#0b255f"),
    "dark": ("#ffd9a8", "#f0953c", "#7d4715", "#191d27", "#1f4f9e", "#64a4f5", "#dcecff"),
}

# Surfaces and text. Every ink has a contrast of at least 4.5 on every surface of its theme.
INKS: Final = {
    "light": {
        "ground": "#f6f7f9",
        "panel": "#ffffff",
        "ink": "#1b2130",
        "muted": "#5a6475",
        "line": "#dfe3ea",
        "accent": "#2157c4",
        "soft": "#eaf1fd",
        "plus": "#2157c4",
        "minus": "#a84b07",
        "good": "#12703a",
        "wrong": "#a3241b",
        "warning": "#fdf3dc",
    },
    "dark": {
        "ground": "#11141b",
        "panel": "#191d27",
        "ink": "#e9ecf3",
        "muted": "#a0a9ba",
        "line": "#2d3443",
        "accent": "#86b6ff",
        "soft": "#202b42",
        "plus": "#86b6ff",
        "minus": "#f0a45c",
        "good": "#6fcf97",
        "wrong": "#ff9a8f",
        "warning": "#3a3220",
    },
}


def css_variables(theme: str) -> str:
    """Return the surfaces and inks of a theme, "light" or "dark", as declarations of CSS."""
    return " ".join(f"--{name}: {colour};" for name, colour in INKS[theme].items())


def diverging_levels(count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `count` colours for negative values and for positive ones, from small to large.

    They are those of the light diverging ramp, without white, and colours between them.
    """
    ramp = DIVERGING["light"]
    middle = len(ramp) // 2
    return levels(ramp[middle::-1], count), levels(ramp[middle:], count)


def levels(colours: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return `count` colours along a ramp, evenly spaced, without its first colour."""
    levels = []
    for level in range(1, count + 1):
        at, part = divmod(level * (len(colours) - 1), count)
        pair = colours[at], colours[min(at + 1, len(colours) - 1)]
        low, high = map(_channels, pair)
        mixed = [round(a + (b - a) * part / count) for a, b in zip(low, high, strict=True)]
        levels.append("#" + "".join(f"{channel:02x}" for channel in mixed))
    return tuple(levels)


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def text_on(colour: str) -> str:
    """Return "black" or "white": the colour of text with more contrast on a colour (#rrggbb)."""
    parts = [channel / 255 for channel in _channels(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "white"
