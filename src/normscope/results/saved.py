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
from normscope.foundation.files import write_file
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution, TracedShares
from normscope.results.contributions import Contributions
from normscope.text.tokens import Tokens

CONTRIBUTIONS, ATTRIBUTION = "normscope.contributions", "normscope.attribution"
VERSIONS = {
    CONTRIBUTIONS: 2,  # 1 had no signed arrays and no reductions
    ATTRIBUTION: 1,
}


def save(result: Contributions | Attribution, path: str | os.PathLike[str]) -> None:
    """Write a result; the file appears complete or not at all."""
    from safetensors.numpy import save as to_bytes

    if isinstance(result, Attribution):
        kind, (header, tensors) = ATTRIBUTION, _pack_attribution(result)
    else:
        kind, (header, tensors) = CONTRIBUTIONS, _pack(result)
    # A single metadata entry, so that equal results give equal bytes.
    data = to_bytes(tensors, metadata={kind: json.dumps({"version": VERSIONS[kind], **header})})
    write_file(path, data)


def load(path: str | os.PathLike[str]) -> Contributions | Attribution:
    """Read a result that its `save` wrote; the file says of which kind it is."""
    from safetensors import SafetensorError, safe_open

    where = os.fspath(path)
    try:
        with safe_open(where, framework="np") as file:
            # Read the header first: a file of another program may be huge.
            metadata = file.metadata() or {}
            kind = next((kind for kind in VERSIONS if kind in metadata), None)
            if kind is None:
                raise InputError("it was not saved by normscope")
            header = json.loads(metadata[kind])
            if header["version"] > VERSIONS[kind]:
                readable = f"this normscope reads up to {VERSIONS[kind]}"
                newer = f"format {header['version']}, and {readable}"
                raise InputError(f"it was saved by a newer normscope ({newer}); upgrade normscope")
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        if kind == ATTRIBUTION:
            return _unpack_attribution(header, tensors)
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
        why = "its header is nested too deeply"
    raise InputError(f"could not load {where}: {why:.400}; give a file that result.save() wrote")


def _pack(result: Contributions) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Describe a result in plain types, and return its tensors by name: "encoder/attn_n"."""
    tensors: dict[str, NDArray[Any]] = {}
    table = _TokenTable()
    parts = {}
    for part, owner in (result.parts or {"": result}).items():
        arrays = {}
        for name, array in owner._arrays().items():
            tensors[f"{part}/{name}".lstrip("/")] = _contiguous(array)
            arrays[name] = _about(array, table)
        parts[part] = {
            "signature": owner.signature,
            "tokens": table.number(owner.tokens),
            "key_tokens": table.number(owner.key_tokens),
            "error": {name: gap.hex() for name, gap in owner.error.items()},
            "arrays": arrays,
        }
    header = {"signature": result.signature, "tokens": table.plain(), "parts": parts}
    return header, tensors


def _unpack(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Contributions:
    """Build the result that `header` describes out of `tensors`, and check that both agree."""
    table = [Tokens.from_dict(tokens) for tokens in header["tokens"]]
    parts = {}
    for part, about in header["parts"].items():
        maps: dict[str, LabelledArray] = {}
        extras: dict[str, dict[str, LabelledArray]] = {}
        for name, array in about["arrays"].items():
            array = _array(f"{part}/{name}".lstrip("/"), array, table, tensors)
            kind, _, map_name = name.rpartition("/")
            arrays = extras.setdefault(kind, {}) if kind else maps
            arrays[map_name] = array
        norm = maps.pop("transformed_norm", None)
        tokens, key_tokens = table[about["tokens"]], table[about["key_tokens"]]
        error = {name: float.fromhex(gap) for name, gap in about["error"].items()}
        parts[part] = Contributions(
            maps, norm, tokens, key_tokens, error, str(about["signature"]), None, extras
        )
    _check_all_used(tensors)
    if list(parts) == [""]:
        return parts[""]
    return Contributions(signature=str(header["signature"]), parts=parts)


class _TokenTable:
    """Token lists of a file, each stored once and referred to by number."""

    def __init__(self) -> None:
        self._numbers: dict[Tokens, int] = {}

    def number(self, tokens: Tokens) -> int:
        return self._numbers.setdefault(tokens, len(self._numbers))

    def plain(self) -> list[dict[str, Any]]:
        return [tokens.to_dict() for tokens in self._numbers]


def _about(array: LabelledArray, table: _TokenTable) -> dict[str, Any]:
    """Describe an array, all but its values, in plain types."""
    return {
        "axes": array.axes,
        "tokens": {axis: table.number(tokens) for axis, tokens in array.tokens.items()},
        "labels": array.labels,
        "name": array.name,
        "key_reduce": array.key_reduce,
        "signed": array.signed,
    }


def _contiguous(array: Any) -> NDArray[Any]:
    """Return values in C order: safetensors writes the memory as it is."""
    return np.asarray(array.values if isinstance(array, LabelledArray) else array, order="C")


def _array(
    name: str, about: dict[str, Any], table: list[Tokens], tensors: dict[str, NDArray[Any]]
) -> LabelledArray:
    """Build the array that `about` describes, and take its values out of `tensors`."""
    if name not in tensors:
        raise InputError(f"tensor {name!r} is missing")
    about["axes"] = tuple(about["axes"])
    about["tokens"] = {axis: table[number] for axis, number in about["tokens"].items()}
    about["labels"] = {axis: tuple(labels) for axis, labels in about["labels"].items()}
    return LabelledArray(tensors.pop(name), **about)


def _check_all_used(tensors: dict[str, NDArray[Any]]) -> None:
    if tensors:
        raise InputError(f"it has tensors that its header does not name: {sorted(tensors)}")


def _pack_attribution(result: Attribution) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Describe an attribution in plain types, and return its tensors by name."""
    table = _TokenTable()
    tensors = {"value": np.asarray(result.value), "bias": np.asarray(result.bias)}
    arrays = {}
    for name, array in result._arrays().items():
        tensors[name] = _contiguous(array)
        arrays[name] = _about(array, table)
    header = {
        "tokens": table.number(result.tokens),
        "steps": None if result.steps is None else table.number(result.steps),
        "sides": result.sides,
        "answer": result.answer,
        "foil": result.foil,
        "error": result.error.hex(),
        "settings": result.settings,
        "signature": result.signature,
        "arrays": arrays,
    }
    return {**header, "token_lists": table.plain()}, tensors


def _unpack_attribution(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Attribution:
    """Build the attribution that `header` describes out of `tensors`."""
    table = [Tokens.from_dict(tokens) for tokens in header["token_lists"]]
    arrays = {name: _array(name, about, table, tensors) for name, about in header["arrays"].items()}
    trace = {
        name.removeprefix("trace/"): arrays.pop(name)
        for name in list(arrays)
        if name.startswith("trace/")
    }
    result = Attribution(
        tokens=table[header["tokens"]],
        value=tensors.pop("value"),
        bias=tensors.pop("bias"),
        scores=arrays.pop("scores"),
        parts=arrays.pop("parts"),
        error=float.fromhex(header["error"]),
        sides=header["sides"],
        steps=None if header["steps"] is None else table[header["steps"]],
        answer=header["answer"],
        foil=header["foil"],
        settings=header["settings"],
        spread=arrays.pop("spread", None),
        trace=TracedShares(**trace) if trace else None,
        signature=str(header["signature"]),
    )
    _check_all_used({**tensors, **dict.fromkeys(arrays, np.zeros(0))})
    return result
