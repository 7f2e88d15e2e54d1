"""A picture of patches over the image that a model reads: shares of a row, or of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS
from normscope.errors import InputError
from normscope.foundation.texts import printable
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.show.headline import whole
from normscope.show.pictures import (
    PictureGrid,
    backdrop,
    map_grids,
    others,
    row_of_map,
    share_grids,
)
from normscope.show.plots.style import (
    brief,
    chosen_theme,
    colour_bar,
    diverging,
    figure,
    ink,
    letters,
    plain,
    sequential,
    styled,
    wrap,
)
from normscope.show.wording import proof
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.6  # inches of an image
SOUND = (7.0, 1.5)  # inches of a recording
STRONGEST = 0.9  # opacity of the largest value
OPACITY = 0.6  # the power of a value that gives its opacity, as on the page
LETTER = 0.085  # inches
MOST_TOKENS = 60


@styled
def image_map(
    result: Contributions | LabelledArray | Attribution,
    layer: int | None = None,
    query: Any = None,
    *,
    map: str = NORMS,
    head: int | None = None,
    step: int | None = None,
    picture: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw patches over the image that the model reads, or frames over a recording.

    Of a map, colours are the shares of one row: what the query receives from each patch. Of an
    attribution, they are the signed shares of the patches in the answer. Tokens that are no patches
    stand below in the same colours.

    Args:
        result: A result of one part, one of its maps, or an attribution.
        layer: The label of the layer, of a map.
        query: The token or the position whose row is drawn; by default, the mean over all.
        map: The name of the map, of a result.
        head: The label of the head, of maps with single heads.
        step: Which of several answers of an attribution; by default, their sum.
        picture: The number of the image, if there are several.
        ax: Axes to draw into; by default those of a new figure.
    """
    if isinstance(result, Attribution):
        grids = share_grids(result, step)
        scores = np.atleast_2d(result.scores.values)
        values = scores.sum(axis=0) if step is None else scores[step]
        tokens, chosen = result.tokens, None
        texts = [printable(result.question), proof(result)]
        label = f"share ({result.units})"
    else:
        row = row_of_map(result, layer, query, name=map, head=head)
        grids, values, tokens = map_grids(row), row.shares, row.keys
        of = f" for {brief(row.query)}" if row.query is not None else ", mean over all tokens"
        where = "" if layer is None else f"layer {layer}"
        where += "" if head is None else f", head {head}"
        texts = [f"Share of {whole(row.name)}{of}", where]
        label = "share of the row"
        chosen = row.position
    if not 0 <= picture < len(grids):
        raise InputError(f"picture is {picture!r}; valid: 0 to {len(grids) - 1}")
    signed_values = isinstance(result, Attribution)
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    grid, listed = grids[picture], list(others(tokens))[:MOST_TOKENS]
    ax = _axes(grid, tokens, listed) if ax is None else ax
    image = _draw(ax, grid, largest, signed=signed_values, chosen=chosen)
    _write_tokens(ax, tokens, values, listed, image)
    colour_bar(image, ax, label, aspect=20)
    _title(ax, texts)
    return ax


def _shape(grid: PictureGrid) -> tuple[float, float]:
    """Return width and height of a picture in inches."""
    if grid.picture.recording:
        return SOUND
    under = backdrop(grid.picture, "light")
    high, wide = grid.values.shape if under is None else under.shape
    return WIDTH, min(2 * WIDTH, WIDTH * high / wide)


def _axes(grid: PictureGrid, tokens: Tokens, listed: list[int]) -> Axes:
    wide, high = _shape(grid)
    lines = len(_lines(tokens, listed, wide))
    return figure(wide + 1.3, high + 1.0 + 0.27 * lines, "compressed").subplots()


def _draw(ax: Axes, grid: PictureGrid, largest: float, *, signed: bool, chosen: int | None) -> Any:
    """Draw the cells over the picture, and return what a colour bar needs."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    rows, columns = grid.values.shape
    scale = ScalarMappable(
        Normalize(-largest if signed else 0.0, largest), diverging() if signed else sequential()
    )
    wide, high = _shape(grid)
    style: Any = {"extent": (0, columns, rows, 0), "aspect": columns / rows * high / wide}
    under = backdrop(grid.picture, chosen_theme())
    if under is not None:
        ax.imshow(under, **style, cmap="gray", vmin=0, vmax=255, interpolation="bilinear")
    colours: NDArray[Any] = scale.to_rgba(np.nan_to_num(grid.values))
    strength = np.abs(np.nan_to_num(grid.values)) / largest
    opaque = 1.0 if under is None else STRONGEST * strength**OPACITY
    colours[..., 3] = np.where(np.isnan(grid.values), 0.0, opaque)
    ax.imshow(colours, **style, interpolation="nearest")
    for row, column in np.argwhere(grid.positions == chosen) if chosen is not None else ():
        box = Rectangle((column, row), 1, 1, fill=False, edgecolor=ink("accent"), linewidth=2.2)
        ax.add_patch(box)
    ax.set_yticks([])
    ax.set_xticks([])
    if grid.picture.seconds is not None:
        ticks = np.linspace(0, columns, 6)
        seconds = ticks / columns * grid.picture.seconds
        ax.set_xticks(ticks, [f"{second:.2f}" for second in seconds])
        ax.set_xlabel("seconds")
    for spine in ax.spines.values():
        spine.set(color=ink("line"), linewidth=0.8)
    return scale


def _lines(tokens: Tokens, listed: list[int], width: float) -> list[list[int]]:
    """Divide tokens into lines of a width in inches."""
    lines: list[list[int]] = []
    used = 0.0
    for at in listed:
        wide = LETTER * (letters(brief(tokens.texts[at])) + 2)
        if not lines or used + wide > width:
            lines.append([])
            used = 0.0
        lines[-1].append(at)
        used += wide
    return lines


def _write_tokens(
    ax: Axes,
    tokens: Tokens,
    values: NDArray[np.float64],
    listed: list[int],
    scale: Any,
) -> None:
    """Write tokens that are no patches below a picture, on grounds in their colours."""
    from matplotlib.colors import to_hex

    from normscope.show.palette import text_on

    wide = ax.get_window_extent().width / ax.figure.dpi
    below = 0.24 if ax.get_xlabel() == "" else 0.62
    for number, line in enumerate(_lines(tokens, listed, max(wide, 3.0))):
        across = 0.0
        for at in line:
            ground = to_hex(scale.to_rgba(float(values[at])))
            text = brief(tokens.texts[at])
            place = (across * 72, -72 * (below + 0.27 * number))
            drawn = ax.annotate(
                "", (0, 0), place, xycoords="axes fraction", textcoords="offset points", fontsize=8
            )
            drawn.update({**plain(text), "color": text_on(ground), "va": "center"})
            drawn.set_bbox({"facecolor": ground, "edgecolor": ink("line"), "pad": 2.0, "lw": 0.6})
            across += LETTER * (letters(text) + 2)


def _title(ax: Axes, texts: list[str]) -> None:
    wide = ax.figure.bbox.width / ax.figure.dpi - 0.4
    caption = ax.annotate(
        "", (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=8
    )
    caption.update({**plain(texts[1]), "color": ink("muted")})
    wrap(caption, wide)
    lines = 1 + caption.get_text().count("\n") if texts[1] else 0
    style: Any = {"fontsize": 11, "fontweight": "bold"}
    title = ax.set_title("", **style, loc="left", pad=10 + 11 * lines)
    title.update(plain(texts[0]))
    wrap(title, wide)
