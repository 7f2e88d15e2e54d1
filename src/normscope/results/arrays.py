"""Arrays with named axes: layers, heads, and queries and keys with their tokens."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscope.errors import InputError, MissingExtraError
from normscope.foundation.texts import printable
from normscope.text.tokens import Tokens

AXES = ("step", "layer", "head", "query", "key")  # in this order; other axes follow them
TOKEN_AXES = ("query", "key")  # always have tokens
DTYPES = ("float16", "float32", "float64", "int64")
_NO_LABELS: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # shared: there are many arrays
RESIDUAL = "residual"  # the key that stands for the decoder's own state in cross-attention


@runtime_checkable
class TensorLike(Protocol):
    """A torch tensor, or another array that can be converted to NumPy."""

    @property
    def shape(self) -> Any:
        """The number of entries along each dimension."""

    @property
    def dtype(self) -> Any:
        """The type of the numbers."""

    def numpy(self) -> NDArray[Any]:
        """Return the numbers as a NumPy array."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class LabelledArray:
    """A read-only array with named axes, e.g. (layer, query, key), and the tokens of its axes.

    Attributes:
        values: the numbers: float16, float32, float64, or int64 for positions of keys. A read-only
            view, not a copy. The array may be built from a torch tensor (see :attr:`tensor`), which
            is converted when the values are first read, without a copy if it is on the CPU.
        axes: the names of the axes. "step", "layer", "head", "query" and "key" come first, in that
            order; other axes ("rank", "category", "token") follow.
        tokens: the tokens along an axis; "query" and "key" always have them. An extra key that is
            not a token of the text, such as "residual", is entered as a special token.
        labels: the coordinates along each axis, counted from 0 in the full array, so that after
            ``sel(layer=[2, 5])`` they are still 2 and 5.
        name: which map it is, e.g. "attn_n".
        key_reduce: how :meth:`words` merges keys: "sum" for contributions of keys to a query;
            "mean" for a property of the key alone, such as the norm of its transformed vector.
        signed: whether negative values are meaningful, so that zero is the middle of a scale.
    """

    values: NDArray[Any]
    axes: tuple[str, ...]
    tokens: Mapping[str, Tokens]
    labels: Mapping[str, tuple[int, ...]]
    name: str
    key_reduce: str
    signed: bool

    def __init__(
        self,
        values: NDArray[Any] | TensorLike,
        axes: Sequence[str],
        tokens: Mapping[str, Tokens],
        labels: Mapping[str, Sequence[int]] | None = None,
        name: str = "",
        key_reduce: str = "sum",
        signed: bool = False,
    ) -> None:
        # Not by setattr, which a frozen dataclass refuses. What is missing is made by __getattr__.
        own = self.__dict__
        if hasattr(values, "numpy"):
            own["_tensor"] = values
        else:
            own["values"] = values = _read_only(values)
        own["axes"] = axes = tuple(axes)
        own["tokens"] = tokens = dict(tokens)
        own["name"], own["key_reduce"], own["signed"] = name, key_reduce, signed
        own["_shape"] = shape = tuple(values.shape)
        own["_dtype"] = dtype = _numpy_dtype(values.dtype)
        own["_own_labels"] = _NO_LABELS
        places = _places(axes)
        if dtype is None:
            wrong = str(values.dtype).removeprefix("torch.")
            raise InputError(f"{name!r} has dtype {wrong}; valid: {', '.join(DTYPES)}")
        if places is None or len(axes) != len(shape):
            raise InputError(
                f"{name!r} has shape {shape} and axes {axes}; give one name per "
                f"dimension, those of {AXES} first and in that order"
            )
        if not _need_tokens(axes) <= tokens.keys() <= places.keys():
            raise InputError(
                f"{name!r} has axes {axes} and tokens for {sorted(tokens)}; give tokens for "
                "those of query and key that it has"
            )
        if key_reduce not in ("sum", "mean"):
            raise InputError(f"key_reduce is {key_reduce!r}; valid: 'sum', 'mean'")
        if labels:
            own["_own_labels"] = self._check_labels(labels)
        for axis, along in tokens.items():
            if len(along.strings) != (size := shape[places[axis]]):
                raise InputError(f"{name!r} has {size} {axis} entries but {len(along)} tokens")

    def _check_labels(self, labels: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Return those labels that do not count from 0; raise InputError for labels that differ."""
        if unknown := set(labels) - set(self.axes):
            raise InputError(f"{self.name!r} has labels for {sorted(unknown)} but axes {self.axes}")
        own: dict[str, tuple[int, ...]] = {}
        for axis, entries in labels.items():
            size, along = self._size(axis), tuple(int(label) for label in entries)
            if len(along) != size or len(set(along)) != size:
                raise InputError(
                    f"{self.name!r} has {size} {axis} entries but labels {along}; give one "
                    "label each, all different"
                )
            if along != tuple(range(size)):
                own[axis] = along
        return own

    if not TYPE_CHECKING:  # otherwise any attribute would have the type Any

        def __getattr__(self, name: str) -> Any:
            # Called for what is missing: values and labels, until they are first read. Not by
            # `self._tensor`, which may be missing too while an object is being copied.
            own = self.__dict__
            if name == "values" and "_tensor" in own:
                own[name] = _read_only(_converted(own["_tensor"]))
            elif name == "labels" and "_own_labels" in own:
                sizes = zip(self.axes, self.shape, strict=True)
                default = {axis: tuple(range(size)) for axis, size in sizes}
                own[name] = default | self._own_labels
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return own[name]

    @property
    def tensor(self) -> Any:
        """The numbers as a torch tensor, not a copy, on the device where they are.

        The maps of an analysis are in the memory of the CPU, pinned if the model is on a GPU, so
        that they can be sent back there quickly. Do not write to the tensor: it shares its memory
        with :attr:`values`. The rows of a batch are views of one large tensor, which is kept in
        memory as long as any row is in use. :meth:`to_numpy` or ``tensor.clone()`` copies a row.
        """
        import torch

        tensor = self.__dict__.get("_tensor")
        return tensor.detach() if isinstance(tensor, torch.Tensor) else _as_tensor(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of entries along each axis."""
        shape: tuple[int, ...] = self.__dict__["_shape"]
        return shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        dtype: np.dtype[Any] = self.__dict__["_dtype"]
        return dtype

    def _size(self, axis: str) -> int:
        """Return the number of entries along an axis."""
        return self.shape[self.axes.index(axis)]

    def _label_key(self, axis: str) -> object:
        """Return what is equal for two arrays with the same labels along an axis; None without."""
        if axis not in self.axes:
            return None
        own: Mapping[str, tuple[int, ...]] = self.__dict__["_own_labels"]
        return own.get(axis) or self._size(axis)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __getitem__(self, index: Any) -> Any:
        """Index the values by position, as NumPy does; `sel` selects by label."""
        return self.values[index]

    def __float__(self) -> float:
        return float(self.values)

    def __eq__(self, other: object) -> bool:
        """Compare everything, the values bit for bit; return one bool, not one for each element."""
        if not isinstance(other, LabelledArray):
            return NotImplemented
        return self._facts() == other._facts() and self.values.tobytes() == other.values.tobytes()

    # An array has no hash, as in NumPy.
    __hash__ = None  # type: ignore[assignment]

    def _facts(self) -> tuple[Any, ...]:
        """Return everything but the values."""
        kind = (self.name, self.key_reduce, self.signed, self.axes, self.shape, self.dtype)
        return (*kind, self.__dict__["_own_labels"], self.tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle through the constructor, because NumPy does not pickle the read-only flag, and as
        # NumPy, because the tensor may be a view of a whole batch.
        facts = (self.axes, self.tokens, self.labels, self.name, self.key_reduce, self.signed)
        return (LabelledArray, (self.values, *facts))

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True)
        )
        lines = [f"LabelledArray {self.name!r} ({sizes}) {self.dtype}"]
        if len(set(self.tokens.values())) == 1:
            lines.append(f"{', '.join(self.tokens)}: {abridged(next(iter(self.tokens.values())))}")
        else:
            lines += [f"{axis}: {abridged(tokens)}" for axis, tokens in self.tokens.items()]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        from normscope.show.page.static import array_html

        return array_html(self)

    # ---- selecting

    def sel(self, **selection: object) -> LabelledArray:
        """Select by label along named axes: `sel(layer=3, query="cat", key=[0, 4])`.

        Every axis takes an int, a list or a slice of ints (end excluded); query and key also take
        a token, as the tokenizer writes it or as it stands in the text, or a list of tokens. A
        single label drops the axis. Ints are labels, counted from 0 in the full array, so negative
        ones are not valid.
        """
        for axis in selection:
            if axis not in self.axes:
                raise InputError(
                    f"{self.name!r} has no axis {axis!r}; it has: {', '.join(self.axes) or 'none'}"
                )
        values, axes = self.values, list(self.axes)
        tokens, labels = dict(self.tokens), dict(self.labels)
        for axis, wanted in selection.items():
            positions = self._find(axis, wanted)
            place = axes.index(axis)
            if isinstance(positions, int):
                values = np.asarray(values[(slice(None),) * place + (positions,)])
                axes.remove(axis)
                labels.pop(axis)
                tokens.pop(axis, None)
            else:
                values = values.take(positions, axis=place)
                labels[axis] = tuple(self.labels[axis][position] for position in positions)
                if axis in tokens:
                    tokens[axis] = take(self.tokens[axis], positions)
        return replace(self, values=values, axes=tuple(axes), tokens=tokens, labels=labels)

    def _find(self, axis: str, wanted: object) -> int | list[int]:
        """Return the position or positions of the wanted label or labels along an axis."""
        if isinstance(wanted, slice):
            positions = self._find_slice(axis, wanted)
        elif isinstance(wanted, Iterable) and not isinstance(wanted, str):
            wanted = list(wanted)
            positions = [self._find_label(axis, label) for label in wanted]
        else:
            return self._find_label(axis, wanted)
        if not positions:
            raise InputError(f"{axis}={wanted!r} selects nothing; {self._valid(axis)}")
        if len(set(positions)) < len(positions):
            raise InputError(f"{axis}={wanted!r} names an entry more than once; name each once")
        return positions

    def _find_label(self, axis: str, wanted: object) -> int:
        if isinstance(wanted, str) and axis in self.tokens:
            return self._find_token(axis, wanted)
        if is_int(wanted) and wanted in self.labels[axis]:
            return self.labels[axis].index(int(wanted))
        raise InputError(f"{self.name!r} has no {axis} {wanted!r}; {self._valid(axis)}")

    def _find_slice(self, axis: str, wanted: slice) -> list[int]:
        bounds = [x for x in (wanted.start, wanted.stop, wanted.step) if x is not None]
        if not all(is_int(x) and x >= 0 for x in bounds) or wanted.step == 0:
            raise InputError(
                f"{axis}={wanted!r} is not a slice of labels: give ints from 0 on and a positive "
                f"step; {self._valid(axis)}"
            )
        labels = self.labels[axis]
        first = 0 if wanted.start is None else wanted.start
        end = max(labels, default=0) + 1 if wanted.stop is None else wanted.stop
        return [at for at, label in enumerate(labels) if first <= label < end][:: wanted.step]

    def _find_token(self, axis: str, wanted: str) -> int:
        tokens = self.tokens[axis]
        pieces = zip(tokens.strings, tokens.texts, strict=True)
        positions = [position for position, piece in enumerate(pieces) if wanted in piece]
        if len(positions) == 1:
            return positions[0]
        if positions:
            places = ", ".join(
                f"{self.labels[axis][at]} ({tokens.strings[at]})" for at in positions
            )
            raise InputError(
                f"{axis} {wanted!r} is not unique in {self.name!r}: it is at positions {places}; "
                "select by position"
            )
        hint = ""
        if tokens.words is not None and wanted in tokens.words:
            hint = "; it is a word of several pieces: merge them with .words() first"
        raise InputError(f"{self.name!r} has no {axis} {wanted!r}; {self._valid(axis)}{hint}")

    def _valid(self, axis: str) -> str:
        labels = self.labels[axis]
        text = ", ".join(map(str, labels))
        if len(labels) > 2 and labels == tuple(range(labels[0], labels[0] + len(labels))):
            text = f"{labels[0]} to {labels[-1]}"
        if axis in self.tokens:
            text += f", or a token: {abridged(self.tokens[axis])}"
        return f"valid: {text}"

    # ---- merging pieces into words

    def words(self) -> LabelledArray:
        """Merge the pieces of each word: summed over keys, averaged over queries.

        A word's contribution to a query is the sum of the contributions of its pieces; a
        contribution to a word is the mean over its pieces. With `key_reduce="mean"` keys are
        averaged too. Special tokens are not merged. Sums are computed in float64 and rounded once.
        Query and key labels of the result count words.
        """
        return self._merge_pieces(*self.tokens)

    def _merge_pieces(self, *along: str) -> LabelledArray:
        """Merge the pieces of each word along these axes, as :meth:`words` does along all."""
        values: NDArray[Any] = self.values
        tokens, labels = dict(self.tokens), dict(self.labels)
        for axis in along:
            groups, tokens[axis] = merge_words(self.tokens[axis])
            del labels[axis]
            place = self.axes.index(axis)
            sizes = np.array([len(group) for group in groups], dtype=np.intp)
            order = np.array([position for group in groups for position in group], dtype=np.intp)
            starts = np.cumsum(sizes) - sizes
            values = values.take(order, axis=place)
            values = np.add.reduceat(values, starts, axis=place, dtype=np.float64)
            if axis == "query" or self.key_reduce == "mean":
                values /= sizes.reshape((-1,) + (1,) * (values.ndim - place - 1))
        values = values.astype(self.dtype)
        return replace(self, values=values, tokens=tokens, labels=labels)

    # ---- summing

    def sum(self, axis: str | int | tuple[int, ...] | None = None, **options: Any) -> Any:
        """Return the sum of all values as a float, or the sum over one axis.

        Args:
            axis: The name of an axis to sum over, which gives a LabelledArray without it. Numbers
                of axes give a NumPy array, as does ``numpy.sum``. None sums over all axes.
            options: What ``numpy.sum`` takes, with numbers of axes.

        Sums are computed in float64.
        """
        if axis is None and not any(value is not None for value in options.values()):
            return float(self.values.sum(dtype=np.float64))
        if not isinstance(axis, str):
            return np.sum(self.values, axis=axis, **options)
        if axis not in self.axes:
            raise InputError(
                f"{self.name!r} has no axis {axis!r}; it has: {', '.join(self.axes) or 'none'}"
            )
        total = self.values.sum(axis=self.axes.index(axis), dtype=np.float64)
        values = np.asarray(total, dtype=self.dtype)
        tokens, labels = dict(self.tokens), dict(self.labels)
        tokens.pop(axis, None)
        labels.pop(axis)
        axes = tuple(name for name in self.axes if name != axis)
        return replace(self, values=values, axes=axes, tokens=tokens, labels=labels)

    # ---- converting

    def to_numpy(self) -> NDArray[Any]:
        """Return the values as a writable copy."""
        return np.array(self.values)

    def to_pandas(self) -> Any:
        """Return a long table, one row per cell: axes, tokens of query and key, value."""
        pandas = import_tables("pandas")
        columns: dict[str, Any] = {}
        for place, axis in enumerate(self.axes):
            along = np.indices(self.shape, sparse=True)[place]
            index = np.broadcast_to(along, self.shape).ravel()
            columns[axis] = np.array(self.labels[axis], dtype=np.int64)[index]
            if axis in self.tokens:
                columns[f"{axis}_token"] = np.array(self.tokens[axis].strings, dtype=object)[index]
        columns["value"] = self.to_numpy().ravel()
        return pandas.DataFrame(columns)

    def to_xarray(self) -> Any:
        """Return an xarray.DataArray: axes as dimensions, labels and tokens as coordinates."""
        xarray = import_tables("xarray")
        coordinates: dict[str, Any] = {axis: list(self.labels[axis]) for axis in self.axes}
        for axis, tokens in self.tokens.items():
            coordinates[f"{axis}_token"] = (axis, list(tokens.strings))
        return xarray.DataArray(
            self.to_numpy(), dims=self.axes, coords=coordinates, name=self.name or None
        )


