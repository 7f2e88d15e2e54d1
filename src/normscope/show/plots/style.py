"""What all plots share: figures, colours, labels, and columns of tables of any kind."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import SCOPES
from normscope.errors import InputError, MissingExtraError
from normscope.results.arrays import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito's colours, distinct for any colour vision; without yellow, too pale for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Markers and dashes keep lines apart in black and white.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
COLOUR_MAP = "cividis"  # lightness rises evenly; blue and yellow are distinct for nearly everyone

# Labels of the columns of statistics that are not named after a scope.
_COLUMN_LABELS = {
    "alpha": "weight α",
    "weighted_norm": "norm ‖αf(x)‖",
    "transformed_norm": "norm ‖f(x)‖",
    "input_norm": "norm ‖x‖",
    "mean": "mean of ‖f(x)‖",
    "cv": "σ / mean of ‖f(x)‖",
}


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
    for word in re.findall(r"(?:\$[^$]*\$|\([^()$]*\)|\S)+", whole):
        text.set_text(f"{lines[-1]} {word}".strip())
        if _inches(text) <= width:
            lines[-1] = text.get_text()
        else:
            lines.append(word)
    text.set_text("\n".join(line for line in lines if line))


def _inches(text: Text) -> float:
    figure: Any = text.figure
    return float(text.get_window_extent().width / figure.dpi)


def set_title(ax: Axes, title: str) -> None:
    """Set a small title without formulas, in lines as wide as the panel."""
    text = ax.set_title("", fontsize=10)
    text.update(plain(title))
    wrap(text, ax.get_window_extent().width / ax.figure.dpi)


def figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return a new figure, with its size in inches; "compressed" is for square cells."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error

    return Figure(figsize=(width, height), layout=cast(Any, layout))


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
    ax.grid(color="#e4e4e4", linewidth=0.6)
    ax.set_axisbelow(True)


def legend(ax: Axes, **options: Any) -> None:
    """Add a legend beside the picture, where it hides nothing; entries are never formulas."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
    entries = ax.legend(**(place | options)).get_texts()
    for text in entries:
        text.set_parse_math(False)
