"""Soft alignments between words: teacher forcing by batches, cross-attention taken apart.

The decoder reads its start token and the target. Row t of a layer's matrix is the step that writes
token t (``awo``) or the step that reads it (``awi``, one later). Pieces become words: values are
summed over the pieces of a source word, then averaged over the pieces of a target word. What the
tokenizer puts around the source (``</s>``, a language code) counts together as one more column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.alignment.batches import PairBatch, SentencePair, batches, budget_of, parameter_of
from normscope.capture import Capture, capture
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.decomposition.attention import MAPS, AttentionDecomposition, Positions
from normscope.decomposition.layer import LayerDecomposition
from normscope.decomposition.maps import (
    NAMES,
    Map,
    attention_maps,
    available,
    bound_of,
    each_head,
    layer_maps,
)
from normscope.engine.runner import evaluating
from normscope.errors import ExactnessError, InputError
from normscope.kernels import Scratch

Head = int | None  # None: all heads together


@dataclass(frozen=True)
class Choice:
    """One soft alignment that a model offers."""

    layer: int
    head: Head
    reading: str

    def __str__(self) -> str:
        head = "sum" if self.head is None else self.head
        return f"layer {self.layer}, head {head}, {self.reading}"


Consume = Callable[[PairBatch, int, tuple[Head, ...], Tensor], None]


class Extractor:
    """One model, one map: every batch's word matrices, a layer at a time."""

    def __init__(
        self,
        model: Any,
        map: str = "attn_n",
        *,
        padding: int = 0,
        budget: int | None = None,
    ) -> None:
        check_map(model, map)
        self.model, self.map, self.padding = model, map, padding
        self.budget = budget_of(model, budget)
        self.whole_layers = map not in MAPS
        self.error = 0.0
        self.scratch = Scratch()
        self._batch: PairBatch | None = None

    def run(
        self,
        pairs: Sequence[SentencePair],
        wanted: Mapping[int, Sequence[Head]],
        readings: Sequence[str],
        consume: Consume,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Give (batch, layer, heads, values) to ``consume``, values as (reading, batch, head, …).

        Args:
            pairs: all there are.
            wanted: layers, with the heads of each; None is all heads together.
            readings: ``awi``, ``awo`` or both.
            consume: called for every batch and layer. It must not keep the tensor.
            rows: which pairs; without it, all.
        """
        last = max(wanted)

        def take(layer: int, made: Callable[[Positions], list[Map]]) -> None:
            if layer in wanted:
                self._consume(layer, tuple(wanted[layer]), readings, made, consume)
            if layer == last:
                raise _Enough  # the layers above are not needed

        with evaluating(self.model), torch.no_grad(), self._capture(wanted, take):
            for batch in batches(
                self.model, pairs, readings, padding=self.padding, budget=self.budget, rows=rows
            ):
                self._batch = batch
                try:
                    forward(self.model, batch.inputs)
                except _Enough:
                    continue

    def _capture(
        self, wanted: Mapping[int, Sequence[Head]], take: Callable[..., None]
    ) -> AbstractContextManager[Any]:
        def attention(captured: Capture) -> None:
            if captured.kind == "cross":
                take(captured.layer, lambda places: self._maps(captured, wanted, places))

        def layer(whole: LayerCapture) -> None:
            if whole.cross is not None:
                take(whole.cross.layer, lambda places: self._whole(whole, places))

        if self.whole_layers:
            return capture_layers(self.model, layer)
        return capture(self.model, attention)

    def _maps(
        self, captured: Capture, wanted: Mapping[int, Sequence[Head]], places: Positions
    ) -> list[Map]:
        """The map of all heads together, then that of each head, as far as they are wanted."""
        heads = wanted[captured.layer]
        taken = AttentionDecomposition(captured, self.scratch)
        made = []
        if None in heads:
            made.append(attention_maps(taken, [self.map], places)[self.map])
        if any(head is not None for head in heads):
            made.append(each_head(taken, [self.map], places)[self.map])
        return made

    def _whole(self, whole: LayerCapture, places: Positions) -> list[Map]:
        taken = LayerDecomposition(whole, "cross", scratch=self.scratch)
        return [layer_maps(taken, [self.map], places)[self.map]]

    def _consume(
        self,
        layer: int,
        heads: tuple[Head, ...],
        readings: Sequence[str],
        make: Callable[[Positions], list[Map]],
        consume: Consume,
    ) -> None:
        batch = self._batch
        assert batch is not None
        # Keys are those of the encoder; a map through the residual has one more, left out below.
        made = make(batch.positions)
        count = batch.positions.keys.shape[1]
        channels: list[Tensor] = []
        for one in made:
            assert one.values is not None
            self._judge(one, batch, layer)
            values = one.values[..., :count]
            if values.dim() == 3:
                channels.append(values.unsqueeze(1))
            else:
                channels.append(values[:, [head for head in heads if head is not None]])
        ordered = (*([None] if None in heads else []), *(h for h in heads if h is not None))
        stacked = torch.cat([one.double() for one in channels], dim=1)
        consume(batch, layer, ordered, torch.stack([batch.words(stacked, one) for one in readings]))

    def _judge(self, made: Map, batch: PairBatch, layer: int) -> None:
        """Keep the error; refuse a map that does not add up to the model's own output."""
        worst = made.gap.masked_fill(~batch.queries, 0).amax()
        worst = worst if made.spot is None else torch.maximum(worst, made.spot.amax())
        error, bound = float(worst), bound_of({parameter_of(self.model).dtype})
        if not error <= bound:
            raise ExactnessError(
                f"{self.map} of the cross-attention in layer {layer}: the parts differ from the "
                f"model's own output by {error:.1e} of their size, more than {bound:.0e}; no "
                "alignment is made of it"
            )
        self.error = max(self.error, error)


class _Enough(Exception):
    """All that is wanted of this forward pass is there."""


def forward(model: Any, inputs: Mapping[str, Tensor]) -> None:
    """Both stacks, without the output layer: its logits would be the largest array of all."""
    body = model.base_model
    if body is not model:
        body(**inputs, use_cache=False)
        return
    mask = inputs["attention_mask"]
    states = model.get_encoder()(input_ids=inputs["input_ids"], attention_mask=mask)[0]
    model.get_decoder()(
        input_ids=inputs["decoder_input_ids"],
        attention_mask=inputs["decoder_attention_mask"],
        encoder_hidden_states=states,
        encoder_attention_mask=mask,
        use_cache=False,
    )


def cross_shape(model: nn.Module) -> tuple[int, int]:
    """How many layers of cross-attention a model has, and how many heads each."""
    config: Any = model.config
    layers = next(
        (
            value
            for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers")
            if isinstance(value := getattr(config, name, None), int)
        ),
        0,
    )
    heads = next(
        (
            value
            for name in ("decoder_attention_heads", "num_heads", "num_attention_heads")
            if isinstance(value := getattr(config, name, None), int)
        ),
        0,
    )
    if not getattr(config, "is_encoder_decoder", False) or not layers or not heads:
        raise InputError(
            f"{type(model).__name__} is no encoder-decoder model: words are aligned by the "
            "cross-attention of a model that translates"
        )
    return layers, heads


def check_map(model: nn.Module, map: str) -> None:
    """Refuse a map that the cross-attention of a model does not have."""
    cross_shape(model)
    if map not in NAMES:
        raise InputError(f"unknown map {map!r}; valid: {', '.join(NAMES)}")
    if map in MAPS:
        return
    has = [names for (_, kind), names in available(model).items() if kind == "cross"]
    if not layers_of(model) or not has or map not in has[0]:
        names = has[0] if has else MAPS
        raise InputError(
            f"the cross-attention of {type(model).__name__} has no map {map!r}; it has: "
            f"{', '.join(names)}"
        )
