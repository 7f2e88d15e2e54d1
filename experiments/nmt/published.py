"""What Kobayashi et al. (2020) printed and released, each number beside its recipe.

Layers count from 1. ``paper`` is the first version of the paper on arXiv, ``released`` the outputs
saved in the authors' notebooks: means over five seeds.
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, Any] = {
    "aer_by_layer": {
        "weights": [76.2, 80.1, 51.9, 92.1, 93.5, 94.4],
        "norms": [32.5, 28.3, 42.7, 87.0, 88.6, 90.5],
    },
    "smoothgrad (Li et al. 2016)": 36.4,
    "smoothgrad (Ding et al. 2019)": 36.4,
    "fast_align": 28.4,
    "GIZA++": 21.0,
}

RELEASED: dict[str, Any] = {
    "awo": {
        "weights": [92.2, 86.5, 63.2, 55.6, 48.4, 64.8],
        "norms": [87.9, 83.0, 61.7, 49.2, 41.4, 53.9],
        "best_layer": {"weights": 47.74, "norms": 41.36},
        "layer_mean": {"weights": 68.43, "norms": 62.86},
        "largest_norm_layer": 83.03,
        "largest_norm_head": 87.09,
        "spearman": 0.556,
        "pearson": 0.554,
    },
    "awi": {
        "weights": [49.3, 29.8, 56.4, 91.7, 91.2, 93.0],
        "norms": [32.5, 25.0, 51.7, 85.2, 83.5, 84.8],
        "best_layer": {"weights": 29.77, "norms": 24.98},
        "layer_mean": {"weights": 68.54, "norms": 60.45},
        "largest_norm_layer": 24.98,
        "largest_norm_head": 35.53,
        "spearman": -0.436,
        "pearson": -0.517,
    },
}
