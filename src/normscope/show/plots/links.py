"""The plot of a word alignment: two sentences, and a line for every link."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from normscope.errors import InputError
from normscope.show.plots.style import brief, colour, figure, ink, letters, set_title, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.085  # inches of a letter at the size of the words
GAP = 0.2  # inches between two words of a row
SPAN = 1.35  # inches between the rows
LINE = 0.27  # inches of a word in a column
COLUMNS = 1.7  # inches between the columns
WIDEST = 9.0  # inches: longer sentences are drawn as columns
NARROWEST = 3.4
THINNEST, THICKEST = 0.8, 4.2  # points of a line of score 0 and 1
FAINTEST = 0.3  # opacity of a line of score 0
# Number of the colour (None: that of text), dashes and label of links by how they compare with gold
# links; without gold, all are "sure".
STYLES: Mapping[str, tuple[int | None, Any, str]] = {
    "sure": (0, "-", "sure, found"),
    "possible": (5, "-", "possible, found"),
    "wrong": (1, "-", "wrong"),
    "missing": (None, ":", "sure, missing"),
}


@runtime_checkable
class GoldLinks(Protocol):
    """Sure links, and possible ones, the sure among them."""

    @property
    def sure(self) -> frozenset[tuple[int, int]]: ...

    @property
    def possible(self) -> frozenset[tuple[int, int]]: ...


@runtime_checkable
class LinkedPair(Protocol):
    """What the plot reads of an alignment: see `normscope.alignment.result.Alignment`."""

    @property
    def source(self) -> tuple[str, ...] | None: ...

    @property
    def target(self) -> tuple[str, ...]: ...

    @property
    def links(self) -> Any: ...

    @property
    def gold(self) -> Any: ...

    @property
    def headline(self) -> str: ...


@styled
def alignment(alignment: LinkedPair, gold: GoldLinks | None = None, ax: Axes | None = None) -> Axes:
    """Draw two sentences and a line for every link; the stronger the line, the higher its score.

    Words without a link are grey. Short sentences are two rows, the source above the target. Long
    ones are two columns, the source on the left. Rows in a script that is written from right to
    left start on the right.

    Args:
        alignment: One pair, such as ``normscope.align(…)[0]``.
        gold: Gold links, to mark which links are right, wrong and missing. By default those of the
            alignment.
        ax: Axes to draw into; by default those of a new figure.
    """
    if alignment.source is None:
        raise InputError("the plot shows two texts, and the source of this alignment is audio")
    truth = alignment.gold if gold is None else gold
    names = [[brief(word) for word in words] for words in (alignment.source, alignment.target)]
    wide = max(_row_width(words) for words in names)
    vertical = wide > WIDEST
    places = [_column_places(words) if vertical else _row_places(words, wide) for words in names]
    if ax is None:
        longest = [max((LETTER * letters(word) for word in words), default=0) for words in names]
        size = (max(4.0, sum(longest) + COLUMNS + 0.6), LINE * max(map(len, names)) + 0.9)
        if not vertical:
            size = (max(NARROWEST, wide) + 0.3, SPAN + 0.75)
        ax = figure(*size).subplots()
    marks = _marks(alignment.links, truth)
    _draw_links(ax, marks, alignment.links.scores, places, vertical=vertical)
    linked = [{link[side] for link in alignment.links.possible} for side in (0, 1)]
    _draw_words(ax, names, places, linked, vertical=vertical)
    _frame(ax, names, places, vertical=vertical)
    set_title(ax, alignment.headline if gold is None else "")
    if truth is not None:
        _legend(ax, set(marks.values()))
    return ax


def _marks(links: Any, gold: GoldLinks | None) -> dict[tuple[int, int], str]:
    """Return the entry of STYLES for each link, and for each missing one."""
    if gold is None:
        return dict.fromkeys(sorted(links.possible), "sure")
    marks = {
        link: "sure" if link in gold.sure else "possible" if link in gold.possible else "wrong"
        for link in sorted(links.possible)
    }
    return marks | dict.fromkeys(sorted(gold.sure - links.possible), "missing")


def _row_width(words: Sequence[str]) -> float:
    return sum(LETTER * letters(word) for word in words) + GAP * max(len(words) - 1, 0)


def _row_places(words: Sequence[str], wide: float) -> list[float]:
    """Return the middles of the words of a row, in inches; the row is centred."""
    at, middles = (wide - _row_width(words)) / 2, []
    for word in words:
        width = LETTER * letters(word)
        middles.append(at + width / 2)
        at += width + GAP
    return [wide - middle for middle in middles] if _leftwards(words) else middles


def _column_places(words: Sequence[str]) -> list[float]:
    return [LINE * index for index in range(len(words))]


def _leftwards(words: Iterable[str]) -> bool:
    """Whether most letters are of a script that is written from right to left."""
    kinds = [unicodedata.bidirectional(character) for word in words for character in word]
    right, left = sum(kind in ("R", "AL") for kind in kinds), sum(kind == "L" for kind in kinds)
    return right > left


def _draw_links(
    ax: Axes,
    marks: Mapping[tuple[int, int], str],
    scores: Mapping[tuple[int, int], float],
    places: Sequence[Sequence[float]],
    *,
    vertical: bool,
) -> None:
    """Draw a curve for each link: weak ones first, so that strong ones lie above them."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    distance = COLUMNS if vertical else SPAN
    margin = 0.08 if vertical else 0.17  # between a word and its lines
    for link in sorted(marks, key=lambda link: scores.get(link, 1.0)):
        number, dashes, _ = STYLES[marks[link]]
        first, last = places[0][link[0]], places[1][link[1]]
        across = [margin, 0.5 * distance, 0.5 * distance, distance - margin]
        along = [first, first, last, last]
        points = list(
            zip(across, along, strict=True) if vertical else zip(along, across, strict=True)
        )
        score = scores.get(link, 1.0)
        missing = marks[link] == "missing"
        patch = PathPatch(
            Path(points, codes),
            fill=False,
            edgecolor=_colour(number),
            linestyle=dashes,
            linewidth=1.3 if missing else THINNEST + (THICKEST - THINNEST) * score,
            alpha=0.8 if missing else FAINTEST + (1 - FAINTEST) * score,
            capstyle="round",
            gid=f"link-{link[0]}-{link[1]}",
        )
        ax.add_patch(patch)


