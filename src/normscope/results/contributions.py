"""The result of an analysis: maps with their tokens, errors and signature; saved and loaded."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.arrays import LabelledArray, abridged, import_tables, merge_words
from normscope.text.tokens import Tokens

RESIDUAL = "residual"
FORMAT = "normscope.results.contributions"
VERSION = 1


@runtime_checkable
class SignatureSource(Protocol):
    """Something that can say the signature when it is asked for (hashing weights takes time)."""

    def text(self) -> str:
        """The signature."""


class Contributions:
    """What one analysis found: `result["attn_n"]`, its tokens, its error and its signature.

    A model with one stack of layers has `maps`. A model with several (encoder, decoder, cross)
    has `parts` instead, each a result of its own: `result.encoder["attn_n"]`.

    maps              name -> (layer, query, key) or (layer, head, query, key)
    transformed_norm  (layer, head, key)
    tokens            of the queries
    key_tokens        of the keys; the same as `tokens` unless given. A map may have one key
                      more, the last, named "residual"
    error             map name -> worst relative gap to the model's real output
    signature         a line of text, or an object whose `text()` gives it when it is first read
    extras            further arrays by kind and map: {"mixing_ratio": {"attn_n": (layer, query)}}
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
        if self._tokens is None or self._key_tokens is None or not self._maps:
            raise InputError("a result needs maps and tokens, or parts")
        for name in [*self._maps, *self.extras]:
            # These are names in a saved file, where transformed_norm has its own.
            if not name.isidentifier() or name == "transformed_norm":
                raise InputError(f"a map or an extra cannot be called {name!r}")
        if unknown := set(self._error) - set(self._maps):
            raise InputError(f"error given for {sorted(unknown)}; the maps are {list(self._maps)}")
        if self._transformed_norm and self._transformed_norm.key_reduce != "mean":
            raise InputError('words are averaged in transformed_norm: give it key_reduce="mean"')
        layers = next(iter(self._maps.values())).labels.get("layer")
        # The residual of cross-attention is a key of its own, the last, and no token of the source.
        with_residual = (*self._key_tokens.strings, RESIDUAL)
        for name, array in self._arrays().items():
            if layers is None or array.labels.get("layer") != layers:
                raise InputError(f"{name} does not have the same layers as the other arrays")
            if array.tokens.get("query", self._tokens) != self._tokens:
                raise InputError(f"the query tokens of {name} are not the result's tokens")
            keys = array.tokens.get("key", self._key_tokens)
            extended = keys.strings == with_residual and keys.special[-1]
            if keys != self._key_tokens and not extended:
                raise InputError(f"the key tokens of {name} are not the result's key tokens")

    def _arrays(self) -> dict[str, LabelledArray]:
        """Every array by a unique name: attn_n, transformed_norm, mixing_ratio/attn_n."""
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
                f"{wanted} is of one part, and this result has several; choose a part: {choice}"
            )

    def __getitem__(self, name: str) -> LabelledArray:
        self._choose_a_part(f"map {name!r}")
        if name not in self._maps:
            raise InputError(f"there is no map {name!r} here; there is: {', '.join(self._maps)}")
        return self._maps[name]

    def keys(self) -> list[str]:
        """The names of the maps; with several parts, of the maps that any of them has."""
        owners = self.parts.values() or [self]
        return list(dict.fromkeys(name for owner in owners for name in owner._maps))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __getattr__(self, name: str) -> Contributions:
        # Reached only for names that are not ordinary attributes. Not `self.parts`: while an
        # object is being unpickled it has no attributes yet.
        parts: dict[str, Contributions] = self.__dict__.get("parts", {})
        if name in parts:
            return parts[name]
        has = f"its parts are: {', '.join(parts)}" if parts else "it has one part, itself"
        raise AttributeError(f"this result has no {name!r}; {has}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.parts]

    @property
    def tokens(self) -> Tokens:
        """The tokens along the query axis."""
        self._choose_a_part("tokens")
        assert self._tokens is not None  # checked when made
        return self._tokens

    @property
    def key_tokens(self) -> Tokens:
        """The tokens along the key axis; those of the source in cross-attention."""
        self._choose_a_part("key_tokens")
        assert self._key_tokens is not None  # checked when made
        return self._key_tokens

    @property
    def transformed_norm(self) -> LabelledArray | None:
        """(layer, head, key): how long each key's transformed vector is."""
        self._choose_a_part("transformed_norm")
        return self._transformed_norm

    @property
    def mixing_ratio(self) -> dict[str, LabelledArray]:
        """Map name -> (layer, query); empty when not computed."""
        self._choose_a_part("mixing_ratio")
        return self.extras.get("mixing_ratio", {})

    @property
    def bias_share(self) -> dict[str, LabelledArray]:
        """Map name -> (layer, query): the norm of what belongs to no token; empty likewise."""
        self._choose_a_part("bias_share")
        return self.extras.get("bias_share", {})

    @property
    def error(self) -> dict[str, float]:
        """Map name -> worst relative gap to the model's real output, over all parts."""
        if not self.parts:
            return dict(self._error)
        gaps = [named for part in self.parts.values() for named in part.error.items()]
        return {name: max(gap for other, gap in gaps if other == name) for name, _ in gaps}

    @property
    def signature(self) -> str:
        """How these numbers were made, in one line; computed when first read, then kept."""
        signature = self._signature
        if not isinstance(signature, str):
            # Two threads may both come here; they get the same text, so no lock is needed.
            signature = self._signature = signature.text()
        return signature

    @property
    def layers(self) -> int:
        """How many layers the maps have."""
        self._choose_a_part("layers")
        return len(next(iter(self._maps.values())).labels["layer"])

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        self._choose_a_part("heads")
        for array in self._arrays().values():
            if "head" in array.axes:
                return len(array.labels["head"])
        raise InputError('no array here has heads; analyse with heads="each"')

    def __eq__(self, other: object) -> bool:
        """Equal in everything, the numbers bit for bit."""
        if not isinstance(other, Contributions):
            return NotImplemented
        mine, theirs = dict(vars(self)), dict(vars(other))
        del mine["_signature"], theirs["_signature"]
        # Last, because the signature may have to be computed first.
        return mine == theirs and self.signature == other.signature

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # The signature's source may hold the model, which has no place in a pickle.
        return {**self.__dict__, "_signature": self.signature}

    def __repr__(self) -> str:
        if self.parts:
            inner = [f"{name}: {part!r}" for name, part in self.parts.items()]
            return "\n  ".join([f"Contributions in {len(self.parts)} parts", *inner])
        worst = f"{max(self._error.values()):.1e}" if self._error else "not measured"
        return (
            f"Contributions {', '.join(self._maps)}: {self.layers} layers, "
            f"{len(self.tokens)} tokens ({abridged(self.tokens)}), error {worst}"
        )

    # ---- converting

    def words(self) -> Contributions:
        """The same result with the pieces of each word merged in every array."""
        if self.parts:
            parts = {name: part.words() for name, part in self.parts.items()}
            return Contributions(signature=self._signature, parts=parts)

        def merged(arrays: dict[str, LabelledArray]) -> dict[str, LabelledArray]:
            return {name: array.words() for name, array in arrays.items()}

        norm = None if self._transformed_norm is None else self._transformed_norm.words()
        tokens, key_tokens = merge_words(self.tokens)[1], merge_words(self.key_tokens)[1]
        extras = {kind: merged(by_map) for kind, by_map in self.extras.items()}
        return Contributions(
            merged(self._maps), norm, tokens, key_tokens, self._error, self._signature, None, extras
        )

    def to_dict(self) -> dict[str, Any]:
        """The result in plain lists, dicts, strings and floats, ready for JSON."""
        if self.parts:
            parts = {name: part._plain() for name, part in self.parts.items()}
            return {"signature": self.signature, "error": self.error, "parts": parts}
        return {"signature": self.signature, **self._plain()}

    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"tokens": list(self.tokens.strings)}
        if self.key_tokens != self.tokens:
            plain["key_tokens"] = list(self.key_tokens.strings)
        if self._transformed_norm is not None:
            plain["transformed_norm"] = self._transformed_norm.values.tolist()
        for kind, by_map in {"maps": self._maps, **self.extras}.items():
            plain[kind] = {name: array.values.tolist() for name, array in by_map.items()}
        return {**plain, "error": self.error}

    def to_pandas(self) -> Any:
        """All maps in one long table, with the columns "map" and, if there are parts, "part"."""
        pandas = import_tables("pandas")
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
        """Write everything, bit for bit, into one safetensors file; `load` reads it back.

        The file appears complete or not at all; a file that was there stays until then.
        """
        from safetensors.numpy import save

        header, tensors = _pack(self)
        # One metadata entry, so that the same result always gives the same bytes.
        data = save(tensors, metadata={FORMAT: json.dumps(header)})
        try:
            _write_atomically(Path(path).resolve(), data)
        except OSError as problem:
            raise InputError(
                f"could not save to {os.fspath(path)}: {problem.strerror or problem}; nothing was "
                "changed there; choose a folder that exists, may be written to and has room"
            ) from problem


