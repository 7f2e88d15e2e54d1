"""The aligner as loops over single vectors, one pair at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.capture import capture
from normscope.capture.layers import LayerCapture, capture_layers
from tests.helpers import reference

Array = NDArray[np.float64]


def piece_maps(model: Any, inputs: dict[str, Any]) -> list[dict[tuple[str, int | None], Array]]:
    """For each layer, the (query, key) maps by name and head (None: all) of one unpadded pair."""
    layers = []
    with torch.no_grad(), capture(model) as captures:
        model(**inputs)
    for captured in captures:
        if captured.kind != "cross":
            continue
        alpha = captured.alpha[0].double().numpy()
        value = captured.value[0].double().numpy()
        f = reference.vectors_from_values(value, captured.projection.weight.double().numpy())
        norms = reference.norms(alpha, f)
        maps: dict[tuple[str, int | None], Array] = {}
        for name in ("attn_w", "attn_n"):
            maps[name, None] = norms[f"{name} sum"]
            maps.update({(name, head): norm for head, norm in enumerate(norms[f"{name} each"])})
        layers.append(maps)
    return layers


def normed_maps(model: Any, inputs: dict[str, Any]) -> list[Array]:
    """‖p_ij‖ of a post-norm cross-attention block, for the source alone: (query, key)."""
    maps = []

    def take(layer: LayerCapture) -> None:
        captured = layer.cross
        if captured is None:
            return
        path = layer.layout.cross.after  # type: ignore[union-attr]
        assert path is not None
        norm: Any = layer.module.get_submodule(path)
        whole = layer.given(path)[0].double().numpy()
        alpha = captured.alpha[0].double().numpy()
        value = captured.value[0].double().numpy()
        f = reference.vectors_from_values(value, captured.projection.weight.double().numpy())
        s = reference.attention_vectors(alpha, f)
        p = reference.layer_norm(s, whole, norm.weight.detach().double().numpy(), norm.eps)
        maps.append(reference.lengths(p))

    with torch.no_grad(), capture_layers(model, take):
        model(**inputs)
    return maps


def words(
    pieces: Array,
    source: Sequence[int],
    target: Sequence[int],
    sizes: tuple[int, int],
    reading: str,
) -> Array:
    """(target word, source word), the frame last: sum over source, then mean over target pieces."""
    summed = np.zeros((len(pieces), sizes[0] + 1))
    for step in range(len(pieces)):
        for key, word in enumerate(source):
            summed[step, word if word >= 0 else sizes[0]] += pieces[step, key]
    matrix = np.zeros((sizes[1], sizes[0] + 1))
    for word in range(sizes[1]):
        steps = [at + (reading == "awi") for at, own in enumerate(target) if own == word]
        for step in steps:
            matrix[word] += summed[step] / len(steps)
    return matrix


def links(matrix: Array) -> set[tuple[int, int]]:
    """The largest of each row; the frame is no link."""
    pairs = set()
    for word, row in enumerate(matrix):
        best = int(np.argmax(row))
        if best < len(row) - 1:
            pairs.add((best, word))
    return pairs
