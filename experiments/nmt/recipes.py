"""How a model is trained, as data. Each published number belongs to one of the first two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """A model's size and how it is trained."""

    hidden: int = 512
    heads: int = 4
    feedforward: int = 1024
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    tied: bool = False
    rate: float = 1e-3
    warmup: int = 4000  # updates; then the rate falls with the inverse square root
    cooldown: float = 0.25  # over this last share of the run it also falls to zero, in a line
    weight_decay: float = 0.0
    smoothing: float = 0.1
    clip: float = 1.0  # largest norm of the gradient; 0: none
    tokens: int = 16_384  # padded tokens of a batch, on the longer side
    average: float = 0.999  # of the moving average of the weights, an update


RECIPES = {
    # The released code: Europarl v7, lower-cased, 10k BPE a language, up to 100 epochs. Its
    # warm-up begins at 1e-7, which is zero here.
    "released": Recipe(),
    # Table 5 of the paper: WMT16, 40 epochs, warm-up from the full rate as it is printed there.
    "paper": Recipe(
        heads=8, feedforward=2048, rate=5e-4, weight_decay=1e-4, clip=0.0, tokens=2**15
    ),
    # The one that comes with the package: 28 MB in float16.
    "small": Recipe(
        hidden=256, feedforward=1024, decoder_layers=4, tied=True, rate=1.5e-3, tokens=24_576
    ),
    # For trying things out.
    "tiny": Recipe(
        hidden=64,
        feedforward=128,
        encoder_layers=2,
        decoder_layers=2,
        tied=True,
        rate=3e-3,
        warmup=200,
        tokens=2048,
        average=0.99,
    ),
}
