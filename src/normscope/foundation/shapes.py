"""Names for shape annotations: ``Float[Tensor, "batch head query key"]``.

With jaxtyping installed they are jaxtyping's, and the tests check every annotated call. Without it
they stand for the array type alone, so that annotations cost nothing and can still be evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # To a type checker, a shape is a comment on the array type; it needs no jaxtyping either.
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _ArrayType:
            """``_ArrayType[array_type, "axes"]`` is ``array_type``."""

            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = _ArrayType

__all__ = ["Bool", "Float", "Int"]
