"""Tables and figures of what evaluate measured, published values beside them.

python -m experiments.nmt.report docs/reproductions/emnlp2020-nmt
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.nmt.export import write_whole
from experiments.nmt.published import PAPER, RELEASED

READINGS = ("awi", "awo")
MAPS = ("weights", "norms")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join("" if c is None else str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def layer_rows(results: dict[str, Any]) -> list[list[Any]]:
    """One row for each model, reading and map; the published ones too."""
    rows: list[list[Any]] = []
    for name, numbers in results["models"].items():
        for reading in READINGS:
            for map_name in MAPS:
                rates = numbers[map_name][reading]["by_layer"]
                rows.append([name, reading.upper(), map_name, *rates])
    for reading in READINGS:
        for map_name in MAPS:
            rates = RELEASED[reading][map_name]
            rows.append(["published, released code", reading.upper(), map_name, *rates])
    for map_name in MAPS:
        rows.append(["published, paper", "", map_name, *PAPER["aer_by_layer"][map_name]])
    width = max(map(len, rows))
    return [[*row, *[None] * (width - len(row))] for row in rows]


def choice_rows(results: dict[str, Any]) -> list[list[Any]]:
    """What the norms choose, and how head AER goes with the norm."""
    rows: list[list[Any]] = []
    for name, numbers in results["models"].items():
        for reading in READINGS:
            mine = numbers["norms"][reading]
            layer, head = mine["best_layer"], mine["best_head"]
            loud, loudest = mine["largest_norm_layer"], mine["largest_norm_head"]
            rows.append(
                [
                    name,
                    reading.upper(),
                    f"{layer[1]} (layer {layer[0]})",
                    f"{head[2]} (layer {head[0]}, head {head[1]})",
                    f"{loud[1]} (layer {loud[0]})",
                    f"{loudest[2]} (layer {loudest[0]}, head {loudest[1]})",
                    mine["layer_mean"],
                    mine["spearman"],
                    mine["pearson"],
                ]
            )
    for reading in READINGS:
        mine = RELEASED[reading]
        rows.append(
            [
                "published, released code",
                reading.upper(),
                mine["best_layer"]["norms"],
                None,
                mine["largest_norm_layer"],
                mine["largest_norm_head"],
                mine["layer_mean"]["norms"],
                mine["spearman"],
                mine["pearson"],
            ]
        )
    return rows


def baseline_rows(results: dict[str, Any]) -> list[list[Any]]:
    """Other aligners, measured and published."""
    rows: list[list[Any]] = []
    for name, numbers in results["models"].items():
        for label, found in numbers["auto"].items():
            low, high = found["interval"]
            rows.append([f"{name}, chosen without gold ({label})", found["aer"], f"{low}–{high}"])
        for method in ("saliency", "smoothgrad"):
            if method in numbers:
                rows.append([f"{name}, {method}", numbers[method], None])
    if "eflomal" in results:
        found = results["eflomal"]
        pairs = f"eflomal on {found['pairs']:,} pairs"
        rows.append([f"{pairs}, source to target", found["forward"], None])
        rows.append([f"{pairs}, target to source", found["reverse"], None])
        for how, rate in found["symmetrized"].items():
            rows.append([f"{pairs}, {how}", rate, None])
    for name, value in PAPER.items():
        if name != "aer_by_layer":
            rows.append([f"published: {name}", value, None])
    return rows


def training_rows(results: dict[str, Any]) -> list[list[Any]]:
    """How the models were trained."""
    rows = []
    for name, numbers in results["models"].items():
        facts = numbers["training"]
        shape = facts["shape"]
        size = f"{shape['encoder_layers']}+{shape['decoder_layers']} layers, d {shape['hidden']}"
        rows.append(
            [
                name,
                facts["recipe"],
                size,
                f"{facts['settings']['tokens']:,}",
                f"{facts['settings']['warmup']:,}",
                f"{facts['pairs']:,}",
                f"{facts['step']:,}",
                facts["epoch"],
                round(facts["seconds"]),
                "" if facts["tokens_per_second"] is None else f"{facts['tokens_per_second']:,}",
                facts["valid_loss"],
                facts.get("bleu"),
                facts["device"],
                facts["seed"],
            ]
        )
    return rows


def criteria_rows(results: dict[str, Any]) -> list[list[Any]]:
    """How well each thing that can be seen without gold predicts AER, over all candidates."""
    names = list(results["models"])
    features = next(iter(results["models"].values()))["norms"]["criteria"]
    rows = []
    for feature in features:
        row: list[Any] = [feature]
        for name in names:
            found = results["models"][name]["norms"]["criteria"][feature]
            row += [found["spearman"], found["aer_of_its_choice"]]
        rows.append(row)
    best: list[Any] = ["best candidate (needs gold data)"]
    for name in names:
        best += [None, results["models"][name]["norms"]["best_of_all"]]
    return [*rows, best]


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue().encode()


def all_tables(results: dict[str, Any]) -> dict[str, tuple[str, list[str], list[list[Any]]]]:
    """Name → title, columns, rows."""
    by_layer = layer_rows(results)
    columns = ["model", "reading", "map", *map(str, range(1, len(by_layer[0]) - 2))]
    made = {
        "training": (
            "Training",
            ["model", "recipe", "size", "batch tokens", "warm-up", "pairs", "updates",
             "epochs", "seconds",
             "target tokens/s", "validation loss", "BLEU", "device", "seed"],
            training_rows(results),
        ),
        "layers": ("AER by layer, all heads together", columns, by_layer),
        "choices": (
            "Choices by norm (AER)",
            ["model", "reading", "best layer", "best head", "layer with the largest norm",
             "head with the largest norm", "mean over layers", "Spearman, head AER and norm",
             "Pearson"],
            choice_rows(results),
        ),
        "aligners": (
            "Choices without gold data, and other aligners (AER)",
            ["aligner", "AER", "95% interval"],
            baseline_rows(results),
        ),
        "criteria": (
            "Criteria that predict AER without gold data (norms, all layers, heads and readings)",
            ["criterion", *(f"{name}: {what}" for name in results["models"]
                            for what in ("Spearman with AER", "AER of its choice"))],
            criteria_rows(results),
        ),
    }  # fmt: skip
    if "symmetrized" in results:
        found = results["symmetrized"]
        methods = list(next(iter(next(iter(found.values())).values())))
        rows = [
            [models, name, *(rates[how] for how in methods)]
            for models, choices in found.items()
            for name, rates in choices.items()
        ]
        made["symmetrized"] = ("Both directions (AER)", ["models", "choice", *methods], rows)
    return made


def ink(colour: Sequence[float]) -> str:
    """Black or white: what has more contrast on a colour (red, green, blue from 0 to 1)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "white"


