"""`normscope demo`: what attention weights hide, aligned words, and what made an answer."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.cli.options import OUTPUT, CommandArguments, command, option
from normscope.cli.output import PICTURES, plain_console, save_figure
from normscope.cli.status import status, working
from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.errors import MissingExtraError, ModelNotFoundError
from normscope.foundation.files import check_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.table import Table

    from normscope.results.contributions import Contributions
    from normscope.text.tokens import Tokens

TEXT = "Anna baked a cake, and Tom ate most of it."
TEXT_PAIR = "She was not angry, because he had washed every dish."
GERMAN = "wenn es regnet , bleiben die Kinder zu Hause ."
ENGLISH = "the children stay at home when it rains ."
PROMPT, ANSWER, FOIL = "The keys to the cabinet", " are", " is"
DEFAULT_PICTURE = Path("normscope-demo.png")
PUNCTUATION, OTHERS = "punctuation", "other tokens"


@dataclass(frozen=True, kw_only=True)
class DemoArguments(CommandArguments):
    """The options of `normscope demo`."""

    output: Path | None = option(
        None,
        names=OUTPUT,
        help="Write the first picture to FILE: .png, .svg or .pdf, and the second one beside it, "
        f"with -attribution in its name. Default: {DEFAULT_PICTURE}.",
        metavar="FILE",
    )


@dataclass(frozen=True)
class CategoryShares:
    """What each category of tokens gets in each layer, as a share of each query's row."""

    categories: tuple[str, ...]
    weight: NDArray[np.float64]  # (layer, category)
    norm: NDArray[np.float64]  # (layer, category)
    length: NDArray[np.float64]  # (layer, category): mean ‖f(x)‖ over heads and tokens
    differ: NDArray[np.float64]  # (layer,): total variation between weight and norm of the tokens

    @property
    def layer(self) -> int:
        """The layer in which weights and norms differ most."""
        return int(self.differ.argmax())


@command
def demo(arguments: DemoArguments) -> None:
    """Show what weights hide, and which words made an answer.

    Reads two sentences with the default model and prints, for each layer, how much of the weight
    and how much of the norm [CLS], [SEP], punctuation and all other tokens get; then draws both
    maps side by side for the layer where they differ most. Aligns the words of a translation.
    Prints and draws which words of a prompt made the default language model say "are" rather than
    "is", if that model is installed.

    \b
    Example:
      normscope demo --output picture.png
    """  # noqa: D301
    run_demo(arguments.output)


def run_demo(output: Path | None = None, model: str | Path | None = None) -> None:
    """Analyse a pair of sentences, print the table and draw the picture; then the other examples.

    `output` is the file of the picture, by default normscope-demo.png in the current folder.
    `model` is a folder or a name, by default the default model; another model is shown alone.
    """
    path = check_file(DEFAULT_PICTURE if output is None else output, PICTURES)
    with working(None if model is None else str(model)):
        import normscope
        from normscope.models import identity, load

        loaded, tokenizer = load(model)
        name = str(identity(loaded)["name"])
        result = normscope.analyze(loaded, tokenizer, TEXT, TEXT_PAIR)
        shares = measure(result)
    console = plain_console()
    _print_shares(result, shares, name, console)
    try:
        with status("drawing"):
            draw(result, shares.layer, path)
    except MissingExtraError as missing:
        if output is not None:  # the user asked for a picture
            raise
        console.print(f"\nNo picture was drawn: {missing}", soft_wrap=True)
    else:
        console.print(f"\nThe maps of layer {shares.layer} are in {path}", soft_wrap=True)
    if model is None:
        _print_alignment(console)
        _show_attribution(console, path, asked=output is not None)


def category_of(tokens: Tokens) -> list[str]:
    """Return the category of each token: its own name if it is special, punctuation or others."""
    return [
        string if special else PUNCTUATION if _is_punctuation(text) else OTHERS
        for string, special, text in zip(tokens.strings, tokens.special, tokens.texts, strict=True)
    ]


def _is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(char).startswith("P") for char in text)


