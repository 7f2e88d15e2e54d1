"""The attention and mask functions that models call during a capture.

They are registered with transformers under one name, and a capture puts that name into the
model's configurations. Both functions stay in transformers' tables afterwards: a thread that has
just read the name from a configuration must still find them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture.active import UNPADDED, active, left_to_model, recomputing, replaying
from normscope.capture.held import scale_of
from normscope.capture.plain import is_causal, is_plain, is_plain_call, scores_of
from normscope.capture.recorder import Pending, Recorder
from normscope.capture.scores import lowest
from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import Inventory, attention_of, configs_of, uses_interface

NAME = "normscope"  # names that contain "flash" would be treated in a special way
LOCK = threading.RLock()  # held while configurations are changed


def register() -> None:
    """Register the two functions with transformers; repeated calls are harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)  # without it the mask is silently None


class AttentionName(str):
    """The name in a configuration during a capture; it equals that of the attention that runs.

    Models compare the name of their attention and choose a mask or a formula by the result. In a
    thread that records, the name equals "eager"; in other threads, the name that was there
    before. transformers' tables look names up by their hash, and so find the functions above.
    """

    original: str | None  # the name that was there before
    config: int  # the id of the configuration it stands in
    users: int  # installations that rely on it

    @classmethod
    def put(cls, config: Any) -> AttentionName:
        """Put the name into a configuration, or count one more user of the name there."""
        present = config._attn_implementation_internal
        if isinstance(present, AttentionName) and present.config == id(config):
            present.users += 1
            return present
        name = cls(NAME)
        # A configuration that was copied during a capture holds a copy of the name.
        name.original = present.original if isinstance(present, AttentionName) else present
        name.config, name.users = id(config), 1
        config._attn_implementation_internal = name
        return name

    def take_away(self, config: Any) -> None:
        """Restore the original name if this was the last user."""
        self.users -= 1
        if self.users == 0:
            config._attn_implementation_internal = self.original

    def recorded(self) -> bool:
        """Return whether the running thread records models with this configuration."""
        if recomputing():
            return replaying()
        return bool(self._recorders())

    def _recorders(self) -> list[Recorder]:
        return active(lambda recorder: self.config in recorder.inventory.configs)

    def runs(self) -> str | None:
        """Return the name of the attention that runs in this thread."""
        if not recomputing() and left_to_model(self._recorders()):
            return self.original
        return "eager" if self.recorded() else self.original

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == self.runs()

    def __ne__(self, other: object) -> bool:
        # Not the opposite of ==: some modules look a function up only if their implementation
        # != "eager", and this name must be looked up.
        return str.__ne__(self, other) is True

    __hash__ = str.__hash__

    def __contains__(self, part: object) -> bool:
        return isinstance(part, str) and part in (self.runs() or "")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Run the model's own attention, and report the call to the recorders of this thread."""
    recorders = [] if recomputing() else active(lambda recorder: module in recorder.inventory)
    if recorders and left_to_model(recorders) and is_plain_call(module, query, key, kwargs):
        mixed = _original(module)(module, query, key, value, attention_mask, **kwargs)[0]
        mixed = mixed.contiguous()
        scores = scores_of(module, query, key, attention_mask, mixed, kwargs)
        for recorder in recorders:
            recorder.attended_by(Pending(module, "fused", scores, value, mixed, attention_mask))
        return mixed, None
    if recorders or replaying():
        function = attention_of(module)[1]
        attention_mask = _as_eager(module, query, key, attention_mask, kwargs.get("is_causal"))
    else:
        function = _original(module)
    mixed, alpha = function(module, query, key, value, attention_mask, **kwargs)
    if not recorders:
        return mixed, alpha
    if alpha is None:
        raise UnsupportedModelError(
            f"{recorders[0].inventory.described(module)}: its eager attention returns no "
            "attention weights"
        )
    mixed = mixed.contiguous()  # so that the projection's input shares its memory
    known = all(module in recorder.inventory.straight for recorder in recorders)
    scale = None if known else scale_of(alpha, value, mixed)
    for recorder in recorders:
        pending = Pending(module, "interface", alpha, value, mixed, attention_mask)
        pending.scale = scale
        recorder.attended_by(pending)
    return mixed, alpha


