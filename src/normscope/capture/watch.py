"""See the torch functions that a model calls: attention by hand, and what acts on its heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normscope.capture.active import ACTIVE
from normscope.capture.recorder import Pending, Recorder
from normscope.foundation.torch_settings import LeavableMode
from normscope.models.inventory import uses_interface

_SOFTMAX = ("softmax", "_softmax", "_safe_softmax", "softmax_")
_FUSED = (
    *("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"),
    "_native_multi_head_attention",
)
_PRODUCTS = ("matmul", "bmm", "__matmul__", "einsum", "baddbmm")


class Watch(LeavableMode):
    """Recognises softmax(…) · values inside attention modules that compute it by hand.

    What a model does with the output of heads before it projects it is followed, too, until that
    is known to be nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, Tensor] = {}  # tensors that came from a softmax, by address

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function, and note its result if it is, or uses, attention weights."""
        output = func(*args, **(kwargs or {}))
        recorders = ACTIVE.get()
        if any(recorder.emitting for recorder in recorders):
            return output  # computed from a record
        for recorder in recorders:
            if recorder.follower is not None:
                recorder.follower.ran(func, args, kwargs or {}, output)
        inside = any(recorder.inside or recorder.bare for recorder in recorders)
        name = getattr(func, "__name__", "")
        if inside and name in _FUSED:
            self._mixed_by_hand(recorders)
            return output
        if not inside or not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if name in _SOFTMAX:
            self.weights[output.data_ptr()] = output
            self._mixed_by_hand([r for r in recorders if r.bare is None])
        elif args and isinstance(args[0], Tensor) and args[0].data_ptr() in self.weights:
            if name in ("matmul", "bmm", "__matmul__") and args[0].dim() >= 3:
                self._product(args[0], args[1], output)
            elif name in _PRODUCTS:
                self._mixed_by_hand(recorders)
            elif output.numel() == args[0].numel():  # casts, dropout, head masks, views
                self.weights[output.data_ptr()] = output
        elif name == "einsum" and any(
            isinstance(a, Tensor) and a.data_ptr() in self.weights for a in args[1:]
        ):
            self._mixed_by_hand(recorders)
        return output

    def _product(self, alpha: Tensor, value: Tensor, mixed: Tensor) -> None:
        self.weights.clear()
        for recorder in ACTIVE.get():
            if recorder.inside and not uses_interface(type(recorder.inside[-1])):
                pending = Pending(recorder.inside[-1], "watched", alpha, value, mixed, None)
                recorder.attended_by(pending)
            elif recorder.bare is not None:
                recorder.mixed_by_hand()

    @staticmethod
    def _mixed_by_hand(recorders: tuple[Recorder, ...] | list[Recorder]) -> None:
        for recorder in recorders:
            recorder.mixed_by_hand()
