"""What all plots share: the look of figures, labels, and columns of tables of any kind.

Colours come from `normscope.show.palette`, and everything else that gives figures their look is in
this module. The look is that of the figures alone: matplotlib's settings are as before when a
function returns.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import SCOPES
from normscope.errors import InputError, MissingExtraError
from normscope.foundation.interrupts import shielded
from normscope.foundation.texts import printable
from normscope.show.palette import (
    CATEGORIES,
    CATEGORIES_DARK,
    DIVERGING,
    INKS,
    SEQUENTIAL,
    text_on,
)
from normscope.show.wording import category_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

DPI = 150  # of figures; `savefig` uses it too unless told otherwise
PAGE = 7.4  # inches: the width of a page of print; figures of several panels fit into it
# Markers and dashes keep lines apart in black and white.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")

# Labels of the columns of statistics that are not named after a scope.
_COLUMN_LABELS = {
    "alpha": "weight α",
    "weighted_norm": "norm ‖αf(x)‖",
    "transformed_norm": "norm ‖f(x)‖",
    "input_norm": "norm ‖x‖",
    "mean": "mean of ‖f(x)‖",
    "cv": "σ / mean of ‖f(x)‖",
}
# Points; None stands for the size of other text.
_SIZES = {
    "font.size": 9.0,
    "figure.titlesize": 11.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}

# Fonts for scripts that matplotlib's own font lacks; those that are installed are used.
_FALLBACK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei"),
    *("WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic"),
    *("Malgun Gothic", "Apple SD Gothic Neo", "Noto Sans Devanagari", "Noto Sans Thai"),
)

FIRST_CJK = 0x2E80  # the first character of Chinese, Japanese and Korean writing

_theme: ContextVar[str] = ContextVar("theme", default="light")


@shielded
def theme(name: str = "light") -> Iterator[None]:
    """Draw the plots made inside this context in a theme, "light" or "dark".

        with plots.theme("dark"):
            axes = plots.compare(result, layer=2)

    Inside it, figures of your own have the look of the plots as well.
    """
    if name not in INKS:
        raise InputError(f"there is no theme {name!r}; valid: {', '.join(INKS)}")
    token = _theme.set(name)
    try:
        with _matplotlib().rc_context(_settings()):
            yield
    finally:
        _theme.reset(token)


def styled(draw: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a function draw in the look of the plots, in the theme of the context."""

    @wraps(draw)
    def drawing(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with _matplotlib().rc_context(_settings()):
            return draw(*args, **kwargs)

    return drawing


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return matplotlib


@cache
def _fallback_fonts() -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return tuple(name for name in _FALLBACK_FONTS if name in installed)


def _settings() -> dict[str, Any]:
    """Return the settings of matplotlib under which figures are drawn."""
    text, lines, ground = ink("ink"), ink("muted"), ink("panel")
    families = _matplotlib().rcParams["font.family"]
    return _SIZES | {
        "font.family": list(dict.fromkeys((*families, *_fallback_fonts()))),
        "figure.dpi": DPI,
        "figure.facecolor": ground,
        "figure.titleweight": "bold",
        "axes.facecolor": ground,
        "axes.edgecolor": lines,
        "axes.labelcolor": text,
        "axes.titlecolor": text,
        "axes.axisbelow": True,
        "axes.grid": False,
        "grid.color": ink("line"),
        "legend.frameon": False,
        "legend.labelcolor": text,
        "text.color": text,
        "text.usetex": False,
        "xtick.color": lines,
        "ytick.color": lines,
        "xtick.labelcolor": text,
        "ytick.labelcolor": text,
    }


def chosen_theme() -> str:
    """Return the theme in which figures are drawn: "light" or "dark"."""
    return _theme.get()


def ink(name: str) -> str:
    """Return a colour of the theme's surfaces and texts, by its name in the palette."""
    return INKS[_theme.get()][name]


def colour(number: int) -> str:
    """Return the colour of a line or a group by its number; after the last, they start again."""
    colours = CATEGORIES if _theme.get() == "light" else CATEGORIES_DARK
    return colours[number % len(colours)]


def sequential(*, reverse: bool = False) -> Colormap:
    """Return the colours from nothing to the largest value; `reverse` gives zero the darkest."""
    return _colour_map("normscope", SEQUENTIAL[_theme.get()], reverse=reverse)


def diverging() -> Colormap:
    """Return the colours from the most negative value over zero to the most positive."""
    return _colour_map("normscope-diverging", DIVERGING[_theme.get()], reverse=False)


def _colour_map(name: str, colours: Sequence[str], *, reverse: bool) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list(name, colours[::-1] if reverse else colours)
    return ramp.with_extremes(bad=ink("line"))


def colour_bar(image: Any, axes: Any, label: str, **options: Any) -> Any:
    """Add a thin colour bar beside one Axes or several, and return it."""
    drawn = list(as_array(axes))
    place: Any = {"aspect": 28, "pad": 0.015, "shrink": 0.9} | options
    bar = drawn[0].figure.colorbar(image, ax=drawn if len(drawn) > 1 else drawn[0], **place)
    bar.set_label(label)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, width=0.6, color=ink("muted"), labelcolor=ink("ink"))
    return bar