def load(path: str | os.PathLike[str]) -> Contributions:
    """Read a result that `Contributions.save` wrote."""
    from safetensors import SafetensorError, safe_open

    where = os.fspath(path)
    try:
        with safe_open(where, framework="np") as file:
            # The header first: another program's file may be huge.
            text = (file.metadata() or {}).get(FORMAT)
            if text is None:
                raise InputError("it was not saved by normscope")
            header = json.loads(text)
            if header["version"] > VERSION:
                newer = f"format {header['version']}, and this normscope reads up to {VERSION}"
                raise InputError(f"it was saved by a newer normscope ({newer}); upgrade normscope")
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        return _unpack(header, tensors)
    except SafetensorError as problem:
        why = f"it is not a safetensors file, or it is truncated ({problem})"
    except (OSError, InputError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        with suppress(OSError):  # who may not look cannot be told more
            why = "it is a folder" if Path(where).is_dir() else why
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        why = f"its header is damaged ({problem!r:.200})"
    except RecursionError:
        why = "its header is nested too deep"
    raise InputError(f"could not load {where}: {why:.400}; give a file that result.save() wrote")


def _pack(result: Contributions) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A description of the result in plain types, and its tensors by name: "encoder/attn_n"."""
    tensors: dict[str, NDArray[Any]] = {}
    table: dict[Tokens, int] = {}

    def number(tokens: Tokens) -> int:
        return table.setdefault(tokens, len(table))

    parts = {}
    for part, owner in (result.parts or {"": result}).items():
        arrays = {}
        for name, array in owner._arrays().items():
            # safetensors reads the memory as it lies: a transposed array must be laid out first.
            tensors[f"{part}/{name}".lstrip("/")] = np.asarray(array.values, order="C")
            arrays[name] = {
                "axes": array.axes,
                "tokens": {axis: number(tokens) for axis, tokens in array.tokens.items()},
                "labels": array.labels,
                "name": array.name,
                "key_reduce": array.key_reduce,
            }
        parts[part] = {
            "signature": owner.signature,
            "tokens": number(owner.tokens),
            "key_tokens": number(owner.key_tokens),
            "error": {name: gap.hex() for name, gap in owner.error.items()},
            "arrays": arrays,
        }
    plain_tokens = [tokens.to_dict() for tokens in table]
    header = {"version": VERSION, "signature": result.signature, "tokens": plain_tokens}
    return {**header, "parts": parts}, tensors


def _unpack(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Contributions:
    """Build the result that `header` describes out of `tensors`, and check that both agree."""
    table = [Tokens.from_dict(tokens) for tokens in header["tokens"]]
    parts = {}
    for part, about in header["parts"].items():
        maps: dict[str, LabelledArray] = {}
        extras: dict[str, dict[str, LabelledArray]] = {}
        for name, array in about["arrays"].items():
            tensor = f"{part}/{name}".lstrip("/")
            if tensor not in tensors:
                raise InputError(f"tensor {tensor!r} is missing")
            array["axes"] = tuple(array["axes"])
            array["tokens"] = {axis: table[number] for axis, number in array["tokens"].items()}
            array["labels"] = {axis: tuple(labels) for axis, labels in array["labels"].items()}
            kind, _, map_name = name.rpartition("/")
            arrays = extras.setdefault(kind, {}) if kind else maps
            arrays[map_name] = LabelledArray(tensors.pop(tensor), **array)
        norm = maps.pop("transformed_norm", None)
        tokens, key_tokens = table[about["tokens"]], table[about["key_tokens"]]
        error = {name: float.fromhex(gap) for name, gap in about["error"].items()}
        parts[part] = Contributions(
            maps, norm, tokens, key_tokens, error, str(about["signature"]), None, extras
        )
    if tensors:
        raise InputError(f"it has tensors that its header does not name: {sorted(tensors)}")
    if list(parts) == [""]:
        return parts[""]
    return Contributions(signature=str(header["signature"]), parts=parts)


def _write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: readers see the old file or the whole new one."""
    partial = path.with_name(f".normscope-{uuid.uuid4().hex}.tmp")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):  # where it cannot be removed, it could not be made either
            partial.unlink(missing_ok=True)
        raise