def _colour(number: int | None) -> str:
    return ink("ink") if number is None else colour(number)


def _draw_words(
    ax: Axes,
    names: Sequence[Sequence[str]],
    places: Sequence[Sequence[float]],
    linked: Sequence[set[int]],
    *,
    vertical: bool,
) -> None:
    for side, (words, middles) in enumerate(zip(names, places, strict=True)):
        at = side * (COLUMNS if vertical else SPAN)
        for index, (word, middle) in enumerate(zip(words, middles, strict=True)):
            x, y = (at, middle) if vertical else (middle, at)
            ax.text(
                x,
                y,
                word,
                ha=("left" if side else "right") if vertical else "center",
                va="center",
                fontsize=10,
                color=ink("ink" if index in linked[side] else "muted"),
                style="normal" if index in linked[side] else "italic",
                parse_math=False,
                usetex=False,
            )


def _frame(
    ax: Axes, names: Sequence[Sequence[str]], places: Sequence[Sequence[float]], *, vertical: bool
) -> None:
    """Set the limits in inches, the source first, without axes."""
    if vertical:
        left, right = (
            max((LETTER * letters(word) for word in words), default=0.0) for words in names
        )
        ax.set_xlim(-left - 0.15, COLUMNS + right + 0.15)
        ax.set_ylim(max(map(max, filter(None, places))) + LINE, -LINE)
    else:
        wide = max(_row_width(words) for words in names)
        spare = max(0.0, NARROWEST - wide) / 2
        ax.set_xlim(-spare - 0.1, wide + spare + 0.1)
        ax.set_ylim(SPAN + 0.2, -0.2)
    ax.set_axis_off()


def _legend(ax: Axes, shown: set[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=_colour(number), linestyle=dashes, linewidth=2.2, label=label)
        for name, (number, dashes, label) in STYLES.items()
        if name in shown
    ]
    if lines:
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "frameon": False}
        ax.legend(handles=lines, ncols=len(lines), **place)
