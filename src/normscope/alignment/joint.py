"""The decoder's shares of the source, followed through all layers in one pass (ALTI+).

Shares of the layers' own inputs are rolled out on the way: through the encoder, and through the
decoder's self-attention and cross-attention together (Ferrando et al., 2022). What one layer's
cross-attention alone takes from the source, through the encoder, is a map of its own.
"""

from __future__ import annotations

from torch import Tensor

from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ALTI
from normscope.foundation.shapes import Float

ALTI_PLUS = "alti_plus"
ALTI_ENCODER = "alti_encoder"  # one layer's cross-attention, times the rollout of the encoder
JOINT = (ALTI_PLUS, ALTI_ENCODER)


class JointRollout:
    """The rollout of the layers of a batch that have run so far."""

    encoder: Float[Tensor, "batch source source"]
    own: Float[Tensor, "batch target target"]  # of the self-attention of the current layer
    gained: Float[Tensor, "batch target source"]  # by the cross-attention of the current layer
    from_source: Float[Tensor, "batch target source"]

    def add(self, view: LayerView) -> None:
        """Add one attention call; a first layer begins anew."""
        local = view.maps([ALTI])[ALTI].values
        assert local is not None
        local, first = local.double(), view.captured.layer == 0
        assert view.layer is not None
        if view.kind == "cross":
            source, residual = local[..., :-1], local[..., -1:]
            self.gained = source @ self.encoder
            below = 0 if first else residual * self.own @ self.from_source
            self.from_source = self.gained + below
        elif view.layer.cross is None:
            self.encoder = local if first else local @ self.encoder
        else:
            self.own = local

    def values(self, map: str) -> Float[Tensor, "batch target source"]:
        """Return the shares of the source up to the current layer, or by it alone."""
        return self.from_source if map == ALTI_PLUS else self.gained
