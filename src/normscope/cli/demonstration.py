"""`normscope demo`: what attention weights hide, on a real model, in one table and one picture."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normscope.errors import MissingExtraError
from normscope.measures.analysis import analyze
from normscope.models import identity, load
from normscope.results.contributions import Contributions
from normscope.results.files import check_file, whole_file
from normscope.show.terminal import difference, percent, row_shares
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TEXT = "Anna baked a cake, and Tom ate most of it."
TEXT_PAIR = "She was not angry, because he had washed every dish."
PICTURE = Path("normscope-demo.png")
SUFFIXES = (".png", ".pdf", ".svg")
PUNCTUATION, OTHERS = "punctuation", "other tokens"
GERMAN = "wenn es regnet , bleiben die Kinder zu Hause ."
ENGLISH = "the children stay at home when it rains ."


@dataclass(frozen=True)
class Shares:
    """What each category of tokens gets in each layer, as a share of everything a query takes."""

    categories: tuple[str, ...]
    weight: NDArray[np.float64]  # (layer, category)
    norm: NDArray[np.float64]  # (layer, category)
    length: NDArray[np.float64]  # (layer, category): mean ‖f(x)‖ over heads and tokens
    differ: NDArray[np.float64]  # (layer,): total variation between weight and norm, token by token

    @property
    def layer(self) -> int:
        """Where the two differ most."""
        return int(self.differ.argmax())


def demo(output: Path | None = None, model: str | Path | None = None) -> None:
    """Analyse a pair of sentences, print the table, draw the picture.

    `output` is the picture's file (png, pdf or svg), normscope-demo.png in the current folder when
    none is given; `model` a folder or a name, the default model when none is given.
    """
    from rich.console import Console

    file = check_file(PICTURE if output is None else output, SUFFIXES)
    loaded, tokenizer = load(model)
    name = str(identity(loaded)["name"])
    result = analyze(loaded, tokenizer, TEXT, TEXT_PAIR)
    shares = measure(result)
    console = Console(highlight=False, markup=False, emoji=False)
    _print(result, shares, name, console)
    try:
        draw(result, shares, name, file)
    except MissingExtraError as missing:
        if output is not None:  # asked for by name
            raise
        console.print(f"\nNo picture was drawn: {missing}", soft_wrap=True)
    else:
        console.print(f"\nLayer {shares.layer} is drawn in {file}", soft_wrap=True)
    if model is None:
        _print_alignment(console)


def _print_alignment(console: Console) -> None:
    """Which word translates which, as the small translation model in the package sees it."""
    from rich import box
    from rich.table import Table

    from normscope.alignment.api import align

    (found,) = align(GERMAN, ENGLISH)
    german, english = GERMAN.split(), ENGLISH.split()
    to = {target: german[source] for source, target in found.links}
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 1))
    for _ in english:
        table.add_column(no_wrap=True)
    table.add_row(*english)
    table.add_row(*(to.get(at, "") for at in range(len(english))))
    console.print("\nThe same lengths in a translation model show which word translates which:")
    console.print(table)


def category_of(tokens: Tokens) -> list[str]:
    """For each token: its own name if it is special, else punctuation or other."""
    return [
        string if special else PUNCTUATION if _is_punctuation(text) else OTHERS
        for string, special, text in zip(tokens.strings, tokens.special, tokens.texts, strict=True)
    ]


def _is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(char).startswith("P") for char in text)


def measure(result: Contributions) -> Shares:
    """Sum over the keys of a category, as a share of each query's row; mean over the queries."""
    of = np.array(category_of(result.key_tokens))
    found = list(dict.fromkeys(of.tolist()))
    special = [name for name in found if name not in (PUNCTUATION, OTHERS)]
    categories = (*special, *(name for name in (PUNCTUATION, OTHERS) if name in found))
    weight, norm = row_shares(result["attn_w"]), row_shares(result["attn_n"])
    length = np.asarray(result.transformed_norm, dtype=np.float64).mean(axis=1)  # (layer, key)

    def summed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
        by_key = shares.mean(axis=1)  # the mean over queries and the sum over keys commute
        return np.stack([by_key[:, of == name].sum(axis=1) for name in categories], axis=1)

    lengths = np.stack([length[:, of == name].mean(axis=1) for name in categories], axis=1)
    return Shares(categories, summed(weight), summed(norm), lengths, difference(weight, norm))


def sentences(shares: Shares) -> list[str]:
    """What the numbers say, in words."""
    weight, norm = shares.weight.mean(axis=0), shares.norm.mean(axis=0)
    falls, rises = int((norm - weight).argmin()), int((norm - weight).argmax())
    least, most = shares.categories[falls], shares.categories[rises]
    layer = shares.layer
    told = [
        f"On average over the layers, {_gets(least, weight[falls], norm[falls])}; "
        f"{_gets(most, weight[rises], norm[rises])}.",
        f"The two differ most in layer {layer}, by {percent(float(shares.differ[layer]))}.",
    ]
    shorter = float(shares.length[layer, rises] / shares.length[layer, falls])
    if shorter > 1:
        told.append(
            f"There the vectors f(x) of {least} are {shorter:.2g} times shorter than those of "
            f"{most}: a large weight on a short vector moves little."
        )
    return told


def _gets(category: str, weight: float, norm: float) -> str:
    verb = "get" if category == OTHERS else "gets"
    return f"{category} {verb} {percent(weight)} of the weight and {percent(norm)} of the norm"


def _print(result: Contributions, shares: Shares, name: str, console: Console) -> None:
    console.print(f"{TEXT} {TEXT_PAIR}\nread by {name}, {len(result.tokens)} tokens\n")
    console.print(
        "How much of what a token takes comes from where: attention weight α → norm ‖αf(x)‖. "
        "For each, the sum over a category's keys as a share of the whole row, averaged over the "
        "queries, in percent.\n"
    )
    console.print(_table(shares))
    console.print("\n" + " ".join(sentences(shares)))
    gap = max(result.error.values())
    console.print(f"\nThe parts add up to the model's own output: relative gap {gap:.1e}.")


def _table(shares: Shares) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("layer", justify="right")
    for category in shares.categories:
        table.add_column(Text(category), justify="center", no_wrap=True)
    table.add_column("differ", justify="right")
    for layer, (weights, norms) in enumerate(zip(shares.weight, shares.norm, strict=True)):
        cells = [f"{100 * w:4.1f} → {100 * n:4.1f}" for w, n in zip(weights, norms, strict=True)]
        style = "bold" if layer == shares.layer else None
        table.add_row(str(layer), *cells, f"{100 * shares.differ[layer]:.1f}", style=style)
    return table


def draw(result: Contributions, shares: Shares, name: str, file: Path) -> None:
    """α beside ‖αf(x)‖ in the layer where they differ most."""
    from normscope.show.plots import compare

    axes = compare(result, shares.layer)
    figure = axes[0].figure
    layer, changes = shares.layer, np.abs(shares.norm - shares.weight)
    most = int(changes[layer].argmax())
    found = _gets(shares.categories[most], shares.weight[layer, most], shares.norm[layer, most])
    # A model's name may have $ or _ in it, which are not to be read as a formula.
    figure.suptitle(f"{name}, layer {layer}: {found}", fontsize=14, parse_math=False)
    with whole_file(file) as opened:
        figure.savefig(opened, format=file.suffix.lower().removeprefix("."), dpi=160)
