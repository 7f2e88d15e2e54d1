"""The one line that lets another person get the same numbers."""

from __future__ import annotations

import hashlib
import platform
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from normscope.models import identity
from normscope.models.walk import tensors

CONVENTIONS = "b_V:in-f;b_O:apart;norm:L2"
_HASHES: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()


class Signature:
    """How a result was made. Hashing the weights takes time, so the text is made when asked for."""

    def __init__(self, model: nn.Module, tokenizer: Any, settings: dict[str, str]) -> None:
        self.path = ""  # which way in served; known after the forward pass
        self._made_from: tuple[nn.Module, Any] | None = (model, tokenizer)
        self._settings = settings
        self._state = state_of(model)
        self._text = ""

    def text(self) -> str:
        """`key:value` pairs joined by `|`, always in the same order."""
        if self._made_from is not None:
            self._text = self._make(*self._made_from)
            self._made_from = None  # the model may go now
        return self._text

    def _make(self, model: Any, tokenizer: Any) -> str:
        changed = state_of(model) != self._state
        known = identity(model)
        fields = {
            "model": known["name"],
            "revision": known["revision"] or "none",
            "weights": "changed-after-analysis" if changed else "sha256=" + weights_hash(model),
            "tokenizer": tokenizer_name(tokenizer),
            **self._settings,
            "path": self.path,
            "conventions": CONVENTIONS,
            **versions(),
        }
        return "|".join(f"{key}:{value}" for key, value in fields.items())


def versions() -> dict[str, str]:
    """The versions that numbers may depend on."""
    import transformers

    from normscope import __version__

    return {
        "normscope": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """Changes whenever a parameter is replaced or written to; costs no pass over the weights."""
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors(model))


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the state, cached until it changes."""
    state = {n: t for n, t in sorted(model.state_dict().items()) if isinstance(t, torch.Tensor)}
    raw = {name: _raw(tensor) for name, tensor in state.items()}
    # Writing through `.data` leaves the version counter alone, so the bits are summed as well.
    now = state_of(model), tuple(int(bits.sum(dtype=torch.int64)) for bits in raw.values())
    cached = _HASHES.get(model)
    if cached is not None and cached[0] == now:
        return cached[1]
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(raw[name].cpu().numpy().data)
    _HASHES[model] = now, digest.hexdigest()
    return digest.hexdigest()


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    return flat.view(sizes[flat.element_size()])


def tokenizer_name(tokenizer: Any) -> str:
    """Class, size and a short hash of the vocabulary."""
    if tokenizer is None:
        return "none"
    vocabulary = tokenizer.get_vocab()
    digest = hashlib.sha256()
    for piece, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index} {piece}\n".encode(errors="surrogatepass"))
    return f"{type(tokenizer).__name__}/{len(vocabulary)}/{digest.hexdigest()[:12]}"
