"""The result of an analysis: labelled arrays with their tokens, errors and signature."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from normscope.errors import InputError
from normscope.results.arrays import (
    RESIDUAL,
    LabelledArray,
    abridged,
    import_tables,
    merge_words,
)
from normscope.text.tokens import Tokens

__all__ = ["Contributions", "SignatureSource", "load"]


@runtime_checkable
class SignatureSource(Protocol):
    """An object that computes the signature on demand (hashing weights takes time)."""

    def text(self) -> str:
        """Return the signature."""


def _kind(name: str, doc: str) -> property:
    """Return a property for the arrays of one kind, by map."""

    def arrays(self: Contributions) -> dict[str, LabelledArray]:
        self._choose_a_part(name)
        return self.extras.get(name, {})

    return property(arrays, doc=doc)


class Contributions:
    """The result of one analysis: maps such as `result["attn_n"]`, tokens, errors and signature.

    A model with one stack of layers has maps. A model with several (encoder, decoder, cross) has
    ``parts`` instead, each a result of its own: `result.encoder["attn_n"]`. With reduced maps
    (`analyze(..., reduce=…)`) there are only the reductions.

    Args:
        maps: name -> (layer, query, key) or (layer, head, query, key).
        transformed_norm: (layer, head, key).
        tokens: the tokens of the queries.
        key_tokens: the tokens of the keys; ``tokens`` by default. A map may have an extra last key
            named "residual".
        error: map name -> worst relative gap to the model's real output.
        signature: a line of text, or an object whose ``text()`` gives it when it is first read.
        parts: results by name, in place of all of the above.
        extras: further arrays by kind and map: {"mixing_ratio": {"attn_n": (layer, query)}}.
    """

    def __init__(
        self,
        maps: Mapping[str, LabelledArray] | None = None,
        transformed_norm: LabelledArray | None = None,
        tokens: Tokens | None = None,
        key_tokens: Tokens | None = None,
        error: Mapping[str, float] | None = None,
        signature: SignatureSource | str = "",
        parts: Mapping[str, Contributions] | None = None,
        extras: Mapping[str, Mapping[str, LabelledArray]] | None = None,
    ) -> None:
        self.parts = dict(parts or {})
        self.extras = {kind: dict(by_map) for kind, by_map in (extras or {}).items() if by_map}
        self._maps = dict(maps or {})
        self._transformed_norm = transformed_norm
        self._tokens = tokens
        self._key_tokens = tokens if key_tokens is None else key_tokens
        self._error = {name: float(gap) for name, gap in (error or {}).items()}
        self._signature = signature
        self._check()

    def _check(self) -> None:
        own = self._maps or self.extras or self._transformed_norm or self._key_tokens
        if self.parts and own:
            raise InputError("a result has either parts or maps and tokens of its own, not both")
        for name, part in self.parts.items():
            if not name.isidentifier() or hasattr(Contributions, name) or part.parts:
                raise InputError(f"part {name!r} must have a free name and no parts of its own")
        if self.parts:
            return
        if self._tokens is None or self._key_tokens is None or not (self._maps or self.extras):
            raise InputError("a result needs maps and tokens, or parts")
        for name in [*self._maps, *self.extras]:
            # They become names in a saved file, where transformed_norm is taken.
            if not name.isidentifier() or name == "transformed_norm":
                raise InputError(f"a map or an extra cannot be called {name!r}")
        measured = {*self._maps, *(name for by_map in self.extras.values() for name in by_map)}
        if unknown := set(self._error) - measured:
            raise InputError(f"error given for {sorted(unknown)}; the maps are {list(self._maps)}")
        if self._transformed_norm and self._transformed_norm.key_reduce != "mean":
            raise InputError('words are averaged in transformed_norm: give it key_reduce="mean"')
        self._check_arrays(self._tokens, self._key_tokens)

    def _check_arrays(self, tokens: Tokens, key_tokens: Tokens) -> None:
        """Raise InputError unless all arrays have the same layers and tokens."""
        arrays = self._arrays()
        layers = next(iter(arrays.values()))._label_key("layer")
        for name, array in arrays.items():
            if layers is None or array._label_key("layer") != layers:
                raise InputError(f"{name} does not have the same layers as the other arrays")
            queries = array.tokens.get("query", tokens)
            if queries is not tokens and queries != tokens:
                raise InputError(f"the query tokens of {name} are not the result's tokens")
            keys = array.tokens.get("key", key_tokens)
            if keys is key_tokens or keys == key_tokens:
                continue
            # In cross-attention the residual is an extra last key, not a token of the source.
            if keys.strings != (*key_tokens.strings, RESIDUAL) or not keys.special[-1]:
                raise InputError(f"the key tokens of {name} are not the result's key tokens")

    def _arrays(self) -> dict[str, LabelledArray]:
        """Return every array by a unique name: attn_n, transformed_norm, mixing_ratio/attn_n."""
        arrays = dict(self._maps)
        if self._transformed_norm is not None:
            arrays["transformed_norm"] = self._transformed_norm
        for kind, by_map in self.extras.items():
            arrays.update({f"{kind}/{name}": array for name, array in by_map.items()})
        return arrays

    # ---- reading

    def _choose_a_part(self, wanted: str) -> None:
        if self.parts:
            choice = ", ".join(f"result.{name}" for name in self.parts)
            raise InputError(
                f"{wanted} belongs to one part, and this result has several; "
                f"choose a part: {choice}"
            )

    def __getitem__(self, name: str) -> LabelledArray:
        self._choose_a_part(f"map {name!r}")
        if name not in self._maps:
            listing = ", ".join(self._maps) or f"none, only {', '.join(self.extras)}"
            raise InputError(f"there is no map {name!r} in this result; it has: {listing}")
        return self._maps[name]

    def keys(self) -> list[str]:
        """Return the names of the maps; with several parts, of the maps that any of them has."""
        owners = self.parts.values() or [self]
        return list(dict.fromkeys(name for owner in owners for name in owner._maps))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True  # also without maps, if they were reduced

    def __getattr__(self, name: str) -> Contributions:
        # Reached only for names that are not ordinary attributes. Not `self.parts`: while an
        # object is being unpickled it has no attributes yet.
        parts: dict[str, Contributions] = self.__dict__.get("parts", {})
        if name in parts:
            return parts[name]
        listing = f"its parts are: {', '.join(parts)}" if parts else "it has one part, itself"
        raise AttributeError(f"this result has no {name!r}; {listing}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.parts]

    @property
    def tokens(self) -> Tokens:
        """The tokens along the query axis."""
        self._choose_a_part("tokens")
        assert self._tokens is not None  # checked by the constructor
        return self._tokens

    @property
    def key_tokens(self) -> Tokens:
        """The tokens along the key axis; those of the source in cross-attention."""
        self._choose_a_part("key_tokens")
        assert self._key_tokens is not None  # checked by the constructor
        return self._key_tokens

    @property
    def transformed_norm(self) -> LabelledArray:
        """The norm of each key's transformed vector, (layer, head, key)."""
        self._choose_a_part("transformed_norm")
        if self._transformed_norm is None:
            raise InputError(
                "this result has no transformed norms: its maps were reduced, or an elementwise "
                "gate makes f(x) another vector for every query (gate-held in the signature)"
            )
        return self._transformed_norm

    mixing_ratio = _kind("mixing_ratio", "Map name -> (layer, query); empty when not computed.")
    bias_share = _kind(
        "bias_share", "Map name -> (layer, query): the norm of what belongs to no token."
    )
    ff_share = _kind(
        "ff_share", "Map name -> (layer, query): the feed-forward's share of its residual sum."
    )
    row_sum = _kind("row_sum", "Map name -> (layer, query): the sum over keys, if asked for.")
    argmax = _kind("argmax", "Map name -> (layer, query): the key that contributes most.")
    top_key = _kind("top_key", "Map name -> (layer, query, rank): keys, the largest first, or -1.")
    top_value = _kind("top_value", "Map name -> (layer, query, rank): their contributions.")
    category = _kind("category", "Map name -> (layer, query, category): sums over keys.")

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the categories of keys; the last one is for all other keys."""
        return next((a.tokens["category"].strings for a in self.category.values()), ())

    def top(self, name: str, layer: int, query: int) -> list[tuple[str, float]]:
        """Return the largest contributors of one query as (token, value), without zeros."""
        if name not in self.top_key:
            kept = ", ".join(self.top_key) or 'none; ask for reduce=("top16",)'
            raise InputError(f"there are no top contributors of {name!r}; there are of: {kept}")
        names = (*self.key_tokens.strings, RESIDUAL)
        layers, queries, _ = self.top_key[name].shape
        if not (0 <= layer < layers and 0 <= query < queries):
            raise InputError(
                f"there is no layer {layer}, query {query}: layers go to {layers - 1}, queries to "
                f"{queries - 1}"
            )
        keys, values = self.top_key[name][layer, query], self.top_value[name][layer, query]
        return [(names[k], float(v)) for k, v in zip(keys, values, strict=True) if v > 0]

    @property
    def error(self) -> dict[str, float]:
        """Map name -> worst relative gap to the model's real output, over all parts."""
        if not self.parts:
            return dict(self._error)
        gaps = [named for part in self.parts.values() for named in part.error.items()]
        return {name: max(gap for other, gap in gaps if other == name) for name, _ in gaps}

    @property
    def signature(self) -> str:
        """How these numbers were computed, in one line; made when first read, then cached."""
        signature = self._signature
        if not isinstance(signature, str):
            # Two threads may compute it at once; they get the same text, so no lock is needed.
            signature = self._signature = signature.text()
        return signature

    @property
    def layers(self) -> int:
        """The number of layers of the arrays."""
        self._choose_a_part("layers")
        return next(iter(self._arrays().values()))._size("layer")

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        self._choose_a_part("heads")
        for array in self._arrays().values():
            if "head" in array.axes:
                return array._size("head")
        raise InputError('no array of this result has heads; analyse with heads="each"')

    def __eq__(self, other: object) -> bool:
        """Compare everything, the numbers bit for bit."""
        if not isinstance(other, Contributions):
            return NotImplemented
        mine, theirs = dict(vars(self)), dict(vars(other))
        del mine["_signature"], theirs["_signature"]
        # Last, because the signature may have to be computed first.
        return mine == theirs and self.signature == other.signature

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Pickle the text, because the object that computes it refers to the model.
        return {**self.__dict__, "_signature": self.signature}

    def __repr__(self) -> str:
        if self.parts:
            inner = [f"{name}: {part!r}" for name, part in self.parts.items()]
            return "\n  ".join([f"Contributions in {len(self.parts)} parts", *inner])
        worst = f"{max(self._error.values()):.1e}" if self._error else "not measured"
        kinds = ", ".join(self._maps) or f"{', '.join(self.extras)} of {', '.join(self._error)}"
        return (
            f"Contributions {kinds}: {self.layers} layers, "
            f"{len(self.tokens)} tokens ({abridged(self.tokens)}), error {worst}"
        )

    # ---- converting

    def words(self) -> Contributions:
        """Return the same result with the pieces of each word merged in every array."""
        if self.parts:
            parts = {name: part.words() for name, part in self.parts.items()}
            return Contributions(signature=self._signature, parts=parts)
        if not self._maps:
            raise InputError("reduced maps cannot be merged into words; analyse without reduce=")

        def merged(arrays: dict[str, LabelledArray]) -> dict[str, LabelledArray]:
            return {name: array.words() for name, array in arrays.items()}

        norm = None if self._transformed_norm is None else self._transformed_norm.words()
        tokens, key_tokens = merge_words(self.tokens)[1], merge_words(self.key_tokens)[1]
        extras = {kind: merged(by_map) for kind, by_map in self.extras.items()}
        return Contributions(
            merged(self._maps), norm, tokens, key_tokens, self._error, self._signature, None, extras
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result in plain lists, dicts, strings and floats, ready for JSON."""
        if self.parts:
            parts = {name: part._plain() for name, part in self.parts.items()}
            return {"signature": self.signature, "error": self.error, "parts": parts}
        return {"signature": self.signature, **self._plain()}

    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"tokens": list(self.tokens.strings)}
        if self.key_tokens != self.tokens or not self._maps:
            plain["key_tokens"] = list(self.key_tokens.strings)
        if self._transformed_norm is not None:
            plain["transformed_norm"] = self._transformed_norm.values.tolist()
        kinds = {"maps": self._maps, **self.extras} if self._maps else self.extras
        for kind, by_map in kinds.items():
            plain[kind] = {name: array.values.tolist() for name, array in by_map.items()}
        if not self._maps:
            plain["categories"] = list(self.categories)
        return {**plain, "error": self.error}

    def to_pandas(self) -> Any:
        """Return all maps in one long table, with columns "map" and, if there are parts, "part"."""
        pandas = import_tables("pandas")
        if not (self.parts or self._maps):
            raise InputError("reduced maps have no table of cells; read their arrays one by one")
        column, owners = ("part", self.parts) if self.parts else ("map", self._maps)
        tables = {name: owner.to_pandas() for name, owner in owners.items()}
        return pandas.concat(tables, names=[column]).reset_index(column).reset_index(drop=True)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write an interactive page: one HTML file that needs no network."""
        from normscope.show.page import write

        write(self, path)

    def show(self) -> None:
        """Open the interactive page in the browser, or below the cell of a notebook."""
        from normscope.show.page.show import show

        show(self)

    def _repr_html_(self) -> str:
        from normscope.show.page.static import result_html

        return result_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything, bit for bit, to one safetensors file; `load` reads it back.

        An existing file is replaced only when the new one is complete.
        """
        from normscope.results.saved import save

        save(self, path)


def load(path: str | os.PathLike[str]) -> Contributions | Any:
    """Read a result that `save` wrote: a `Contributions` or an `Attribution`, as the file says."""
    from normscope.results.saved import load

    return load(path)
