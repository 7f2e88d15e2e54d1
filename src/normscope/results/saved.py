"""Save results to safetensors files and load them, bit for bit."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.files import check_name, write_file
from normscope.foundation.texts import shortened
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

    where = os.fspath(check_name(path))
    try:
        with safe_open(where, framework="np") as file:
            # Read the header first: a file of another program may be huge.
            metadata = file.metadata() or {}
            kind = next((kind for kind in VERSIONS if kind in metadata), None)
            if kind is None:
                raise InputError("it was not saved by normscope")
            header = json.loads(metadata[kind])
            if _integer(header["version"], "version") > VERSIONS[kind]:
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
    raise InputError(
        f"could not load {shortened(where, 300)}: {why:.400}; give a file that result.save() wrote"
    )


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
    table = _tables(header["tokens"], "tokens")
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
        field = f"parts.{part}"
        tokens, key_tokens = (
            _numbered(table, about[name], f"{field}.{name}") for name in ("tokens", "key_tokens")
        )
        error = {n: _gap(gap, f"{field}.error.{n}") for n, gap in about["error"].items()}
        signature = _text(about["signature"], f"{field}.signature")
        parts[part] = Contributions(maps, norm, tokens, key_tokens, error, signature, None, extras)
    _check_all_used(tensors)
    if list(parts) == [""]:
        return parts[""]
    return Contributions(signature=_text(header["signature"], "signature"), parts=parts)


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
    field = f"arrays.{name}"
    about["axes"] = tuple(_text(axis, f"{field}.axes") for axis in about["axes"])
    about["tokens"] = {
        axis: _numbered(table, number, f"{field}.tokens.{axis}")
        for axis, number in about["tokens"].items()
    }
    about["labels"] = {
        axis: tuple(_integer(label, f"{field}.labels.{axis}") for label in labels)
        for axis, labels in about["labels"].items()
    }
    _text(about.get("name", ""), f"{field}.name")
    _flag(about.get("signed", False), f"{field}.signed")
    return LabelledArray(tensors.pop(name), **about)


# ---- what a header may hold


def _valid(value: Any, ok: bool, field: str, what: str) -> Any:
    """Return a value of the header, or say which field is not valid."""
    if not ok:
        given = shortened(repr(value), 60)
        raise InputError(f"its header is damaged: {field} is {given}; valid: {what}")
    return value


def _text(value: Any, field: str) -> Any:
    return _valid(value, isinstance(value, str), field, "a text")


def _flag(value: Any, field: str) -> Any:
    return _valid(value, isinstance(value, bool), field, "true or false")


def _integer(value: Any, field: str) -> Any:
    return _valid(value, type(value) is int and value >= 0, field, "an integer from 0")


def _gap(value: Any, field: str) -> float:
    """Return an error from its hexadecimal digits."""
    try:
        gap = float.fromhex(value)
    except (ValueError, TypeError, OverflowError):
        gap = math.nan
    what = "a number that is finite and not negative, in hexadecimal digits"
    _valid(value, math.isfinite(gap) and gap >= 0, field, what)
    return gap


def _numbered(table: list[Tokens], number: Any, field: str) -> Tokens:
    ok = type(number) is int and 0 <= number < len(table)
    return table[
        _valid(number, ok, field, f"the number of one of the {len(table)} lists of tokens")
    ]


def _tables(lists: Any, field: str) -> list[Tokens]:
    """Return lists of tokens, each checked."""
    table = []
    for index, plain in enumerate(lists):
        where = f"{field}[{index}]"
        for name, check in _ENTRIES.items():
            for entry in plain.get(name) or ():
                check(entry, f"{where}.{name}")
        tokens = Tokens.from_dict(plain)
        count, before = len(tokens.words or ()), 0
        for number in tokens.word_of or ():
            what = f"in order, below the number of words, {count}; {before} comes before it"
            _valid(number, before <= number < count, f"{where}.word_of", what)
            before = number
        table.append(tokens)
    return table


_ENTRIES = {
    **dict.fromkeys(("strings", "texts", "words"), _text),
    **dict.fromkeys(("ids", "word_of"), _integer),
    "special": _flag,
}


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
        "error": None if math.isnan(result.error) else result.error.hex(),
        "settings": result.settings,
        "signature": result.signature,
        "arrays": arrays,
    }
    return {**header, "token_lists": table.plain()}, tensors


def _unpack_attribution(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Attribution:
    """Build the attribution that `header` describes out of `tensors`."""
    table = _tables(header["token_lists"], "token_lists")
    arrays = {name: _array(name, about, table, tensors) for name, about in header["arrays"].items()}
    trace = {
        name.removeprefix("trace/"): arrays.pop(name)
        for name in list(arrays)
        if name.startswith("trace/")
    }
    steps, foil = header["steps"], header["foil"]
    answers = [header["answer"]] if isinstance(header["answer"], str) else header["answer"]
    for name, texts in (("answer", answers), ("sides", header["sides"])):
        for text in texts:
            _text(text, name)
    for name, setting in header["settings"].items():
        _text(setting, f"settings.{name}")
    result = Attribution(
        tokens=_numbered(table, header["tokens"], "tokens"),
        value=tensors.pop("value"),
        bias=tensors.pop("bias"),
        scores=arrays.pop("scores"),
        parts=arrays.pop("parts"),
        error=None if header["error"] is None else _gap(header["error"], "error"),
        sides=header["sides"],
        steps=None if steps is None else _numbered(table, steps, "steps"),
        answer=header["answer"],
        foil=None if foil is None else _text(foil, "foil"),
        settings=header["settings"],
        spread=arrays.pop("spread", None),
        lens=arrays.pop("lens", None),
        trace=TracedShares(**trace) if trace else None,
        signature=_text(header["signature"], "signature"),
    )
    _check_all_used({**tensors, **dict.fromkeys(arrays, np.zeros(0))})
    return result