@lru_cache(maxsize=64, typed=True)
def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return a dtype of NumPy or torch as one of NumPy; None if it is not in DTYPES."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(name) if name in DTYPES else None


@lru_cache(maxsize=256)
def _places(axes: tuple[str, ...]) -> dict[str, int] | None:
    """Return the place of each axis; None if they are not in order or not all different."""
    known = tuple(axis for axis in AXES if axis in axes)
    if axes[: len(known)] != known or len(set(axes)) != len(axes):
        return None
    return {axis: place for place, axis in enumerate(axes)}


@lru_cache(maxsize=256)
def _need_tokens(axes: tuple[str, ...]) -> frozenset[str]:
    """Return those of the axes that always have tokens."""
    return frozenset(axis for axis in TOKEN_AXES if axis in axes)


def _read_only(values: Any) -> NDArray[Any]:
    """Return a read-only view; the caller's own array stays writable."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


def _converted(tensor: Any) -> NDArray[Any]:
    """Return a tensor as a NumPy array that shares its memory; from a GPU it is a copy."""
    import torch

    # `force` also detaches and copies from a GPU.
    values = tensor.numpy(force=True) if isinstance(tensor, torch.Tensor) else tensor.numpy()
    return np.asarray(values)


class _Writable:
    """The memory of a read-only array, for torch, which warns of arrays that are read-only."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values  # keeps the memory alive
        interface = values.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _as_tensor(values: NDArray[Any]) -> Any:
    """Return a NumPy array as a torch tensor that shares its memory, if torch supports it."""
    import torch

    if any(stride < 0 for stride in values.strides):  # torch has no negative strides
        return torch.from_numpy(values.copy())
    return torch.from_numpy(np.asarray(_Writable(values)))


