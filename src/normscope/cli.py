"""The command line: `normscope analyze`, `view`, `demo`, `families`, `bench`, `version`."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normscope import export, report
from normscope.analysis import analyze as run_analysis
from normscope.analysis import check_maps
from normscope.commands import picture
from normscope.commands.aer import aer
from normscope.commands.align import align, translate_align
from normscope.commands.corpus import corpus
from normscope.commands.options import Debug, Device, Dtype, Revision
from normscope.commands.reproduce import reproduce
from normscope.commands.serve import serve
from normscope.commands.view import view
from normscope.decomposition.attention import MAPS
from normscope.errors import InputError, NormscopeError
from normscope.quiet import quiet as _quiet

INTERRUPTED = 130  # the status that Ctrl-C gives, to typer too


class _Commands(TyperGroup):
    """Errors as one line on standard error: status 2 for a user's mistake, 1 for anything else."""

    debug = False

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse, run, and leave with a status."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        self.debug = "--debug" in given
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that cannot show α shows an escape, and the rest of the table.
                stream.reconfigure(errors="backslashreplace")
        options["standalone_mode"] = False  # exceptions come here, and Exit as its status
        try:
            status = super().main(given, *more, **options) or 0
            sys.stdout.flush()
        except NormscopeError as error:
            status = self._fail(str(error), 2)
        except BrokenPipeError:  # who read the output has left; nobody is there to be told
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as error:
            # typer's errors are click's, which newer versions of typer keep inside themselves.
            if hasattr(error, "format_message"):
                self.debug = False  # where in typer it was noticed helps nobody
                status = self._fail(_usage(error), 2)
            else:
                what = f"unexpected {type(error).__name__}: {error}"
                hint = "" if self.debug else "; the same command with --debug shows where"
                status = self._fail(what + hint, 1)
        if status == INTERRUPTED:
            self._fail("interrupted", status)
        sys.stderr.flush()
        sys.exit(status)

    def _fail(self, message: str, status: int) -> int:
        if self.debug and sys.exc_info()[0] is not None:
            traceback.print_exc()
        print("normscope: error:", " ".join(message.split()), file=sys.stderr)
        return status


def _usage(error: Any) -> str:
    """`Missing option '--text'; see normscope analyze --help`."""
    command = getattr(getattr(error, "ctx", None), "command_path", "normscope")
    return f"{error.format_message().rstrip('.')}; see {command} --help"


def _print_version(wanted: bool) -> bool:
    if wanted:
        from normscope import __version__

        print(f"normscope {__version__}")
        raise typer.Exit
    return wanted


# Plain help: with rich's markup, the [CLS] of a help text would be taken for a style.
app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and leave."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """See what really moves inside a Transformer.

    An attention head outputs a sum of vectors α·f(x). The weight α alone does not say how much a
    token contributes: f(x) may be short or long. normscope measures the vectors themselves,
    exactly, in any transformers model, and shows where the weights mislead.

    \b
    Examples:
      normscope demo
      normscope analyze --text "The cat sat on the mat."
      normscope analyze --model gpt2 --text "The cat sat." --output cat.png
      normscope analyze --model ./my-model --text "The cat sat." --output cat.html
      normscope corpus --data wiki.txt --output wiki
      normscope align --source text.de --target text.en
      normscope serve
    """  # noqa: D301


@app.command()
def analyze(
    text: Annotated[str, typer.Option(metavar="TEXT", help="The text that the model reads.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder, or a name on the Hugging Face hub (owner/name). Without it, the "
            "default model: all-MiniLM-L6-v2, a small BERT.",
        ),
    ] = None,
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
    check_maps(  # this and the next checks before the model is loaded
        names, heads, ff_bias, memory,
        attention=attention, reduce=reductions, categories=categories,
    )  # fmt: skip
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
    with _quiet():
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
    from normscope import viewer

    with _quiet():
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


@app.command()
def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the picture goes: .png, .pdf or .svg. Without it, normscope-demo.png.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show on a real model what attention weights hide.

    Reads two sentences with the default model and prints, for each layer, how much of the weight
    and how much of the norm [CLS], [SEP], punctuation and all other tokens get; then draws both
    maps of the layer where they differ most, side by side.

    \b
    Example:
      normscope demo --output picture.png
    """  # noqa: D301
    from normscope.demo import demo as run_demo

    with _quiet():
        run_demo(output)


