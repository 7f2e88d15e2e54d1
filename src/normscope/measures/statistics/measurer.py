"""Batches of rows through a model, once for each input condition, for all statistics at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capture.layers import LayerCapture, capture_layers
from normscope.decomposition.maps import check_maps_of
from normscope.engine.runner import accepted_by, evaluating
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.measures.statistics.base import CONDITIONS, Row, Statistic
from normscope.measures.statistics.base import StatisticState as State
from normscope.measures.statistics.batch import Batch, Inputs, Layer
from normscope.measures.statistics.check import CHECKED, worst_gap
from normscope.measures.statistics.hashing import is_checked, masked_positions
from normscope.measures.statistics.settings import StatisticSettings as Settings
from normscope.measures.statistics.vocabulary import Vocabulary


class Measurer:
    """One model and the statistics that are wanted of it."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        statistics: Sequence[Statistic],
        settings: Settings | None = None,
    ) -> None:
        self.model, self.tokenizer, self.statistics = model, tokenizer, list(statistics)
        self.settings = Settings() if settings is None else settings
        wanted = {condition for one in self.statistics for condition in one.conditions}
        self.conditions = tuple(name for name in CONDITIONS if name in wanted)
        config = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"{type(model).__name__} is an encoder–decoder model; statistics over a corpus are "
                "there for encoders and decoders alone. Give its encoder (model.get_encoder())"
            )
        check_maps_of(model, ["attn_res_n"])
        self.vocabulary = Vocabulary(tokenizer, self.settings)
        if self.settings.ranks not in ("ids", "corpus"):
            self.vocabulary.ranks(self.settings.ranks)  # a file that is wrong is told before all
        if "masked" in self.conditions and self.vocabulary.mask_id is None:
            raise InputError(
                f"{type(tokenizer).__name__} has no mask token, and mixing masks "
                f"{self.settings.masking:.0%} of the text; use masking=0 (--masking 0) to measure "
                "plain text"
            )

    def measure(self, rows: Sequence[Row]) -> dict[str, State]:
        """The state of each statistic for these rows, padded to one batch."""
        if not rows:
            raise InputError("measure() takes one row at least")
        states: dict[str, State] = {}
        for condition in self.conditions:
            inputs = self._inputs(rows, condition)
            wanted = [one for one in self.statistics if condition in one.conditions]
            batch = Batch(inputs, self._forward(inputs, wanted))
            for one in wanted:
                state = one.measure(batch)
                known = states.get(one.name)
                states[one.name] = state if known is None else one.merge(known, state)
        return states

    def _inputs(self, rows: Sequence[Row], condition: str) -> Inputs:
        longest = max(len(row.ids) for row in rows)
        shape = len(rows), longest
        ids = np.full(shape, self.vocabulary.pad_id, dtype=np.int64)
        real, special, masked = (np.zeros(shape, dtype=bool) for _ in range(3))
        for b, row in enumerate(rows):
            count = len(row.ids)
            ids[b, :count], real[b, :count], special[b, :count] = row.ids, True, row.special
            if condition == "masked":
                free = np.flatnonzero(~np.array(row.special))
                chosen = masked_positions(row.key, free, self.settings.masking, self.settings.seed)
                masked[b, chosen] = True
        if self.vocabulary.mask_id is not None:
            ids[masked] = self.vocabulary.mask_id
        return Inputs(
            tuple(rows), condition, self.settings, self.vocabulary, ids, real, special, masked
        )

    def _forward(
        self, inputs: Inputs, statistics: Sequence[Statistic]
    ) -> list[dict[str, NDArray[Any]]]:
        """What the statistics note of each layer, in one forward pass."""
        noted: list[dict[str, Tensor]] = []
        checked = is_checked(inputs.keys, self.settings.seed, CHECKED)

        def take(whole: LayerCapture) -> None:
            captured = whole.attention
            if captured is None or whole.cross is not None or captured.residual is None:
                raise UnsupportedModelError(f"{whole.name} is no layer of self-attention alone")
            layer = Layer(whole, len(noted), inputs)
            found: dict[str, Tensor] = {}
            for one in statistics:
                found |= one.observe(layer)
            # Whatever the statistics note, a row that the model has no numbers for is noticed.
            found.setdefault("transformed_norm", layer.transformed_norm)
            found.setdefault("total_norm", layer.total_norm)
            if checked.any():
                found["gap"] = worst_gap(layer)
            noted.append(found)

        device = next(self.model.parameters()).device
        given = {"input_ids": inputs.ids, "attention_mask": inputs.real.astype(np.int64)}
        accepted = accepted_by(self.model)
        if "token_type_ids" in accepted and any(row.types is not None for row in inputs.rows):
            types = np.zeros_like(inputs.ids)
            for b, row in enumerate(inputs.rows):
                types[b, : len(row.ids)] = 0 if row.types is None else row.types
            given["token_type_ids"] = types
        tensors: dict[str, Any] = {k: torch.from_numpy(v).to(device) for k, v in given.items()}
        if "use_cache" in accepted:
            tensors["use_cache"] = False
        with evaluating(self.model), torch.no_grad(), capture_layers(self.model, take):
            self.model(**tensors)
        read = fetch(noted)
        _refuse(inputs, read)
        return read


def fetch(noted: Sequence[Mapping[str, Tensor]]) -> list[dict[str, NDArray[Any]]]:
    """All that was noted as arrays on the CPU: from a GPU in one transfer for each dtype."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for layer in noted:
        for tensor in layer.values():
            if tensor.device.type != "cpu":
                kinds.setdefault(tensor.dtype, []).append(tensor)
    home: dict[int, Tensor] = {}
    for tensors in kinds.values():
        first = tensors[0].device
        flat = torch.cat([tensor.reshape(-1).to(first) for tensor in tensors]).cpu()
        parts = flat.split([tensor.numel() for tensor in tensors])
        home |= {id(t): part.view(t.shape) for t, part in zip(tensors, parts, strict=True)}
    return [
        {name: home.get(id(tensor), tensor).numpy() for name, tensor in layer.items()}
        for layer in noted
    ]


def _refuse(inputs: Inputs, noted: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Raise for numbers that are not finite, and for those that a second computation denies."""
    for index, layer in enumerate(noted):
        for name, array in layer.items():
            if name == "gap" or array.dtype.kind != "f":
                continue
            if len(array) != len(inputs.rows) or np.isfinite(array).all():
                continue
            bad = ~np.isfinite(array)
            if array.ndim > 1 and array.shape[-1] == inputs.real.shape[1]:  # padding may be NaN
                bad &= inputs.real.reshape(len(array), *(1,) * (array.ndim - 2), -1)
            rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))
            if len(rows):
                raise ExactnessError(
                    f"row {inputs.rows[rows[0]].key}: {name} of layer {index} is NaN or infinite; "
                    "the model's own states are, on this row"
                )
        if "gap" in layer and not (layer["gap"] <= 1).all():
            row = int(np.argmax(~(layer["gap"] <= 1)))
            raise ExactnessError(
                f"row {inputs.rows[row].key}: the statistics of layer {index} differ from its "
                f"decomposition by {layer['gap'][row]:.1f} times what rounding explains"
            )