def figures(results: dict[str, Any], folder: Path) -> list[Path]:
    """AER by layer, AER and norm by head, and the loss of each model."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    written = []

    def keep(figure: Any, name: str) -> None:
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120, metadata={"Software": None})
        plt.close(figure)
        written.append(path)

    colours = {"weights": "tab:orange", "norms": "tab:blue"}
    for name, numbers in results["models"].items():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
        for axis, reading in zip(axes, READINGS, strict=True):
            for map_name, colour in colours.items():
                mine = numbers[map_name][reading]["by_layer"]
                axis.plot(range(1, len(mine) + 1), mine, "o-", color=colour, label=map_name)
                theirs = RELEASED[reading][map_name]
                if numbers["training"]["recipe"] == "paper":  # whose curve has one reading
                    theirs = PAPER["aer_by_layer"][map_name] if reading == "awi" else []
                label = f"{map_name}, published"
                axis.plot(
                    range(1, len(theirs) + 1), theirs, "s:", color=colour, alpha=0.5, label=label
                )
            axis.set(title=f"{name}, {reading.upper()}", xlabel="decoder layer", ylabel="AER, %")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        keep(figure, f"layers-{name}")

        rows = [
            row for row in numbers["tables"]["norms"] if row["reading"] == "awi" and row["head"]
        ]
        layers, heads = max(r["layer"] for r in rows), max(r["head"] for r in rows)
        figure, axes = plt.subplots(1, 2, figsize=(7, 3.6), layout="constrained")
        for axis, (key, title) in zip(
            axes, (("aer", "AER, %, AWI"), ("norm", "mean norm")), strict=True
        ):
            grid = [[0.0] * heads for _ in range(layers)]
            for row in rows:
                grid[row["layer"] - 1][row["head"] - 1] = row[key]
            image = axis.imshow(
                grid, aspect="auto", cmap="viridis_r" if key == "aer" else "viridis"
            )
            for n, line in enumerate(grid):
                for h, value in enumerate(line):
                    text = f"{value:.1f}" if key == "aer" else f"{value:.2f}"
                    colour = ink(image.cmap(image.norm(value)))
                    axis.text(h, n, text, ha="center", va="center", color=colour, fontsize=8)
            axis.set_xticks(range(heads), [str(h + 1) for h in range(heads)])
            axis.set_yticks(range(layers), [str(n + 1) for n in range(layers)])
            axis.set(title=title, xlabel="head", ylabel="layer")
        figure.suptitle(name)
        keep(figure, f"heads-{name}")

        facts = numbers["training"]
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        axes[0].plot(
            [c[0] for c in facts["curve"]], [c[2] for c in facts["curve"]], label="training"
        )
        seen = [
            entry for entry in facts["evaluations"] if entry["kind"] in ("start", "now", "final")
        ]
        axes[0].plot(
            [e["step"] for e in seen], [e["valid_loss"] for e in seen], "o-", label="validation"
        )
        axes[0].set(xlabel="updates", ylabel="loss, nats a token", title=f"{name}, loss")
        axes[0].legend()
        for key, colour in (("weights_awi", "tab:orange"), ("norms_awi", "tab:blue")):
            some = [e for e in seen if key in e]
            axes[1].plot(
                [e["step"] for e in some],
                [min(e[key]) for e in some],
                "o-",
                color=colour,
                label=key.removesuffix("_awi"),
            )
        axes[1].set(xlabel="updates", ylabel="AER of the best layer, %", title=f"{name}, AER, AWI")
        axes[1].legend()
        keep(figure, f"training-{name}")
    return written


def write(folder: Path) -> None:
    """Tables as CSV, all of them in ``tables.md``, and the figures."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    text = []
    for name, (title, head, rows) in all_tables(results).items():
        write_whole(folder / f"{name}.csv", as_csv(head, rows))
        text.append(f"## {title}\n\n{table(head, rows)}")
    for path in figures(results, folder):
        text.append(f"![{path.stem}]({path.name})\n")
    write_whole(folder / "tables.md", ("# Measured and published\n\n" + "\n".join(text)).encode())
    print("\n".join(text))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where results.json is")
    write(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
