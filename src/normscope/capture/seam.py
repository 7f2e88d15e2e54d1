"""The two ways into a model's attention, put in place and taken away again.

Recorders belong to a thread (a context variable); hooks and the attention's name belong to the
model, are shared by all contexts that are open on it, and ask for the running thread's recorders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.capture.layout import Layout, attention_of, configs_of, uses_interface
from normscope.capture.recorder import Pending, Recorder
from normscope.capture.scores import is_plain, is_plain_call, lowest, scores_of
from normscope.errors import UnsupportedModelError

NAME = "normscope"  # the attention implementation's name; names containing "flash" are special

ACTIVE: ContextVar[tuple[Recorder, ...]] = ContextVar("normscope_active", default=())


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Let the hooks report to ``recorder``, in this thread; contexts may end in any order."""
    watch = next((r.watch for r in ACTIVE.get() if r.watch is not None), None)
    if watch is None and recorder.layout.handmade:
        watch = Watch()
        watch.__enter__()
    recorder.watch = watch
    ACTIVE.set((*ACTIVE.get(), recorder))
    try:
        yield
    finally:
        recorder.open = False  # a copy of this context (a task, say) may hold it still
        ACTIVE.set(tuple(r for r in ACTIVE.get() if r is not recorder))
        if watch is not None and all(r.watch is not watch for r in ACTIVE.get()):
            watch.__exit__(None, None, None)


# Gradient checkpointing runs layers a second time, in the backward pass, maybe in a thread of
# torch's own. They must do then what they did the first time, and are not recorded again: so the
# outputs of a recorded stack note which backward passes (by number) come through them.
_REPLAYS: set[int] = set()


def _recomputing() -> bool:
    return torch._C._current_graph_task_id() != -1


def _replaying() -> bool:
    return torch._C._current_graph_task_id() in _REPLAYS


def _note_replays(made: Any) -> None:
    """Have every tensor in a stack's output note the backward passes that reach it."""
    if isinstance(made, Tensor) and made.requires_grad:
        made.register_hook(lambda _: _REPLAYS.add(torch._C._current_graph_task_id()))
    elif isinstance(made, Mapping):
        _note_replays(list(made.values()))
    elif isinstance(made, list | tuple):
        for part in made:
            _note_replays(part)


def _fuse(recorders: list[Recorder]) -> bool:
    """Whether known attention is left to the model's own function.

    Not where gradients are recorded: some calls may have to run eagerly, and a backward pass that
    computes layers again must do what they did.
    """
    return all(r.fused for r in recorders) and not torch.is_grad_enabled()


class Name(str):
    """Our attention's name in a configuration, which answers for the one that really runs.

    Models ask which attention they are set to, and make a mask or choose a formula by the answer:
    that is eager in a thread that records, and elsewhere what it was. The tables of transformers
    look names up by their hash, and so find our functions.
    """

    original: str | None
    config: int  # the id of the configuration it stands in
    users: int  # installations that rely on it

    @classmethod
    def put(cls, config: Any) -> Name:
        """Name our attention in a configuration, or count one more user of the name there."""
        there = config._attn_implementation_internal
        if isinstance(there, Name) and there.config == id(config):
            there.users += 1
            return there
        name = cls(NAME)
        # A configuration that was copied inside a context holds a copied name.
        name.original = there.original if isinstance(there, Name) else there
        name.config, name.users = id(config), 1
        config._attn_implementation_internal = name
        return name

    def take_away(self, config: Any) -> None:
        """Put the original name back when nobody uses ours any more."""
        self.users -= 1
        if self.users == 0:
            config._attn_implementation_internal = self.original

    def recorded(self) -> bool:
        """Whether the running thread records models with this configuration."""
        if _recomputing():
            return _replaying()
        return bool(self._recorders())

    def _recorders(self) -> list[Recorder]:
        return [r for r in ACTIVE.get() if r.open and self.config in r.layout.configs]

    def runs(self) -> str | None:
        """The attention that serves whoever asks now, in this thread."""
        if not _recomputing() and _fuse(self._recorders()):
            return self.original
        return "eager" if self.recorded() else self.original

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == self.runs()

    def __ne__(self, other: object) -> bool:
        # Not the opposite of ==: `if implementation != "eager"` is how some modules decide to
        # look a function up at all, and ours must be found.
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
    """What the model calls instead of its attention function: its own eager one, noted."""
    again = _recomputing()
    recorders = [] if again else [r for r in ACTIVE.get() if r.open and module in r.layout]
    if recorders and _fuse(recorders) and is_plain_call(module, query, key, kwargs):
        mixed = _original(module)(module, query, key, value, attention_mask, **kwargs)[0]
        mixed = mixed.contiguous()
        scores = scores_of(module, query, key, attention_mask, mixed, kwargs)
        for recorder in recorders:
            recorder.attended_by(Pending(module, "fused", scores, value, mixed, attention_mask))
        return mixed, None
    if recorders or _replaying():
        function = attention_of(module)[1]
        attention_mask = _as_eager(module, query, key, attention_mask, kwargs.get("is_causal"))
    else:
        function = _original(module)
    mixed, alpha = function(module, query, key, value, attention_mask, **kwargs)
    if not recorders:
        return mixed, alpha
    if alpha is None:
        raise UnsupportedModelError(
            f"{recorders[0].layout[module].name} ({type(module).__name__}): its eager attention "
            "returns no attention weights"
        )
    mixed = mixed.contiguous()  # so that the projection's input shares its memory
    for recorder in recorders:
        recorder.attended_by(Pending(module, "interface", alpha, value, mixed, attention_mask))
    return mixed, alpha


