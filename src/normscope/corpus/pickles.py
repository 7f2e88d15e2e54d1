"""Read Clark et al.'s attention pickles without executing anything in them.

A pickle is a program, and `pickle.load` calls whatever functions it names. Here it is executed by
a subclass of pickle's own unpickler that admits only the instructions of plain data, resolves no
name and calls nothing. Containers, strings and numbers are built. For numpy arrays, dtypes and
scalars a placeholder is built, because the attention maps in these files take gigabytes and are
not needed. Any other name is refused.

The base class is the one written in Python. The one written in C could be restricted to the same
names, but not be kept from hashing keys whose hash takes forever, from reserving memory for any
index of its memo, and from keeping all arrays in memory.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normscope.errors import InputError

Handler = Callable[[Any], None]  # executes an instruction

# The names that pickled arrays, dtypes and scalars refer to, in all versions of numpy. They are
# compared as text and never imported.
_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
ADMITTED = frozenset(
    {
        *((core, name) for core in _CORES for name in ("_reconstruct", "scalar")),
        *((core, "_frombuffer") for core in _NUMERIC),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # how Python 3 writes bytes for Python 2
    }
)
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_STRINGS = frozenset(
    {
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
INSTRUCTIONS = _STRINGS | {
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
# Where the values are on the stack that become keys of a dictionary or members of a set.
_KEYS = {
    "SETITEM": slice(-2, -1),
    **dict.fromkeys(("DICT", "SETITEMS"), slice(None, None, 2)),
    **dict.fromkeys(("ADDITEMS", "FROZENSET"), slice(None)),
}
_LONG = 1 << 16  # characters; a longer string can only be the numbers of an array
_ATOMS = (str, bytes, int, float, type(None))
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError)


class _Placeholder:
    """Stands for an array, a dtype, a scalar, or a name that these refer to."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Placeholder()


class _RefusedError(Exception):
    """The pickle needs what is not admitted."""


def load(path: str | os.PathLike[str], opened: io.BufferedReader | None = None) -> Any:
    """Return the plain data in a pickle; raise InputError if it holds anything else.

    Args:
        path: The file.
        opened: The file if it is open already; it is closed.
    """
    with Path(path).open("rb") if opened is None else opened as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        try:
            return _PlainUnpickler(_Bounded(file, size), encoding="latin-1").load()
        except _RefusedError as problem:
            raise InputError(f"{os.fspath(path)!r} is not read: {problem!s:.300}") from None
        except InputError:  # a ValueError too: the file changed
            raise
        except (*_DAMAGED, MemoryError, struct.error, pickle.UnpicklingError) as problem:
            raise InputError(
                f"{os.fspath(path)!r} is not a whole pickle of plain data ({problem!s:.200}); give "
                "the file as Clark et al. released it, or the text itself"
            ) from None


class _Bounded:
    """A file that refuses to read more than it has, whatever length a pickle announces."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int, /) -> bytes:
        if size > self._left:
            raise ValueError(f"{size} bytes are announced and {self._left} are left")
        data = self._file.read(size)
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        data = self._file.readline()
        self._left -= len(data)
        return data


# ------------------------------------------------------------------------------- instructions


def _reduce(unpickler: Any) -> None:
    """Replace a function and its arguments by a placeholder; nothing is called."""
    arguments, function = unpickler.stack.pop(), unpickler.stack.pop()
    if function is not _ARRAY or not isinstance(arguments, tuple):
        raise _RefusedError("it calls something that is not one of numpy's functions")
    unpickler.append(_ARRAY)


def _build(unpickler: Any) -> None:
    """Drop the state of an array."""
    unpickler.stack.pop()
    if unpickler.stack[-1] is not _ARRAY:
        raise _RefusedError("it sets the state of something that is not an array")


def _dropping_arrays(load_string: Handler) -> Handler:
    """Replace the numbers of an array, since the unpickler keeps all strings in its memo."""

    def handler(unpickler: Any) -> None:
        load_string(unpickler)
        if len(unpickler.stack[-1]) > _LONG:
            unpickler.stack[-1] = _ARRAY

    return handler


def _checking_keys(add: Handler, keys: slice) -> Handler:
    """Refuse nested keys, which can be made so that their hash takes forever."""

    def handler(unpickler: Any) -> None:
        if not all(isinstance(key, _ATOMS) for key in unpickler.stack[keys]):
            raise ValueError("a key is neither text nor a number")
        add(unpickler)

    return handler


class _Dispatch(dict[int, Handler]):
    """The admitted instructions by their code."""

    def __missing__(self, code: int) -> Handler:
        if code not in _CODES.values():
            raise ValueError(f"0x{code:02x} is not an instruction")
        name = next(name for name, known in _CODES.items() if known == code)
        raise _RefusedError(f"it uses the instruction {name}, which plain data does not need")


def _dispatch() -> _Dispatch:
    handlers: dict[str, Handler] = {
        name: pickle._Unpickler.dispatch[_CODES[name]] for name in INSTRUCTIONS
    }
    handlers |= {name: _dropping_arrays(handlers[name]) for name in _STRINGS}
    handlers |= {name: _checking_keys(handlers[name], keys) for name, keys in _KEYS.items()}
    handlers |= {"REDUCE": _reduce, "BUILD": _build}
    return _Dispatch({_CODES[name]: handler for name, handler in handlers.items()})


class _PlainUnpickler(pickle._Unpickler):
    """An unpickler of plain data, with a placeholder for each array."""

    dispatch = _dispatch()

    def find_class(self, module: str, name: str) -> Any:
        """Return a placeholder for an admitted name."""
        if (module, name) not in ADMITTED:
            raise _RefusedError(
                f"it asks for {module}.{name}; only containers, strings, numbers and numpy arrays "
                "are admitted, and nothing in the file was run"
            )
        return _ARRAY
