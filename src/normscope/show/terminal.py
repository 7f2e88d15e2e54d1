"""Show a result in the terminal: tables of the largest contributors, by weight and by norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.errors import InputError
from normscope.foundation.texts import printable
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.show.headline import difference, headline, most_different, row_shares, whole
from normscope.show.patches import print_grid
from normscope.show.pictures import map_grids, others, row_of_map
from normscope.show.wording import short_signature
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

TOKENS_SHOWN = 128
COMPARED = ("most weight", "α", "‖αf‖", "", "most norm", "α", "‖αf‖", "differ")
RANKED = ("first", "share", "second", "share", "third", "share")
TOKEN_COLUMNS = ("most weight", "most norm", "first", "second", "third")
NUMBER_WIDTH = 6  # "100.0%"
MIN_TOKEN_WIDTH = 11
GAP = 2  # spaces between columns
NOTE = "A share is a key's part of a row, averaged over the queries."
NOTE_QUERY = "A share is a key's part of all that the token receives in the layer."
NOTE_BOTH = (
    "α: share of the attention weight. ‖αf‖: share of the norm of the vectors αf(x), which the "
    "attention adds. differ: the part of the weight that would have to move to other keys to give "
    "the shares of the norm (total variation)."
)
# Long lines are not wrapped, so that they can be copied; names of tokens and models are not markup.
_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False, "emoji": False}


def percent(share: float) -> str:
    """Format a share, as in `4.3%`."""
    return f"{100 * share:.1f}%"


def show(
    result: Contributions,
    console: Console,
    *,
    query: str | None = None,
    hint: str | None = "result.signature",
) -> None:
    """Print a headline, the tokens, the largest contributors of each layer, errors and signature.

    Args:
        result: Maps of one text.
        console: Where to print.
        query: Show only what this token receives: a token, a word or a position.
        hint: How to see the whole signature, which is shortened; None prints it whole.
    """
    parts = result.parts or {"": result}
    rows = None if query is None else find_queries(parts, query)
    if rows is None:
        console.print(headline(result), style="bold", highlight=False, markup=False, emoji=False)
        console.print()
    shown: dict[Tokens, str] = {}
    for name, part in parts.items():
        if rows is not None and not rows[name]:
            continue
        if name:
            console.rule(name, style="none", align="left")
        _show_tokens(part, name, shown, console)
        if rows is None:
            _show_maps(part, console)
            _show_picture(part, None, console)
        for row in [] if rows is None else rows[name]:
            _show_query(part, row, console)
    note = NOTE if query is None else NOTE_QUERY
    if {WEIGHTS, NORMS} <= set(result) and query is None:
        note = f"{note} {NOTE_BOTH}"
    console.print(note, style="dim", highlight=False)
    errors = ", ".join(f"{name} {_error(error)}" for name, error in result.error.items())
    if errors:
        console.print(f"\nerror      {errors}, relative to the model's output", highlight=False)
    label = "signature  "
    room = max(40, min(console.width, 80)) - len(label)
    signature = (
        printable(result.signature)
        if hint is None
        else short_signature(result.signature, hint, room)
    )
    console.print(label + signature, **_PLAIN)


def _error(error: float) -> str:
    return "0" if error == 0 else f"{error:.1e}"


def layer_name(layer: int, layers: Sequence[int]) -> str:
    """Return a layer with the range of all, as in "4 (0–5)"; of some layers, without it."""
    whole = len(layers) > 1 and list(layers) == list(range(len(layers)))
    return f"{layer} (0–{layers[-1]})" if whole else str(layer)


def find_queries(parts: Mapping[str, Contributions], query: str) -> dict[str, list[int]]:
    """Return the positions of a query token in each part of a result.

    A token is found by the tokenizer's piece ("##s"), by its text ("s") or by its word; then
    without regard to case; then a number is a position. Every occurrence counts.

    Raises:
        InputError: No part has such a token.
    """
    rows = {name: _positions(part.tokens, query) for name, part in parts.items()}
    if any(rows.values()):
        return rows
    tokens = next(iter(parts.values())).tokens
    listing = ", ".join(f"{at} {printable(name)}" for at, name in enumerate(tokens.strings[:40]))
    more = f", and {len(tokens) - 40} more" if len(tokens) > 40 else ""
    raise InputError(f"there is no token {query!r}; the tokens are: {listing}{more}")


def _positions(tokens: Tokens, query: str) -> list[int]:
    words = [""] * len(tokens)
    if tokens.words is not None and tokens.word_of is not None:
        words = [tokens.words[word] for word in tokens.word_of]
    for wanted, change in ((query, str), (query.casefold(), str.casefold)):
        for names in (tokens.strings, tokens.texts, words):
            if rows := [at for at, name in enumerate(names) if change(name) == wanted]:
                return rows
    position = int(query) if query.isdecimal() else len(tokens)
    return [position] if position < len(tokens) else []


def _show_query(part: Contributions, row: int, console: Console) -> None:
    """Print what one query receives: for each map, the first three keys of each layer."""
    from rich.text import Text

    label = token_label(row, part.tokens.strings[row])
    console.print(Text.assemble("What ", label, " receives", style="bold"))
    console.print()
    for name in part:
        console.print(_ranking(part[name], console.width, row), crop=False)
        console.print()
    _show_picture(part, row, console)
    if {WEIGHTS, NORMS} <= set(part):
        sentence = headline(part, query=row)
        console.print(f"{sentence}\n", highlight=False, markup=False, emoji=False)


def _show_picture(part: Contributions, query: int | None, console: Console) -> None:
    """Print what patches contribute, in the layer where weights and norms differ most."""
    if not part.key_tokens.pictures:
        return
    place = most_different(part)
    name = NORMS if NORMS in part else next(iter(part))
    row = row_of_map(part, place.layer, query, name=name, head=place.head)
    head = "" if place.head is None else f", head {place.head}"
    to = "mean over all tokens" if row.query is None else f"to {printable(row.query)}"
    what = f"share of {whole(name)}, layer {place.layer}{head}, {to}"
    for grid in map_grids(row):
        print_grid(grid, console, min(console.width, 80), signed=False, what=what)


def _show_tokens(
    part: Contributions, name: str, shown: dict[Tokens, str], console: Console
) -> None:
    """Print the tokens of a part; those that another part has shown are only referred to."""
    same = part.tokens == part.key_tokens
    axes = {"tokens": part.tokens} if same else {"queries": part.tokens, "keys": part.key_tokens}
    for role, tokens in axes.items():
        if tokens in shown:
            console.print(f"{role}: the {len(tokens)} tokens of {shown[tokens]}", **_PLAIN)
        else:
            console.print(_token_list(role, tokens, console.width), soft_wrap=True)
            shown[tokens] = name or "the text"
    console.print()


def _token_list(role: str, tokens: Tokens, width: int) -> Text:
    """Return tokens with their positions, in lines that break only between tokens."""
    from rich.text import Text

    names = [(at, tokens.strings[at]) for at in others(tokens)]  # patches are shown as a grid
    pieces = [token_label(at, name) for at, name in names[:TOKENS_SHOWN]]
    for picture in tokens.pictures:
        size = f"{picture.rows} × {picture.columns} patches"
        size = f"{picture.columns} frames" if picture.recording else size
        pieces.append(Text(f"{picture.name} ({size})", style="dim"))
    if len(names) > TOKENS_SHOWN:
        pieces.append(Text(f"… and {len(names) - TOKENS_SHOWN} more (--output has them all)"))
    lines = [Text(f"{len(tokens)} {role}:")]
    for piece in pieces:
        if lines[-1].cell_len + 2 + piece.cell_len > width:
            lines.append(Text("  "))
        else:
            lines[-1].append("  ")
        lines[-1].append_text(piece)
    return Text("\n").join(lines)


def token_label(position: int, string: str) -> Text:
    """Return a token with its position, as in `14 ##hill`: a text may contain it repeatedly."""
    from rich.text import Text

    return Text.assemble((f"{position} ", "dim"), printable(string))


def _show_maps(part: Contributions, console: Console) -> None:
    """Print one table for weights and norms if both are there, and one for each other map."""
    names = list(part)
    if WEIGHTS in names and NORMS in names:
        table, remark = _comparison(part[WEIGHTS], part[NORMS], console.width)
        console.print(table, crop=False)
        console.print(f"\n{remark}\n", highlight=False, markup=False, emoji=False)
        names = [name for name in names if name not in (WEIGHTS, NORMS)]
    for name in names:
        console.print(_ranking(part[name], console.width), crop=False)
        console.print()


def _places(array: LabelledArray) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Yield the index and the labels of each layer, or of each head of each layer."""
    axes = [axis for axis in ("layer", "head") if axis in array.axes]
    for index in np.ndindex(*array.shape[: len(axes)]):
        labels = (array.labels[axis][at] for axis, at in zip(axes, index, strict=True))
        yield index, tuple(map(str, labels))


