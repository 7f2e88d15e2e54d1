"""Draw the figures of the documentation that are not part of a report, with the default models.

python docs/make_figures.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import normscope
from normscope import models, plots
from normscope.show.plots.style import as_array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
RESULTS = DOCS.parent / "benchmarks" / "results"
TEXT = "Anna baked a cake, and Tom ate most of it."
SECOND = "She was not angry, because he had washed every dish."
MAPS = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"]

sys.path.insert(0, str(DOCS.parent))  # for benchmarks


def save(axes: Any, name: str) -> None:
    """Write the figure of some Axes to docs/images."""
    as_array(axes)[0].figure.savefig(IMAGES / f"{name}.png", metadata={"Software": None})
    print(f"docs/images/{name}.png")


def draw_maps() -> None:
    """Draw the maps of one sentence: docs/plots.md, and the first page."""
    result = normscope.analyze(None, text=TEXT, maps=MAPS)
    pair = normscope.analyze(None, text=TEXT, text_pair=SECOND)
    save(plots.compare(pair, layer=2), "weight-and-norm")
    save(plots.compare(result, layer=2), "plots/compare")
    save(plots.heatmap(result["attn_n"], layer=2), "plots/heatmap")
    save(plots.scopes(result, layer=2), "scopes")
    save(plots.mixing_ratio(result), "plots/mixing_ratio")
    with plots.theme("dark"):
        save(plots.compare(result, layer=2), "plots/compare-dark")


def draw_attribution() -> None:
    """Draw an attribution and its trace: docs/attribution.md."""
    traced = normscope.attribute(
        None, text="The keys to the cabinet", answer=" are", foil=" is", trace=True
    )
    save(plots.attribution(traced), "attribution")
    save(plots.trace(traced), "attribution-trace")


def draw_alignment() -> None:
    """Draw the links between two sentences: docs/plots.md."""
    german = "wenn es regnet , bleiben die Kinder zu Hause ."
    english = "the children stay at home when it rains ."
    save(plots.alignment(normscope.align(german, english)[0]), "plots/alignment")


def draw_spectra() -> None:
    """Draw singular values of the default encoder: docs/plots.md."""
    model, _ = models.load(None)
    heads = range(model.config.num_attention_heads)
    values = [
        [normscope.properties.singular_values(model, layer, head) for head in heads]
        for layer in (0, 2, 5)
    ]
    axes = plots.singular_values(
        {
            f"layer {layer}": np.array(spectra)
            for layer, spectra in zip((0, 2, 5), values, strict=True)
        }
    )
    save(axes, "plots/singular_values")


def draw_speed() -> None:
    """Draw the stored measurements of time: docs/performance.md."""
    from benchmarks import plot

    files = [RESULTS / "h200-llama-8b-layer.json", RESULTS / "cpu-bert-base.json"]
    figure: Figure = plot.draw(files)
    save(figure.axes, "speed")


DRAWN: tuple[Callable[[], None], ...] = (
    *(draw_maps, draw_attribution, draw_alignment, draw_spectra, draw_speed),
)


def main() -> None:
    """Write the figures to docs/images."""
    (IMAGES / "plots").mkdir(exist_ok=True)
    for draw in DRAWN:
        draw()


if __name__ == "__main__":
    main()
