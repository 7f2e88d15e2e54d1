"""A run's folder: who may write to it, where the run stands, and that it is the same run.

The whole standing of a run is one file, replaced in one step: the merged states, the account of the
rows and the position they belong to can never disagree, whenever the process is killed. It is a
zip of plain numpy arrays with a JSON text beside them; nothing is pickled.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from normscope.corpus.records import Position
from normscope.corpus.work import Outcome, Progress
from normscope.errors import InputError
from normscope.results.files import whole_file

FILE = "checkpoint.npz"
LOCK = ".normscope.lock"
HALF = ".normscope-*.tmp"  # what `whole_file` calls a file that is not whole yet
FINISHED = "statistics.json"
# What a run may leave in its folder, apart from its lock; --restart removes these and no others.
OWN_FILES = ("report.html", "run.json", FILE)
OWN_FOLDERS = {"tables": ("*.csv", "*.parquet"), "figures": ("*.png",), "maps": ("part-*.parquet",)}
_VERSION = 1
_TREE = "tree.json"
_UNREADABLE = (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


# ------------------------------------------------------------------------------- plain data


def pack(tree: Any) -> bytes:
    """Nested dicts and lists of arrays, numbers and strings as the bytes of one file."""
    arrays: dict[str, Any] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.hasobject:
                raise TypeError("a state holds plain numbers and strings, not Python objects")
            name = f"a{len(arrays)}"
            arrays[name] = np.asarray(value)
            return {"array": name, "scalar": isinstance(value, np.generic)}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise TypeError(f"the keys of a state are strings: {list(value)[:4]!r}")
            return {"dict": [[key, plain(one)] for key, one in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"list": [plain(one) for one in value], "tuple": isinstance(value, tuple)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        raise TypeError(f"a state holds plain data, not {type(value).__name__}")

    text = json.dumps(plain(tree)).encode()
    file = io.BytesIO()
    arrays[_TREE] = np.frombuffer(text, dtype=np.uint8)
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """What `pack` was given."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:

        def rich(node: dict[str, Any]) -> Any:
            if "array" in node:
                found = arrays[node["array"]]
                return found[()] if node["scalar"] else found
            if "dict" in node:
                return {key: rich(one) for key, one in node["dict"]}
            if "list" in node:
                listed = [rich(one) for one in node["list"]]
                return tuple(listed) if node["tuple"] else listed
            return node["value"]

        return rich(json.loads(arrays[_TREE].tobytes()))


# ------------------------------------------------------------------------------- the folder


