"""`normscope analyze`: the maps of one text."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    argument,
    command,
    option,
    shared,
    split_commas,
)
from normscope.cli.output import (
    PICTURES,
    check_page,
    is_picture,
    note,
    open_in_browser,
    print_written,
    save_figure,
    temporary_page,
)
from normscope.cli.status import working
from normscope.cli.texts import check_images, check_media, check_texts, images_given, read_text
from normscope.decomposition.scopes import HEAD_MAPS, NORMS
from normscope.engine.options import AnalysisOptions
from normscope.errors import InputError
from normscope.foundation.files import check_file, write_file
from normscope.foundation.progress import stage
from normscope.foundation.texts import json_line
from normscope.models.sources import check_source
from normscope.results.formats import STDOUT, check_output

if TYPE_CHECKING:
    from normscope.results.contributions import Contributions

MAPS_IN_A_ROW = 3  # a picture of more maps has several rows


@dataclass(frozen=True, kw_only=True)
class AnalyzeArguments(CommandArguments):
    """The options of `normscope analyze`."""

    given: str | None = argument(
        None,
        help="The text that the model reads; - reads it from standard input, which is also the "
        "default at the end of a pipe.",
        metavar="[TEXT]",
    )
    text: str | None = option(
        None, help="The text to read; the same as the argument TEXT.", metavar="TEXT"
    )
    image: list[Path] | None = option(
        None,
        help="An image that the model reads, with its processor; may be given several times. The "
        "text, if any, has the image's token where it belongs.",
        metavar="FILE",
    )
    audio: Path | None = option(
        None, help="A recording that the model hears, as a WAV file.", metavar="FILE"
    )
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
    precision: str = shared(AnalysisOptions, "precision")
    memory: str = shared(AnalysisOptions, "memory")
    layer: list[int] | None = option(
        None, help="Keep only this layer, counted from 0. May be given several times.", metavar="N"
    )
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    strict: bool = shared(CommonOptions, "strict")
    attention: str = shared(AnalysisOptions, "attention")
    reduce: str | None = shared(AnalysisOptions, "reduce", default=None)
    category: list[str] | None = option(
        None,
        help="Add up the contributions of TOKEN under NAME. May be given several times.",
        metavar="NAME=TOKEN",
    )
    truncate: bool = option(False, help="Truncate a text that is too long for the model.")
    query: str | None = option(
        None,
        help="Print only what one token receives, layer by layer. TOKEN is a token, a word or a "
        "position; one that occurs several times gets a table for each occurrence.",
        metavar="TOKEN",
    )
    words: bool = option(False, help="Merge the pieces of each word.")
    open_page: bool = option(
        False,
        names=("--open",),
        help="Open the interactive page in the browser; without --output, from a temporary file.",
    )
    whole_signature: bool = option(
        False, names=("--signature",), help="Print the full signature, on one long line."
    )
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
            *("given", "layer", "category", "output", "image"),
            *("query", "words", "open_page", "whole_signature"),
            images=images_given(self.image),
            audio=self.audio,
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

    Each row of the table is a layer: which token gets the most attention weight α, which token
    contributes most by the norm ‖αf(x)‖ of the vector that is really added, and how much the two
    differ. All numbers are checked against the model's own output. The error is printed with
    them, along with a signature that lets others reproduce the numbers.

    \b
    Examples:
      normscope analyze "The cat sat on the mat, and slept."
      echo "The cat sat." | normscope analyze -
      normscope analyze "The cat sat." --open
      normscope analyze "The cat sat." --query sat
      normscope analyze "Is it warm?" --text-pair "It is, in June."
      normscope analyze "The cat sat." --heads each --layer 2 --layer 4
      normscope analyze "The cat sat." --output cat.csv
      normscope analyze "The cat sat." --words --output cat.html
      normscope analyze "The cat sat." --model ./my-model --output cat.png
      normscope analyze "The cat sat." --output - | jq .tokens
      normscope analyze "The cat sat." --reduce mixing_ratio,top3
      normscope analyze --image cat.png --model ./vit --open
      normscope analyze "<image> What is this?" --image cat.png --model ./llava
      normscope analyze "Guten Tag." --target "Good day." \\
                        --model Helsinki-NLP/opus-mt-de-en

    \b
    Files:
      .json         {"signature": …, "tokens": […], "error": {…},
                     "maps": {"attn_n": [layer][query][key]}, …}
      .csv          part,map,layer,head,query,query_token,key,key_token,value
      .safetensors  everything, bit for bit: normscope.load(FILE) in Python
      .html         an interactive page. Without --maps and --heads: weights and
                    norms of each head, and all maps of the attention block
      .png          the maps side by side, in the layer where weights and norms
                    differ most, or in --layer; also .svg and .pdf

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    keywords = arguments.for_python()
    _check(arguments, keywords)
    arguments = _with_text(arguments)
    keywords["text"] = arguments.text
    with working(arguments.model):
        import normscope

        if arguments.rich_page:
            results = _page_results(arguments)
        else:
            result = normscope.analyze(**keywords)
            results = [result if arguments.reduce else _chosen(result, arguments)]
        if arguments.output not in (None, STDOUT):
            _write(results, arguments.output, reduced=arguments.reduce is not None)
    if arguments.output in (None, STDOUT):
        _print(results[-1], arguments)
        return
    print_written(arguments.output, results[-1].signature, whole=arguments.whole_signature)
    if arguments.open_page:
        open_in_browser(arguments.output)


def _with_text(arguments: AnalyzeArguments) -> AnalyzeArguments:
    """Read the text, and check it and the model's name, before anything heavy is imported."""
    with_media = bool(arguments.image) or arguments.audio is not None
    check_media(arguments.image, arguments.audio)
    text = read_text(arguments.given, arguments.text, "analyze", needed=not with_media)
    check_images(arguments.image, text)
    texts = {"text": text, "text_pair": arguments.text_pair, "target": arguments.target}
    check_texts(texts)
    check_source(arguments.model, arguments.revision)
    output = arguments.output
    if arguments.open_page and output is None:
        output = temporary_page()
    return replace(arguments, given=None, text=text, output=output)


