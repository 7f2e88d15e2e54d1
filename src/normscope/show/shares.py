"""Show an attribution in the terminal: the text by share, the largest shares, the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.texts import printable
from normscope.results.attribution import Attribution
from normscope.results.passages import piece_texts
from normscope.show.palette import diverging_levels, text_on
from normscope.show.patches import print_grid
from normscope.show.pictures import others, share_grids
from normscope.show.wording import decimals_for, proof, short_signature, signed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LISTED = 10  # tokens in the table
STEPS_SHOWN = 12  # answers in the table of steps
TOKENS_SHOWN = 1200
BAR = 12  # cells of a full bar, on either side
WIDEST = 80  # columns
NAME = 22  # columns of a token in the table
# From a small share to the largest, as backgrounds; the same hues as on the page.
_LEVELS = 6
NEGATIVE, POSITIVE = diverging_levels(_LEVELS)
MARKED = 0.25  # without colour, tokens with at least this part of the largest share are marked


def show(result: Attribution, console: Console | None = None) -> None:
    """Print an attribution; in a notebook, show the page instead unless a console is given."""
    from rich.console import Console

    from normscope.show.page.show import in_notebook
    from normscope.show.page.show import show as show_page

    if console is None and in_notebook():
        show_page(result)
        return
    console = console or Console()
    report(result, console)
    if result.signature:
        signature = short_signature(result.signature, "result.signature", WIDEST - 11)
        console.print(_plain(f"signature  {signature}", "dim"), soft_wrap=True)


def report(result: Attribution, console: Console) -> None:
    """Print the text by share, the largest shares and the proof, without the signature."""
    width = min(console.width, WIDEST)
    shares = np.atleast_2d(result.scores.values).sum(axis=0)
    console.print(_plain(printable(result.question), "bold"), width=width)
    console.print()
    if result.tokens.pictures:
        for grid in share_grids(result):
            print_grid(grid, console, width, signed=True, what="shares")
    console.print(_coloured(result, shares, coloured=console.color_system is not None), width=width)
    if console.color_system is not None:
        console.print(_legend(result))
    console.print()
    if result.steps is not None:
        _print_steps(result, console, width)
    _print_list(result, shares, console, width)
    console.print()
    console.print(_plain(proof(result)), width=width)


def _plain(text: str, style: str = "") -> Text:
    """Return text in which nothing is markup."""
    from rich.text import Text

    return Text(text, style=style, overflow="fold")


def _coloured(result: Attribution, shares: NDArray[np.float64], *, coloured: bool) -> Text:
    """Return the text with each token on a background by its share; without colour, with marks.

    The marks are the shares themselves, in brackets after tokens whose share is large.
    """
    from rich.text import Text

    text = Text(overflow="fold")
    largest = float(np.abs(shares).max(initial=0.0))
    decimals = decimals_for(largest)
    side = ""
    several = len(set(result.sides)) > 1
    written = set(others(result.tokens))
    for at, (space, piece) in enumerate(piece_texts(result.tokens)[:TOKENS_SHOWN]):
        if at not in written:
            continue
        if several and result.sides[at] != side:
            side = result.sides[at]
            text.append(f"{chr(10) if text else ''}{side}: ", style="dim")
        else:
            text.append(space)
        part = float(shares[at]) / largest if largest > 0 else 0.0
        shown = printable(piece) or "·"
        text.append(shown, style=_style(part) if coloured else "")
        if not coloured and abs(part) >= MARKED:
            text.append(f"[{signed(float(shares[at]), decimals)}]")
        if piece.endswith("\n"):
            text.append("\n")
    if len(shares) > TOKENS_SHOWN:
        text.append(f" … and {len(shares) - TOKENS_SHOWN} more tokens", style="dim")
    return text


def _legend(result: Attribution) -> Text:
    """Return what the colours mean."""
    legend = _plain("")
    if not result.signed:
        legend.append(" large ", style=_style(0.7))
        legend.append(" scores, of either sign", style="dim")
        return legend
    legend.append(" for ", style=_style(0.7))
    legend.append(" and ", style="dim")
    legend.append(" against ", style=_style(-0.7))
    legend.append(" the answer", style="dim")
    return legend


def _style(part: float) -> str:
    """Return the style of a share, from −1 to 1 of the largest."""
    level = round(abs(part) * len(POSITIVE))
    if level == 0:
        return ""
    background = (POSITIVE if part > 0 else NEGATIVE)[level - 1]
    return f"{text_on(background)} on {background}"


def _print_steps(result: Attribution, console: Console, width: int) -> None:
    """Print each answer with the token that has the largest share in it."""
    assert result.steps is not None
    values = np.atleast_1d(result.value)
    decimals = decimals_for(*values.tolist())
    for step in range(min(len(values), STEPS_SHOWN)):
        (token, share), *_ = result.top(1, step)
        line = _plain(f"{step:>3} ")
        line.append(_fitted(result.steps.texts[step], 16))
        line.append(f" {signed(float(values[step]), decimals):>8}  most from ")
        line.append(_fitted(token, 16).rstrip())
        line.append(f" {signed(share, decimals)}")
        console.print(line, width=width)
    if len(values) > STEPS_SHOWN:
        console.print(_plain(f"    … and {len(values) - STEPS_SHOWN} more answers", "dim"))
    console.print()


def _print_list(
    result: Attribution, shares: NDArray[np.float64], console: Console, width: int
) -> None:
    """Print the largest shares, what the rest and the bias have, and the sum."""
    order = np.argsort(-np.abs(shares), kind="stable")
    bias = float(np.sum(result.bias))
    rows = [(str(at), result.tokens.texts[at], float(shares[at])) for at in order[:LISTED].tolist()]
    if len(order) > LISTED:
        rest = float(shares[order[LISTED:]].sum())
        rows.append(("", f"{len(order) - LISTED} more tokens", rest))
    if result.complete and (bias or "baseline" not in result.settings):
        rows.append(("", "bias", bias))
    total = float(shares.sum()) + bias
    decimals = decimals_for(total if result.complete else 0.0, *(share for *_, share in rows))
    largest = max(abs(share) for *_, share in rows)
    room = max(6, min(NAME, width - 2 * BAR - 20))
    for position, name, share in rows:
        line = _plain("")
        line.append(f"{position:>5} ", style="dim")
        line.append(_fitted(name, room), style="" if position else "italic")
        line.append(f" {signed(share, decimals):>10}  ")
        _append_bar(line, share / largest if largest else 0.0)
        console.print(line, width=width, no_wrap=True, crop=True)
    if not result.complete:
        return
    line = _plain(f"{'':>5} ")
    line.append(_fitted("sum", room), style="bold")
    line.append(f" {signed(total, decimals):>10}", style="bold")
    console.print(line, width=width, no_wrap=True)


def _fitted(text: str, room: int) -> str:
    """Return a token that fills exactly `room` columns."""
    from rich.cells import cell_len, set_cell_size

    shown = printable(text)
    if cell_len(shown) > room:
        return set_cell_size(shown, room - 1) + "…"
    return set_cell_size(shown, room)


def _append_bar(line: Text, part: float) -> None:
    """Append a bar from −1 to 1: to the left of the middle if the share is negative."""
    cells = round(abs(part) * BAR)
    if part < 0:
        line.append(" " * (BAR - cells))
        line.append("█" * cells, style=NEGATIVE[3])
        line.append("│", style="dim")
    else:
        line.append(" " * BAR)
        line.append("│", style="dim")
        line.append("█" * cells, style=POSITIVE[3])
