"""What all pictures have in common: figures, colours, and tables of any kind as columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError, MissingExtraError
from normscope.results.arrays import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito's colours, told apart with any colour vision; their yellow is too pale for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# And without any colour: print in black and white keeps markers and dashes.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
COLOUR_MAP = "cividis"  # lightness rises evenly, and blue and yellow are told apart by nearly all

SHORT = {
    "attn_w": "weight α",
    "attn_n": "norm ‖αf(x)‖",
    "attn_res_w": "weight, residual",
    "attn_res_n": "norm, residual",
    "attn_res_ln_n": "norm, residual, layer norm",
    "atb": "attention block",
    "atb_ln": "attention block, norm",
    "atb_ff": "feed-forward",
    "atb_ff_res": "feed-forward, residual",
    "atb_ff_res_ln": "whole layer",
    "atb_ln_ff": "norm, feed-forward",
    "atb_ln_ff_res": "whole layer",
    "alpha": "weight α",
    "weighted_norm": "norm ‖αf(x)‖",
    "transformed_norm": "norm ‖f(x)‖",
    "input_norm": "norm ‖x‖",
    "mean": "mean of ‖f(x)‖",
    "cv": "σ / mean of ‖f(x)‖",
}


def short(name: str) -> str:
    """A few words for a map or a column."""
    return SHORT.get(name, name)


def brief(text: str, most: int = 24) -> str:
    """A token as a label: its two ends where it is wider than so many letters."""
    shown = printable(text)
    if letters(shown) <= most:
        return shown
    widths, room = [letters(char) for char in shown], (most - 1) // 2
    head, tail = (int((np.cumsum(w) <= room).sum()) for w in (widths, widths[::-1]))
    return f"{shown[:head]}…{shown[len(shown) - tail :]}"


def letters(text: str) -> int:
    """How wide a text is, in letters; a Chinese, Japanese or Korean character is two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def room(names: Iterable[str]) -> float:
    """Inches that labels need beyond those of usual tokens."""
    return 0.09 * max([0, *(letters(brief(name)) - 8 for name in names)])


def plain(text: str) -> dict[str, Any]:
    """Arguments that draw a text as it is: $ and _ in a token are not formulas."""
    return {"parse_math": False, "usetex": False, "text": text}


def wrap(text: Text, width: float) -> None:
    """Break a text into lines of so many inches at most; formulas and brackets stay whole."""
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


def entitle(ax: Axes, title: str) -> None:
    """A small title, as it is, in lines as wide as the panel."""
    text = ax.set_title("", fontsize=10)
    text.update(plain(title))
    wrap(text, ax.get_window_extent().width / ax.figure.dpi)


def figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """A new figure of so many inches; the "compressed" layout is for cells that are square."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error

    return Figure(figsize=(width, height), layout=cast(Any, layout))


def panels(
    axes: Any,
    count: int,
    size: tuple[float, float],
    columns: int | None = None,
    layout: str = "constrained",
    **shared: Any,
) -> NDArray[Any]:
    """`count` Axes: the given ones, or those of a new figure, row by row."""
    if axes is not None:
        given = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        if len(given) != count:
            raise InputError(f"{count} panels need {count} axes, but {len(given)} were given")
        return given
    across = min(count, columns or count)
    down = -(-count // across)
    empty = figure(across * size[0], down * size[1], layout)
    made = empty.subplots(down, across, squeeze=False, **shared)
    for spare in made.ravel()[count:]:
        spare.remove()
    return made.ravel()[:count]


def columns_of(table: Any, *needed: str) -> dict[str, NDArray[Any]]:
    """The columns of a table as arrays: of a mapping, a DataFrame, or what has `.columns`."""
    found = getattr(table, "columns", table)
    if not isinstance(found, Mapping):
        try:
            found = {str(name): table[name] for name in found}
        except (TypeError, KeyError, IndexError, ValueError):
            raise InputError(
                "a table is a mapping of columns, a pandas DataFrame, or one that the statistics "
                f"give, but was given {type(table).__name__}"
            ) from None
    made = {str(name): np.asarray(column) for name, column in found.items()}
    if missing := [name for name in needed if name not in made]:
        raise InputError(
            f"the table has no column {', '.join(map(repr, missing))}; it has: {', '.join(made)}"
        )
    return made


def labels(column: NDArray[Any]) -> list[Any]:
    """The different entries of a column, in the order in which they come."""
    return list(dict.fromkeys(column.tolist()))


def chosen(given: Sequence[str] | str | None, there: Sequence[str], what: str) -> list[str]:
    """Those of `there` that were asked for; all where none was."""
    if given is None:
        return list(there)
    names = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in there]:
        raise InputError(
            f"there is no {what} {', '.join(map(repr, unknown))}; there is: "
            f"{', '.join(map(str, there))}"
        )
    return names


def tidy(ax: Axes) -> None:
    """Two thin axes and a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e4e4e4", linewidth=0.6)
    ax.set_axisbelow(True)


def legend(ax: Axes, **more: Any) -> None:
    """A legend beside the picture, where it hides nothing; its entries are never formulas."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
    drawn = ax.legend(**(place | more))
    for text in drawn.get_texts():
        text.set_parse_math(False)
