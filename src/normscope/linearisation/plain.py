"""A model as it is, with its embeddings as sources: for methods that read plain gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.linearisation import functions
from normscope.linearisation.attention import Call
from normscope.linearisation.composites import Arguments, Keywords
from normscope.linearisation.network import (
    Network,
    Source,
    carry_weights,
    mark_weights,
    without_parameters,
)

Moved = Callable[[Source], Tensor]  # a source -> the embeddings that take its place


class PlainNetwork(Network):
    """A model whose operations keep their own derivatives.

    Attributes:
        moved: what takes the place of a source; None leaves the embeddings as they are.
    """

    moved: Moved | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name in functions.PLAIN or name == "embedding":
            return super().__torch_function__(func, types, args, kwargs)
        args, kwargs, states = without_parameters(args, kwargs)
        value = func(*args, **kwargs)
        if self.tracer is not None and states:
            self._watch_attention(name, args, kwargs, value)
        return value

    def source(self, stack: str, part: str, value: Tensor) -> Tensor:
        """Make a value, or what takes its place, a source; return it as a state."""
        if self.moved is not None:
            value = self.moved(Source(stack, part, value.detach()))
        return super().source(stack, part, value)

    def activate(
        self,
        function: Callable[[Tensor], Tensor],
        u: Tensor,
        known: Any,
        value: Tensor | None = None,
    ) -> Tensor:
        """Return g(u) with its own derivative."""
        return function(u)

    def _watch_attention(self, name: str, args: Arguments, kwargs: Keywords, value: Any) -> None:
        """Let the tracer see products of attention weights and values."""
        assert self.tracer is not None
        if name == "scaled_dot_product_attention":
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            call = Call(given.get("attn_mask"), given.get("is_causal", False), given.get("scale"))
            q, k = given["query"].detach(), given["key"].detach()
            self.tracer.attention(value, given["value"], scores=(q, k, call))
        elif name in functions.SOFTMAX:
            mark_weights(value)
        elif name in functions.LINEAR:
            carry_weights(args, value)
        elif name in ("matmul", "bmm") and getattr(args[0], "_normscope_weights", False):
            if value.dim() >= 3:
                self.tracer.attention(value, args[1], alpha=args[0].detach())
        elif name in ("__setitem__", "copy_") and isinstance(args[0], torch.Tensor):
            self.tracer.preserve(args[0])