def _check(arguments: AnalyzeArguments, keywords: dict[str, Any]) -> None:
    """Raise InputError for arguments that cannot be used, before the model is loaded."""
    output, reductions, layers = arguments.output, keywords["reduce"], arguments.layers
    if ("category" in reductions) != bool(keywords["categories"]):
        raise InputError("--reduce category and --category NAME=TOKEN must be given together")
    settings = ("maps", "heads", "ff_bias", "precision", "memory", "attention")
    settings_of_reductions = ("reduce", "categories")
    names = (*settings, *settings_of_reductions)
    AnalysisOptions(**{name: keywords[name] for name in names}).checked()
    if reductions and layers:
        raise InputError("--layer selects maps, and --reduce keeps none: leave one of them out")
    if layers and min(layers) < 0:
        raise InputError(f"layers are counted from 0; there is no layer {min(layers)}")
    _check_shown(arguments)
    if output is not None and not reductions:
        check_output(output, PICTURES)
    elif output not in (None, STDOUT):
        check_file(output, (".json",), also=", or be - for standard output")
    if is_picture(output) and keywords["heads"] != "sum":
        raise InputError("a picture shows the sum over heads: leave out --heads, or write .html")


def _check_shown(arguments: AnalyzeArguments) -> None:
    """Raise InputError for ways of showing a result that exclude each other."""
    if arguments.reduce is not None:
        for flag in ("query", "words", "open_page"):
            if getattr(arguments, flag):
                name = flag.removesuffix("_page")
                raise InputError(f"--{name} needs maps, and --reduce keeps none: leave out one")
    if arguments.query is not None and (arguments.output is not None or arguments.open_page):
        raise InputError("--query is for the printed table: leave out --output and --open")
    if arguments.open_page:
        check_page(arguments.output)


def _categories(entries: Iterable[str]) -> dict[str, list[str]]:
    """Parse NAME=TOKEN options into the tokens of each category."""
    tokens: dict[str, list[str]] = {}
    for entry in entries:
        name, _, token = entry.partition("=")
        if not name or not token:
            raise InputError(f"--category must be NAME=TOKEN, as in stop=[SEP], not {entry!r}")
        tokens.setdefault(name, []).append(token)
    return tokens


def _chosen(result: Contributions, arguments: AnalyzeArguments) -> Contributions:
    """Keep the layers that were asked for, and merge pieces into words if that was.

    Prints which parts of the model have none of these layers.
    """
    from normscope.results.files import keep_layers

    kept = keep_layers(result, arguments.layers) if arguments.layers else result
    for name in result.parts:
        if name not in kept.parts:
            note(f"{name} has none of these layers and is left out")
    return kept.words() if arguments.words else kept


def _page_results(arguments: AnalyzeArguments) -> list[Contributions]:
    """Analyse for a page that shows weights and norms of each head, and the attention block."""
    from normscope.show import page

    names = ["text", "text_pair", "target", "attention", "truncate", "audio"]
    names += ["device", "dtype", "revision", "strict"]
    given = {name: getattr(arguments, name) for name in names}
    results = page.gather(arguments.model, images=images_given(arguments.image), **given)
    if len(results) == 1:
        note("the text is too long for a page with single heads; the page shows their sum")
    return [_chosen(result, arguments) for result in results]


def _print(result: Contributions, arguments: AnalyzeArguments) -> None:
    """Print the table; of reductions, or if that was asked for, print JSON."""
    if arguments.reduce is not None:
        sys.stdout.buffer.write(_json(result))
        return
    if arguments.output == STDOUT:
        from normscope.results.files import write

        write(result, STDOUT)
        return
    from rich.console import Console

    from normscope.show.terminal import show

    hint = None if arguments.whole_signature else "--signature"
    show(result, Console(), query=arguments.query, hint=hint)


def _json(result: Contributions) -> bytes:
    return json_line(result.to_dict())


def _write(results: list[Contributions], output: str, *, reduced: bool) -> None:
    """Write maps to a file of any kind, or reductions as JSON."""
    from normscope.results import files

    stage(f"writing {Path(output).name}")
    if reduced:
        write_file(output, _json(results[0]))
    elif is_picture(output):
        note(f"the picture shows layer {_draw(results[0], output)}")
    elif Path(output).suffix.lower() == ".html":
        from normscope.show import page

        page.write(results, output)
    else:
        files.write(results[0], output)


def _draw(result: Contributions, output: str) -> str:
    """Draw the maps of the layer where weights and norms differ most; return the layer's name.

    Without both weights and norms it is the last layer. A picture of several parts is that of the
    one which their headline is about.
    """
    from normscope.show.headline import most_different, telling_part
    from normscope.show.plots import compare, scopes
    from normscope.show.terminal import layer_name

    stage("drawing")
    parts = result.parts
    part = parts[telling_part(parts)] if parts else result
    layer = most_different(part).layer
    if part.key_tokens.pictures:
        from normscope.show.plots import image_map

        name = NORMS if NORMS in part else next(iter(part))
        save_figure(image_map(part, layer, map=name).figure, output, dpi=150)
        return layer_name(layer, part[next(iter(part))].labels["layer"])
    side_by_side = compare if len(part) <= MAPS_IN_A_ROW else scopes
    axes = side_by_side(part, layer, list(part))
    save_figure(axes[0].figure, output, dpi=150)
    return layer_name(layer, part[next(iter(part))].labels["layer"])
