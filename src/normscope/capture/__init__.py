"""Run an unmodified transformers model and record what each attention call did.

During a :func:`capture` the model's configuration names an attention function of normscope in
transformers' ``AttentionInterface``. It calls the model's own eager attention and records the
weights and the values. In families that compute attention by hand, the product of a softmax with
the values is recognised instead. Forward hooks find the output projection, the residual input and
the real output.

The modules, in the order in which data passes them: ``inventory`` finds the relevant modules of a
model, and ``installation`` adds hooks and the name; ``interface`` and ``watch`` see the attention
calls; ``recorder`` combines their reports with those of the hooks into a ``record``; ``layers``
adds the norms, feed-forwards and outputs of whole layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from torch import nn

from normscope.capture.installation import install, recording
from normscope.capture.interface import eager, why_not_fused
from normscope.capture.projection import Projection
from normscope.capture.record import AttentionKind, Capture
from normscope.capture.recorder import Recorder
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import compiled_part

__all__ = [
    "ATTENTION_MODES",
    "AttentionKind",
    "AttentionMode",
    "Capture",
    "Projection",
    "capture",
    "eager",
    "refuse_compiled",
]

AttentionMode = Literal["auto", "eager", "fused"]
ATTENTION_MODES: tuple[AttentionMode, ...] = ("auto", "eager", "fused")


@shielded
def capture(
    model: nn.Module,
    callback: Callable[[Capture], None] | None = None,
    *,
    attention: AttentionMode = "eager",
) -> Iterator[list[Capture]]:
    """Record every attention call that this thread makes in ``model`` inside the context.

        >>> with capture(model) as captures:                                    # doctest: +SKIP
        ...     model(**inputs)
        >>> captures[0].alpha.shape                                             # doctest: +SKIP
        torch.Size([1, 12, 9, 9])

    The model is left exactly as it was, also after an exception. Contexts may be nested, over the
    same model or several. Other threads may run the model meanwhile; they get its original
    attention function and are not recorded. The one thing that stays behind is an entry named
    "normscope" in transformers' tables of attention and mask functions, which no model uses
    outside a capture.

    Args:
        model: a transformers model.
        callback: called with each :class:`Capture` as it arrives, which is then dropped, so that
            memory holds one layer at a time. Without it the captures are kept in the list that
            the context manager returns.
        attention: "eager" runs the model's own eager attention and records its weights. "fused"
            leaves the model to its sdpa attention and records queries and keys, from which the
            weights are computed when they are read (``rows``, ``alpha``). Calls that sdpa cannot
            serve (a position bias, dropout, output_attentions) and all calls while gradients are
            recorded still run eagerly; ``Capture.path`` says which did. "auto" is "fused" where
            possible, else "eager".

    Raises:
        UnsupportedModelError: the model is compiled; or "fused" was asked for and its attention
            is not sdpa.
        InputError: ``model`` is not a module, or ``attention`` not one of the three.
    """
    if attention not in ATTENTION_MODES:
        valid = ", ".join(ATTENTION_MODES)
        raise InputError(f"attention must be one of {valid}, not {attention!r}")
    refuse_compiled(model)
    captures: list[Capture] = []

    def keep(captured: Capture) -> None:
        captures.append(captured.clone())

    with install(model) as installation:
        why_not = None if attention == "eager" else why_not_fused(installation.inventory)
        if attention == "fused" and why_not:
            raise UnsupportedModelError(f'attention="fused" is not possible here: {why_not}')
        recorder = Recorder(
            installation.inventory,
            keep if callback is None else callback,
            fused=attention != "eager" and why_not is None,
        )
        with recording(recorder):
            yield captures


def refuse_compiled(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a part of the model is compiled: nothing inside is visible."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InputError(f"capture() needs a transformers model, not {kind}")
    name = compiled_part(model)
    if name is not None:
        raise UnsupportedModelError(
            f"{name or type(model).__name__} is compiled, so its attention cannot be recorded. "
            "Pass the model as it was before torch.compile (model._orig_mod, or load it again "
            "if model.compile() was called) or before torch.jit."
        )
