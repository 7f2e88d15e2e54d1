"""`normscope bench`: time and memory, compared with the model's own forward pass."""

from __future__ import annotations

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
        "minilm-shape, llama-8b-layer or llama-8b-8-layers. Default: the default model.",
        metavar="NAME",
    )
    dtype: str = option("float32", help="float64, float32, bfloat16 or float16.", metavar="DTYPE")
    lengths: str = option("128,512", help="Tokens per text.", metavar="N[,N]")
    batch: int = option(1, help="Texts per batch.", metavar="N", min=1)
    maps: str | None = option(
        None,
        help=f"2020: {', '.join(HEAD_MAPS)}. four: also the norms with the residual and its norm. "
        "2021: also the weights with the residual. 2024: through the feed-forward. reduce: mixing "
        "ratios and top contributors, no map. attribute: the attribution of one output. texts: "
        "1,000 texts of 10 to 120 tokens. Default: all but texts, 2024 only up to 128 tokens.",
        metavar="GROUP[,GROUP]",
    )
    methods: bool = option(
        False,
        help="Measure every method of attribution, and the maps that they roll out, instead of "
        "groups of maps.",
    )
    repeats: int = option(5, help="Runs to time; the median is reported.", metavar="N", min=1)
    no_dense: bool = option(False, help="Leave out the dense form, which builds every vector.")
    tf32: bool = option(False, help="Allow TF32 in a GPU's float32 products.")
    profile: str | None = option(
        None,
        help="Write what the operations of one call of each group cost to FILE (.txt), by torch's "
        "profiler.",
        metavar="FILE",
    )
    output: str | None = option(
        None, names=("--json",), help="Write all numbers to FILE as JSON.", metavar="FILE"
    )

    def for_python(self) -> dict[str, Any]:
        """Return the fields of the benchmark's settings."""
        groups = None if self.maps is None else split_commas(self.maps)
        if self.methods and groups is not None:
            raise InputError("--methods measures methods instead of maps; leave out --maps")
        return self.keywords(
            *("maps", "methods", "no_dense", "output"),
            lengths=_numbers(self.lengths),
            groups=["methods"] if self.methods else groups,
            dense=not (self.no_dense or self.methods),
        )


@command
def bench(arguments: BenchArguments) -> None:
    """Measure time and memory against the plain forward pass.

    Measures, in one run and on the same weights and random ids: the plain forward pass, the eager
    one with its attention weights, normscope by group of maps, and the dense form, which builds
    every vector α·f(x). A group of maps is timed as a whole call, with checked results in numpy
    arrays. On a GPU that is the row "in hand"; a second row leaves the maps on the card, and
    "forward, graph" is the forward pass replayed as a CUDA graph. All ratios refer to the plain
    forward pass.

    The group attribute times whole attributions and compares them with input × gradient by plain
    autograd. The group texts analyses 1,000 texts in one call, tokenising included, and compares it
    with plain forward passes over the encoded texts.

    With --methods, every method of normscope methods explains one number of each row, and is
    compared with input × gradient and with the forward pass.

    Times are medians over interleaved runs. Accuracy is the largest difference of a length from its
    dense float64 value, relative to the lengths of the vectors that are summed, at random queries
    of three layers. Peak memory excludes the loaded model; on a CPU it is measured only for the
    eager pass and group 2020, at the largest length.

    \b
    Examples:
      normscope bench
      normscope bench --model bert-base --lengths 128,512 --json bert.json
      normscope bench --device cuda --model llama-8b-layer --dtype bfloat16 \\
                      --lengths 8192,131072 --maps reduce --no-dense
      normscope bench --model bert-base --maps attribute --no-dense
      normscope bench --model bert-base --lengths 128 --batch 32 --methods
      normscope bench --model minilm-shape --maps four,texts --profile four.txt
    """  # noqa: D301
    from normscope.cli.bench_timing import run
    from normscope.cli.bench_works import BenchSettings
    from normscope.foundation.files import check_file, write_file
    from normscope.foundation.texts import json_line

    if arguments.output is not None:
        check_file(arguments.output, (".json",))
    if arguments.profile is not None:
        check_file(arguments.profile, (".txt",))
    with working(arguments.model):
        figures = run(BenchSettings(**arguments.for_python()))
    if arguments.output is not None:
        write_file(arguments.output, json_line(figures, indent=1))
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
    """Make one table for each length, and one for many texts."""
    name, dtype = (figures["model"][key] for key in ("name", "dtype"))
    for tokens in dict.fromkeys(row["tokens"] for row in figures["rows"]):
        rows = [row for row in figures["rows"] if row["tokens"] == tokens]
        yield _table(rows, f"{name}, {rows[0]['batch']} × {tokens} tokens, {dtype}")
    if rows := figures.get("texts", []):
        sizes = "{texts:,} texts of {shortest} to {longest} tokens".format(**rows[0])
        yield _table(rows, f"{name}, {sizes}, {dtype}")


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    """Make a table of the works of one length."""
    from rich import box
    from rich.table import Column, Table

    titles = ("ms", "× forward", "peak MB", "accuracy")
    table = Table(
        Column("work", no_wrap=True),
        *(Column(column, justify="right") for column in titles),
        "",
        box=box.SIMPLE,
        title=title,
        title_justify="left",
    )
    for row in rows:
        values = [row[name] for name in ("ms", "ratio", "peak_mb")]
        cells = ["–" if value is None else f"{value:,.2f}" for value in values]
        cells.append("–" if row["accuracy"] is None else f"{row['accuracy']:.1e}")
        table.add_row(row["work"], *cells, row["note"])
    return table
