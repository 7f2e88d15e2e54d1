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
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.nmt.export import write_whole
from experiments.nmt.published import PAPER, RELEASED
from normscope.reproduce.report import picture
from normscope.show.plots.style import (
    PAGE,
    colour,
    colour_bar,
    headline,
    ink,
    panels,
    sequential,
    set_title,
    styled,
    tidy,
    write_values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Which row of the map belongs to a target word, and the numbers of the colours of the maps.
READINGS = {"awi": "row of the step that reads a word (AWI)",
            "awo": "row of the step that writes a word (AWO)"}  # fmt: skip
MAPS = {"weights": 1, "norms": 0}
LANGUAGES = {"de": "German", "en": "English"}


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


def described(numbers: dict[str, Any]) -> str:
    """Say which model this is: "German to English, recipe “small”, seed 2"."""
    facts = numbers["training"]
    source, target = (LANGUAGES.get(code, code) for code in facts["languages"])
    return f"{source} to {target}, recipe “{facts['recipe']}”, seed {facts['seed']}"


def _layers_figure(numbers: dict[str, Any]) -> Figure:
    """AER of each decoder layer, a panel for each reading, published values dotted."""
    axes = panels(None, len(READINGS), (PAGE / len(READINGS), 3.0), sharey=True)
    same = numbers["training"]["languages"] == ["de", "en"]
    other = "" if same else " for German to English"
    for ax, (reading, title) in zip(axes, READINGS.items(), strict=True):
        for map_name, hue in MAPS.items():
            mine = numbers[map_name][reading]["by_layer"]
            theirs = RELEASED[reading][map_name]
            if numbers["training"]["recipe"] == "paper":  # whose curve has one reading
                theirs = PAPER["aer_by_layer"][map_name] if reading == "awi" else []
            ax.plot(_numbers(mine), mine, "o-", color=colour(hue), label=map_name)
            hollow: Any = {"color": colour(hue), "markerfacecolor": ink("panel"), "lw": 1.2}
            label = f"{map_name}, published{other}"
            ax.plot(_numbers(theirs), theirs, "s:", **hollow, label=label)
        set_title(ax, title, PAGE / len(READINGS))
        ax.set_xlabel("decoder layer")
        ax.set_xticks(_numbers(RELEASED[reading]["norms"]))
        ax.set_ylim(0, 100)
        tidy(ax)
    axes[0].set_ylabel("alignment error rate, %")
    whole = axes[0].figure
    whole.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4 if same else 2
    )
    headline(whole, f"Alignment error by decoder layer: {described(numbers)}")
    return whole


def _numbers(values: Sequence[Any]) -> range:
    return range(1, len(values) + 1)


def _heads_figure(numbers: dict[str, Any]) -> Figure:
    """AER and mean norm of each head; the scale of AER is the same for all models."""
    rows = [row for row in numbers["tables"]["norms"] if row["reading"] == "awi" and row["head"]]
    layers, heads = max(r["layer"] for r in rows), max(r["head"] for r in rows)
    axes = panels(None, 2, (PAGE / 2, 1.2 + 0.28 * layers))
    kinds = (("aer", "alignment error rate, %", 1, 100.0), ("norm", "mean norm ‖αf(x)‖", 2, None))
    for ax, (key, label, decimals, top) in zip(axes, kinds, strict=True):
        grid = np.full((layers, heads), np.nan)
        for row in rows:
            grid[row["layer"] - 1, row["head"] - 1] = row[key]
        style: Any = {"vmin": 0, "vmax": top, "cmap": sequential(reverse=key == "aer")}
        image = ax.imshow(grid, aspect="auto", interpolation="nearest", **style)
        write_values(image, decimals)
        ax.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
        ax.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)])
        ax.set_xlabel("head")
        ax.set_ylabel("decoder layer")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        colour_bar(image, ax, label)
    set_title(axes[0], "error of the alignment by norms")
    set_title(axes[1], "length of what the head adds")
    whole: Figure = axes[0].figure
    headline(whole, f"Which heads align words: {described(numbers)}")
    return whole


def _training_figure(numbers: dict[str, Any]) -> Figure:
    """Loss and the AER of the best layer, by the number of updates."""
    facts = numbers["training"]
    seen = [e for e in facts["evaluations"] if e["kind"] in ("start", "now", "final")]
    loss, rate = axes = panels(None, 2, (PAGE / 2, 2.7))
    steps = [entry["step"] for entry in seen]
    curve = facts["curve"]
    loss.plot([point[0] for point in curve], [point[2] for point in curve], color=colour(5))
    loss.plot(steps, [e["valid_loss"] for e in seen], "D--", color=colour(2))
    for line, label in zip(loss.lines, ("training", "validation"), strict=True):
        line.set_label(label)
    for map_name, hue in MAPS.items():
        some = [entry for entry in seen if f"{map_name}_awi" in entry]
        best = [min(entry[f"{map_name}_awi"]) for entry in some]
        rate.plot([e["step"] for e in some], best, "o-", color=colour(hue), label=map_name)
    loss.set_ylim(bottom=0)
    rate.set_ylim(0, 100)
    loss.set_ylabel("loss, nats per token")
    rate.set_ylabel("alignment error rate, %")
    set_title(loss, "loss")
    set_title(rate, "best layer, read one step later (AWI)")
    for ax in axes:
        ax.set_xlabel("updates")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        tidy(ax)
        ax.legend()
    whole: Figure = loss.figure
    headline(whole, f"Training: {described(numbers)}")
    return whole


FIGURES = {"layers": _layers_figure, "heads": _heads_figure, "training": _training_figure}


def figures(results: dict[str, Any], folder: Path) -> dict[Path, str]:
    """Write the figures of each model; return their paths, and in words what they show."""
    written = {}
    for name, numbers in results["models"].items():
        for kind, draw in FIGURES.items():
            figure = styled(draw)(numbers)
            path = folder / f"{kind}-{name}.png"
            path.write_bytes(picture(figure))
            written[path] = figure.get_suptitle().replace("\n", " ")
    return written


def write(folder: Path) -> None:
    """Tables as CSV, all of them in ``tables.md``, and the figures."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    text = []
    for name, (title, head, rows) in all_tables(results).items():
        write_whole(folder / f"{name}.csv", as_csv(head, rows))
        text.append(f"## {title}\n\n{table(head, rows)}")
    for path, words in figures(results, folder).items():
        text.append(f"![{words}]({path.name})\n")
    write_whole(folder / "tables.md", ("# Measured and published\n\n" + "\n".join(text)).encode())
    print("\n".join(text))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where results.json is")
    write(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
