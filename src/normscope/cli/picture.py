"""`normscope analyze --output x.png`: maps of one layer side by side."""

from __future__ import annotations

from pathlib import Path

from normscope.results.contributions import Contributions
from normscope.results.files import whole_file
from normscope.show.terminal import difference, row_shares

SUFFIXES = (".png", ".svg", ".pdf")
IN_A_ROW = 3  # more maps than that go into several rows


def is_picture(output: str | None) -> bool:
    """Whether the name is that of a picture."""
    return output is not None and Path(output).suffix.lower() in SUFFIXES


def draw(result: Contributions, output: str) -> int:
    """Draw the result's maps in the layer that tells most; of a translator, its cross-attention.

    Returns the layer: where weights and norms differ most, or the last where one of the two is
    missing.
    """
    from normscope.show.plots import compare, scopes

    parts = result.parts
    part = parts.get("cross", next(reversed(parts.values()))) if parts else result
    layers = part[next(iter(part))].labels["layer"]
    at = -1
    if "attn_w" in part and "attn_n" in part:
        apart = difference(row_shares(part["attn_w"]), row_shares(part["attn_n"]))
        at = int(apart.argmax())
    side_by_side = compare if len(part) <= IN_A_ROW else scopes
    figure = side_by_side(part, layers[at], list(part))[0].figure
    with whole_file(output) as file:
        figure.savefig(file, format=Path(output).suffix.lower().removeprefix("."), dpi=150)
    return int(layers[at])
