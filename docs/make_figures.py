"""Draw the figures of docs/plots.md and docs/attribution.md with the default models.

python docs/make_figures.py
"""

from __future__ import annotations

from pathlib import Path

import normscope
from normscope import plots

IMAGES = Path(__file__).parent / "images"
MAPS = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"]


def main() -> None:
    """Write the figures to docs/images."""
    text = "Anna baked a cake, and Tom ate most of it."
    result = normscope.analyze(None, text=text, maps=MAPS)
    figure = plots.scopes(result, layer=2)[0].figure
    figure.savefig(IMAGES / "scopes.png", dpi=110, metadata={"Software": None})
    traced = normscope.attribute(
        None, text="The keys to the cabinet", answer=" are", foil=" is", trace=True
    )
    for name, draw in {"attribution": plots.attribution, "attribution-trace": plots.trace}.items():
        figure = draw(traced).figure
        figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
