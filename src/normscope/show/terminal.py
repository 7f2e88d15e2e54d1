"""A result for the eye: who contributes most, by weight and by norm, as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.results.arrays import LabelledArray, printable
from normscope.results.contributions import Contributions
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

TOKENS_SHOWN = 128
COMPARED = ("most weight", "α", "‖αf‖", "", "most norm", "α", "‖αf‖", "differ")
RANKED = ("first", "share", "second", "share", "third", "share")
TOKEN_COLUMNS = ("most weight", "most norm", "first", "second", "third")
NOTE = "Shares are of all keys, averaged over the queries."
NOTE_BOTH = (
    "α: of the attention weight. ‖αf‖: of the norm of the vectors αf(x), which are what is really "
    "added. differ: how much of the weight would have to move to other keys to give the shares of "
    "the norm (total variation)."
)


def row_shares(values: Any) -> NDArray[np.float64]:
    """(…, query, key): every row divided by its sum; a row of zeros stays as it is."""
    wide = np.asarray(values, dtype=np.float64)
    total = wide.sum(axis=-1, keepdims=True)
    return np.divide(wide, total, out=np.zeros_like(wide), where=total > 0)


def difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """(…): the total variation distance of two maps' row shares, averaged over the queries."""
    return np.asarray(np.abs(one - other).sum(axis=-1).mean(axis=-1) / 2)


def show(result: Contributions, console: Console) -> None:
    """The tokens, who contributes most in each layer, the error and the signature."""
    shown: dict[Tokens, str] = {}
    for name, part in (result.parts or {"": result}).items():
        if name:
            console.rule(name, style="none", align="left")
        _show_tokens(part, name, shown, console)
        _show_maps(part, console)
    both = {"attn_w", "attn_n"} <= set(result)
    console.print(f"{NOTE} {NOTE_BOTH}" if both else NOTE, style="dim", highlight=False)
    gaps = ", ".join(f"{name} {gap:.1e}" for name, gap in result.error.items())
    console.print(f"\nerror      {gaps} (largest relative gap to the model's own output)", **_PLAIN)
    console.print(f"signature  {result.signature}", **_PLAIN)


# Long lines stay one line, to be copied; names of tokens and models are not markup.
_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False, "emoji": False}


def _show_tokens(
    part: Contributions, name: str, shown: dict[Tokens, str], console: Console
) -> None:
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
    """All tokens with their positions, in lines that break between tokens only."""
    from rich.text import Text

    pieces = [Text(f"{len(tokens)} {role}:")]
    pieces += [token_label(at, name) for at, name in enumerate(tokens.strings[:TOKENS_SHOWN])]
    if len(tokens) > TOKENS_SHOWN:
        pieces.append(Text(f"… and {len(tokens) - TOKENS_SHOWN} more (--output has them all)"))
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if lines[-1].cell_len + 2 + piece.cell_len > width:
            lines.append(Text("  "))
        else:
            lines[-1].append("  ")
        lines[-1].append_text(piece)
    return Text("\n").join(lines)


def token_label(position: int, string: str) -> Text:
    """`14 ##hill`: a token with its position, because a text may have it more than once."""
    from rich.text import Text

    return Text.assemble((f"{position} ", "dim"), printable(string))


def _show_maps(part: Contributions, console: Console) -> None:
    names = list(part)
    if "attn_w" in names and "attn_n" in names:
        table, remark = _comparison(part["attn_w"], part["attn_n"], console.width)
        console.print(table, crop=False)
        console.print(f"\n{remark}\n", highlight=False, markup=False, emoji=False)
        names = [name for name in names if name not in ("attn_w", "attn_n")]
    for name in names:
        console.print(_ranking(part[name], console.width), crop=False)
        console.print()


