"""`normscope bench`: time and memory, compared with the model's own forward pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.cli.options import CommandArguments, command, option, split_commas
from normscope.cli.output import plain_console
from normscope.cli.status import working
from normscope.decomposition.scopes import HEAD_MAPS
from normscope.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class BenchArguments(CommandArguments):
    """The options of `normscope bench`."""

    device: str = option("cpu", help="The device to measure.", metavar="cpu|cuda")
    model: str | None = option(
        None,
        help="A folder, a hub name, or an architecture with random weights: bert-base, "
        "llama-8b-layer or llama-8b-8-layers. Default: the default model.",
        metavar="NAME",
    )
    dtype: str = option("float32", help="float64, float32, bfloat16 or float16.", metavar="DTYPE")
    lengths: str = option("128,512", help="Tokens per text.", metavar="N[,N]")
    batch: int = option(1, help="Texts per batch.", metavar="N", min=1)
    maps: str | None = option(
        None,
        help=f"2020: {', '.join(HEAD_MAPS)}. 2021: also with the residual and its norm. 2024: "
        "through the feed-forward. reduce: mixing ratios and top contributors, no map. "
        "attribute: the attribution of one output. Default: all, but 2024 only up to 128 tokens.",
        metavar="GROUP[,GROUP]",
    )
    repeats: int = option(5, help="Runs to time; the median is reported.", metavar="N", min=1)
    no_dense: bool = option(False, help="Leave out the dense form, which builds every vector.")
    tf32: bool = option(False, help="Allow TF32 in a GPU's float32 products.")
    output: str | None = option(
        None, names=("--json",), help="Write all numbers to FILE as JSON.", metavar="FILE"
    )

    def for_python(self) -> dict[str, Any]:
        """Return the fields of the benchmark's settings."""
        return self.keywords(
            *("maps", "no_dense", "output"),
            lengths=_numbers(self.lengths),
            groups=None if self.maps is None else split_commas(self.maps),
            dense=not self.no_dense,
        )


@command
def bench(arguments: BenchArguments) -> None:
    """Measure time and memory against the plain forward pass.

    Measures, in one run and on the same weights and random ids: the plain forward pass, the eager
    one with its attention weights, normscope by group of maps, and the dense form, which builds
    every vector α·f(x). The group attribute times whole attributions and compares them with
    input × gradient by plain autograd. Times are medians over interleaved runs. Peak memory
    excludes the loaded model; on a CPU it is measured only for the eager pass and group 2020, at
    the largest length.

    \b
    Examples:
      normscope bench
      normscope bench --model bert-base --lengths 128,512 --json bert.json
      normscope bench --device cuda --model llama-8b-layer --dtype bfloat16 \\
                      --lengths 8192,131072 --maps reduce --no-dense
      normscope bench --model bert-base --maps attribute --no-dense
    """  # noqa: D301
    from normscope.cli.bench_timing import run
    from normscope.cli.bench_works import BenchSettings
    from normscope.foundation.files import check_file, whole_file

    if arguments.output is not None:
        check_file(arguments.output, (".json",))
    with working(arguments.model):
        figures = run(BenchSettings(**arguments.for_python()))
    if arguments.output is not None:
        with whole_file(arguments.output) as file:
            file.write((json.dumps(figures, indent=1) + "\n").encode())
    console = plain_console()
    for table in _tables(figures):
        console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in figures["machine"].items()))


def _numbers(text: str) -> tuple[int, ...]:
    """Parse "128,512", each number once."""
    try:
        return tuple(dict.fromkeys(int(item) for item in text.split(",")))
    except ValueError:
        raise InputError(
            f"unknown length in {text!r}; valid: whole numbers separated by commas, as in 128,512"
        ) from None


def _tables(figures: dict[str, Any]) -> Iterator[Table]:
    """Make one table for each length."""
    from rich import box
    from rich.table import Column, Table

    model = figures["model"]
    for tokens in dict.fromkeys(row["tokens"] for row in figures["rows"]):
        rows = [row for row in figures["rows"] if row["tokens"] == tokens]
        table = Table(
            Column("work", no_wrap=True),
            *(Column(title, justify="right") for title in ("ms", "× forward", "peak MB")),
            "",
            box=box.SIMPLE,
            title=f"{model['name']}, {rows[0]['batch']} × {tokens} tokens, {model['dtype']}",
            title_justify="left",
        )
        for row in rows:
            values = [row[name] for name in ("ms", "ratio", "peak_mb")]
            cells = ["–" if value is None else f"{value:,.2f}" for value in values]
            table.add_row(row["work"], *cells, row["note"])
        yield table
