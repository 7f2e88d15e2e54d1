"""The forms of inputs that few model types have, as data.

A form is the kind of a tensor and its shape, whose sizes are numbers, "batch", "length" or numbers
of the configuration by their names; None leaves an argument out.
"""

from __future__ import annotations

from typing import Any

_BOXES = {"bbox": ("boxes", "batch", "length")}

FORMS: dict[str, dict[str, Any]] = {
    "layoutlm": _BOXES,
}