def _places(array: LabelledArray) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Each layer, or each head of each layer: its index in the values, and its labels."""
    axes = [axis for axis in ("layer", "head") if axis in array.axes]
    for index in np.ndindex(*array.shape[: len(axes)]):
        labels = (array.labels[axis][at] for axis, at in zip(axes, index, strict=True))
        yield index, tuple(map(str, labels))


def _comparison(weight: LabelledArray, norm: LabelledArray, width: int) -> tuple[Table, str]:
    """One row a layer: the first by weight and the first by norm, both with both shares."""
    from rich.text import Text

    table = _table(weight, COMPARED, width)
    by_weight, by_norm = row_shares(weight), row_shares(norm)
    differ = difference(by_weight, by_norm)
    tokens = weight.tokens["key"].strings
    widest, remark = -1.0, ""
    for index, labels in _places(weight):
        shares = by_weight[index].mean(axis=0), by_norm[index].mean(axis=0)
        tops = [int(share.argmax()) for share in shares]
        agree = tops[0] == tops[1]
        cells: list[Text] = []
        for own, top in enumerate(tops):
            percents = [Text(percent(float(share[top]))) for share in shares]
            percents[own].stylize("bold")
            cells += [token_label(top, tokens[top]), *percents]
        cells.insert(3, Text("=", "dim") if agree else Text("≠", "bold yellow"))
        table.add_row(*labels, *cells, percent(float(differ[index])))
        if differ[index] > widest:
            widest = float(differ[index])
            remark = _remark(labels, tops, tokens, shares, widest)
    return table, remark


def _remark(
    labels: tuple[str, ...],
    tops: list[int],
    tokens: tuple[str, ...],
    shares: tuple[NDArray[np.float64], NDArray[np.float64]],
    differ: float,
) -> str:
    place = ", ".join(f"{axis} {at}" for axis, at in zip(("layer", "head"), labels, strict=False))
    each = "; ".join(
        f"{printable(tokens[top])} (position {top}) has {percent(float(shares[0][top]))} of the "
        f"weight and {percent(float(shares[1][top]))} of the norm"
        for top in dict.fromkeys(tops)
    )
    return f"They differ most in {place}, by {percent(differ)}: {each}."


def _ranking(array: LabelledArray, width: int) -> Table:
    """One row a layer: the first few keys of one map, with their shares."""
    from rich.text import Text

    shown = min(len(RANKED) // 2, array.shape[-1])
    table = _table(array, RANKED[: 2 * shown], width)
    table.title = array.name
    tokens = array.tokens["key"].strings
    for index, labels in _places(array):
        share = row_shares(array[index]).mean(axis=0)
        cells: list[Text] = []
        for top in np.argsort(-share, kind="stable")[:shown].tolist():
            cells += [token_label(top, tokens[top]), Text(percent(float(share[top])))]
        table.add_row(*labels, *cells)
    return table


def _table(array: LabelledArray, titles: Sequence[str], width: int) -> Table:
    """An empty table that is as wide as the terminal at most, at the cost of the token's names.

    Where even that is not enough it is wider: a number cut short would be another number.
    """
    from rich import box
    from rich.table import Table

    gap = 2
    sizes: dict[str, int] = {axis: len(axis) for axis in ("layer", "head") if axis in array.axes}
    columns = [*sizes, *titles]
    sizes |= {title: 6 if title else 1 for title in titles if title not in TOKEN_COLUMNS}
    for_tokens = width - gap * (len(columns) - 1) - sum(sizes.get(title, 0) for title in columns)
    labels = (token_label(*pair) for pair in enumerate(array.tokens["key"].strings))
    longest = max(label.cell_len for label in labels)
    room = for_tokens // sum(title in TOKEN_COLUMNS for title in columns)
    sizes |= dict.fromkeys(TOKEN_COLUMNS, max(11, min(longest, room)))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, gap - 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title_justify="left",
        width=sum(sizes[title] for title in columns) + gap * (len(columns) - 1),
    )
    for title in columns:
        side: Any = "left" if title in TOKEN_COLUMNS else "right"
        table.add_column(title, justify=side, no_wrap=True, width=sizes[title])
    return table


def percent(share: float) -> str:
    """`4.3%`."""
    return f"{100 * share:.1f}%"