def measure(result: Contributions) -> CategoryShares:
    """Sum each query's row over the keys of a category, and average over the queries."""
    import numpy as np

    from normscope.show.headline import difference, row_shares

    of_key = np.array(category_of(result.key_tokens))
    present = list(dict.fromkeys(of_key.tolist()))
    special = [name for name in present if name not in (PUNCTUATION, OTHERS)]
    categories = (*special, *(name for name in (PUNCTUATION, OTHERS) if name in present))
    weight, norm = row_shares(result[WEIGHTS]), row_shares(result[NORMS])
    length = np.asarray(result.transformed_norm, dtype=np.float64).mean(axis=1)  # (layer, key)

    def summed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
        by_key = shares.mean(axis=1)  # the mean over queries and the sum over keys commute
        return np.stack([by_key[:, of_key == name].sum(axis=1) for name in categories], axis=1)

    lengths = np.stack([length[:, of_key == name].mean(axis=1) for name in categories], axis=1)
    differ = difference(weight, norm)
    return CategoryShares(categories, summed(weight), summed(norm), lengths, differ)


def sentences(shares: CategoryShares) -> list[str]:
    """Describe the numbers in words."""
    weight, norm = shares.weight.mean(axis=0), shares.norm.mean(axis=0)
    falls, rises = int((norm - weight).argmin()), int((norm - weight).argmax())
    least, most = shares.categories[falls], shares.categories[rises]
    layer = shares.layer
    text = [
        f"On average over the layers, {_gets(least, weight[falls], norm[falls])}; "
        f"{_gets(most, weight[rises], norm[rises])}.",
        f"The two differ most in layer {layer}, by {shares.differ[layer]:.1%}.",
    ]
    shorter = float(shares.length[layer, rises] / shares.length[layer, falls])
    if shorter > 1:
        text.append(
            f"There the vectors f(x) of {least} are {shorter:.2g} times shorter than those of "
            f"{most}: a large weight on a short vector moves little."
        )
    return text


def _gets(category: str, weight: float, norm: float) -> str:
    verb = "get" if category == OTHERS else "gets"
    return f"{category} {verb} {weight:.1%} of the weight and {norm:.1%} of the norm"


def _print_shares(
    result: Contributions, shares: CategoryShares, name: str, console: Console
) -> None:
    console.print(f"{TEXT} {TEXT_PAIR}\nread by {name}, {len(result.tokens)} tokens\n")
    console.print(
        "What a token receives from each category of tokens: attention weight α → norm ‖αf(x)‖. "
        "Each is the sum over the category's keys as a share of the whole row, averaged over the "
        "queries, in percent.\n"
    )
    console.print(_table(shares))
    console.print("\n" + " ".join(sentences(shares)))
    error = max(result.error.values())
    console.print(f"\nThe parts add up to the model's own output: relative error {error:.1e}.")


def _table(shares: CategoryShares) -> Table:
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


def draw(result: Contributions, layer: int, path: Path) -> None:
    """Draw α beside ‖αf(x)‖ for one layer."""
    from normscope.show.plots import compare

    save_figure(compare(result, layer)[0].figure, path, dpi=160)


def _print_alignment(console: Console) -> None:
    """Print the word alignment of a sentence and its translation."""
    from rich import box
    from rich.table import Table

    import normscope

    with working("the translation model"):
        (alignment,) = normscope.align(GERMAN, ENGLISH)
    german, english = GERMAN.split(), ENGLISH.split()
    translated = {target: german[source] for source, target in alignment.links}
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 1))
    for _ in english:
        table.add_column(no_wrap=True)
    table.add_row(*english)
    table.add_row(*(translated.get(position, "") for position in range(len(english))))
    console.print("\nIn a translation model, the same norms align the words of both sentences:")
    console.print(table)


def _show_attribution(console: Console, path: Path, *, asked: bool) -> None:
    """Print and draw which words made an answer, unless the language model is not installed.

    `path` is the file of the first picture; `asked` says that the user named it.
    """
    import normscope
    from normscope.show.shares import report

    console.print("\nWhich words of a prompt made a language model's answer:\n")
    try:
        with working("smollm2"):
            result = normscope.attribute(None, text=PROMPT, answer=ANSWER, foil=FOIL)
    except (ModelNotFoundError, MissingExtraError) as missing:
        console.print(f"Skipping this example: {missing}", soft_wrap=True)
        return
    report(result, console)
    picture = path.with_stem(f"{path.stem}-attribution")
    try:
        from normscope.show.plots import attribution

        with status("drawing"):
            save_figure(attribution(result).figure, picture, dpi=160)
    except MissingExtraError:
        if asked:
            raise
    else:
        console.print(f"\nThe picture of the shares is in {picture}", soft_wrap=True)