class Folder:
    """The folder of one run, held by this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[dict[str, Any], Progress, Position, dict[str, Any]] | None:
        """Identity, progress, position and notes of the run begun here; None if there is none."""
        file = self.path / FILE
        if not file.is_file():
            return None
        try:
            tree = unpack(file.read_bytes())
            if tree["version"] != _VERSION:
                raise ValueError(f"version {tree['version']} of its format is not known")
            total, group = (Outcome.from_dict(tree[name]) for name in ("total", "group"))
            progress = Progress(total, group, tree["blocks"])
            return tree["identity"], progress, Position(**tree["position"]), tree["notes"]
        except (*_UNREADABLE, OSError) as problem:
            raise InputError(
                f"the checkpoint {str(file)!r} cannot be read ({problem}); start anew with "
                "--restart (restart=True), or give another folder"
            ) from problem

    def save(
        self,
        identity: Mapping[str, Any],
        progress: Progress,
        position: Position,
        notes: Mapping[str, Any],
    ) -> None:
        """Replace the standing of the run, in one step and for good."""
        data = pack(
            {
                "version": _VERSION,
                "identity": dict(identity),
                "total": progress.total.to_dict(),
                "group": progress.group.to_dict(),
                "blocks": progress.blocks,
                "position": asdict(position),
                "notes": dict(notes),
            }
        )
        with whole_file(self.path / FILE) as file:
            file.write(data)
        _sync(self.path)

    def finished(self) -> dict[str, Any] | None:
        """The statistics of a finished run, as they were written."""
        file = self.path / FINISHED
        if not file.is_file():
            return None
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return found if found["identity"] and found["tables"] is not None else None
        except (ValueError, KeyError, TypeError) as problem:
            raise InputError(
                f"{str(file)!r} is not what normscope corpus writes; give another folder, or "
                "start anew with --restart (restart=True)"
            ) from problem

    def _is_finished(self) -> bool:
        """Whether the statistics are those of a run, as far as their file can be read at all."""
        try:
            text = (self.path / FINISHED).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return '"identity"' in text and '"signature"' in text

    def write(self, name: str, data: bytes) -> None:
        """A file of the folder, whole or not at all."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        with whole_file(target) as file:
            file.write(data)

    def close_run(self) -> None:
        """The statistics are written: how far the run was is of no more use."""
        (self.path / FILE).unlink(missing_ok=True)
        _sync(self.path)

    def clear(self) -> None:
        """Remove what runs write here, and nothing else; the mark that it is ours last."""
        if (self.path / FINISHED).is_file():
            # Killed half-way, the folder is neither finished nor a stranger's: to be restarted.
            (self.path / FINISHED).replace(self.path / FILE)
        for name, patterns in OWN_FOLDERS.items():
            folder = self.path / name
            if folder.is_dir() and not folder.is_symlink():
                for pattern in patterns:
                    for file in folder.glob(pattern):
                        file.unlink()
                if not any(folder.iterdir()):
                    folder.rmdir()
        for name in OWN_FILES:
            (self.path / name).unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove the halves of files that a killed process left."""
        for folder in (self.path, *(self.path / name for name in OWN_FOLDERS)):
            for partial in folder.glob(HALF):
                partial.unlink(missing_ok=True)

    def _check_ours(self) -> None:
        """Refuse a folder in which somebody else's files are and none of a run's."""
        halves = {entry.name for entry in self.path.glob(HALF)}
        names = {entry.name for entry in self.path.iterdir()} - {LOCK} - halves
        if names and FILE not in names and not self._is_finished():
            some = ", ".join(sorted(names)[:5])
            raise InputError(
                f"the folder {str(self.path)!r} is not empty and holds no run of normscope corpus "
                f"(there is: {some}); give a new or an empty folder"
            )


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[Folder]:
    """The folder for a run, made if need be, and locked against other processes meanwhile."""
    given = Path(path)
    try:
        given.mkdir(parents=True, exist_ok=True)
        file = (given / LOCK).open("a+b")
    except OSError as problem:
        raise InputError(
            f"cannot write to the folder {str(given)!r}: {problem.strerror or problem}; choose a "
            "folder that may be written to and has room"
        ) from problem
    with file:
        try:
            _lock(file)
        except OSError:
            raise InputError(
                f"another process is at work in the folder {str(given)!r}; wait until it is done, "
                "or give another folder"
            ) from None
        folder = Folder(given)
        folder._check_ours()
        folder._tidy()
        yield folder


def _lock(file: IO[bytes]) -> None:
    """Lock at once or raise OSError; the system lets go of it when the process ends, however."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(folder: Path) -> None:
    """Make a renaming last through a power cut, where the system knows how."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ------------------------------------------------------------------------- the same run or not


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of a run's identity has changed, in words."""
    before, after = _flat(then), _flat(now)
    found = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if json.dumps(old) != json.dumps(new):  # 1 row is not 1.0, all of them
            found.append(f"{name} was {_short(old)} and is {_short(new)}")
    return found


def check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix two runs."""
    if changed := differences(then, now):
        raise InputError(
            f"the folder {str(folder)!r} holds a run with other settings: {'; '.join(changed)}. "
            "Give what it was begun with, or another folder, or start anew with --restart "
            "(restart=True)"
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, list) and value and all(isinstance(o, Mapping) for o in value):
            for at, one in enumerate(value):
                flat.update(_flat(one, f"{prefix}{name}[{at}]."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _short(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:24]}…{text[-8:]}"
