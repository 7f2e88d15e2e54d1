"""Whether a model has the weights of its files, all of them and no others.

transformers fills what a file lacks with random numbers and leaves out what the model's class has
no place for. Heads are saved and left out every day; a layer, the scales of quantised weights or an
adapter that is left out makes another model of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.errors import ModelNotFoundError, UnsupportedModelError
from normscope.models.failures import some

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Parts inside the base model that attention does not depend on: heads that are kept there, and
# stand-ins for input that is masked in training only.
_UNUSED_PARTS = {"pooler", "contact_head", "mask_token", "masked_spec_embed"}

# Tensors that are computed from the configuration. Files of older releases have them, and so have
# their causal masks (attn.bias).
_COMPUTED = {
    *("inv_freq", "original_inv_freq", "position_ids", "token_type_ids", "masked_bias"),
    *("causal_mask", "relative_position_index", "version", "_float_tensor"),
}
_CAUSAL_MASK = re.compile(r"(^|\.)(attn|attention|crossattention)\.bias$")

_ADAPTER = re.compile(r"(^|[._])(lora|ia3|vera|oft|boft)_|\.base_layer\.|\.modules_to_save\.")
_QUANTISED = re.compile(
    r"\.(\w*_scale(_inv|_2)?|\w*zero_point|SCB|weight_format|weight_packed|weight_shape|qweight|"
    r"qzeros|scales|g_idx|weight\.(absmax|quant_map|nested_\w+|quant_state\.\S+))$"
)

_MADE_UP: Any = WeakTensorKeyDictionary()  # torch's count of changes of each such tensor


def check_whole(source: str, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Raise an error if the weights of a model are not those of its files.

    Args:
        source: what was loaded.
        model: the model.
        info: transformers' lists of keys that did not fit.

    Raises:
        ModelNotFoundError: weights are missing, left out, or of another shape.
    """
    if mismatched := sorted(info["mismatched_keys"]):
        shapes = [f"{key}: {[*saved]} saved, {[*size]} expected" for key, saved, size in mismatched]
        raise ModelNotFoundError(
            f"the weights of {source!r} do not have the shapes that its config.json describes "
            f"({some(shapes, 3)}); one of the two belongs to another model. To load it with random "
            "numbers in their place, use strict=False (--no-strict)"
        )
    if unused := _left_out(model, info["unexpected_keys"]):
        raise ModelNotFoundError(
            f"the weights of {source!r} have {_count(unused, 'tensor')} that would be left out, "
            f"because {type(model).__name__} with this configuration has no place for them: "
            f"{some(unused, 4)}; {_advice(unused)}. To load it without them, use strict=False "
            "(--no-strict)"
        )
    if lacking := _untrained(model, info["missing_keys"]):
        raise ModelNotFoundError(
            f"the weights of {source!r} lack {_count(lacking, 'parameter')} of "
            f"{type(model).__name__}, which would be random numbers or constants: "
            f"{some(lacking, 4)}; save the whole model, or correct its config.json "
            '("architectures", the number of layers). To load it with these numbers, use '
            "strict=False (--no-strict)"
        )


def mark_made_up(model: PreTrainedModel, missing: Iterable[str]) -> None:
    """Remember the parameters of a model that no file had, until they are changed or replaced."""
    tensors = model.state_dict(keep_vars=True)
    for key in missing:
        if isinstance(tensor := tensors.get(key), torch.Tensor) and tensor.is_floating_point():
            _MADE_UP[tensor] = _version(tensor)


def made_up(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters and buffers that no file of a loaded model had.

    :func:`normscope.models.load` refuses a model whose attention depends on one, so these belong to
    a head or a pooler. A tensor that has been changed since, as by training, is not one of them. A
    model that was loaded with ``strict=False`` has none.
    """
    if not len(_MADE_UP):
        return frozenset()
    return frozenset(
        name
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and _MADE_UP.get(tensor) == _version(tensor)
    )


def refuse_made_up(model: nn.Module, names: Iterable[str], purpose: str) -> None:
    """Raise UnsupportedModelError if there are any names of parameters that no file had.

    Args:
        model: the model.
        names: those of its parameters that are read.
        purpose: what depends on them.
    """
    if names := sorted(names):
        raise UnsupportedModelError(
            f"{purpose} of {type(model).__name__} depends on {_count(names, 'parameter')} that no "
            f"file of the model has, and that are random numbers or constants: {some(names, 4)}; "
            "give a checkpoint that was saved with its head. To go on with these numbers, load the "
            "model with strict=False (--no-strict)"
        )


def refuse_made_up_head(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a model's head, which writes its output, was in no file."""
    head = [name for name in made_up(model) if _UNUSED_PARTS.isdisjoint(name.split("."))]
    refuse_made_up(model, head, "the output")


def _count(names: list[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' * (len(names) != 1)}"


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _untrained(model: PreTrainedModel, missing: Iterable[str]) -> list[str]:
    """The missing weights that attention depends on.

    Weights of a head around the base model do not count, nor do those that are computed from the
    configuration. Buffers of a file, such as the statistics of a batch norm, count like parameters.
    """
    learned = {
        name
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    base = f"{model.base_model_prefix}."
    inside = base if hasattr(model, model.base_model_prefix) else ""
    # transformers matches these against a base model's keys too, but some name them with a prefix.
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    return sorted(
        key
        for key in missing
        if key in learned and key.startswith(inside) and _UNUSED_PARTS.isdisjoint(key.split("."))
        if key.rpartition(".")[2] not in _COMPUTED
        if not any(pattern.search(f"{base}{key}") for pattern in ignored)
    )


def _left_out(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """The weights in a file that belong to the base model, and that its class has no place for.

    What stands beside the parts of the base model (a head, a pooler, a decoder or another encoder
    that the class does not have) may be left out.
    """
    base: Any = model.base_model
    parts = {name for name, _ in base.named_children()}
    buffers = {name for name, _ in base.named_buffers()}

    def counts(key: str) -> bool:
        inner = key.removeprefix(f"{model.base_model_prefix}.")
        path = inner.split(".")
        if _ADAPTER.search(key) or _QUANTISED.search(key):
            return True
        if path[0] not in parts or not _UNUSED_PARTS.isdisjoint(path):
            return False
        return not (inner in buffers or path[-1] in _COMPUTED or _CAUSAL_MASK.search(key))

    return sorted(filter(counts, unexpected))


def _advice(unused: list[str]) -> str:
    """What to do about weights that would be left out."""
    if any(map(_ADAPTER.search, unused)):
        return "merge the adapter into its model (merge_and_unload() of PEFT) and save that"
    if any(map(_QUANTISED.search, unused)):
        return (
            "the weights are quantised: save them dequantised, or with the quantization_config "
            "(quant_method) that transformers needs to read them"
        )
    return 'correct its config.json ("architectures", the number of layers)'
