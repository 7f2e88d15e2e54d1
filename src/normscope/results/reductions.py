"""What is left of maps that are too large to keep: ratios, row sums, top contributors, shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.contributions import SignatureSource
from normscope.text.tokens import Tokens

Arrays = dict[str, NDArray[Any]]  # by map
KINDS = (
    *("mixing_ratio", "bias_share", "row_sum", "argmax"),
    *("top_key", "top_value", "category"),
)


@dataclass(eq=False)
class Reductions:
    """The reductions of one text (`analyze(..., reduce=…)`), or of each part of a model.

    mixing_ratio, bias_share, row_sum   map -> (layer, query)
    argmax                              map -> (layer, query), the key that contributes most
    top_key, top_value                  map -> (layer, query, rank), the largest first
    category                            map -> (layer, query, category), sums over keys

    In cross-attention the residual's column is the key after the last token; it belongs to no
    category. A row of fewer real keys than ranks has the key -1 and the value 0 in the ranks that
    are left over. A model of several stacks has ``parts`` instead: `result.encoder.top_key`.
    """

    tokens: Tokens | None = None
    key_tokens: Tokens | None = None
    categories: tuple[str, ...] = ()
    error: dict[str, float] = field(default_factory=dict)
    mixing_ratio: Arrays = field(default_factory=dict)
    bias_share: Arrays = field(default_factory=dict)
    row_sum: Arrays = field(default_factory=dict)
    argmax: Arrays = field(default_factory=dict)
    top_key: Arrays = field(default_factory=dict)
    top_value: Arrays = field(default_factory=dict)
    category: Arrays = field(default_factory=dict)
    parts: dict[str, Reductions] = field(default_factory=dict)
    source: SignatureSource | str = ""

    @property
    def signature(self) -> str:
        """How these numbers were made, in one line."""
        if not isinstance(self.source, str):
            self.source = self.source.text()
        return self.source

    def __getattr__(self, name: str) -> Reductions:
        parts = vars(self).get("parts", {})
        if name in parts:
            found: Reductions = parts[name]
            return found
        raise AttributeError(f"Reductions has no {name!r}; its parts are: {list(parts) or 'none'}")

    def __getstate__(self) -> dict[str, Any]:
        # The signature's source may hold the model, which has no place in a pickle.
        return {**vars(self), "source": self.signature}

    def __repr__(self) -> str:
        if self.parts:
            return f"Reductions in {len(self.parts)} parts: {', '.join(self.parts)}"
        has = [kind for kind in KINDS if getattr(self, kind)]
        maps = ", ".join(self.error)
        return f"Reductions {', '.join(has)} of {maps}: {len(self.tokens or ())} tokens"

    def top(self, name: str, layer: int, query: int) -> list[tuple[str, float]]:
        """The largest contributors of one query in one map, by token; none that gives nothing."""
        if self.parts:
            raise InputError(f"choose a part first: {', '.join(f'result.{p}' for p in self.parts)}")
        if name not in self.top_key:
            has = ", ".join(self.top_key) or 'none; ask for reduce=("top16",)'
            raise InputError(f"there are no top contributors of {name!r}; there are of: {has}")
        assert self.key_tokens is not None
        names = (*self.key_tokens.strings, "residual")
        layers, queries, _ = self.top_key[name].shape
        if not (0 <= layer < layers and 0 <= query < queries):
            raise InputError(
                f"there is no layer {layer}, query {query}: layers go to {layers - 1}, queries to "
                f"{queries - 1}"
            )
        keys, values = self.top_key[name][layer, query], self.top_value[name][layer, query]
        return [(names[k], float(v)) for k, v in zip(keys, values, strict=True) if v > 0]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, strings and numbers, ready for JSON."""
        if self.parts:
            parts = {name: part._plain() for name, part in self.parts.items()}
            return {"signature": self.signature, "parts": parts}
        return {"signature": self.signature, **self._plain()}

    def _plain(self) -> dict[str, Any]:
        kinds: Mapping[str, Arrays] = {kind: getattr(self, kind) for kind in KINDS}
        return {
            "tokens": [] if self.tokens is None else list(self.tokens.strings),
            "key_tokens": [] if self.key_tokens is None else list(self.key_tokens.strings),
            "categories": list(self.categories),
            "error": self.error,
            **{
                kind: {name: array.tolist() for name, array in arrays.items()}
                for kind, arrays in kinds.items()
                if arrays
            },
        }
