"""The decoder's shares of the source, followed through all layers in one pass (ALTI+).

Shares of the layers' own inputs are rolled out on the way: through the encoder, and through the
decoder's self-attention and cross-attention together (Ferrando et al., 2022).
"""

from __future__ import annotations

from torch import Tensor

from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ALTI
from normscope.foundation.shapes import Float

ALTI_PLUS = "alti_plus"


class JointRollout:
    """The rollout of the layers of a batch that have run so far."""

    encoder: Float[Tensor, "batch source source"]
    own: Float[Tensor, "batch target target"]  # of the self-attention of the current layer
    from_source: Float[Tensor, "batch target source"]

    def add(self, view: LayerView) -> None:
        """Add one attention call; a first layer begins anew."""
        local = view.maps([ALTI])[ALTI].values
        assert local is not None
        local, first = local.double(), view.captured.layer == 0
        assert view.layer is not None
        if view.kind == "cross":
            source, residual = local[..., :-1], local[..., -1:]
            gained = source @ self.encoder
            self.from_source = gained if first else residual * self.own @ self.from_source + gained
        elif view.layer.cross is None:
            self.encoder = local if first else local @ self.encoder
        else:
            self.own = local
