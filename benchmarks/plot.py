"""The figures of `normscope bench --json FILE` as a picture: time against length, log-log.

python benchmarks/plot.py cpu.json gpu.json -o speed.png     # one panel a file
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any colour vision, but for their yellow, which is too
# pale for a line; markers for print without colour.
STYLES = {
    "forward": ("#000000", "o"),
    "eager": ("#E69F00", "s"),
    "2020": ("#0072B2", "^"),
    "2021": ("#56B4E9", "v"),
    "2024": ("#009E73", "D"),
    "reduce": ("#7F7F7F", "*"),
    "dense float64": ("#D55E00", "X"),
    "dense float32": ("#CC79A7", "P"),
}


def panel(axes: Any, told: dict[str, Any]) -> None:
    """One file: a line for each work; what was left out at a length has no point there."""
    for work, (colour, marker) in STYLES.items():
        rows = [r for r in told["rows"] if r["work"] == work and r["ms"] is not None]
        points = sorted((row["tokens"], row["ms"]) for row in rows)
        if points:
            label = f"normscope {work}" if work.isdigit() or work == "reduce" else work
            axes.loglog(*zip(*points, strict=True), color=colour, marker=marker, label=label)
    lengths = sorted({row["tokens"] for row in told["rows"]})
    axes.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    axes.set_xticks([], minor=True)
    machine, model = told["machine"], told["model"]
    where = machine.get("gpu", f"{machine['cpu']}, {machine['threads']} threads")
    axes.set_title(f"{model['name']}, {model['dtype']}\n{where}", fontsize=9)
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", framealpha=0.6)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 30)  # room for the names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.png")
    options = parser.parse_args()
    figure = Figure(figsize=(4.5 * len(options.files), 4), layout="constrained")
    axes = figure.subplots(1, len(options.files), squeeze=False)[0]
    for one, file in zip(axes, options.files, strict=True):
        panel(one, json.loads(file.read_text(encoding="utf-8")))
    figure.savefig(options.output, dpi=150)


if __name__ == "__main__":
    main()