def write_values(image: Any, decimals: int) -> None:
    """Write the value of every cell of an image into it, in the ink that is legible there."""
    from matplotlib.colors import to_hex

    values: NDArray[Any] = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            style: Any = {"ha": "center", "va": "center", "fontsize": 8}
            legible = text_on(to_hex(image.cmap(image.norm(value))))
            image.axes.text(column, row, f"{value:.{decimals}f}", color=legible, **style)


def headline(figure: Figure, text: str) -> None:
    """Say above a figure, in words, what it shows; never read as a formula."""
    look: Any = {"fontsize": 11, "fontweight": "bold", "color": ink("ink")}
    if all(ord(char) < FIRST_CJK for char in text):
        # matplotlib reports each family that has no bold letters, needed or not.
        families = _matplotlib().rcParams["font.family"]
        look["fontfamily"] = [name for name in families if name not in _fallback_fonts()]
    title = figure.suptitle("", x=0.012, ha="left", **look)
    title.update(plain(text))
    wrap(title, figure.get_figwidth() - 0.2)


def category_label(name: Any) -> str:
    """Return the words for a category of tokens, as a label."""
    return brief(category_name(str(name)))


def label_of(name: str) -> str:
    """Return a few words for a map or a column, for legends and axes."""
    return SCOPES[name].label if name in SCOPES else _COLUMN_LABELS.get(name, name)


def brief(text: str, most: int = 24) -> str:
    """Return a token as a label; of one wider than `most` letters, its two ends."""
    shown = printable(text)
    if letters(shown) <= most:
        return shown
    widths, width = [letters(char) for char in shown], (most - 1) // 2
    head, tail = (int((np.cumsum(w) <= width).sum()) for w in (widths, widths[::-1]))
    return f"{shown[:head]}…{shown[len(shown) - tail :]}"


