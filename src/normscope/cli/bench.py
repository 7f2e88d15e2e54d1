"""`normscope bench`: time and memory beside the model's own passes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from normscope.cli.options import Debug
from normscope.cli.quiet import quiet
from normscope.errors import InputError
from normscope.results import files as export


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
        str, typer.Option("--dtype", metavar="DTYPE", help="float64, float32, bfloat16, float16.")
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

    from normscope.cli import benchmark

    if output is not None:
        export.check_file(output, (".json",))
    groups = None if maps is None else [name.strip() for name in maps.split(",")]
    tokens = _numbers(lengths)
    with quiet():
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
