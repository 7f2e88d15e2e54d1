"""Recognise attention in modules that compute it by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normscope.capture.active import ACTIVE
from normscope.capture.recorder import Pending
from normscope.foundation.torch_settings import LeavableMode
from normscope.models.inventory import uses_interface


class Watch(LeavableMode):
    """Recognises softmax(…) · values inside attention modules that compute it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, Tensor] = {}  # tensors that came from a softmax, by address

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function, and note its result if it is, or uses, attention weights."""
        output = func(*args, **(kwargs or {}))
        inside = any(recorder.inside for recorder in ACTIVE.get())
        if not inside or not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        name = getattr(func, "__name__", "")
        if name == "softmax":
            self.weights[output.data_ptr()] = output
        elif args and isinstance(args[0], Tensor) and args[0].data_ptr() in self.weights:
            if name in ("matmul", "bmm", "__matmul__") and args[0].dim() >= 3:
                self._product(args[0], args[1], output)
            elif output.numel() == args[0].numel():  # casts, dropout, head masks, views
                self.weights[output.data_ptr()] = output
        return output

    def _product(self, alpha: Tensor, value: Tensor, mixed: Tensor) -> None:
        self.weights.clear()
        for recorder in ACTIVE.get():
            if recorder.inside and not uses_interface(type(recorder.inside[-1])):
                pending = Pending(recorder.inside[-1], "watched", alpha, value, mixed, None)
                recorder.attended_by(pending)
