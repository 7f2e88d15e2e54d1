"""Run an unmodified transformers model and record what each attention call did.

The way in is transformers' own ``AttentionInterface``: inside :func:`capture` the model's
configuration names an attention function of ours, which calls the model's own eager attention and
notes the weights and the values on their way. Families that compute attention by hand are watched
instead: the product of a softmax with the values is recognised where it happens. Forward hooks
find the output projection, the residual input and the real output.

Nothing outside the context is affected. What is recorded belongs to the thread that opened the
context; other threads that run the same model meanwhile get its original attention function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from normscope.capture.projection import Projection
from normscope.capture.recorder import Capture, Recorder
from normscope.capture.seam import eager, install, recording, why_not_fused
from normscope.errors import InputError, UnsupportedModelError
from normscope.models.walk import named_modules

__all__ = ["Capture", "Projection", "capture", "eager"]


@contextmanager
def capture(
    model: nn.Module,
    callback: Callable[[Capture], None] | None = None,
    *,
    attention: Literal["auto", "eager", "fused"] = "eager",
) -> Iterator[list[Capture]]:
    """Record every attention call of ``model`` made by this thread inside the context.

    With a ``callback``, each :class:`Capture` is handed over as it arrives and then dropped, so
    that memory holds one layer at a time; without one they are kept in the list that the context
    manager gives. The model is left exactly as it was, also after an exception. Contexts may be
    nested, over the same model or several.

    ``attention="eager"`` runs the model's own eager attention and records its weights.
    ``"fused"`` leaves the model to its sdpa attention and records queries and keys, of which the
    weights are made when they are asked for (``rows``, ``alpha``); it is refused for a model whose
    attention is another. Calls that bring more (a position bias, dropout, output_attentions), and
    all where gradients are recorded, run eagerly still; a capture's ``path`` says which it was.
    ``"auto"`` is fused where it can be.

        >>> with capture(model) as captures:                                    # doctest: +SKIP
        ...     model(**inputs)
        >>> captures[0].alpha.shape                                             # doctest: +SKIP
        torch.Size([1, 12, 9, 9])
    """
    if attention not in ("auto", "eager", "fused"):
        raise InputError(f"attention is one of auto, eager, fused, but was given {attention!r}")
    _refuse_opaque(model)
    kept: list[Capture] = []
    with install(model) as installation:
        why_not = None if attention == "eager" else why_not_fused(installation.layout)
        if attention == "fused" and why_not:
            raise UnsupportedModelError(f'attention="fused" is not possible here: {why_not}')
        recorder = Recorder(
            installation.layout,
            callback if callback is not None else _keeper(kept),
            fused=attention != "eager" and why_not is None,
        )
        with recording(recorder):
            yield kept


def _keeper(kept: list[Capture]) -> Callable[[Capture], None]:
    def keep(captured: Capture) -> None:
        # The model may go on to write into these (static caches, in-place residual sums, the
        # graphs that generate() makes on a GPU).
        kept.append(
            replace(
                captured,
                weights=captured.weights.clone(),
                value=captured.value.clone(),
                residual=None if captured.residual is None else captured.residual.clone(),
                output=captured.output.clone(),
            )
        )

    return keep


def _refuse_opaque(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"capture() takes a transformers model, but was given {type(model)!r}")
    for name, module in named_modules(model):
        compiled = (
            "_orig_mod" in module._modules
            or module._compiled_call_impl is not None
            or hasattr(module.forward, "_torchdynamo_orig_callable")
        )
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{name or type(model).__name__} is compiled: its attention cannot be seen from "
                "outside. Give the model as it was before torch.compile (model._orig_mod, or "
                "load it again where model.compile() was called) or before torch.jit."
            )
