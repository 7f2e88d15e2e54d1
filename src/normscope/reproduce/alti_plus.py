"""Alignment error of a translation model by decoder layer, from ALTI+'s four kinds of maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from normscope.alignment.aer import score
from normscope.alignment.auto import choices_of, survey
from normscope.alignment.batches import READINGS
from normscope.alignment.extract import Extractor, cross_shape
from normscope.alignment.files import read_lines, read_links
from normscope.alignment.joint import ALTI_ENCODER
from normscope.alignment.joint import ALTI_PLUS as TOTAL
from normscope.alignment.links import Links
from normscope.alignment.options import AlignOptions
from normscope.alignment.translator import Translator, translator
from normscope.decomposition.scopes import ALTI, WEIGHTS
from normscope.errors import InputError
from normscope.foundation.progress import stage
from normscope.measures.statistics import Table
from normscope.reproduce.comparisons import (
    RESAMPLES,
    MeasuredTables,
    MethodExperiment,
    described,
    interval_of,
    measured_rows,
    measured_value,
)
from normscope.reproduce.exhibits import Finding, published, rows_with, table_of
from normscope.reproduce.measurements import ExhibitPlan, Measurements
from normscope.reproduce.options import ALTI_PLUS, ReproduceOptions
from normscope.results.signature import Signature
from normscope.show.plots.style import colour, ink, legend, panels, set_title, styled, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Ferrando, Gállego, Alastruey, Escolano and Costa-jussà: Towards Opening the Black Box of "
    "Neural Machine Translation: Source and Target Interpretations of the Transformer (ALTI+). "
    "EMNLP 2022. German–English"
)
PUBLISHED = published()[ALTI_PLUS]
MODES = {
    "total": TOTAL,
    "cross contributions": ALTI,
    "cross × encoder": ALTI_ENCODER,
    "attention weights": WEIGHTS,
}
WHERE = (
    "give --gold three times: German text, English text and links, as in the gold alignment of "
    "RWTH Aachen (www-i6.informatik.rwth-aachen.de/goldAlignment)"
)


def measure(options: ReproduceOptions) -> MeasuredTables:
    """Align every pair by every mode, layer and reading, and score the links."""
    if len(options.gold) != 3:
        raise InputError(f"{ALTI_PLUS} needs three files; {WHERE}")
    for file in options.gold:
        if not file.is_file():
            raise InputError(f"there is no file {str(file)!r}; {WHERE}")
    source, target = ([line.split() for line in read_lines(path)] for path in options.gold[:2])
    lengths = [len(line) for line in source], [len(line) for line in target]
    gold = read_links(options.gold[2], source=lengths[0], target=lengths[1])
    count = min(len(gold), options.sequences or len(gold))
    source, target, gold = source[:count], target[:count], gold[:count]
    given = translator(
        AlignOptions(
            options.model,
            dtype=options.dtype or "float32",
            device=options.device,
            revision=options.revision,
        )
    )
    rows = measured_rows(
        options, "layers", _header(given, options, count), len(MODES),
        lambda chunk, seen: _modes(chunk, seen, given, (source, target), gold),
    )  # fmt: skip
    table = table_of([row for record in rows for row in record["rows"]])
    signature = Signature(given.model, given.source_tokenizer, {"experiment": ALTI_PLUS}).text()
    return MeasuredTables(
        {"layers": table}, _facts(given, options, count), _warnings(given), signature
    )


def _header(given: Translator, options: ReproduceOptions, count: int) -> dict[str, Any]:
    return {
        "signature": Signature(given.model, given.source_tokenizer, {}).text(),
        "gold": described(options.gold),
        "pairs": count,
        "seed": options.seed,
    }


def _modes(
    chunk: list[int],
    seen: Any,
    given: Translator,
    texts: tuple[list[list[str]], list[list[str]]],
    gold: list[Links],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the scores of every layer and reading, mode by mode."""
    pairs = given.pairs(*texts)
    ready = [pair for pair in pairs if pair is not None]
    if len(ready) < len(pairs):
        raise InputError("a sentence is empty or longer than the model allows")
    choices = choices_of(range(cross_shape(given.model)[0]), [None])
    for at in chunk:
        mode = list(MODES)[at]
        stage(f"aligning by {mode}")
        extractor = Extractor(given.model, MODES[mode], padding=given.padding)
        surveyed = survey(extractor, ready, choices, sample=len(ready))
        rows = []
        for number, choice in enumerate(choices):
            links = [
                Links.of((int(s), t) for t, s in enumerate(row[number]) if s >= 0)
                for row in surveyed.links
            ]
            found = score(gold, links, resamples=RESAMPLES)
            low, high = (100 * end for end in found.intervals["aer"])
            where = {"mode": mode, "reading": choice.reading.upper(), "layer": choice.layer + 1}
            numbers = {"mean": 100 * found.aer, "low": low, "high": high}
            rows.append({**where, **numbers, "pairs": len(gold)})
        seen(1)
        yield at, {"rows": rows, "error": extractor.error}


def _facts(given: Translator, options: ReproduceOptions, count: int) -> dict[str, str]:
    config = given.model.config
    return {
        "model": f"{config._name_or_path or type(given.model).__name__}, "
        f"{config.encoder_layers if hasattr(config, 'encoder_layers') else '?'} encoder and "
        f"{cross_shape(given.model)[0]} decoder layers, hidden size {config.hidden_size}",
        "data": described(options.gold),
        "pairs": f"{count:,}",
    }


