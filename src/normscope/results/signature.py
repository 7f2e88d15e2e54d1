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

from normscope.foundation.caching import ModuleCache, tensor_state
from normscope.foundation.probes import bit_sums, bits_of
from normscope.foundation.texts import printable
from normscope.models import identity
from normscope.models.completeness import made_up
from normscope.results.descriptions import modules_hash, tokenizer_name, tokenizer_state
from normscope.results.state import Snapshot

CONVENTIONS = "b_V:in-f;b_O:apart;norm:L2"
CHANGED = "changed-after-analysis"
DELETED = "deleted-before-hashing"
_HASHES: ModuleCache[str] = ModuleCache()


class Signature:
    """How a result was made, in one line.

    Hashing the weights takes time, so the text is computed when it is first read. Until then the
    signature has a weak reference to the model, which does not keep the model alive. Read the
    signature, or save the result, before the model is deleted or changed; afterwards the weights
    are given as "deleted-before-hashing" or "changed-after-analysis", never as the hash of others.
    The same holds for modules and tokenizer.

    Attributes:
        snapshot: what the model was when the signature was made, which is when the call began.
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
        self.snapshot = Snapshot(model)
        self._rules = tokenizer_state(tokenizer)
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
            model = self._model()
            if model is None:
                self._shared.update(weights=DELETED, modules=DELETED)
            else:
                hashes = "sha256=" + weights_hash(model), modules_hash(model)
                # Compared after hashing: the model may have been changed while it was read.
                changed = (
                    self.snapshot.changed_weights(model),
                    self.snapshot.changed_structure(model),
                )
                weights, modules = (
                    CHANGED if c else h for h, c in zip(hashes, changed, strict=True)
                )
                self._shared.update(weights=weights, modules=modules)
            name = tokenizer_name(self._tokenizer)
            same = self._rules == tokenizer_state(self._tokenizer)
            self._shared["tokenizer"] = name if same else CHANGED
        return self._shared


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


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 of the state (names, dtypes, shapes, bytes), cached until it changes.

    Parameters that no file had, and that no result depends on, do not count: they are other random
    numbers whenever the model is loaded.
    """
    unread = made_up(model)
    saved = sorted(item for item in model.state_dict().items() if item[0] not in unread)
    state = {name: tensor for name, tensor in saved if isinstance(tensor, torch.Tensor)}
    # Writing through `.data` does not change the version counter, so compare contents: products
    # with a random vector notice what is moved, and sums of the bits what is lost in rounding.
    now = list(state), [tensor_state(t) for t in state.values()], bit_sums(state.values())

    def digest_of_state() -> str:
        digest = hashlib.sha256()
        for name, tensor in state.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(bits_of(tensor).cpu().numpy().data)
        return digest.hexdigest()

    return _HASHES.get(model, now, digest_of_state)
