"""The signature of a result: one line with everything needed to reproduce its numbers."""

from __future__ import annotations

import copy
import hashlib
import platform
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normscope.foundation.caching import ModuleCache
from normscope.foundation.texts import printable
from normscope.models import identity
from normscope.models.walk import tensors

CONVENTIONS = "b_V:in-f;b_O:apart;norm:L2"
_HASHES: ModuleCache[str] = ModuleCache()


class Signature:
    """How a result was made, in one line.

    Hashing the weights takes time, so the text is computed when it is first read. Until then the
    signature has a weak reference to the model, which does not keep the model alive. Read the
    signature, or save the result, before the model is deleted; afterwards the weights are given as
    "deleted-before-hashing".
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        settings: Mapping[str, str],
        path: str | None = "",
        *,
        conventions: str = CONVENTIONS,
    ) -> None:
        self._model, self._tokenizer = weakref.ref(model), tokenizer
        named: Any = model
        self._known = identity(named)
        self._settings, self._path = dict(settings), path
        self._conventions = conventions
        self._shared: dict[str, str] = {}  # what signatures of the same model have in common
        self._state = state_of(model)
        self._text: str | None = None

    def with_path(self, path: str) -> Signature:
        """Return the signature with another path by which attention was captured."""
        other = copy.copy(self)
        other._path, other._text = path, None
        return other

    def with_settings(self, settings: Mapping[str, str]) -> Signature:
        """Return the signature of another result of the same model; weights are hashed once."""
        other = copy.copy(self)
        other._settings, other._text = dict(settings), None
        return other

    def text(self) -> str:
        """Return `key:value` pairs joined by `|`, always in the same order."""
        if self._text is None:
            fields = {
                "model": self._known["name"],
                "revision": self._known["revision"] or "none",
                **self._common(),
                **self._settings,
                **({} if self._path is None else {"path": self._path}),
                "conventions": self._conventions,
                **versions(),
            }
            self._text = signature_line(fields)
            self._tokenizer = None
        return self._text

    def _common(self) -> dict[str, str]:
        if not self._shared:
            self._shared["weights"] = self._weights()
            self._shared["tokenizer"] = tokenizer_name(self._tokenizer)
        return self._shared

    def _weights(self) -> str:
        model = self._model()
        if model is None:
            return "deleted-before-hashing"
        if state_of(model) != self._state:
            return "changed-after-analysis"
        return "sha256=" + weights_hash(model)


def signature_line(fields: Mapping[str, Any]) -> str:
    """Return `key:value` pairs joined by `|`, in one line from which they can be told apart.

    In a value, a backslash is doubled, and `|` and control characters are escape sequences.
    """
    return "|".join(f"{key}:{_escaped(str(value))}" for key, value in fields.items())


def _escaped(value: str) -> str:
    return printable(value.replace("\\", "\\\\").replace("|", "\\x7c"))


def versions() -> dict[str, str]:
    """Return the versions of the packages that numbers may depend on."""
    import transformers

    from normscope import __version__

    return {
        "normscope": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """Return a value that changes when a parameter is replaced or modified; reads no weights."""
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors(model))


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 of the state (names, dtypes, shapes, bytes), cached until it changes."""
    state = {n: t for n, t in sorted(model.state_dict().items()) if isinstance(t, torch.Tensor)}
    raw = {name: _raw(tensor) for name, tensor in state.items()}
    # Writing through `.data` does not change the version counter, so compare sums of bits too.
    now = state_of(model), tuple(int(bits.sum(dtype=torch.int64)) for bits in raw.values())

    def digest_of_state() -> str:
        digest = hashlib.sha256()
        for name, tensor in state.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(raw[name].cpu().numpy().data)
        return digest.hexdigest()

    return _HASHES.get(model, now, digest_of_state)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor as integers."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    return flat.view(sizes[flat.element_size()])


def tokenizer_name(tokenizer: Any) -> str:
    """Return the tokenizer's class, and the size and a short hash of its vocabulary.

    The two tokenizers of a pair are joined by a plus sign.
    """
    if tokenizer is None:
        return "none"
    if isinstance(tokenizer, tuple | list):
        return "+".join(map(tokenizer_name, tokenizer))
    vocabulary = tokenizer.get_vocab()
    digest = hashlib.sha256()
    for piece, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index} {piece}\n".encode(errors="surrogatepass"))
    return f"{type(tokenizer).__name__}/{len(vocabulary)}/{digest.hexdigest()[:12]}"
