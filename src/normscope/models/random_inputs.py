"""Random inputs for any model: ids, pixels, waveforms, spectrograms, and several of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.models.running import accepted_by

_FIRST_ID = 12


def random_inputs(
    model: Any, *, batch: int = 3, length: int = 9, seed: int = 0
) -> dict[str, Tensor]:
    """Return random inputs: keyword arguments of a model's forward pass."""
    return _Inputs(model, batch, length, seed).made()


class _Inputs:
    def __init__(self, model: Any, batch: int, length: int, seed: int) -> None:
        self.model, self.config = model, model.config
        self.batch, self.length = batch, length
        self.generator = torch.Generator().manual_seed(seed)
        self.accepted = accepted_by(model)
        self.made_inputs: dict[str, Tensor] = {}
        # Short padding: where a whole sliding window is padding, transformers' eager attention
        # is NaN in float64 (its mask overflows in a float32 softmax), also at real positions.
        self.lengths = (length - torch.arange(batch) % 3).clamp(min=1)
        if length == 1 or batch == 1:
            self.lengths[:] = length

    def made(self) -> dict[str, Tensor]:
        main = getattr(self.model, "main_input_name", "input_ids")
        inputs = self.made_inputs
        if main == "pixel_values" or "pixel_values" in self.accepted:
            self.pixels()
        if main == "input_values":
            self.waveform()
        if main == "input_features":
            self.features()
        if "input_ids" in self.accepted:
            self.ids("")
        if self.config.is_encoder_decoder and "decoder_input_ids" in self.accepted:
            self.ids("decoder_")
        if main not in inputs and not isinstance(main, list):
            raise InputError(
                f"{type(self.model).__name__} reads {main}, for which there are no random inputs; "
                "give check_architecture a batch of your own as inputs="
            )
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def floats(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.model.dtype)

    def mask(self, lengths: Tensor) -> Tensor:
        return (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def ids(self, side: str) -> None:
        config = self.config.get_text_config()
        lengths = self.lengths if not side else (self.lengths - 2).clamp(min=1).flip(0)
        mask = self.mask(lengths)
        vocabulary = config.vocab_size
        pad = config.pad_token_id
        low = min(_FIRST_ID, vocabulary // 2)
        drawn = torch.randint(low, vocabulary, mask.shape, generator=self.generator)
        drawn = torch.where(mask.bool(), drawn, pad if isinstance(pad, int) and pad >= 0 else 0)
        if side and (start := getattr(config, "decoder_start_token_id", None)) is not None:
            drawn[:, 0] = start
        self.made_inputs[f"{side}input_ids"] = drawn
        if f"{side}attention_mask" in self.accepted:
            self.made_inputs[f"{side}attention_mask"] = mask

    def pixels(self) -> None:
        image = getattr(self.config, "vision_config", self.config)
        side = getattr(image, "image_size", 32)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        self.made_inputs["pixel_values"] = self.floats(
            self.batch, getattr(image, "num_channels", 3), height, width
        )

    def waveform(self) -> None:
        config = self.config
        lengths = self.lengths
        for kernel, stride in reversed(
            list(zip(config.conv_kernel, config.conv_stride, strict=True))
        ):
            lengths = (lengths - 1) * stride + kernel
        mask = self.mask(lengths)
        self.made_inputs["input_values"] = self.floats(*mask.shape) * mask
        if "attention_mask" in self.accepted:
            self.made_inputs["attention_mask"] = mask

    def features(self) -> None:
        config = self.config
        frames = 2 * getattr(config, "max_source_positions", 8)
        self.made_inputs["input_features"] = self.floats(self.batch, config.num_mel_bins, frames)
