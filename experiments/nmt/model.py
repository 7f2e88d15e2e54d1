"""The Transformer that is trained: Marian's computation, written to be fast on batches of one
source length. Its weights are Marian's under other names (export.py); a test compares the logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.nmt.subwords import PAD


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    source_vocabulary: int
    target_vocabulary: int
    hidden: int = 512
    heads: int = 4
    feedforward: int = 1024
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    tied: bool = False  # the output projection is the target embedding
    positions: int = 512


@dataclass
class Record:
    """What the cross-attention of the decoder layers did, layer by layer."""

    alpha: list[Tensor] = field(default_factory=list)  # batch head query key
    transformed: list[Tensor] = field(default_factory=list)  # f(x): batch head key hidden


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Marian's table of positions: sines in the first half, cosines in the second."""
    rates = torch.pow(10000.0, -torch.arange(0, hidden, 2, dtype=torch.float64) / hidden)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Linear(nn.Linear):
    """A linear map whose float32 weights are used in the precision of what comes in."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Norm(nn.LayerNorm):
    """Layer normalisation of ``x + update``, in float32 whatever comes in."""

    def forward(self, x: Tensor, update: Tensor) -> Tensor:  # type: ignore[override]
        total = x.float() + update.float()
        shape = self.normalized_shape
        return functional.layer_norm(total, shape, self.weight, self.bias, self.eps).to(x.dtype)


def _heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(batch, position, parts · hidden) → ``parts`` times (batch, head, position, size)."""
    batch, length, width = x.shape
    split = x.view(batch, length, parts, heads, width // parts // heads)
    return split.permute(2, 0, 3, 1, 4).unbind(0)


def _merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Feedforward(nn.Module):
    """ReLU(x W₁) W₂, dropout, residual, normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.inner = Linear(shape.hidden, shape.feedforward)
        self.outer = Linear(shape.feedforward, shape.hidden)
        self.norm = Norm(shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.outer(functional.relu(self.inner(x)))
        return self.norm(x, functional.dropout(y, self.dropout, self.training))


class SelfAttention(nn.Module):
    """Attention, dropout, residual, normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout, self.heads = shape.dropout, shape.heads
        self.project = Linear(shape.hidden, 3 * shape.hidden)  # queries, keys, values
        self.output = Linear(shape.hidden, shape.hidden)
        self.norm = Norm(shape.hidden)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        query, key, value = _heads(self.project(x), 3, self.heads)
        y = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal
        )
        return self.norm(
            x, functional.dropout(self.output(_merged(y)), self.dropout, self.training)
        )


class CrossAttention(nn.Module):
    """Attention to the encoder's output, dropout, residual, normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout, self.heads = shape.dropout, shape.heads
        self.project_query = Linear(shape.hidden, shape.hidden)
        self.project = Linear(shape.hidden, 2 * shape.hidden)  # keys, values
        self.output = Linear(shape.hidden, shape.hidden)
        self.norm = Norm(shape.hidden)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, record: Record | None
    ) -> Tensor:
        (query,) = _heads(self.project_query(x), 1, self.heads)
        key, value = _heads(self.project(memory), 2, self.heads)
        if record is None:
            y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            alpha = scores.softmax(-1)
            weight = self.output.weight.view(x.shape[-1], self.heads, -1)
            record.alpha.append(alpha)
            record.transformed.append(torch.einsum("bhks,dhs->bhkd", value, weight))
            y = alpha @ value
        return self.norm(
            x, functional.dropout(self.output(_merged(y)), self.dropout, self.training)
        )


class EncoderLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.feedforward = Feedforward(shape)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.feedforward(self.attention(x, mask, False))


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.cross = CrossAttention(shape)
        self.feedforward = Feedforward(shape)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None = None, record: Record | None = None
    ) -> Tensor:
        x = self.attention(x, None, True)
        return self.feedforward(self.cross(x, memory, mask, record))


class Translator(nn.Module):
    """Encoder, decoder and output projection.

    The layers may be compiled one by one (``layer.compile()``); outside training they run as
    written, so that an evaluation compiles nothing anew.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.precision = torch.float32  # of what flows between the layers
        self.source_embedding = nn.Embedding(shape.source_vocabulary, shape.hidden)
        self.target_embedding = nn.Embedding(shape.target_vocabulary, shape.hidden)
        self.encoder = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.output = nn.Linear(shape.hidden, shape.target_vocabulary, bias=False)
        if shape.tied:
            self.output.weight = self.target_embedding.weight
        self.positions: Tensor
        self.register_buffer(
            "positions", sinusoids(shape.positions, shape.hidden), persistent=False
        )
        self._initialize()

    def _initialize(self) -> None:
        hidden = self.shape.hidden
        for module in self.modules():
            if isinstance(module, Linear):
                bound = math.sqrt(6 / (module.in_features + module.out_features))  # Xavier
                nn.init.uniform_(module.weight, -bound, bound)
                nn.init.zeros_(module.bias)
        for layer in (*self.encoder, *self.decoder):
            projections = [layer.attention.project]
            if isinstance(layer, DecoderLayer):
                projections += [layer.cross.project, layer.cross.project_query]
            for projection in projections:  # each of the stacked squares, smaller by √2
                bound = math.sqrt(6 / (2 * hidden)) / math.sqrt(2)
                nn.init.uniform_(projection.weight, -bound, bound)
        for weight in (
            self.source_embedding.weight,
            self.target_embedding.weight,
            self.output.weight,
        ):
            nn.init.normal_(weight, std=hidden**-0.5)
        for embedding in (self.source_embedding, self.target_embedding):
            with torch.no_grad():
                embedding.weight[PAD].zero_()

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        x = embedding(ids) * math.sqrt(self.shape.hidden) + self.positions[: ids.shape[1]]
        return functional.dropout(x, self.shape.dropout, self.training).to(self.precision)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Source ids → the encoder's output. ``mask``: batch × 1 × 1 × key, True to look at."""
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = (layer if self.training else layer.forward)(x, mask)
        return x

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        record: Record | None = None,
    ) -> Tensor:
        """Target ids, ``</s>`` first → the decoder's output."""
        x = self._embed(self.target_embedding, target)
        for layer in self.decoder:
            x = (layer if self.training else layer.forward)(x, memory, mask, record)
        return x

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits."""
        x = self.decode(target, self.encode(source, mask), mask)
        return functional.linear(x, self.output.weight.to(x.dtype))


def translation_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy with label smoothing, and without; labels of -100 do not count."""
    logits = functional.linear(hidden, weight.to(hidden.dtype)).float().flatten(0, 1)
    flat = labels.flatten()
    real = flat >= 0
    total = logits.logsumexp(-1)
    found = logits.gather(1, flat.clamp(min=0)[:, None])[:, 0]
    plain = ((total - found) * real).sum()
    if smoothing == 0:
        return plain, plain
    even = ((total - logits.mean(-1)) * real).sum()
    return (1 - smoothing) * plain + smoothing * even, plain
