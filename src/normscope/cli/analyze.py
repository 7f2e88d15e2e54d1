"""`normscope analyze`: the maps of one text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    command,
    option,
    shared,
    split_commas,
)
from normscope.cli.output import PICTURES, is_picture, note, quiet, save_figure
from normscope.decomposition.scopes import HEAD_MAPS, NORMS, WEIGHTS
from normscope.engine.options import AnalysisOptions
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.results.contributions import Contributions

MAPS_IN_A_ROW = 3  # a picture of more maps has several rows


@dataclass(frozen=True, kw_only=True)
class AnalyzeArguments(CommandArguments):
    """The options of `normscope analyze`."""

    text: str = option(help="The text that the model reads.", metavar="TEXT")
    model: str | None = shared(CommonOptions, "model")
    text_pair: str | None = option(
        None, help="A second text, for models that read pairs.", metavar="TEXT"
    )
    target: str | None = option(
        None, help="The text that the decoder of an encoder-decoder model writes.", metavar="TEXT"
    )
    maps: str | None = shared(AnalysisOptions, "maps", default=None)
    heads: str | None = shared(AnalysisOptions, "heads", default=None)
    ff_bias: str = shared(AnalysisOptions, "ff_bias")
    memory: str = shared(AnalysisOptions, "memory")
    layer: list[int] | None = option(
        None, help="Keep only this layer, counted from 0. May be given several times.", metavar="N"
    )
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    attention: str = shared(AnalysisOptions, "attention")
    reduce: str | None = shared(AnalysisOptions, "reduce", default=None)
    category: list[str] | None = option(
        None,
        help="Add up the contributions of TOKEN under NAME. May be given several times.",
        metavar="NAME=TOKEN",
    )
    truncate: bool = option(False, help="Cut a text that is too long for the model.")
    output: str | None = option(
        None,
        names=OUTPUT,
        help="Write the maps to FILE: .json, .csv or .safetensors; .html for an interactive "
        "page; .png, .svg or .pdf for a picture. - writes JSON to standard output. Default: "
        "print a table.",
        metavar="FILE",
    )

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.analyze`."""
        return self.keywords(
            *("layer", "category", "output"),
            maps=list(HEAD_MAPS) if self.maps is None else split_commas(self.maps),
            heads="sum" if self.heads is None else self.heads,
            reduce=[] if self.reduce is None else split_commas(self.reduce),
            categories=_categories(self.category or ()),
        )

    @property
    def layers(self) -> list[int]:
        """The layers to keep, each once; empty for all."""
        return list(dict.fromkeys(self.layer or ()))

    @property
    def rich_page(self) -> bool:
        """Whether to write a page of every head and the attention block: no maps were chosen."""
        chosen = self.maps, self.heads, self.reduce
        return Path(self.output or "").suffix.lower() == ".html" and chosen == (None, None, None)


@command
def analyze(arguments: AnalyzeArguments) -> None:
    """Show which tokens contribute most, by weight and by norm.

    Each row of the table is a layer: which token gets most attention weight α, which token
    contributes most by the norm ‖αf(x)‖ of the vector that is really added, and how much the two
    differ. All numbers are checked against the model's own output. The error is printed with them,
    and a signature with which others can reproduce the numbers.

    \b
    Examples:
      normscope analyze --text "The cat sat on the mat, and slept."
      normscope analyze --text "Is it warm?" --text-pair "It is, in June."
      normscope analyze --text "The cat sat." --heads each --layer 2 --layer 4
      normscope analyze --text "The cat sat." --output cat.csv
      normscope analyze --text "The cat sat." --output cat.html
      normscope analyze --model ./my-model --text "The cat sat." --output cat.png
      normscope analyze --text "The cat sat." --output - | jq .tokens
      normscope analyze --text "The cat sat." --reduce mixing_ratio,top3
      normscope analyze --model Helsinki-NLP/opus-mt-de-en \\
                        --text "Guten Tag." --target "Good day."

    \b
    Files:
      .json         {"signature": …, "tokens": […], "error": {…},
                     "maps": {"attn_n": [layer][query][key]}, …}
      .csv          part,map,layer,head,query,query_token,key,key_token,value
      .safetensors  everything, bit for bit: normscope.load(FILE) in Python
      .html         an interactive page. Without --maps and --heads: weights and
                    norms of each head, and all maps of the attention block
      .png          the maps side by side, in the layer where weights and norms
                    differ most, or in that of --layer; also .svg and .pdf

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 interrupted
    """  # noqa: D301
    import normscope

    keywords = arguments.for_python()
    _check(arguments, keywords)
    if arguments.rich_page:
        _write_page(arguments)
        return
    with quiet():
        result = normscope.analyze(**keywords)
    if arguments.reduce is not None:
        _write_reductions(result, arguments.output)
    else:
        _write_maps(_keep_layers(result, arguments.layers), arguments.output)


