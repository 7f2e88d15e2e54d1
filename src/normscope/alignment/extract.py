"""Soft alignments between words: teacher forcing by batches, cross-attention taken apart.

The decoder reads its start token and the target. Row t of a layer's matrix is the step that writes
token t (``awo``) or the step that reads it (``awi``, one later). Pieces become words: values are
summed over the pieces of a source word, then averaged over the pieces of a target word. What the
tokenizer puts around the source (``</s>``, a language code) counts together as one more column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from normscope.alignment.words import FRAME, Side
from normscope.capture import Capture, capture
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.decomposition.attention import MAPS, AttentionDecomposition, Positions
from normscope.decomposition.layer import LayerDecomposition
from normscope.errors import ExactnessError, InputError
from normscope.kernels import Scratch
from normscope.maps import NAMES, Map, attention_maps, available, bound_of, each_head, layer_maps
from normscope.runner import evaluating
from normscope.shapes import Bool, Float

READINGS = ("awi", "awo")
BUDGET = 4096  # padded tokens, source and target, that go through the model at once
EVERY = 3  # one layer in so many has cells computed again the slow way
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


@dataclass(frozen=True, eq=False)
class Pair:
    """One sentence pair as the model sees it."""

    source: Side | Tensor  # the audio features of a model that listens
    target: Side
    start: int  # what the decoder reads first

    @property
    def keys(self) -> int:
        """How many positions the encoder reads."""
        return len(self.source.ids) if isinstance(self.source, Side) else self.source.shape[-1]

    @property
    def read(self) -> list[int]:
        """What the decoder reads: the step after the last word must be there for ``awi``."""
        ids, last = self.target.ids, self.target.word_of[-1] == FRAME
        return [self.start, *(ids[:-1] if last else ids)]


def pair_of(model: Any, source: Side | Tensor, target: Side) -> Pair:
    """A pair with the start token that the model's own training gives it."""
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    start = getattr(model.config, "decoder_start_token_id", None)
    if prepare is not None:
        labels = torch.tensor([target.ids], device=model.device)
        start = int(prepare(labels)[0, 0])
    start = target.ids[-1] if start is None else start
    if target.word_of[0] == FRAME and target.ids[0] == start:  # Whisper's text begins with it
        target = replace(target, ids=target.ids[1:], word_of=target.word_of[1:])
    return Pair(source, target, start)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs as tensors, and how pieces make words."""

    rows: list[int]  # which pairs these are
    inputs: dict[str, Tensor]
    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"] | None  # None: all of them are real
    to_source: Float[Tensor, "batch key source"] | None  # None: every key is a word
    to_target: dict[str, Float[Tensor, "batch target query"]]  # by reading
    sources: list[int]  # words of each
    targets: list[int]

    @cached_property
    def positions(self) -> Positions:
        """Which are real, and the cells that are computed again."""
        keys = self.keys
        if keys is None:
            count = self.inputs["input_features"].shape[-1] // 2  # Whisper's second convolution
            keys = torch.ones(len(self.rows), count, dtype=torch.bool, device=self.queries.device)
        return Positions(self.queries, keys, EVERY)

    def words(
        self, values: Float[Tensor, "batch channel query key"], reading: str
    ) -> Float[Tensor, "batch channel target source"]:
        """The same for words; the last source is the frame."""
        if self.to_source is not None:
            values = values @ self.to_source.unsqueeze(1).to(values.dtype)
        return self.to_target[reading].unsqueeze(1).to(values.dtype) @ values

    def absent(self) -> Bool[Tensor, "batch source"] | None:
        """Columns that are no word of a sentence, or one that its tokenizer dropped."""
        return None if self.to_source is None else self.to_source.sum(dim=1) == 0

    def written(self) -> Bool[Tensor, "batch target"]:
        """Rows that are words of which something was written."""
        return next(iter(self.to_target.values())).sum(dim=2) > 0


Consume = Callable[[Batch, int, tuple[Head, ...], Tensor], None]


class Extractor:
    """One model, one map: every batch's word matrices, a layer at a time."""

    def __init__(
        self,
        model: Any,
        map: str = "attn_n",
        *,
        padding: int = 0,
        budget: int = BUDGET,
    ) -> None:
        check_map(model, map)
        if budget < 1:
            raise InputError(f"the token budget is a number from 1 on, but was given {budget}")
        self.model, self.map, self.padding, self.budget = model, map, padding, budget
        self.whole_layers = map not in MAPS
        self.error = 0.0
        self.scratch = Scratch()
        self._batch: Batch | None = None

    def run(
        self,
        pairs: Sequence[Pair],
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
            for batch in self.batches(pairs, readings, rows):
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

    def _judge(self, made: Map, batch: Batch, layer: int) -> None:
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

    # ---- batches

    def batches(
        self, pairs: Sequence[Pair], readings: Sequence[str], rows: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """Pairs of like lengths together, longest first, as many as the budget of tokens holds."""
        chosen = range(len(pairs)) if rows is None else rows
        lengths = {row: (len(pairs[row].read), _tokens(pairs[row].source)) for row in chosen}
        here: list[int] = []
        most = [0, 0]
        for row in sorted(chosen, key=lambda row: lengths[row], reverse=True):
            longest = [max(a, b) for a, b in zip(most, lengths[row], strict=True)]
            if here and (len(here) + 1) * sum(longest) > self.budget:
                yield self._batch_of(pairs, here, readings)
                here, longest = [], list(lengths[row])
            here, most = [*here, row], longest
        if here:
            yield self._batch_of(pairs, here, readings)

    def _batch_of(self, pairs: Sequence[Pair], rows: list[int], readings: Sequence[str]) -> Batch:
        some, device = [pairs[row] for row in rows], self.model.device
        read, mask = _padded([pair.read for pair in some], self.padding)
        inputs = {"decoder_input_ids": read, "decoder_attention_mask": mask}
        keys = to_source = None
        sources = []
        sides = [pair.source for pair in some if isinstance(pair.source, Side)]
        if sides:
            ids, keys = _padded([side.ids for side in sides], self.padding)
            inputs |= {"input_ids": ids, "attention_mask": keys}
            sources = [side.words for side in sides]
            to_source = _to_source(sides, ids.shape[1], max(sources))
        else:
            dtype = parameter_of(self.model).dtype
            features = [pair.source for pair in some if isinstance(pair.source, Tensor)]
            inputs["input_features"] = torch.stack(features).to(dtype)
        targets = [pair.target for pair in some]
        to_target = {
            reading: _to_target(targets, read.shape[1], reading == "awi").to(device)
            for reading in readings
        }
        return Batch(
            rows,
            {name: tensor.to(device) for name, tensor in inputs.items()},
            mask.bool().to(device),
            None if keys is None else keys.bool().to(device),
            None if to_source is None else to_source.to(device),
            to_target,
            sources,
            [side.words for side in targets],
        )


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


def parameter_of(model: nn.Module) -> nn.Parameter:
    """Any parameter: models here are of one dtype and on one device."""
    return next(model.parameters())


def _tokens(source: Side | Tensor) -> int:
    return len(source.ids) if isinstance(source, Side) else int(source.shape[-1]) // 2


def _padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Ids and their mask, padded on the right."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def _to_source(sides: Sequence[Side], keys: int, words: int) -> Float[Tensor, "batch key source"]:
    """1 where a piece belongs to a word; the last word is the frame."""
    made = torch.zeros(len(sides), keys, words + 1, dtype=torch.float64)
    row = torch.tensor([b for b, side in enumerate(sides) for _ in side.ids])
    piece = torch.tensor([k for side in sides for k in range(len(side.ids))])
    word = torch.tensor([words if w == FRAME else w for side in sides for w in side.word_of])
    made[row, piece, word] = 1
    return made


def _to_target(
    sides: Sequence[Side], queries: int, shifted: bool
) -> Float[Tensor, "batch target query"]:
    """1/pieces at the steps of a word's pieces: those that write them, or those that read them."""
    made = torch.zeros(len(sides), max(side.words for side in sides), queries, dtype=torch.float64)
    places = [
        (b, word, step + shifted)
        for b, side in enumerate(sides)
        for step, word in enumerate(side.word_of)
        if word != FRAME
    ]
    if places:
        row, word, step = torch.tensor(places).T
        made[row, word, step] = 1
    return made / made.sum(dim=2, keepdim=True).clamp_min(1)