def take(tokens: Tokens, positions: Sequence[int]) -> Tokens:
    """Return the tokens at these positions; words are renumbered, those without pieces dropped."""

    def pick(entries: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([entries[position] for position in positions])

    word_of, words = None, None
    if tokens.word_of is not None and tokens.words is not None:
        word_of = pick(tokens.word_of)
        new = {word: number for number, word in enumerate(dict.fromkeys(word_of))}
        word_of = tuple([new[word] for word in word_of])
        words = tuple([tokens.words[word] for word in new])
    return replace(
        tokens,
        strings=pick(tokens.strings),
        ids=None if tokens.ids is None else pick(tokens.ids),
        special=pick(tokens.special),
        texts=pick(tokens.texts),
        word_of=word_of,
        words=words,
        places=None if tokens.places is None else pick(tokens.places),
    )


def merge_words(tokens: Tokens) -> tuple[list[list[int]], Tokens]:
    """Return the positions of each word's pieces, and the words themselves as tokens.

    Words come in the order of their first piece. Special tokens are never merged.
    """
    if tokens.word_of is None or tokens.words is None:
        raise InputError(
            "which pieces form a word is not known for these tokens (no tokenizer, or a slow "
            "one); use a fast tokenizer to merge words"
        )
    groups: dict[tuple[int, int], list[int]] = {}
    for position, (word, special) in enumerate(zip(tokens.word_of, tokens.special, strict=True)):
        groups.setdefault((position, -1) if special else (-1, word), []).append(position)
    first = [group[0] for group in groups.values()]
    names = tuple(
        tokens.strings[at] if tokens.special[at] else tokens.words[tokens.word_of[at]]
        for at in first
    )
    merged = replace(
        tokens,
        strings=names,
        ids=None,
        special=tuple(tokens.special[at] for at in first),
        texts=names,
        word_of=tuple(range(len(names))),
        words=names,
        places=None if tokens.places is None else tuple(tokens.places[at] for at in first),
    )
    return list(groups.values()), merged


def abridged(tokens: Tokens, limit: int = 12) -> str:
    """Return the first few tokens in one line."""
    more = f" … ({len(tokens)})" if len(tokens) > limit else ""
    return " ".join(map(printable, tokens.strings[:limit])) + more


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is an int of Python or NumPy; a bool is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def import_tables(package: str) -> Any:
    """Import a package of the extra "tables"; raise MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "tables") from error