def _as_eager(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool | None
) -> Tensor | None:
    """The mask for eager attention that says what the model's own function would have made of it.

    Other functions read a boolean mask (True: attend), and take none to mean a causal one. Masks
    of transformers' own making are eager's already; these are the user's, or were left out by one
    who calls layers directly.
    """
    if _original_name(module) in (None, "eager"):
        return mask
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is None and causal and query.shape[2] > 1:
        shape = query.shape[2], key.shape[2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest(query.dtype))
    return mask


def _mask(*args: Any, config: Any = None, **kwargs: Any) -> Any:
    """The mask that goes with :func:`_attention`: eager's here, the original's elsewhere."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    name = getattr(config, "_attn_implementation_internal", None)
    runs = (name.runs() if isinstance(name, Name) else name) or "eager"
    if runs not in MASKS:
        return None  # as in transformers itself, for an attention without a mask of its own
    mask = MASKS[runs](*args, config=config, **kwargs)
    if isinstance(name, Name) and name.recorded() and isinstance(mask, Tensor):
        # Lower numbers overflow in a softmax of float32: where all is masked (padding on the
        # left) they give NaN, which spreads from padding to what is real.
        mask = mask.clamp_min(lowest(mask.dtype)) if mask.is_floating_point() else mask
    return mask


def _original(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """What a module that is not recorded would call if there were no capture at all."""
    table, eager = attention_of(module)
    config: Any = module.config
    name, original = config._attn_implementation_internal, _original_name(module)
    if original in (None, "eager"):
        return eager
    if original != "sdpa" and isinstance(name, Name) and name.recorded():
        return eager  # it shares the configuration of a recorded model, and so an eager mask
    function: Callable[..., tuple[Tensor, Tensor | None]] = table[original]
    return function


def _original_name(module: nn.Module) -> str | None:
    config: Any = module.config
    name: str | None = config._attn_implementation_internal
    return name.original if isinstance(name, Name) else name


class Watch(TorchFunctionMode):
    """Recognises softmax(…) · values inside attention modules that compute it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, Tensor] = {}  # tensors that came from a softmax, by address

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        inside = any(r.inside for r in ACTIVE.get())
        if not inside or not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        name = getattr(func, "__name__", "")
        if name == "softmax":
            self.weights[made.data_ptr()] = made
        elif args and isinstance(args[0], Tensor) and args[0].data_ptr() in self.weights:
            if name in ("matmul", "bmm", "__matmul__") and args[0].dim() >= 3:
                self._product(args[0], args[1], made)
            elif made.numel() == args[0].numel():  # casts, dropout, head masks, views
                self.weights[made.data_ptr()] = made
        return made

    def _product(self, alpha: Tensor, value: Tensor, mixed: Tensor) -> None:
        self.weights.clear()
        for recorder in ACTIVE.get():
            if recorder.inside and not uses_interface(type(recorder.inside[-1])):
                pending = Pending(recorder.inside[-1], "watched", alpha, value, mixed, None)
                recorder.attended_by(pending)


@dataclass
class Installation:
    """What was put into one model, for all the contexts that are open on it."""

    layout: Layout
    hooks: list[Any]
    names: list[tuple[Any, Name]]  # each configuration, and what stands in it
    users: int = 0


