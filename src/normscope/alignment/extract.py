"""Soft alignments between words, from decomposed cross-attention under teacher forcing.

The decoder reads its start token and the target. Row t of a layer's matrix is the step that writes
token t (``awo``) or the step that reads it (``awi``, one later). Pieces are merged into words:
values are summed over the pieces of a source word, then averaged over the pieces of a target word.
The tokens that the tokenizer adds to the source (``</s>``, a language code) form one extra column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.alignment.batches import PairBatch, SentencePair, batches, budget_of
from normscope.alignment.joint import ALTI_ENCODER, ALTI_PLUS, JOINT, JointRollout
from normscope.decomposition.available import available
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ALTI, NAMES, NORMS, PER_HEAD, need_whole_layers
from normscope.engine.batch import Batch
from normscope.engine.measure import Needs, Observed, Part, StopPass
from normscope.engine.run import run
from normscope.errors import InputError
from normscope.foundation.progress import stage

Head = int | None  # None: all heads together


@dataclass(frozen=True)
class Choice:
    """The layer, head and reading of one soft alignment."""

    layer: int
    head: Head
    reading: str

    def __str__(self) -> str:
        head = "sum" if self.head is None else self.head
        return f"layer {self.layer}, head {head}, {self.reading}"


Consume = Callable[[PairBatch, int, tuple[Head, ...], Tensor], None]


class Extractor:
    """Computes word matrices of one map of a model, by batch and layer."""

    def __init__(
        self,
        model: Any,
        map: str = NORMS,
        *,
        padding: int = 0,
        budget: int | None = None,
    ) -> None:
        check_map(model, map)
        self.model, self.map, self.padding = model, map, padding
        self.budget = budget_of(model, budget)
        self.error = 0.0

    def run(
        self,
        pairs: Sequence[SentencePair],
        wanted: Mapping[int, Sequence[Head]],
        readings: Sequence[str],
        consume: Consume,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Call ``consume(batch, layer, heads, values)``, values as (reading, batch, head, …).

        Args:
            pairs: all sentence pairs.
            wanted: the heads of each layer; None is the sum of all heads.
            readings: ``awi``, ``awo`` or both.
            consume: called for every batch and layer. It must not keep the tensor.
            rows: indices of the pairs to use; all by default.
        """
        measure = SoftAlignments(self.map, wanted, readings, consume)
        all_batches = batches(
            self.model, pairs, readings, padding=self.padding, budget=self.budget, rows=rows
        )
        runs = (TranslationBatch(self.model, batch) for batch in all_batches)
        total, done = len(pairs) if rows is None else len(rows), 0
        for judged in run(self.model, runs, [measure], attention="eager"):
            self.error = max([self.error, *judged.gaps[0].values()])
            done += len(judged.batch.pairs.rows)  # type: ignore[attr-defined]
            stage(f"aligning: {done:,} of {total:,} pairs done")


class TranslationBatch(Batch):
    """Sentence pairs for both stacks of a model, run without its output layer."""

    def __init__(self, model: Any, pairs: PairBatch) -> None:
        super().__init__(model, pairs.inputs)
        self.pairs = pairs

    def call(self, model: Any, inputs: Mapping[str, Any]) -> None:
        """Run both stacks."""
        forward(model, inputs)


class SoftAlignments:
    """The measure of the extractor: cross-attention maps of some layers and heads, by words."""

    def __init__(
        self,
        map: str,
        wanted: Mapping[int, Sequence[Head]],
        readings: Sequence[str],
        consume: Consume,
    ) -> None:
        self.map, self.wanted, self.readings, self.consume = map, wanted, readings, consume
        joint = map in JOINT
        self.joint = JointRollout() if joint else None
        self.needs = Needs(
            whole_layers=joint or need_whole_layers([map]),
            weights=True,
            replay=() if joint else (map,),
        )

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        """Pass a layer's word matrices to ``consume``; end the pass after the last one wanted."""
        layer = view.captured.layer
        if self.joint is not None:
            self.joint.add(view)
        if view.kind == "cross" and layer in self.wanted:
            self._consume(view, layer, tuple(self.wanted[layer]))
        if view.kind == "cross" and layer == max(self.wanted):
            raise StopPass  # the layers above are not needed
        return {}

    def _consume(self, view: LayerView, layer: int, heads: tuple[Head, ...]) -> None:
        batch: PairBatch = view.batch.pairs
        # A map with the residual has an extra last key, which is left out here.
        count = view.positions.keys.shape[1]
        single = [head for head in heads if head is not None]
        channels: list[Tensor] = []
        if None in heads:
            summed = self._map(view) if self.joint is None else self.joint.values(self.map)
            channels.append(summed[..., :count].unsqueeze(1))
        if single:
            values = view.head_maps([self.map])[self.map].values
            assert values is not None
            channels.append(values[..., :count][:, single])
        ordered: tuple[Head, ...] = (*([None] if None in heads else []), *single)
        stacked = torch.cat([values.double() for values in channels], dim=1)
        words = torch.stack([batch.words(stacked, reading) for reading in self.readings])
        self.consume(batch, layer, ordered, words)

    def _map(self, view: LayerView) -> Tensor:
        values = view.maps([self.map])[self.map].values
        assert values is not None
        return values

    def finish(self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]) -> None:
        """Return nothing: ``consume`` has received everything layer by layer."""


def forward(model: Any, inputs: Mapping[str, Tensor]) -> None:
    """Run both stacks without the output layer, whose logits would be the largest array."""
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
    """Return the number of cross-attention layers of a model, and of heads in each."""
    config: Any = model.config
    layers = _first_int(config, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
    heads = _first_int(config, "decoder_attention_heads", "num_heads", "num_attention_heads")
    if not getattr(config, "is_encoder_decoder", False) or not layers or not heads:
        raise InputError(
            f"{type(model).__name__} is not an encoder-decoder model: word alignment uses the "
            "cross-attention of a translation model"
        )
    return layers, heads


def _first_int(config: Any, *names: str) -> int:
    """Return the first of these fields that is an int, or 0."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def check_map(model: nn.Module, map: str) -> None:
    """Raise InputError for a map that the cross-attention of a model does not have."""
    cross_shape(model)
    map = ALTI if map in JOINT else map
    if map not in NAMES:
        raise InputError(
            f"unknown map {map!r}; the maps are: {', '.join(NAMES)}; {ALTI_PLUS}, which follows "
            f"the shares through all layers; and {ALTI_ENCODER}, one layer's after the encoder"
        )
    if map in PER_HEAD:
        return
    crosses = [names for (_, kind), names in available(model).items() if kind == "cross"]
    names = crosses[0] if crosses else PER_HEAD
    if map not in names:
        raise InputError(
            f"the cross-attention of {type(model).__name__} has no map {map!r}; it has: "
            f"{', '.join(names)}"
        )