def letters(text: str) -> int:
    """Return the width of a text in letters; a Chinese, Japanese or Korean character has two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def room(names: Iterable[str]) -> float:
    """Return the inches that labels need beyond those of usual tokens."""
    return 0.09 * max([0, *(letters(brief(name)) - 8 for name in names)])


def plain(text: str) -> dict[str, Any]:
    """Return Text properties that draw a text as it is: $ and _ in a token are not formulas."""
    return {"parse_math": False, "usetex": False, "text": text}


def wrap(text: Text, width: float) -> None:
    """Break a text into lines of at most `width` inches, but not within formulas or brackets."""
    whole, lines = text.get_text(), [""]
    if _inches(text) <= width:
        return
    formula = r"\$[^$]*\$|" if text.get_parse_math() else ""
    for word in re.findall(rf"(?:{formula}\([^()$]*\)|\S)+", whole):
        text.set_text(f"{lines[-1]} {word}".strip())
        if _inches(text) <= width:
            lines[-1] = text.get_text()
        else:
            lines.append(word)
    text.set_text("\n".join(line for line in lines if line))


def _inches(text: Text) -> float:
    figure: Any = text.figure
    return float(text.get_window_extent().width / figure.dpi)


def set_title(ax: Axes, title: str, width: float | None = None) -> None:
    """Set a small title without formulas, in lines of `width` inches or as wide as the panel."""
    text = ax.set_title("")
    text.update(plain(title))
    wrap(text, ax.get_window_extent().width / ax.figure.dpi if width is None else width)


def figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return a new figure, with its size in inches; "compressed" is for square cells."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error

    empty = Figure(figsize=(width, height), layout=cast(Any, layout))
    engine: Any = empty.get_layout_engine()
    engine.set(h_pad=0.08, w_pad=0.06)
    return empty


def as_array(axes: Any) -> NDArray[Any]:
    """Return one Axes, or any array of them, as a flat array."""
    return np.atleast_1d(np.asarray(axes, dtype=object)).ravel()


def panels(
    axes: Any,
    count: int,
    size: tuple[float, float],
    columns: int | None = None,
    layout: str = "constrained",
    **shared: Any,
) -> NDArray[Any]:
    """Return `count` Axes as a flat array: `axes` if given, else those of a new figure.

    Args:
        axes: Axes to draw into, or None.
        count: How many panels there are.
        size: Width and height of a panel in inches.
        columns: How many panels of a new figure are in a row; all by default.
        layout: The layout of a new figure.
        **shared: `sharex` and `sharey` of a new figure.
    """
    if axes is not None:
        flat = as_array(axes)
        if len(flat) != count:
            raise InputError(f"{count} panels need {count} axes, but {len(flat)} were given")
        return flat
    across = min(count, columns or count)
    down = -(-count // across)
    empty = figure(across * size[0], down * size[1], layout)
    grid = empty.subplots(down, across, squeeze=False, **shared).ravel()
    for spare in grid[count:]:
        spare.remove()
    return grid[:count]


def columns_of(table: Any, *needed: str) -> dict[str, NDArray[Any]]:
    """Return the columns of a mapping, a DataFrame or a statistics table as arrays by name.

    Raises InputError for anything else, and where a needed column is missing.
    """
    columns = getattr(table, "columns", table)
    if not isinstance(columns, Mapping):
        try:
            columns = {str(name): table[name] for name in columns}
        except (TypeError, KeyError, IndexError, ValueError):
            raise InputError(
                "a table must be a mapping of columns, a pandas DataFrame or a table of the "
                f"statistics, but was given {type(table).__name__}"
            ) from None
    arrays = {str(name): np.asarray(column) for name, column in columns.items()}
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(
            f"the table has no column {', '.join(map(repr, missing))}; it has: {', '.join(arrays)}"
        )
    return arrays


def distinct(column: NDArray[Any]) -> list[Any]:
    """List the different entries of a column, in order of appearance."""
    return list(dict.fromkeys(column.tolist()))


def chosen(wanted: Sequence[str] | str | None, valid: Sequence[str], what: str) -> list[str]:
    """List the wanted names, or all valid ones where None is wanted; others raise InputError."""
    if wanted is None:
        return list(valid)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if unknown := [name for name in names if name not in valid]:
        raise InputError(
            f"there is no {what} {', '.join(map(repr, unknown))}; there is: "
            f"{', '.join(map(str, valid))}"
        )
    return names


def tidy(ax: Axes) -> None:
    """Leave two thin axes and a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["bottom", "left"]].set(color=ink("muted"), linewidth=0.8)
    # Ticks are made when they are drawn, with the settings of that moment unless fixed now.
    ax.tick_params(length=2.5, width=0.8, color=ink("muted"), labelcolor=ink("ink"), labelsize=8)
    ax.grid(color=ink("line"), linewidth=0.6)
    ax.set_axisbelow(True)


def legend(ax: Axes, **options: Any) -> None:
    """Add a legend beside the picture, where it hides nothing; entries are never formulas."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    entries = ax.legend(**(place | options)).get_texts()
    for text in entries:
        text.set_parse_math(False)
