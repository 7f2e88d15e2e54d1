"""The errors that normscope raises on purpose: what was given, what is valid, what to do."""

from __future__ import annotations


class NormscopeError(Exception):
    """Base class of all errors below; catch it to catch every one of them."""


class InputError(NormscopeError, ValueError):
    """The caller's input (text, map name, layer, file) cannot be used."""


class UnsupportedModelError(NormscopeError, RuntimeError):
    """The model breaks an assumption of the method; the message names the module."""


class ExactnessError(NormscopeError, ArithmeticError):
    """The parts do not add up to the model's own output, so no map is returned."""


class ModelNotFoundError(NormscopeError, OSError):
    """A model, tokenizer or weights file was not found or may not be loaded."""


class MissingExtraError(NormscopeError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed; install it with: "
            f"pip install 'normscope[{extra}]'"
        )