_LOCK = threading.RLock()
_INSTALLED: WeakKeyDictionary[nn.Module, Installation] = WeakKeyDictionary()


@contextmanager
def install(model: nn.Module) -> Iterator[Installation]:
    """Put the hooks and the attention's name in place; the last user to leave takes them away."""
    with _LOCK:
        installation = _INSTALLED.get(model)
        if installation is None:
            installation = _INSTALLED[model] = _put(model)
        installation.users += 1
    try:
        yield installation
    finally:
        with _LOCK:
            installation.users -= 1
            if installation.users == 0:
                del _INSTALLED[model]
                _take_away(installation)
            if not _INSTALLED:
                _REPLAYS.clear()


def _put(model: nn.Module) -> Installation:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)  # without it the mask is silently None
    layout = Layout(model)
    hooks = _hooks(layout)
    return Installation(layout, hooks, [(c, Name.put(c)) for c in layout.configs.values()])


def _take_away(installation: Installation) -> None:
    for hook in installation.hooks:
        hook.remove()
    for config, name in installation.names:
        name.take_away(config)


def _hooks(layout: Layout) -> list[Any]:
    """Forward hooks that report to the recorders of the running thread, if there are any."""
    hooks: list[Any] = []

    def recorders() -> list[Recorder]:
        if _recomputing():
            return []
        return [r for r in ACTIVE.get() if r.open and r.layout is layout]

    def before(module: nn.Module, report: Callable[..., None]) -> None:
        # A thread that runs the model while another puts the hooks in place, or takes them away,
        # may call one without kwargs.
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            for recorder in recorders():
                report(recorder, module, args, kwargs or {})

        hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def after(module: nn.Module, report: Callable[..., None], **how: bool) -> None:
        def hook(module: nn.Module, args: Any, made: Any) -> None:
            for recorder in recorders():
                report(recorder, module, args, made)

        hooks.append(module.register_forward_hook(hook, **how))

    for owner, stacks in layout.owners.items():
        before(owner, lambda r, m, a, k, stacks=stacks: r.stack_begins(stacks))
        after(owner, lambda r, m, a, y, stacks=stacks: r.stack_ends(stacks))
        after(owner, lambda r, m, a, y: _note_replays(y))
    for element, stack in layout.elements.items():
        before(element, lambda r, m, a, k, stack=stack: r.element_begins(m, stack))
        after(element, lambda r, m, a, y, stack=stack: r.element_ends(m, stack))
    for block in layout.blocks:
        before(block, lambda r, m, a, k: r.block_begins(m))
    for attention in layout.attention:
        before(attention, lambda r, m, a, k: r.attention_begins(m, a, k))
        # Also after an exception in the module; nothing was made then.
        after(attention, lambda r, m, a, y: r.attention_ends(m, y is not None), always_call=True)
    for norm in layout.norms:
        after(norm, lambda r, m, a, y: r.norm_ran(_first(a), y) if isinstance(y, Tensor) else None)
    for linear in layout.linear:
        before(linear, lambda r, m, a, k: r.linear_begins(m, _first((*a, *k.values()))))
        after(linear, lambda r, m, a, y: r.linear_ends(m, y))
    return hooks


def _first(values: Iterable[Any]) -> Tensor | None:
    return next((value for value in values if isinstance(value, Tensor)), None)


def why_not_fused(layout: Layout) -> str | None:
    """What keeps a model's weights from being made anew; None where nothing does."""
    if layout.handmade:
        module = layout.handmade[0]
        return f"{layout[module].name} ({type(module).__name__}) computes attention by hand"
    for module in layout.attention:
        if not uses_interface(type(module)):
            continue  # around the one that attends
        what = f"{layout[module].name} ({type(module).__name__})"
        if _original_name(module) != "sdpa":
            return f"{what} is set to {_original_name(module)!r} attention, not 'sdpa'"
        if not is_plain(attention_of(module)[1]):
            return f"{what}: its attention is more than the softmax of scaled products and a mask"
    return None


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """The model's own eager attention, whatever it is set to; for comparison."""
    with _LOCK:
        before = [(c, c._attn_implementation_internal) for c in configs_of(model).values()]
        for config, _ in before:
            config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        with _LOCK:
            for config, implementation in before:
                config._attn_implementation_internal = implementation
