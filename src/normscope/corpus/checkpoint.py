"""The folder of a run: its lock, its checkpoint, and whether it holds the same run.

A checkpoint is one file, which is replaced in one step. The merged states, the counts of the rows
and the position that they belong to are therefore always consistent, whenever the process is
killed. It is a zip of numpy arrays and a JSON text; nothing is pickled.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from normscope.corpus.content import read_content
from normscope.corpus.records import Position
from normscope.corpus.work import Outcome, Progress
from normscope.errors import InputError
from normscope.foundation.files import PARTIAL, make_folder, sync_folder, write_file
from normscope.foundation.interrupts import shielded
from normscope.foundation.texts import to_json

FILE = "checkpoint.npz"
LOCK = ".normscope.lock"
FINISHED = "statistics.json"
# What a run may write to its folder, besides its lock; --restart removes these and nothing else.
OWN_FILES = ("report.html", "run.json", FILE)
OWN_FOLDERS = {"tables": ("*.csv", "*.parquet"), "figures": ("*.png",), "maps": ("part-*.parquet",)}
_VERSION = 1
_TREE = "tree.json"
_UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError),
    *(NotImplementedError, OSError, MemoryError, zipfile.BadZipFile, zlib.error),
)


# ------------------------------------------------------------------------------- plain data


def pack(tree: Any) -> bytes:
    """Return nested dicts and lists of arrays, numbers and strings as the bytes of one file."""
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
            return {"dict": [[key, plain(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"list": [plain(item) for item in value], "tuple": isinstance(value, tuple)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        raise TypeError(f"a state holds plain data, not {type(value).__name__}")

    text = json.dumps(plain(tree)).encode()
    file = io.BytesIO()
    arrays[_TREE] = np.frombuffer(text, dtype=np.uint8)
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """Return what `pack` was given."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:

        def rich(node: dict[str, Any]) -> Any:
            if "array" in node:
                array = arrays[node["array"]]
                return array[()] if node["scalar"] else array
            if "dict" in node:
                return {key: rich(item) for key, item in node["dict"]}
            if "list" in node:
                items = [rich(item) for item in node["list"]]
                return tuple(items) if node["tuple"] else items
            return node["value"]

        return rich(json.loads(arrays[_TREE].tobytes()))


# ------------------------------------------------------------------------------- the folder


@dataclass(frozen=True)
class Checkpoint:
    """How far a run is.

    Attributes:
        identity: What the numbers depend on.
        progress: What was measured.
        position: Where the next block begins.
        notes: Times and counts of the run.
    """

    identity: Mapping[str, Any]
    progress: Progress
    position: Position
    notes: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the content of a checkpoint file."""
        return pack(
            {
                "version": _VERSION,
                "identity": dict(self.identity),
                "total": self.progress.total.to_dict(),
                "group": self.progress.group.to_dict(),
                "blocks": self.progress.blocks,
                "position": asdict(self.position),
                "notes": self.notes,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Return the checkpoint from the content of its file."""
        tree = unpack(data)
        if tree["version"] != _VERSION:
            raise ValueError(f"version {tree['version']} of its format is not known")
        total, group = (Outcome.from_dict(tree[name]) for name in ("total", "group"))
        progress = Progress(total, group, tree["blocks"])
        return cls(tree["identity"], progress, Position(**tree["position"]), tree["notes"])


class Folder:
    """The folder of one run, which this process has locked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Checkpoint | None:
        """Return the checkpoint of the run that was begun here, or None."""
        file = self.path / FILE
        if not file.is_file():
            return None
        try:
            return Checkpoint.from_bytes(file.read_bytes())
        except _UNREADABLE as problem:
            raise InputError(
                f"the checkpoint {str(file)!r} cannot be read ({problem!s:.200}); start a new run "
                "with --restart (restart=True), or give another folder"
            ) from problem

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, in one step and durably."""
        write_file(self.path / FILE, checkpoint.to_bytes())
        sync_folder(self.path)

    def finished(self) -> dict[str, Any] | None:
        """Return the content of statistics.json if the run is finished, otherwise None."""
        file = self.path / FINISHED
        return read_content(file) if file.is_file() else None

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file of the folder, whole or not at all."""
        make_folder((self.path / name).parent)
        write_file(self.path / name, data)

    def close_run(self) -> None:
        """Remove the checkpoint of a run whose statistics are written."""
        (self.path / FILE).unlink(missing_ok=True)
        sync_folder(self.path)

    def clear(self) -> None:
        """Remove what runs write here, and nothing else."""
        if (self.path / FINISHED).is_file():
            # The file that marks the folder as a run's goes last. If the process is killed before,
            # the folder has a checkpoint that cannot be read, and can be restarted.
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

    def remove_partial_files(self) -> None:
        """Remove the incomplete files that a killed process has left."""
        for folder in (self.path, *(self.path / name for name in OWN_FOLDERS)):
            for partial in folder.glob(PARTIAL):
                partial.unlink(missing_ok=True)

    def check_own(self) -> None:
        """Raise InputError if the folder has files, but none of a run."""
        partial = {entry.name for entry in self.path.glob(PARTIAL)}
        names = {entry.name for entry in self.path.iterdir()} - {LOCK} - partial
        if names and FILE not in names and not self._looks_finished():
            some = ", ".join(sorted(names)[:5])
            raise InputError(
                f"the folder {str(self.path)!r} is not empty and holds no run of normscope corpus "
                f"(it has: {some}); give a new or an empty folder"
            )

    def _looks_finished(self) -> bool:
        """Tell whether statistics.json is a run's, even if it is damaged."""
        try:
            text = (self.path / FINISHED).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return '"identity"' in text and '"signature"' in text


@shielded
def locked_folder(path: str | os.PathLike[str]) -> Iterator[Folder]:
    """Create the folder of a run if necessary, and lock it against other processes."""
    folder = Folder(make_folder(path))
    if not (folder.path / LOCK).exists():
        folder.check_own()  # before a lock is left in a folder that is refused
    lock = FileLock(folder.path / LOCK)  # released by the system if the process is killed
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"another process is using the folder {str(folder.path)!r}; wait until it has "
            "finished, or give another folder"
        ) from None
    except OSError as problem:
        raise InputError(
            f"cannot write to the folder {str(folder.path)!r}: {problem.strerror or problem}; "
            "choose a writable folder with free space"
        ) from problem
    try:
        folder.check_own()
        folder.remove_partial_files()
        yield folder
    finally:
        lock.release()


# ------------------------------------------------------------------------- the same run or not


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe what differs between two identities of runs."""
    before, after = _flat(then), _flat(now)
    changes = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if json.dumps(old) != json.dumps(new):  # as JSON, since a sample of 1 is not one of 1.0
            changes.append(f"{name} was {_short(old)} and is {_short(new)}")
    return changes


def check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError if the folder holds a run with another identity."""
    if changes := differences(then, now):
        raise InputError(
            f"the folder {str(folder)!r} holds a run with other settings: {'; '.join(changes)}. "
            "Give the settings that it was started with, or another folder, or start a new run "
            "with "
            "--restart (restart=True)"
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, list) and value and all(isinstance(o, Mapping) for o in value):
            for index, item in enumerate(value):
                flat.update(_flat(item, f"{prefix}{name}[{index}]."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _short(value: Any) -> str:
    text = "not there" if value is None else to_json(value)
    return text if len(text) <= 60 else f"{text[:24]}…{text[-8:]}"