def _as_eager(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool | None
) -> Tensor | None:
    """Convert a mask meant for the model's own function into one for eager attention.

    Other functions read a boolean mask (True: attend), and no mask as a causal one. Masks that
    transformers itself made are meant for eager attention already; these come from the user, or
    were left out by a caller of single layers.
    """
    if mask is not None and mask.dtype == torch.float64:
        mask = mask.clamp_min(lowest(mask.dtype))  # one that the model made itself
    if _original_name(module) in (None, "eager"):
        return mask
    if mask is None and is_causal(module, causal) and query.shape[2] > 1:
        shape = query.shape[2], key.shape[2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest(query.dtype))
    return mask


def _mask(*args: Any, config: Any = None, **kwargs: Any) -> Any:
    """Make the mask for :func:`_attention`: that of the attention which runs in this thread."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    name = getattr(config, "_attn_implementation_internal", None)
    runs = (name.runs() if isinstance(name, AttentionName) else name) or "eager"
    if runs not in MASKS:
        return None  # as in transformers itself, for an attention without a mask function
    if runs == "sdpa" and _is_skipped(kwargs, UNPADDED.get()):
        return None
    mask = MASKS[runs](*args, config=config, **kwargs)
    if isinstance(name, AttentionName) and name.recorded() and isinstance(mask, Tensor):
        # Lower numbers overflow in a softmax of float32: rows in which everything is masked
        # (padding on the left) would become NaN, which spreads from padding to real tokens.
        mask = mask.clamp_min(lowest(mask.dtype)) if mask.is_floating_point() else mask
    return mask


def _is_skipped(kwargs: Mapping[str, Any], unpadded: frozenset[tuple[int, ...]] | None) -> bool:
    """Return whether transformers leaves out the mask of a batch without padding.

    While a CUDA graph is recorded, it cannot look for padding and makes a mask in any case, with
    which sdpa is slower. ``unpadded`` has the shapes of the masks that are known to have none; a
    mask of another shape was made by the model itself.
    """
    mask = kwargs.get("attention_mask")
    if unpadded is None or (isinstance(mask, Tensor) and tuple(mask.shape) not in unpadded):
        return False
    keys, window = kwargs.get("kv_length"), kwargs.get("local_size")
    if window is not None and (keys is None or keys >= window):
        return False
    if kwargs.get("allow_is_bidirectional_skip"):
        return True
    queries = kwargs.get("q_length")
    if queries is None and isinstance(position := kwargs.get("cache_position"), Tensor):
        queries = len(position)
    return bool(kwargs.get("allow_is_causal_skip")) and queries is not None and queries == keys


def _original(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that a module would call without any capture."""
    table, eager_function = attention_of(module)
    config: Any = module.config
    name, original = config._attn_implementation_internal, _original_name(module)
    if original in (None, "eager"):
        return eager_function
    if original != "sdpa" and isinstance(name, AttentionName) and name.recorded():
        # The module shares the configuration of a recorded model, and so got an eager mask.
        return eager_function
    function: Callable[..., tuple[Tensor, Tensor | None]] = table[original]
    return function


def _original_name(module: nn.Module) -> str | None:
    config: Any = module.config
    name: str | None = config._attn_implementation_internal
    return name.original if isinstance(name, AttentionName) else name


def why_not_fused(inventory: Inventory) -> str | None:
    """Return why a model's weights cannot be computed from queries and keys; None if they can."""
    if inventory.handmade:
        return f"{inventory.described(inventory.handmade[0])} computes attention by hand"
    for module in inventory.attention:
        if not uses_interface(type(module)):
            continue  # a wrapper around the module that attends
        described = inventory.described(module)
        if _original_name(module) != "sdpa":
            return f"{described} is set to {_original_name(module)!r} attention, not 'sdpa'"
        if not is_plain(attention_of(module)[1]):
            return f"{described}: its attention is more than softmax(scaling · q kᵀ + mask) v"
    return None


@shielded
def eager(model: nn.Module) -> Iterator[None]:
    """Set a model to its eager attention inside the context, for comparison."""
    before = [(c, c._attn_implementation_internal) for c in configs_of(model).values()]
    try:
        with LOCK:
            for config, _ in before:
                config._attn_implementation_internal = "eager"
        yield
    finally:
        with LOCK:
            for config, implementation in before:
                config._attn_implementation_internal = implementation
