"""`normscope analyze`: the maps of one text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli import picture
from normscope.cli.options import Debug, Device, Dtype, Model, Revision
from normscope.cli.quiet import quiet
from normscope.decomposition.scopes import HEAD_MAPS as MAPS
from normscope.engine.options import AnalysisOptions
from normscope.errors import InputError
from normscope.measures.analysis import analyze as run_analysis
from normscope.results import files as export
from normscope.show import terminal as report


def analyze(
    text: Annotated[
        str, typer.Option("--text", metavar="TEXT", help="The text that the model reads.")
    ],
    model: Model = None,
    text_pair: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A second text, for models that read two at once."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The text that the decoder of an encoder-decoder model writes."
        ),
    ] = None,
    maps: Annotated[
        str | None,
        typer.Option(
            metavar="MAP[,MAP]",
            help="attn_w: the attention weight α. attn_n: the norm ‖αf(x)‖ of what is added. "
            "attn_res_w, attn_res_n, attn_res_ln_n: with residual and norm. atb, atb_ln, atb_ff, "
            "atb_ff_res, atb_ff_res_ln, atb_ln_ff, atb_ln_ff_res: on through the feed-forward, "
            "as far as the model's layout has them. Without it, attn_w,attn_n.",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="sum|each",
            help="sum: one map a layer (mean of α, norm of the summed vectors). each: one a head. "
            "Without it, sum.",
        ),
    ] = None,
    ff_bias: Annotated[
        str,
        typer.Option(
            metavar="path|fixed",
            help="Whether the feed-forward's bias takes its share of the activation or keeps g(b).",
        ),
    ] = "path",
    memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="For the largest arrays of a feed-forward map."),
    ] = "2GB",
    layer: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Keep this layer only, counted from 0. May be given several times."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    attention: Annotated[
        str,
        typer.Option(
            metavar="auto|eager|fused",
            help="eager: the model's own eager attention. fused: its sdpa attention, weights made "
            "a block at a time. auto: fused for long texts.",
        ),
    ] = "auto",
    reduce: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Keep no map, only: mixing_ratio, row_sum, argmax, top16 (or any number), "
            "category. Written as JSON.",
        ),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TOKEN",
            help="A token whose contributions are added up under NAME. May be given several times.",
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut a text that is too long for the model."),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the maps to FILE: .json, .csv, .safetensors; .html for an interactive "
            "page; .png, .svg or .pdf for a picture. - writes JSON to standard output. Without "
            "it, a table is printed.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show which tokens contribute most, by weight and by norm.

    Every row of the table is a layer: which token gets most attention weight α, which one
    contributes most by the norm ‖αf(x)‖ of the vector that is really added, and how much the two
    pictures differ. All numbers are checked against the model's own output; the error is printed
    with them, and with the signature another person can get the same numbers.

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
                    norms of every head, and all maps to the attention block's end
      .png          the maps side by side, in the layer where weights and norms
                    differ most, or in that of --layer; .svg and .pdf as well

    \b
    Exit status:
      0 done, 1 unexpected error, 2 mistake in what was given, 130 interrupted
    """  # noqa: D301
    # A page without a choice of maps shows the way from weights to norms to the whole block.
    rich = _is_page(output) and maps is None and heads is None and reduce is None
    heads = "sum" if heads is None else heads
    names = list(MAPS) if maps is None else [name.strip() for name in maps.split(",")]
    reductions = [name.strip() for name in reduce.split(",")] if reduce is not None else []
    categories = _categories(category or [])
    if ("category" in reductions) != bool(categories):
        raise InputError("--reduce category and --category NAME=TOKEN go together: give both")
    AnalysisOptions(  # this and the next checks before the model is loaded
        names, heads, ff_bias, memory,
        attention=attention, reduce=reductions, categories=categories,
    ).checked()  # fmt: skip
    if reductions and layer:
        raise InputError("--layer chooses among maps, and --reduce keeps none: leave one out")
    if reductions and output is not None and output != export.STDOUT:
        export.check_file(output, (".json",), also=", or be - for standard output")
    layers = list(dict.fromkeys(layer or ()))
    if any(at < 0 for at in layers):
        raise InputError(f"layers are counted from 0; there is no layer {min(layers)}")
    if output is not None and not reductions:
        export.check_output(output, picture.SUFFIXES)
    if picture.is_picture(output) and heads != "sum":
        raise InputError("a picture shows the heads together: leave out --heads, or write .html")
    if rich:
        assert output is not None
        return _write_page(
            output, layers, model,
            text=text, text_pair=text_pair, target=target, attention=attention,
            truncate=truncate, device=device, dtype=dtype, revision=revision,
        )  # fmt: skip
    with quiet():
        result = run_analysis(
            model,
            text=text,
            text_pair=text_pair,
            target=target,
            maps=names,
            heads=heads,
            ff_bias=ff_bias,
            memory=memory,
            attention=attention,
            reduce=reductions,
            categories=categories,
            truncate=truncate,
            device=device,
            dtype=dtype,
            revision=revision,
        )
    if reductions:
        data = (json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode()
        return _write_json(data, output)
    if layers:
        before, result = list(result.parts), export.keep_layers(result, layers)
        for name in [name for name in before if name not in result.parts]:
            print(f"normscope: {name} has none of these layers and is left out", file=sys.stderr)
    if output is None:
        from rich.console import Console

        report.show(result, Console())
        return
    if picture.is_picture(output):
        print(f"normscope: drawn is layer {picture.draw(result, output)}", file=sys.stderr)
    else:
        export.write(result, output)
    if output != export.STDOUT:
        print(f"wrote {output}\n{result.signature}", file=sys.stderr)


def _is_page(output: str | None) -> bool:
    return output is not None and Path(output).suffix.lower() == ".html"


def _write_page(output: str, layers: list[int], model: str | None, **asked: Any) -> None:
    from normscope.show import page as viewer

    with quiet():
        results = viewer.gather(model, **asked)
    if layers:
        results = [export.keep_layers(one, layers) for one in results]
    viewer.write(results, output)
    if len(results) == 1:
        print("normscope: the page has no single heads: the text is too long", file=sys.stderr)
    print(f"wrote {output}\n{results[-1].signature}", file=sys.stderr)


def _categories(given: Iterable[str]) -> dict[str, list[str]]:
    """Tokens by category from NAME=TOKEN."""
    found: dict[str, list[str]] = {}
    for one in given:
        name, equals, token = one.partition("=")
        if not name or not equals or not token:
            raise InputError(f"--category is NAME=TOKEN, as in stop=[SEP], but was given {one!r}")
        found.setdefault(name, []).append(token)
    return found


def _write_json(data: bytes, output: str | None) -> None:
    if output is None or output == export.STDOUT:
        sys.stdout.buffer.write(data)
        return
    with export.whole_file(output) as file:
        file.write(data)
    print(f"wrote {output}", file=sys.stderr)
