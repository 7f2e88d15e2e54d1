"""Random scores: what any method must beat."""

from __future__ import annotations

import numpy as np
import torch

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall


class Random:
    """Numbers between 0 and 1, drawn anew for every text, and the same for the same text."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return a random number for each real position, the same for all steps."""
        value = call.plain()
        sources = []
        for number, (stack, name) in enumerate(call.places().items()):
            tensor = call.inputs[name]
            real = call.real(stack, tensor.shape[1])
            scores = np.zeros((*value.shape, tensor.shape[1]))
            for row, mask in enumerate(real):
                kept = tensor[row, torch.from_numpy(mask).to(tensor.device)]
                seeds = kept.flatten().double().cpu().numpy().view(np.uint32)
                draw = np.random.default_rng([call.chosen["seed"], number, *seeds.tolist()])
                scores[row][:, mask] = draw.random(int(mask.sum()))
            sources.append(SourceShares(stack, "word", scores))
        return call.sizes(value, sources)
