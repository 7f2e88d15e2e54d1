"""Put hooks and the attention's name into a model, and take them away again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from normscope.capture.active import ACTIVE, active, forget_replays, note_replays, recomputing
from normscope.capture.interface import LOCK, AttentionName, register
from normscope.capture.recorder import Recorder
from normscope.capture.watch import Watch
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import Inventory


@dataclass
class Installation:
    """What was put into one model, for all the captures that are open on it."""

    inventory: Inventory
    installed: ExitStack  # removes the hooks, and the names that nobody else uses
    users: int = 0


_INSTALLED: WeakKeyDictionary[nn.Module, Installation] = WeakKeyDictionary()


@shielded
def install(model: nn.Module) -> Iterator[Installation]:
    """Install hooks and name for the duration of the context; the last user removes them."""
    with LOCK:
        installation = _INSTALLED.get(model)
        if installation is None:
            installation = _INSTALLED[model] = _put(model)
        installation.users += 1
    try:
        yield installation
    finally:
        with LOCK:
            installation.users -= 1
            if installation.users == 0:
                del _INSTALLED[model]
                installation.installed.close()
            if not _INSTALLED:
                forget_replays()


def _put(model: nn.Module) -> Installation:
    register()
    inventory = Inventory(model)
    with ExitStack() as installed:  # an error takes back what was installed before it
        _add_hooks(inventory, installed)
        for config in inventory.configs.values():
            installed.callback(AttentionName.put(config).take_away, config)
        return Installation(inventory, installed.pop_all())


@shielded
def recording(recorder: Recorder) -> Iterator[None]:
    """Let the hooks report to ``recorder`` in this thread; contexts may end in any order."""
    watch = next((r.watch for r in ACTIVE.get() if r.watch is not None), None)
    if watch is None and recorder.inventory.followed:
        watch = Watch()
        watch.__enter__()
    recorder.watch = watch
    ACTIVE.set((*ACTIVE.get(), recorder))
    try:
        yield
    finally:
        recorder.open = False  # a copy of this context (in a task, say) may still hold it
        ACTIVE.set(tuple(r for r in ACTIVE.get() if r is not recorder))
        if watch is not None and all(r.watch is not watch for r in ACTIVE.get()):
            watch.__exit__(None, None, None)


def _add_hooks(inventory: Inventory, installed: ExitStack) -> None:
    """Add forward hooks that report to the recorders of the running thread, if there are any."""

    def recorders() -> list[Recorder]:
        if recomputing():
            return []
        return active(lambda recorder: recorder.inventory is inventory)

    def before(module: nn.Module, report: Callable[..., None]) -> None:
        # A thread that runs the model while another thread adds or removes the hooks may call
        # one without kwargs.
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            for recorder in recorders():
                report(recorder, module, args, kwargs or {})

        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        installed.callback(handle.remove)

    def after(module: nn.Module, report: Callable[..., None], **options: bool) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for recorder in recorders():
                report(recorder, module, args, output)

        installed.callback(module.register_forward_hook(hook, **options).remove)

    for owner, stacks in inventory.owners.items():
        before(owner, lambda r, m, a, k, stacks=stacks: r.stack_begins(stacks))
        after(owner, lambda r, m, a, y, stacks=stacks: r.stack_ends(stacks))
        after(owner, lambda r, m, a, y: note_replays(y))
    for element, stack in inventory.elements.items():
        before(element, lambda r, m, a, k, stack=stack: r.element_begins(m, stack))
        after(element, lambda r, m, a, y, stack=stack: r.element_ends(m, stack))
    for block in inventory.blocks:
        before(block, lambda r, m, a, k: r.block_begins(m))
    for attention in inventory.attention:
        before(attention, lambda r, m, a, k: r.attention_begins(m, a, k))
        # Also called after an exception in the module, then without an output.
        after(attention, lambda r, m, a, y: r.attention_ends(m, y), always_call=True)
    for norm in inventory.norms:
        after(norm, lambda r, m, a, y: r.norm_ran(_first(a), y) if isinstance(y, Tensor) else None)
    for linear in inventory.linear:
        before(linear, lambda r, m, a, k: r.linear_begins(m, _first((*a, *k.values()))))
        after(linear, lambda r, m, a, y: r.linear_ends(m, y))
    for convolution in inventory.pointwise:  # (batch, features, position)
        before(convolution, lambda r, m, a, k: r.linear_begins(m, _turned(_first(a))))
        after(convolution, lambda r, m, a, y: r.linear_ends(m, _turned(y)))


def _turned(states: Any) -> Tensor | None:
    turnable = isinstance(states, Tensor) and states.dim() == 3
    return states.transpose(1, 2) if turnable else None


def _first(values: Iterable[Any]) -> Tensor | None:
    return next((value for value in values if isinstance(value, Tensor)), None)