def _check(arguments: AnalyzeArguments, keywords: dict[str, Any]) -> None:
    """Raise InputError for arguments that cannot be used, before the model is loaded."""
    from normscope.foundation.files import check_file
    from normscope.results import files

    output, reductions, layers = arguments.output, keywords["reduce"], arguments.layers
    if ("category" in reductions) != bool(keywords["categories"]):
        raise InputError("--reduce category and --category NAME=TOKEN need each other: give both")
    settings = ("maps", "heads", "ff_bias", "memory", "attention", "reduce", "categories")
    AnalysisOptions(**{name: keywords[name] for name in settings}).checked()
    if reductions and layers:
        raise InputError("--layer selects maps, and --reduce keeps none: leave one of them out")
    if layers and min(layers) < 0:
        raise InputError(f"layers are counted from 0; there is no layer {min(layers)}")
    if output is not None and not reductions:
        files.check_output(output, PICTURES)
    elif output not in (None, files.STDOUT):
        check_file(output, (".json",), also=", or be - for standard output")
    if is_picture(output) and keywords["heads"] != "sum":
        raise InputError("a picture shows the sum over heads: leave out --heads, or write .html")


def _categories(entries: Iterable[str]) -> dict[str, list[str]]:
    """Parse NAME=TOKEN options into the tokens of each category."""
    tokens: dict[str, list[str]] = {}
    for entry in entries:
        name, _, token = entry.partition("=")
        if not name or not token:
            raise InputError(f"--category must be NAME=TOKEN, as in stop=[SEP], not {entry!r}")
        tokens.setdefault(name, []).append(token)
    return tokens


def _keep_layers(result: Contributions, layers: list[int]) -> Contributions:
    """Drop all other layers, and print which parts of the model had none of these."""
    from normscope.results.files import keep_layers

    if not layers:
        return result
    kept = keep_layers(result, layers)
    for name in result.parts:
        if name not in kept.parts:
            note(f"{name} has none of these layers and is left out")
    return kept


def _write_maps(result: Contributions, output: str | None) -> None:
    """Print the table, or write the maps to a file of any kind."""
    from normscope.results import files

    if output is None:
        from rich.console import Console

        from normscope.show.terminal import show

        show(result, Console())
        return
    if is_picture(output):
        note(f"the picture shows layer {_draw(result, output)}")
    else:
        files.write(result, output)
    if output != files.STDOUT:
        print(f"wrote {output}\n{result.signature}", file=sys.stderr)


def _draw(result: Contributions, output: str) -> int:
    """Draw the maps of the layer where weights and norms differ most; return the layer.

    Without both weights and norms it is the last layer. An encoder-decoder model's picture is that
    of its cross-attention.
    """
    from normscope.show.plots import compare, scopes
    from normscope.show.terminal import difference, row_shares

    parts = result.parts
    part = parts.get("cross", next(reversed(parts.values()))) if parts else result
    layers = part[next(iter(part))].labels["layer"]
    position = -1
    if WEIGHTS in part and NORMS in part:
        differences = difference(row_shares(part[WEIGHTS]), row_shares(part[NORMS]))
        position = int(differences.argmax())
    side_by_side = compare if len(part) <= MAPS_IN_A_ROW else scopes
    axes = side_by_side(part, layers[position], list(part))
    save_figure(axes[0].figure, output, dpi=150)
    return int(layers[position])


def _write_page(arguments: AnalyzeArguments) -> None:
    """Write the page that shows weights and norms of each head, and the attention block."""
    from normscope.results.files import keep_layers
    from normscope.show import page

    output = arguments.output
    assert output is not None
    names = ("text", "text_pair", "target", "attention", "truncate", "device", "dtype", "revision")
    with quiet():
        results = page.gather(arguments.model, **{name: getattr(arguments, name) for name in names})
    if arguments.layers:
        results = [keep_layers(result, arguments.layers) for result in results]
    page.write(results, output)
    if len(results) == 1:
        note("the text is too long for a page with single heads; the page shows their sum")
    print(f"wrote {output}\n{results[-1].signature}", file=sys.stderr)


def _write_reductions(result: Contributions, output: str | None) -> None:
    """Write the reductions as JSON to a file or to standard output."""
    from normscope.foundation.files import whole_file
    from normscope.results import files

    data = (json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode()
    if output is None or output == files.STDOUT:
        sys.stdout.buffer.write(data)
        return
    with whole_file(output) as file:
        file.write(data)
    print(f"wrote {output}", file=sys.stderr)
