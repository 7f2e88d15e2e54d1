"""Clark et al.'s attention pickles, read without running anything that is in them.

A pickle is a small program, and Python's own unpickler calls whatever functions it names. Here its
instructions are read one by one by an interpreter that has none for calling. Containers, strings
and numbers are built; of numpy arrays, dtypes and scalars only the fact that they were there is
kept (the attention maps in these files take gigabytes and are not needed); any other name is
refused before anything is done with it.
"""

from __future__ import annotations

import os
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from normscope.errors import InputError

# The names that pickled arrays, dtypes and scalars are made of, in all versions of numpy. They
# are compared as text and never looked up.
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
_LONG = 1 << 16  # characters from which a string can only be an array's numbers
_ATOMS = (str, bytes, int, float, type(None))
_MARK = object()


class _Opaque:
    """Stands for an array, a dtype, a scalar, or a name they are made of."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<array>"


_OPAQUE = _Opaque()


def load(path: str | os.PathLike[str]) -> Any:
    """The plain data in a pickle; InputError for one that holds or does anything else."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _run(_Bounded(file, size))
        except _RefusedError as problem:
            raise InputError(f"{os.fspath(path)!r} is not read: {problem}") from None
        except (ValueError, LookupError, TypeError, OverflowError, MemoryError) as problem:
            raise InputError(
                f"{os.fspath(path)!r} is not a whole pickle of plain data ({problem}); give "
                "the file as Clark et al. released it, or the text itself"
            ) from None


class _RefusedError(Exception):
    """The pickle asks for what is not admitted."""


class _Bounded:
    """A file that never tries to read more than it has, whatever length a pickle claims."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self._left if size is None or size < 0 else size
        if wanted > self._left:
            raise ValueError(f"{wanted} bytes are announced and {self._left} are left")
        data = self._file.read(wanted)
        self._left -= len(data)
        return data

    def readline(self, size: int | None = -1, /) -> bytes:
        data = self._file.readline(-1 if size is None else size)
        self._left -= len(data)
        return data


class _Machine:
    """A pickle's stack and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise ValueError("it takes a value where there is none")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        value = self.stack[-1] if self.stack else _MARK
        if not isinstance(value, kind):
            raise ValueError(f"it adds to something that is no {kind.__name__}")
        return value

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise ValueError("it looks for a mark that is not there")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def take(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.pop() for _ in range(count)]))

    def put(self, at: int) -> None:
        self.memo[at] = value = self.pop()
        self.stack.append(value)

    def get(self, at: int) -> None:
        self.stack.append(self.memo[at])


def _run(file: Any) -> Any:
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name == "STOP":
            return machine.pop()
        if name in _CONSTANTS:
            machine.stack.append(_CONSTANTS[name]())
        elif name in _VALUES:
            # The numbers of an array would fill the memory, since a pickle remembers what it read.
            numbers = isinstance(argument, (str, bytes, bytearray)) and len(argument) > _LONG
            machine.stack.append(_OPAQUE if numbers else argument)
        elif name in _STEPS:
            _STEPS[name](machine, argument)
        else:
            raise _RefusedError(f"it uses the instruction {name}, which plain data does not need")
    raise ValueError("it has no end")


def _check(module: Any, name: Any) -> _Opaque:
    if (module, name) not in ADMITTED:
        raise _RefusedError(
            f"it asks for {module}.{name}; only containers, strings, numbers and numpy arrays are "
            "admitted, and nothing in the file was run"
        )
    return _OPAQUE


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(_check(module, name))


def _stack_global(machine: _Machine, _: Any) -> None:
    module, name = machine.take(2)
    if not (isinstance(module, str) and isinstance(name, str)):
        raise ValueError("a name is not a string")
    machine.stack.append(_check(module, name))


def _reduce(machine: _Machine, _: Any) -> None:
    function, arguments = machine.take(2)
    if function is not _OPAQUE or not isinstance(arguments, tuple):
        raise _RefusedError("it calls something that is no name of numpy's")
    machine.stack.append(_OPAQUE)  # nothing is called


def _build(machine: _Machine, _: Any) -> None:
    if machine.take(2)[0] is not _OPAQUE:
        raise _RefusedError("it sets the state of something that is no array")
    machine.stack.append(_OPAQUE)


def _atom(value: Any) -> Any:
    # Nothing nested as a key: hashing it can take longer than the universe has.
    if not isinstance(value, _ATOMS):
        raise ValueError("a key is neither text nor a number")
    return value


def _fill(target: dict[Any, Any], values: list[Any]) -> None:
    if len(values) % 2:
        raise ValueError("a key has no value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        target[_atom(key)] = value


def _set_items(machine: _Machine, _: Any) -> None:
    values = machine.since_mark()
    _fill(machine.top(dict), values)


def _set_item(machine: _Machine, _: Any) -> None:
    values = machine.take(2)
    _fill(machine.top(dict), list(values))


def _dict(machine: _Machine, _: Any) -> None:
    made: dict[Any, Any] = {}
    _fill(made, machine.since_mark())
    machine.stack.append(made)


def _append(machine: _Machine, _: Any) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _appends(machine: _Machine, _: Any) -> None:
    values = machine.since_mark()
    machine.top(list).extend(values)


def _add_items(machine: _Machine, _: Any) -> None:
    values = machine.since_mark()
    machine.top(set).update(map(_atom, values))


def _pop(machine: _Machine, _: Any) -> None:
    if not machine.stack:
        raise ValueError("it takes a value where there is none")
    machine.stack.pop()


def _pop_mark(machine: _Machine, _: Any) -> None:
    machine.since_mark()


def _dup(machine: _Machine, _: Any) -> None:
    value = machine.pop()
    machine.stack += [value, value]


def _pushing(make: Callable[[_Machine], Any]) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _: Any) -> None:
        machine.stack.append(make(machine))

    return step


def _nothing(machine: _Machine, _: Any) -> None: ...


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_VALUES = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "POP": _pop,
    "DUP": _dup,
    "POP_MARK": _pop_mark,
    "LIST": _pushing(lambda machine: machine.since_mark()),
    "TUPLE": _pushing(lambda machine: tuple(machine.since_mark())),
    "TUPLE1": _pushing(lambda machine: machine.take(1)),
    "TUPLE2": _pushing(lambda machine: machine.take(2)),
    "TUPLE3": _pushing(lambda machine: machine.take(3)),
    "FROZENSET": _pushing(lambda machine: frozenset(map(_atom, machine.since_mark()))),
    "DICT": _dict,
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "ADDITEMS": _add_items,
    "PUT": lambda machine, at: machine.put(at),
    "BINPUT": lambda machine, at: machine.put(at),
    "LONG_BINPUT": lambda machine, at: machine.put(at),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "GET": lambda machine, at: machine.get(at),
    "BINGET": lambda machine, at: machine.get(at),
    "LONG_BINGET": lambda machine, at: machine.get(at),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "BUILD": _build,
}