def _comparison(weights: LabelledArray, norms: LabelledArray, width: int) -> tuple[Table, str]:
    """Return a table with the first key by weight and by norm of each layer, and a remark on it."""
    from rich.text import Text

    table = _empty_table(weights, COMPARED, width)
    by_weight, by_norm = row_shares(weights), row_shares(norms)
    differ = difference(by_weight, by_norm)
    tokens = weights.tokens["key"].strings
    widest, remark = -1.0, ""
    for index, labels in _places(weights):
        shares = by_weight[index].mean(axis=0), by_norm[index].mean(axis=0)
        tops = [int(share.argmax()) for share in shares]
        cells: list[Text] = []
        for own, top in enumerate(tops):
            percents = [Text(percent(float(share[top]))) for share in shares]
            percents[own].stylize("bold")
            cells += [token_label(top, tokens[top]), *percents]
        cells.insert(3, Text("=", "dim") if tops[0] == tops[1] else Text("≠", "bold yellow"))
        table.add_row(*labels, *cells, percent(float(differ[index])))
        if differ[index] > widest:
            widest = float(differ[index])
            place = f"layer {layer_name(int(labels[0]), weights.labels['layer'])}"
            place += f", head {labels[1]}" if len(labels) > 1 else ""
            remark = _remark(place, tops, tokens, shares)
    return table, remark