def _warnings(given: Translator) -> tuple[str, ...]:
    return (
        "This is not the paper's model. The paper trains a fairseq Transformer of six encoder and "
        "six decoder layers, one seed; this report uses a model of "
        f"{cross_shape(given.model)[0]} decoder layers. Its numbers show whether the order of the "
        "maps and of the layers holds for another model, and do not replace the paper's numbers.",
    )


# ---- tables and figures


def _readings() -> tuple[str, ...]:
    return tuple(reading.upper() for reading in READINGS)


def _table(measurements: Measurements) -> Table:
    table, rows = measurements["layers"], []
    layers = max(table.lists()["layer"])
    for reading in _readings():
        for layer in range(1, max(layers, len(PUBLISHED["total"]["AWI"])) + 1):
            row: dict[str, Any] = {"reading": reading, "layer": layer}
            for mode in MODES:
                known = PUBLISHED[mode][reading]
                entry = measured_value(table, mode=mode, reading=reading, layer=layer)
                row[f"{mode} published"] = known[layer - 1] if layer <= len(known) else None
                row[f"{mode} measured"] = None if entry is None else round(entry["mean"], 1)
                row[f"{mode} interval"] = None if entry is None else interval_of(entry, 1)
            rows.append(row)
    return table_of(rows)


@styled
def _draw(measurements: Measurements) -> Figure:
    from normscope.show.plots.style import headline

    table = measurements["layers"]
    axes = panels(None, 2, (3.3, 3.2), sharey=True)
    for ax, reading in zip(axes, _readings(), strict=True):
        for number, mode in enumerate(MODES):
            rows = rows_with(table, mode=mode, reading=reading)
            look = {"color": colour(number)}
            layers, means = [row["layer"] for row in rows], [row["mean"] for row in rows]
            ax.plot(layers, means, "o-", label=mode, **look)
            ends = ([row[name] for row in rows] for name in ("low", "high"))
            ax.fill_between(layers, *ends, alpha=0.15, linewidth=0, **look)
            known = PUBLISHED[mode][reading]
            ax.plot(range(1, len(known) + 1), known, ":", linewidth=1, **look)
        tidy(ax)
        set_title(ax, f"{reading}: the step that {'reads' if reading == 'AWI' else 'writes'} it")
        ax.set_xlabel("decoder layer")
    axes[0].set_ylabel("alignment error rate, %", color=ink("ink"))
    legend(axes[-1])
    figure: Figure = axes[0].figure
    headline(figure, "Alignment error by decoder layer (dotted: published)")
    return figure


EXHIBITS = (
    ExhibitPlan(
        "AER",
        "Alignment error by decoder layer",
        "AER in percent on the sure and possible gold links. Total: shares of the source after "
        "rolling out all layers of both stacks, up to this layer; cross contributions: this "
        "layer’s ALTI map of the cross-attention, without the column of the residual; cross × "
        "encoder: the same times the rollout of the encoder; attention weights: the mean over "
        "heads. Each target word is linked to the source word with the largest value, values "
        "summed over the pieces of a source word and averaged over those of a target word, and has "
        "no link if </s> is the largest. AWO: the decoder step that writes the word; AWI: the one "
        "that reads it. No rule for the last punctuation mark. Intervals are 95%, by bootstrap "
        "over pairs",
        _table,
        _draw,
        "layers",
    ),
)


# ---- findings


def _best(
    table: Table | dict[str, dict[str, list[float]]], mode: str, reading: str
) -> tuple[float, int]:
    """Return the smallest error of a mode and reading, and its layer."""
    if isinstance(table, dict):
        values = table[mode][reading]
        return min((value, at + 1) for at, value in enumerate(values))
    rows = rows_with(table, mode=mode, reading=reading)
    return min((row["mean"], row["layer"]) for row in rows)


def findings(measurements: Measurements) -> list[Finding]:
    """Return the paper's findings."""
    table, found = measurements["layers"], []
    cross, weights = "cross contributions", "attention weights"
    for reading in _readings():
        known, own = _best(PUBLISHED, cross, reading), _best(table, cross, reading)
        other, rival = _best(PUBLISHED, weights, reading), _best(table, weights, reading)
        found.append(
            Finding(
                f"{reading}: the best layer of the cross contributions aligns better than the best "
                "layer of the weights",
                f"{known[0]:.1f} < {other[0]:.1f}",
                f"{own[0]:.1f} (layer {own[1]}) against {rival[0]:.1f} (layer {rival[1]})",
                own[0] < rival[0],
            )
        )
    first, second = _best(table, cross, "AWI"), _best(table, cross, "AWO")
    known_first, known_second = (_best(PUBLISHED, cross, reading) for reading in ("AWI", "AWO"))
    found.append(
        Finding(
            "the cross contributions align best by AWI, in a lower layer than by AWO",
            f"{known_first[0]:.1f} in layer {known_first[1]}, {known_second[0]:.1f} in layer "
            f"{known_second[1]}",
            f"{first[0]:.1f} in layer {first[1]}, {second[0]:.1f} in layer {second[1]}",
            first[0] < second[0] and first[1] < second[1],
        )
    )
    total, known_total = _best(table, "total", "AWI"), _best(PUBLISHED, "total", "AWI")
    found.append(
        Finding(
            "the total contributions, which mix in what the encoder and earlier layers mixed, "
            "align worse than the cross contributions of one layer (AWI)",
            f"{known_total[0]:.1f} > {known_first[0]:.1f}",
            f"{total[0]:.1f} against {first[0]:.1f}",
            total[0] > first[0],
        )
    )
    return found


EXPERIMENT = MethodExperiment(ALTI_PLUS, PAPER, measure, EXHIBITS, findings, used=("gold",))
