"""Random inputs for any model: ids, pixels, waveforms, spectrograms, and several of these at once.

What a model reads is told by the arguments of its forward pass and by its configuration. Arguments
that few types have are rows of `input_forms.FORMS`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.models.input_forms import FORMS
from normscope.models.running import accepted_by, evaluating
from normscope.models.walk import modules

FIRST_ID = 12  # the lowest ids are where most vocabularies keep their special tokens
GRID = 4  # patches on a side of an image that is given as patches


def random_inputs(
    model: Any, *, batch: int = 3, length: int = 9, seed: int = 0
) -> dict[str, Tensor]:
    """Return random inputs for a model: keyword arguments of its forward pass.

    Ids and waveforms are padded on the right by 0, 1, 2, 0, ... positions; a decoder's ids are two
    shorter, and their rows are padded in the reverse order. Where a model reads images or sounds
    beside text, its ids have as many placeholders as there are vectors to put there.

    Args:
        model: a transformers model.
        batch: the number of rows.
        length: the number of ids, or of frames of a waveform. Images have the size that the
            configuration fixes, and placeholders make rows longer.
        seed: the same seed gives the same inputs.

    Raises:
        InputError: the model reads something else.
    """
    drawing = _Drawing(model, batch, length, seed)
    drawing.draw()
    main = getattr(model, "main_input_name", "input_ids")
    names = main if isinstance(main, list | tuple) else [main]
    required = [name for name in _required(model) if name not in drawing.inputs]
    read = [name for name in names if name in drawing.accepted]
    absent = required or (read if not set(read) & set(drawing.inputs) else [])
    if absent and not FORMS.get(model.config.model_type):
        raise InputError(
            f"{type(model).__name__} reads {', '.join(absent)}, for which there are no random "
            "inputs; give a batch of your own as inputs="
        )
    # Patches of several images follow one another: what has a row for each row comes first.
    ordered = sorted(drawing.inputs, key=lambda name: len(drawing.inputs[name]) != batch)
    return {name: drawing.inputs[name].to(model.device) for name in ordered}


# What a model reads, by the beginnings of the names of its inputs.
_MODALITIES = {
    "image": ("pixel_values", "hidden_states", "flattened_patches", "grid_thw", "prompt_pixel"),
    "video": ("pixel_values_videos",),
    "sound": ("input_values", "input_features", "audio"),
    "text": ("input_ids", "decoder_input_ids"),
}


def modality_of(inputs: Iterable[str]) -> str:
    """Return what inputs of these names are: "text", "image + text", "sound", …."""
    names = [name for name in inputs if "mask" not in name]
    kinds = [
        kind
        for kind, beginnings in _MODALITIES.items()
        if any(name.startswith(beginnings) for name in names)
    ]
    if "video" in kinds:
        kinds.remove("image")
    return " + ".join(kinds) or "numbers"


def _required(model: Any) -> list[str]:
    parameters = list(inspect.signature(type(model).forward).parameters.values())[1:]
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


class _Drawing:
    """The inputs of one model while they are drawn."""

    def __init__(self, model: Any, batch: int, length: int, seed: int) -> None:
        self.model, self.config = model, model.config
        self.batch, self.length = batch, length
        self.generator = torch.Generator().manual_seed(seed)
        self.accepted = accepted_by(model)
        self.inputs: dict[str, Tensor] = {}
        self.form = FORMS.get(self.config.model_type, {})

    def draw(self) -> None:
        """Draw all inputs: first what text has placeholders for, then text."""
        for name, (kind, *shape) in ((n, f) for n, f in self.form.items() if f is not None):
            self.inputs[name] = self.tensor(kind, shape)
        self.images()
        self.sounds()
        if self.reads("input_ids"):
            self.text()
        if self.config.is_encoder_decoder and self.reads("decoder_input_ids"):
            self.ids("decoder_", self.lengths(self.length - 2).flip(0))

    def reads(self, name: str) -> bool:
        """Return whether an argument is still to be drawn."""
        return name in self.accepted and name not in self.form and name not in self.inputs

    # ------------------------------------------------------------------ numbers of any kind

    def floats(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.model.dtype)

    def lengths(self, length: int) -> Tensor:
        # Short padding: where a whole sliding window is padding, transformers' eager attention
        # is NaN in float64 (its mask overflows in a float32 softmax), also at real positions.
        lengths = (length - torch.arange(self.batch) % 3).clamp(min=1)
        return lengths.clamp(min=2) if length > 1 else lengths

    def mask(self, lengths: Tensor) -> Tensor:
        return (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def tensor(self, kind: str, shape: list[Any]) -> Tensor:
        """Make a tensor of a form: ("float", "batch", 16, "num_mel_bins")."""
        if kind == "value":
            return torch.tensor(shape[0]).expand(self.batch, *torch.tensor(shape[0]).shape).clone()
        if kind == "rows":
            return torch.tensor(shape[0])
        sizes = [self.size(item) for item in shape]
        if kind == "sizes":
            return torch.tensor([self.image_size()] * self.batch)
        if kind == "float":
            return self.floats(*sizes)
        if kind == "mask":
            return self.mask(self.lengths(sizes[1]))
        if kind == "ids":
            top = min(int(getattr(self.config.get_text_config(), "vocab_size", 50)), 50)
            return torch.randint(min(FIRST_ID, top // 2), top, sizes, generator=self.generator)
        if kind == "boxes":
            corners = torch.randint(0, 30, (*sizes, 2, 2), generator=self.generator)
            return corners.sort(-2).values.flatten(-2)
        if kind == "all":
            return torch.full(sizes[1:], sizes[0])
        if kind == "no":
            return torch.zeros(*sizes, dtype=torch.bool)
        if kind == "leading":  # the positions that images take, at the beginning
            return (torch.arange(sizes[1]) < sizes[2]).long().expand(sizes[0], -1).clone()
        if kind == "patches":  # with their row and their column before them
            places = torch.arange(sizes[1]).expand(sizes[0], -1)
            places = torch.stack((places // 3, places % 3), -1).to(self.model.dtype)
            return torch.cat((places, self.floats(*sizes)), -1)
        return {"ones": torch.ones, "zeros": torch.zeros}[kind](*sizes, dtype=torch.long)

    def size(self, item: Any) -> int:
        """Return a size given as a number, as "batch", or as a product of the config's numbers."""
        if isinstance(item, int):
            return item
        return math.prod(self.number(part) for part in item.split("*"))

    def number(self, name: str) -> int:
        if name in ("batch", "length"):
            return int(getattr(self, name))
        return int(name) if name.isdecimal() else self.first(name)

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the first attribute of this name in the configuration or those inside it."""
        for config in _configs(self.config):
            for name in names:
                value = vars(config).get(name)
                if value is not None:
                    return value[0] if isinstance(value, list | tuple) else value
        if default is None:
            raise InputError(
                f"{type(self.model).__name__} has no {names[0]} in its configuration; give a batch "
                "of your own as inputs="
            )
        return default

    # ------------------------------------------------------------------ images and sounds

    def images(self) -> None:
        """Draw pixels, or the patches of images and their number in both directions."""
        channels = self.first("num_channels", "in_channels", "in_chans", default=3)
        grid = next((n for n in ("image_grid_thw", "grid_thw") if self.reads(n)), None)
        name = "pixel_values" if "pixel_values" in self.accepted else "hidden_states"
        if grid and self.reads(name):
            patch = self.first("patch_size")
            frames = self.first("temporal_patch_size", "patch_temporal", default=1)
            patches = self.batch * GRID * GRID
            self.inputs[name] = self.floats(patches, channels * frames * patch * patch)
            self.inputs[grid] = torch.tensor([[1, GRID, GRID]] * self.batch)
        elif self.reads("pixel_values"):
            height, width = self.image_size()
            self.inputs["pixel_values"] = self.floats(self.batch, channels, height, width)

    def image_size(self) -> tuple[int, int]:
        for config in _configs(self.config):
            value = vars(config).get("image_size")
            if isinstance(value, list | tuple):
                return int(value[0]), int(value[1])
            if value is not None:
                return int(value), int(value)
        return 64, 64

    def sounds(self) -> None:
        """Draw waveforms or spectrograms, unless there are images already."""
        main = getattr(self.model, "main_input_name", "")
        if self.reads("input_values") and main == "input_values":
            self.waveforms()
        wanted = main == "input_features" or (not self.inputs and "input_ids" in self.accepted)
        if self.reads("input_features") and wanted:
            bins = self.first("num_mel_bins")
            frames = 2 * self.first("max_source_positions", default=8)
            self.inputs["input_features"] = self.floats(self.batch, bins, frames)
            if self.reads("input_features_mask"):
                self.inputs["input_features_mask"] = torch.ones(self.batch, frames).long()

    def waveforms(self) -> None:
        lengths = self.lengths(self.length)
        strides = getattr(self.config, "conv_stride", None)
        if strides is None:
            return
        for kernel, stride in reversed(list(zip(self.config.conv_kernel, strides, strict=True))):
            lengths = (lengths - 1) * stride + kernel  # frames back to samples
        mask = self.mask(lengths)
        self.inputs["input_values"] = self.floats(*mask.shape) * mask
        if self.reads("attention_mask"):
            self.inputs["attention_mask"] = mask

    # ------------------------------------------------------------------ text

    def text(self) -> None:
        """Draw ids, with placeholders for what images and sounds become."""
        tokens = {name: self.placeholder(name) for name in ("image", "audio", "video")}
        counts = {name: self.vectors(name) for name, token in tokens.items() if token >= 0}
        extra = sum(counts.values())
        lengths = self.lengths(self.length + extra if extra else self.length)
        self.ids("", lengths)
        ids, start = self.inputs["input_ids"], 2
        kinds = torch.zeros_like(ids)
        for kind, (name, count) in enumerate(counts.items(), 1):
            if count:
                ids[:, start : start + count] = tokens[name]
                kinds[:, start : start + count] = kind
                start += count + 1
        for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
            if extra and self.reads(name):
                self.inputs[name] = kinds

    def placeholder(self, name: str) -> int:
        """Return the id of the placeholder for images or sounds, or -1."""
        return int(self.first(f"{name}_token_id", f"{name}_token_index", default=-1))

    def vectors(self, name: str) -> int:
        """Return how many vectors of a row take the place of its images or sounds."""
        having = (m for m in modules(self.model) if hasattr(m, f"get_{name}_features"))
        features = getattr(next(having, None), f"get_{name}_features", None)
        arguments = {} if features is None else self.arguments(features)
        if not any(tensor.is_floating_point() for tensor in arguments.values()):
            return 0
        with evaluating(self.model), torch.no_grad():
            output: Any = features(**arguments)  # type: ignore[misc]
        for part in ("pooler_output", "last_hidden_state"):
            if getattr(output, part, None) is not None:
                output = getattr(output, part)
        tensors = [output] if isinstance(output, Tensor) else list(output)
        rows = sum(tensor.numel() // tensor.shape[-1] for tensor in tensors)
        return rows // self.batch

    def arguments(self, function: Any) -> dict[str, Tensor]:
        """Return those inputs that a function takes."""
        names = inspect.signature(function).parameters
        return {name: tensor for name, tensor in self.inputs.items() if name in names}

    def ids(self, side: str, lengths: Tensor) -> None:
        """Draw ids of one side, none of them special."""
        mask = self.mask(lengths)
        config = self.text_config(side)
        ordinary = self.ordinary_ids(config)
        drawn = torch.randint(len(ordinary), mask.shape, generator=self.generator)
        pad = getattr(config, "pad_token_id", None)
        pad = pad if isinstance(pad, int) and pad >= 0 else 0
        ids = torch.where(mask.bool(), ordinary[drawn], pad)
        start = getattr(self.config, "decoder_start_token_id", None)
        if side and start is not None:
            ids[:, 0] = start
        self.inputs[f"{side}input_ids"] = ids
        if self.reads(f"{side}attention_mask"):
            self.inputs[f"{side}attention_mask"] = mask

    def text_config(self, side: str) -> Any:
        if side and getattr(self.config, "decoder", None) is not None:
            return self.config.decoder
        try:
            config = self.config.get_text_config()
        except ValueError:  # several of them
            config = self.config
        if hasattr(config, "vocab_size"):
            return config
        having = (c for c in _configs(self.config) if "vocab_size" in vars(c))
        return next(having, config)

    def ordinary_ids(self, config: Any) -> Tensor:
        size = int(getattr(config, "vocab_size", 1000))
        special = [
            value
            for part in _configs(self.config)
            for name, value in vars(part).items()
            if name.endswith(("token_id", "token_index")) and isinstance(value, int)
        ]
        ids = torch.arange(min(FIRST_ID, size // 2), size)
        return ids[~torch.isin(ids, torch.tensor(special, dtype=torch.long))]


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it, the outer ones first."""
    from transformers import PreTrainedConfig

    waiting = [config]
    for inner in waiting:
        yield inner
        waiting += [v for v in vars(inner).values() if isinstance(v, PreTrainedConfig)]
