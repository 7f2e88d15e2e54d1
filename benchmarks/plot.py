"""Draw the numbers of `normscope bench --json FILE`: time against length, log-log.

python benchmarks/plot.py cpu.json gpu.json -o speed.png     # a panel for each file
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.show.plots.style import (
    MARKERS,
    PAGE,
    colour,
    headline,
    ink,
    panels,
    set_title,
    styled,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Works and their names; a line for each, in the order of the palette.
WORKS = {
    "2020": "weights and norms (2020)",
    "dense float64": "norms, dense, float64",
    "2024": "whole layer (2024)",
    "dense float32": "norms, dense, float32",
    "eager": "eager attention",
    "four": "attention block, four maps",
    "forward": "forward pass",
    "reduce": "summaries only",
}
NAMES = {"bert-base": "BERT-base"}


def panel(ax: Axes, numbers: dict[str, Any]) -> None:
    """Draw one file, a line for each work; a length that was left out has no point."""
    for number, (work, label) in enumerate(WORKS.items()):
        rows = [row for row in numbers["rows"] if row["work"] == work and row["ms"] is not None]
        points = sorted((row["tokens"], row["ms"]) for row in rows)
        if points:
            hue = ink("muted") if work == "reduce" else colour(number)
            marker = MARKERS[number % len(MARKERS)]
            dashes = ":" if work == "reduce" else "-"
            look: Any = {"color": hue, "marker": marker, "ls": dashes}
            ax.loglog(*zip(*points, strict=True), **look, label=label)
    lengths = sorted({row["tokens"] for row in numbers["rows"]})
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter("{x:,g}")
    machine, model = numbers["machine"], numbers["model"]
    where = machine.get("gpu", f"CPU, {machine['threads']} threads")
    set_title(ax, f"{NAMES.get(model['name'], model['name'])}, {model['dtype']}, {where}")
    ax.set_xlabel("tokens")
    tidy(ax)
    ax.tick_params(which="minor", length=0)


@styled
def draw(files: list[Path]) -> Figure:
    """Return a figure with a panel for each file and one legend."""
    axes = panels(None, len(files), (max(PAGE / len(files), 3.0), 4.0))
    for ax, file in zip(axes, files, strict=True):
        panel(ax, json.loads(file.read_text(encoding="utf-8")))
    axes[0].set_ylabel("milliseconds")
    handles = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    order = [label for label in WORKS.values() if label in handles]
    whole: Figure = axes[0].figure
    labels = [handles[label] for label in order]
    whole.legend(labels, order, loc="outside lower center", ncols=3)
    headline(whole, "Time for one text by its length")
    return whole


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.png")
    options = parser.parse_args()
    draw(options.files).savefig(options.output, metadata={"Software": None})


if __name__ == "__main__":
    main()
