"""Plots of results and statistics. Needs the extra `plots` (matplotlib).

    heatmap, compare       maps of one layer
    scopes                 several maps of one sentence on one scale       (2021, Figure 1)
    categories             weight and norm by layer and category           (2020, Figure 3)
    heads                  head × layer heat maps                          (2020, Figures 4, 10-12)
    alpha_and_norm         α against ‖f(x)‖, by category                   (2020, Figure 5)
    frequency              against the rank of a token's frequency         (2020, Figure 6)
    singular_values        the spectrum of f, head by head                 (2020, Figure 9)
    mixing_ratio           by layer, of a result or of a corpus            (2021, Figure 3)
    preserved_and_mixed    what a token keeps, what others mix in          (2021)
    change, amplified      along the layer, through the feed-forward       (2024)
    attribution            shares of the tokens in an answer, or in several
    trace                  the same, layer by layer
    agreement              rank correlations of methods of attribution
    faithfulness           one figure of faithfulness, method by method
    image_map              patches over the image that the model reads, frames over a recording
    alignment              two sentences with a line for every link between their words
    statistics_figures     all figures that the tables of a corpus allow
    theme                  for a `with`: "dark" figures instead of "light" ones

Each function takes a result or a table (a mapping of columns, a pandas DataFrame, or a table of the
statistics), draws into `ax` or `axes` if given, else into a new figure, and returns the Axes;
`ax.figure.savefig("x.pdf")` writes PNG, PDF or SVG. Figures are created without pyplot, so no
window opens, no backend is chosen and figures are freed like any other object.
"""

from normscope.show.plots.corpus import statistics_figures
from normscope.show.plots.lines import (
    categories,
    change,
    mixing_ratio,
    preserved_and_mixed,
    singular_values,
)
from normscope.show.plots.links import alignment
from normscope.show.plots.maps import compare, heatmap, scopes
from normscope.show.plots.methods import agreement, faithfulness
from normscope.show.plots.pictures import image_map
from normscope.show.plots.shares import attribution, trace
from normscope.show.plots.style import theme
from normscope.show.plots.tables import alpha_and_norm, amplified, frequency, heads

__all__ = [
    "agreement",
    "alignment",
    "alpha_and_norm",
    "amplified",
    "attribution",
    "categories",
    "change",
    "compare",
    "faithfulness",
    "frequency",
    "heads",
    "heatmap",
    "image_map",
    "mixing_ratio",
    "preserved_and_mixed",
    "scopes",
    "singular_values",
    "statistics_figures",
    "theme",
    "trace",
]
