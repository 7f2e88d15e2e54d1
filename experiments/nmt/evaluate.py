"""Measure trained models: alignment error of every layer, head, map and reading, and baselines.

    python -m experiments.nmt.evaluate --run de-en=RUN --reverse en-de=RUN --corpus europarl.pack \
        --gold de en alignment.talp --work models --output docs/reproductions/emnlp2020-nmt

A run is what train wrote. The numbers go to ``results.json`` in the output folder; report.py makes
tables and figures of them. Layers and heads count from 1 there, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.nmt.export import read_parts, write_folder, write_whole
from experiments.nmt.pack import Pack, Side, load
from experiments.nmt.text import normalize
from experiments.nmt.translate import bleu
from normscope.alignment.aer import score
from normscope.alignment.aligner import align_direction
from normscope.alignment.auto import FEATURES, choices_of, rank, survey
from normscope.alignment.extract import Extractor, cross_shape
from normscope.alignment.files import read_lines, read_links
from normscope.alignment.links import Links
from normscope.alignment.options import AlignOptions
from normscope.alignment.statistical import eflomal
from normscope.alignment.symmetrize import SYMMETRIZATIONS, symmetrize_links
from normscope.alignment.translator import Translator, translator

MAPS = {"weights": "attn_w", "norms": "attn_n"}
READINGS = ("awi", "awo")
COMBINED = (1, 3)  # so many of the best candidates, averaged
Text = list[list[str]]


def percent(gold: Sequence[Links], found: Sequence[Links]) -> float:
    """AER in percent, two digits."""
    return round(100 * score(gold, found).aer, 2)


def correlations(one: Sequence[float], other: Sequence[float]) -> dict[str, float | None]:
    """Spearman's and Pearson's; None where all values of a side are the same."""
    if min(np.ptp(one), np.ptp(other)) == 0:
        return {"spearman": None, "pearson": None}

    def ranks(values: Sequence[float]) -> NDArray[np.float64]:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    return {
        "spearman": round(float(np.corrcoef(ranks(one), ranks(other))[0, 1]), 3),
        "pearson": round(float(np.corrcoef(one, other)[0, 1]), 3),
    }


class Direction:
    """One model on the gold pairs; ``gold`` is turned so that the model's source comes first."""

    def __init__(
        self, folder: Path, source: Text, target: Text, gold: list[Links], device: str = "cpu"
    ) -> None:
        options = AlignOptions(str(folder), dtype="float32", device=device)
        self.translator: Translator = translator(options)
        self.source, self.target, self.gold = source, target, gold
        self.pairs = self.translator.pairs(source, target)
        self.layers, self.heads = cross_shape(self.translator.model)
        self._chosen: dict[str, tuple[list[Links], dict[str, Any]]] = {}

    def tables(self) -> tuple[dict[str, Any], dict[str, dict[tuple[int, int, str], list[Links]]]]:
        """AER and mean norm of every candidate, and its links by (layer, head, reading).

        Layers and heads count from 1; head 0 stands for all heads together.
        """
        result: dict[str, Any] = {}
        links: dict[str, dict[tuple[int, int, str], list[Links]]] = {}
        ready = [pair for pair in self.pairs if pair is not None]
        if len(ready) < len(self.pairs):
            raise ValueError("a gold sentence is empty or longer than the model allows")
        for name, map_name in MAPS.items():
            extractor = Extractor(self.translator.model, map_name, padding=self.translator.padding)
            choices = choices_of(range(self.layers), [None, *range(self.heads)])
            seen = survey(extractor, ready, choices, sample=len(ready))
            features = {one.choice: one.features for one in rank(seen, self.source, self.target)}
            rows = []
            links[name] = {}
            for at, choice in enumerate(choices):
                found = []
                for row in seen.links:
                    made = frozenset((int(s), t) for t, s in enumerate(row[at]) if s >= 0)
                    found.append(Links(made, made))
                head = 0 if choice.head is None else choice.head + 1
                links[name][choice.layer + 1, head, choice.reading] = found
                entry = {"layer": choice.layer + 1, "head": head, "reading": choice.reading}
                entry["aer"] = percent(self.gold, found)
                entry |= {key: round(value, 4) for key, value in features[choice].items()}
                rows.append(entry)
            result[name] = rows
            result[f"{name}_error"] = extractor.error
        return result, links

    def chosen(self, **options: Any) -> tuple[list[Links], dict[str, Any]]:
        """What the aligner takes without gold, its links and its score with an interval."""
        settings = AlignOptions(**options)
        if str(settings) in self._chosen:
            return self._chosen[str(settings)]
        found = align_direction(self.translator, self.pairs, self.source, self.target, settings)
        made = score(self.gold, found.links, resamples=1000)
        low, high = made.intervals["aer"]
        about = {
            "aer": round(100 * made.aer, 2),
            "interval": [round(100 * low, 2), round(100 * high, 2)],
            "choices": [str(choice) for choice in found.choices],
        }
        self._chosen[str(settings)] = found.links, about
        return found.links, about


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per reading: the best layer and head, those with the largest norm, and correlations."""
    result: dict[str, Any] = {}
    for reading in READINGS:
        mine = [row for row in rows if row["reading"] == reading]
        layers = [row for row in mine if row["head"] == 0]
        heads = [row for row in mine if row["head"] > 0]
        best_layer = min(layers, key=lambda row: row["aer"])
        best_head = min(heads, key=lambda row: row["aer"])
        loud_layer = max(layers, key=lambda row: row["norm"])
        loud_head = max(heads, key=lambda row: row["norm"])
        result[reading] = {
            "by_layer": [row["aer"] for row in layers],
            "norm_by_layer": [row["norm"] for row in layers],
            "layer_mean": round(float(np.mean([row["aer"] for row in layers])), 2),
            "best_layer": [best_layer["layer"], best_layer["aer"]],
            "best_head": [best_head["layer"], best_head["head"], best_head["aer"]],
            "largest_norm_layer": [loud_layer["layer"], loud_layer["aer"]],
            "largest_norm_head": [loud_head["layer"], loud_head["head"], loud_head["aer"]],
            **correlations([row["aer"] for row in heads], [row["norm"] for row in heads]),
        }
    everything = [row["aer"] for row in rows]
    result["criteria"] = {
        feature: {
            "spearman": correlations(everything, [row[feature] for row in rows])["spearman"],
            "aer_of_its_choice": max(rows, key=lambda row: row[feature])["aer"],
        }
        for feature in FEATURES
    }
    result["best_of_all"] = min(everything)
    return result


def symmetrized(gold: list[Links], forward: list[Links], reverse: list[Links]) -> dict[str, float]:
    """AER of both directions together, by method; ``reverse`` has the target word first."""
    return {
        how: percent(
            gold,
            [symmetrize_links(a, b.flipped(), how) for a, b in zip(forward, reverse, strict=True)],
        )
        for how in SYMMETRIZATIONS
    }


def join(run: Path, work: Path, name: str) -> Path:
    """The transformers folder of a run, made on the first call."""
    folder = work / name
    if not (folder / "config.json").exists():
        model, tokenizers, about = read_parts(run)
        one, other = about["languages"]
        write_folder(model, tokenizers, folder, languages=(one, other), dtype=torch.float32)
    return folder


def training_facts(run: Path, pack: Pack | None) -> dict[str, Any]:
    """What the run's own files say: steps, tokens, seconds, losses, BLEU."""
    about = json.loads((run / "about.json").read_text(encoding="utf-8"))
    facts = {
        key: value for key, value in about.items() if key not in ("tokenizers", "parts", "aer")
    }
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    train = [entry for entry in log if entry["kind"] == "train"]
    facts["curve"] = [
        [entry["step"], entry["seconds"], entry["loss"]]
        for entry in train[:: len(train) // 200 + 1]
    ]
    speeds = [entry["tokens_per_second"] for entry in train]  # none of a run shorter than a line
    facts["tokens_per_second"] = round(float(np.median(speeds))) if speeds else None
    facts["evaluations"] = [
        {
            "step": entry["step"],
            "kind": entry["kind"],
            "valid_loss": entry["valid_loss"],
            **{
                key: [row[-1] for row in rows]
                for key, rows in entry.get("aer", {}).items()
                if key != "mean_norm"
            },
        }
        for entry in log
        if "valid_loss" in entry and entry["kind"] != "result"
    ]
    hypotheses = run / "hypotheses.txt"
    if pack is not None and hypotheses.exists():
        references = pack.direction("-".join(about["languages"])).valid_text[1]
        found = bleu(hypotheses.read_text(encoding="utf-8").splitlines(), references)
        facts["bleu"], facts["bleu_signature"] = found or (None, None)
    return facts


def words_of(pack: Pack, most: int | None) -> tuple[Text, Text]:
    """The training text of a packed corpus, as words."""

    def decoded(side: Side, number: int) -> Text:
        starts, texts = side.starts(), []
        count = len(side) if most is None else min(most, len(side))
        for begin in range(0, count, 10_000):
            end = min(begin + 10_000, count)
            ids = [side.ids[starts[n] : starts[n] + side.lengths[n]] for n in range(begin, end)]
            batch = pack.tokenizers[number].decode_batch([row.tolist() for row in ids])
            texts += [line.split() for line in batch]
        return texts

    return decoded(pack.train[0], 0), decoded(pack.train[1], 1)


def statistical_aligner(
    pack: Pack, gold: list[Links], source: Text, target: Text, most: int | None
) -> dict[str, Any]:
    """Eflomal, learning from the training text and the gold sentences together."""
    start = time.monotonic()
    text = words_of(pack, most)
    known = ([[normalize(word) for word in line] for line in side] for side in (source, target))
    forward, reverse = eflomal(*(mine + theirs for mine, theirs in zip(text, known, strict=True)))
    ahead, back = forward[len(text[0]) :], reverse[len(text[0]) :]
    return {
        "pairs": len(text[0]),
        "forward": percent(gold, ahead),
        "reverse": percent(gold, back),
        "symmetrized": symmetrized(gold, ahead, [links.flipped() for links in back]),
        "seconds": round(time.monotonic() - start, 1),
    }


def measure(
    name: str, direction: Direction, *, gradients: bool
) -> tuple[dict[str, Any], dict[str, dict[tuple[int, int, str], list[Links]]]]:
    """All numbers of one model."""
    tables, links = direction.tables()
    result: dict[str, Any] = {"tables": tables}
    for map_name in MAPS:
        result[map_name] = summary(tables[map_name])
    result["auto"] = {f"combine {count}": direction.chosen(combine=count)[1] for count in COMBINED}
    result["auto"]["weights"] = direction.chosen(map="attn_w")[1]
    if gradients:
        for method in ("saliency", "smoothgrad"):
            result[method] = direction.chosen(method=method)[1]["aer"]
    print(name, json.dumps({key: result[key]["awi"]["by_layer"] for key in MAPS}), flush=True)
    return result, links


def both_directions(
    gold: list[Links],
    one: Direction,
    other: Direction,
    parts: list[dict[str, Any]],
    links: list[Any],
) -> dict[str, Any]:
    """Symmetrised AER: layers chosen on the gold, by their norm, and by the aligner."""
    result: dict[str, Any] = {}
    for map_name in MAPS:
        for rule in ("best_layer", "largest_norm_layer", "best_head"):
            if rule == "largest_norm_layer" and map_name == "weights":
                continue  # weights add up to 1 in every layer
            picked = []
            for part, found in zip(parts, links, strict=True):
                place = part[map_name]["awi"][rule]
                head = place[1] if rule == "best_head" else 0
                picked.append(found[map_name][place[0], head, "awi"])
            result[f"{map_name}, {rule.replace('_', ' ')}"] = symmetrized(gold, *picked)
    for count in COMBINED:
        made = [direction.chosen(combine=count)[0] for direction in (one, other)]
        result[f"auto, combine {count}"] = symmetrized(gold, *made)
    return result


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--run", action="append", required=True, metavar="NAME=FOLDER", help="source to target")
    add("--reverse", metavar="NAME=FOLDER", help="a run of the other direction")
    add("--corpus", type=Path, help="the packed corpus: for BLEU, and for eflomal")
    add("--gold", type=Path, nargs=3, required=True, metavar=("SOURCE", "TARGET", "LINKS"))
    add("--work", type=Path, required=True, help="where the runs become transformers folders")
    add("--output", type=Path, required=True)
    add("--device", default="cpu")
    add("--gradients", action="store_true", help="SmoothGrad and saliency too, which takes long")
    add("--eflomal", action="store_true", help="eflomal, trained on the corpus")
    add("--eflomal-pairs", type=int, help="as many pairs of it")
    options = parser.parse_args(arguments)
    source, target = ([line.split() for line in read_lines(path)] for path in options.gold[:2])
    lengths = [len(line) for line in source], [len(line) for line in target]
    gold = read_links(options.gold[2], source=lengths[0], target=lengths[1])
    turned = [links.flipped() for links in gold]
    pack = load(options.corpus) if options.corpus else None
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    forward: dict[str, tuple[Direction, dict[str, Any], Any]] = {}
    for given in [*options.run, *filter(None, [options.reverse])]:
        name, _, folder = given.partition("=")
        backwards = given == options.reverse
        sides = (target, source, turned) if backwards else (source, target, gold)
        direction = Direction(join(Path(folder), options.work, name), *sides, device=options.device)
        numbers, links = measure(name, direction, gradients=options.gradients)
        numbers["training"] = training_facts(Path(folder), pack)
        results.setdefault("models", {})[name] = numbers
        if not backwards:
            forward[name] = direction, numbers, links
        for other, (one, parts, found) in forward.items() if backwards else ():
            results.setdefault("symmetrized", {})[f"{other} with {name}"] = both_directions(
                gold, one, direction, [parts, numbers], [found, links]
            )
        write_whole(path, (json.dumps(results, indent=1) + "\n").encode())
    if options.eflomal:
        if pack is None:
            parser.error("--eflomal learns from --corpus")
        results["eflomal"] = statistical_aligner(pack, gold, source, target, options.eflomal_pairs)
        write_whole(path, (json.dumps(results, indent=1) + "\n").encode())
    print(path)


if __name__ == "__main__":
    main()