def _remark(
    place: str,
    tops: list[int],
    tokens: tuple[str, ...],
    shares: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> str:
    keys = "; ".join(
        f"{printable(tokens[top])} (position {top}) gets {percent(float(shares[0][top]))} of the "
        f"weight and {percent(float(shares[1][top]))} of the norm"
        for top in dict.fromkeys(tops)
    )
    return f"Weights and norms differ most in {place}: {keys}."


def _ranking(array: LabelledArray, width: int, query: int | None = None) -> Table:
    """Return a table with the first three keys of each layer and their shares.

    The shares are those of one query, or averaged over all.
    """
    from rich.text import Text

    count = min(len(RANKED) // 2, array.shape[-1])
    table = _empty_table(array, RANKED[: 2 * count], width)
    table.title = array.name if query is None else f"by {_measured(array.name)}"
    rows = slice(None) if query is None else [query]
    tokens = array.tokens["key"].strings
    for index, labels in _places(array):
        share = row_shares(array[index])[rows].mean(axis=0)
        cells: list[Text] = []
        for top in np.argsort(-share, kind="stable")[:count].tolist():
            cells += [token_label(top, tokens[top]), Text(percent(float(share[top])))]
        table.add_row(*labels, *cells)
    return table


def _measured(name: str) -> str:
    """Return what a map measures, in words."""
    return {WEIGHTS: "attention weight", NORMS: "norm of what is added"}.get(name, name)


def _empty_table(array: LabelledArray, titles: Sequence[str], width: int) -> Table:
    """Return a table without rows that fits the terminal by cutting the names of tokens.

    Where that is not enough it is wider than the terminal: a number cut short would be wrong.
    """
    from rich import box
    from rich.table import Table

    sizes: dict[str, int] = {axis: len(axis) for axis in ("layer", "head") if axis in array.axes}
    columns = [*sizes, *titles]
    sizes |= {t: NUMBER_WIDTH if t else 1 for t in titles if t not in TOKEN_COLUMNS}
    gaps = GAP * (len(columns) - 1)
    room = width - gaps - sum(sizes.get(title, 0) for title in columns)
    room //= sum(title in TOKEN_COLUMNS for title in columns)
    labels = (token_label(*pair) for pair in enumerate(array.tokens["key"].strings))
    longest = max(label.cell_len for label in labels)
    sizes |= dict.fromkeys(TOKEN_COLUMNS, max(MIN_TOKEN_WIDTH, min(longest, room)))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, GAP - 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title_justify="left",
        width=sum(sizes[title] for title in columns) + gaps,
    )
    for title in columns:
        side: Any = "left" if title in TOKEN_COLUMNS else "right"
        table.add_column(title, justify=side, no_wrap=True, width=sizes[title])
    return table
