"""Save results to safetensors files and load them, bit for bit."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.files import whole_file
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.text.tokens import Tokens

FORMAT = "normscope.contributions"
VERSION = 2  # 1 had no signed arrays and no reductions


def save(result: Contributions, path: str | os.PathLike[str]) -> None:
    """Write a result; the file appears complete or not at all."""
    from safetensors.numpy import save as to_bytes

    header, tensors = _pack(result)
    # A single metadata entry, so that equal results give equal bytes.
    data = to_bytes(tensors, metadata={FORMAT: json.dumps(header)})
    with whole_file(path) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> Contributions:
    """Read a result that `Contributions.save` wrote."""
    from safetensors import SafetensorError, safe_open

    where = os.fspath(path)
    try:
        with safe_open(where, framework="np") as file:
            # Read the header first: a file of another program may be huge.
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
        with suppress(OSError):  # the folder may be unreadable
            why = "it is a folder" if Path(where).is_dir() else why
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        why = f"its header is damaged ({problem!r:.200})"
    except RecursionError:
        why = "its header is nested too deep"
    raise InputError(f"could not load {where}: {why:.400}; give a file that result.save() wrote")


def _pack(result: Contributions) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Describe a result in plain types, and return its tensors by name: "encoder/attn_n"."""
    tensors: dict[str, NDArray[Any]] = {}
    table: dict[Tokens, int] = {}

    def number(tokens: Tokens) -> int:
        return table.setdefault(tokens, len(table))

    parts = {}
    for part, owner in (result.parts or {"": result}).items():
        arrays = {}
        for name, array in owner._arrays().items():
            # safetensors writes the memory as it is, so a transposed array must be copied first.
            tensors[f"{part}/{name}".lstrip("/")] = np.asarray(array.values, order="C")
            arrays[name] = {
                "axes": array.axes,
                "tokens": {axis: number(tokens) for axis, tokens in array.tokens.items()},
                "labels": array.labels,
                "name": array.name,
                "key_reduce": array.key_reduce,
                "signed": array.signed,
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