@app.command()
def families(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Debug = False,
) -> None:
    """Prove every known model family, here and now.

    For each family a tiny model with random weights runs in float64 on a padded batch. Proved
    means: its outputs are bit for bit those of its own attention, and for every attention call
    the parts add up to the real output. The error is the largest relative gap.

    A family that is not listed may well work: normscope.testing.check_architecture(model) tells.

    \b
    Exit status:
      0 all proved, 1 at least one is not
    """  # noqa: D301
    from rich.console import Console
    from rich.progress import track

    from normscope import families as proofs

    names: Iterable[str] = proofs.names()
    errors = Console(stderr=True)
    if errors.is_terminal:
        names = track(names, "Proving", console=errors, transient=True)
    with _quiet():
        rows = [proofs.prove(name) for name in names]
    if as_json:
        print(json.dumps(proofs.summary(rows), indent=1))
    else:
        Console(highlight=False, markup=False, emoji=False).print(proofs.table(rows))
        print(f"\n{proofs.last_line(rows)}")
    failed = [row for row in rows if row["failure"]]
    for row in failed:
        print(f"normscope: error: not proved: {row['family']}: {row['failure']}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


@app.command()
def bench(
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to measure.")] = "cpu",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder, a hub name, or a shape with random weights: bert-base, "
            "llama-8b-layer. Without it, the default model.",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="float64, float32, bfloat16, float16.")
    ] = "float32",
    lengths: Annotated[str, typer.Option(metavar="N[,N]", help="Tokens of each text.")] = "128,512",
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Texts at once.")] = 1,
    maps: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP[,GROUP]",
            help="2020: attn_w, attn_n. 2021: on through the residual and its norm. 2024: through "
            "the feed-forward. reduce: mixing ratios and top contributors, no map. Without it, "
            "all, 2024 up to 128 tokens only.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, metavar="N", help="Times are the median of so many.")
    ] = 5,
    no_dense: Annotated[
        bool, typer.Option("--no-dense", help="Leave out the form that builds every vector.")
    ] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Let a GPU shorten the factors of float32 products.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything to FILE.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure time and memory beside the plain forward pass.

    In one run, on the same weights and random ids: the plain forward pass, the eager one with
    its attention weights, normscope by group of maps, and the dense form, which builds every
    vector α·f(x). Times are medians of repeats that take turns; peak memory is what comes on top
    of the loaded model, on a CPU for two of them at the largest length.

    \b
    Examples:
      normscope bench
      normscope bench --model bert-base --lengths 128,512 --json bert.json
      normscope bench --device cuda --model llama-8b-layer --dtype bfloat16 \\
                      --lengths 8192,131072 --maps reduce --no-dense
    """  # noqa: D301
    from rich.console import Console

    from normscope import bench as benchmark

    if output is not None:
        export.check_file(output, (".json",))
    groups = None if maps is None else [name.strip() for name in maps.split(",")]
    tokens = _numbers(lengths)
    with _quiet():
        told = benchmark.run(
            benchmark.Settings(
                model, device, dtype, tokens, batch, groups, repeats, not no_dense, tf32
            )
        )
    if output is not None:
        with export.whole_file(output) as file:
            file.write((json.dumps(told, indent=1) + "\n").encode())
    console = Console(highlight=False, markup=False, emoji=False)
    for table in benchmark.tables(told):
        console.print(table)
    print("  ".join(f"{name}: {value}" for name, value in told["machine"].items()))


def _numbers(text: str) -> tuple[int, ...]:
    """The lengths in "128,512", each once."""
    try:
        return tuple(dict.fromkeys(int(one) for one in text.split(",")))
    except ValueError:
        raise InputError(
            f"unknown length in {text!r}; valid: whole numbers with commas between, as in 128,512"
        ) from None


@app.command()
def version(debug: Debug = False) -> None:
    """Print the versions that numbers may depend on."""
    import platform
    from importlib.metadata import version as installed

    import torch

    from normscope import __version__

    print(f"normscope {__version__}")
    print(f"torch {torch.__version__}")
    # Asked of the installed files: importing it takes seconds.
    print(f"transformers {installed('transformers')}")
    print(f"python {platform.python_version()}")


app.command("corpus")(corpus)
app.command()(reproduce)
app.command("align")(align)
app.command("translate-align")(translate_align)
app.command("aer")(aer)
app.command()(serve)
app.command()(view)


def main() -> None:
    """The command `normscope`."""
    app(prog_name="normscope")
