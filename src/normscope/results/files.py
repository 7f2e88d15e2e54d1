"""Write a result to a JSON, CSV, safetensors or HTML file, completely or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from normscope.errors import InputError
from normscope.foundation.files import whole_file
from normscope.foundation.texts import csv_lines, json_line, utf8
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.results.formats import STDOUT

COLUMNS = (
    *("part", "map", "layer", "head"),
    *("query", "query_token", "key", "key_token", "value"),
)


def write(result: Contributions | Attribution, output: str) -> None:
    """Write to a file of the kind that its suffix names, or JSON to standard output ("-")."""
    suffix = Path(output).suffix.lower()
    if output == STDOUT:
        # As bytes: JSON is UTF-8, whatever the encoding of the terminal.
        sys.stdout.flush()
        sys.stdout.buffer.write(to_json(result))
        sys.stdout.buffer.flush()
    elif suffix == ".safetensors":
        result.save(output)
    elif suffix == ".html":
        result.to_html(output)
    elif isinstance(result, Attribution):
        (result.to_json if suffix == ".json" else result.to_csv)(output)
    else:
        with whole_file(output) as file:
            if suffix == ".json":
                file.write(to_json(result))
            else:
                write_csv(result, file)


def keep_layers(result: Contributions, layers: list[int]) -> Contributions:
    """Return the result with these layers only; parts that have none of them are left out."""
    has = {
        name: part[next(iter(part))].labels["layer"]
        for name, part in (result.parts or {"": result}).items()
    }
    for layer in layers:
        if not any(layer in labels for labels in has.values()):
            valid = "; ".join(
                f"{name or 'the model'} has {', '.join(map(str, labels))}"
                for name, labels in has.items()
            )
            raise InputError(f"there is no layer {layer}: {valid}")
    kept = {name: [at for at in layers if at in labels] for name, labels in has.items()}
    if not result.parts:
        return _part_layers(result, layers)
    parts = {name: _part_layers(result.parts[name], some) for name, some in kept.items() if some}
    return Contributions(signature=result.signature, parts=parts)


def _part_layers(part: Contributions, layers: list[int]) -> Contributions:
    norm = part._transformed_norm
    return Contributions(
        {name: part[name].sel(layer=layers) for name in part},
        None if norm is None else norm.sel(layer=layers),
        part.tokens,
        part.key_tokens,
        part.error,
        part.signature,
        None,
        {
            kind: {name: array.sel(layer=layers) for name, array in by_map.items()}
            for kind, by_map in part.extras.items()
        },
    )


def to_json(result: Contributions | Attribution) -> bytes:
    """Return `result.to_dict()` as JSON, with the layers of the maps added."""
    if isinstance(result, Attribution):
        return result._json()
    plain = result.to_dict()
    for name, owner in (result.parts or {"": result}).items():
        layers = {"layers": list(owner[next(iter(owner))].labels["layer"])}
        (plain["parts"][name] if name else plain).update(layers)
    return json_line(plain)


def write_csv(result: Contributions, file: BinaryIO) -> None:
    """Write a long table, one row for each cell of each map; floats with all their digits."""
    file.writelines(map(utf8, csv_lines(chain([COLUMNS], _rows(result)))))


def _rows(result: Contributions) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a long table, one for each cell of each map.

    `part` is empty for a result without parts, and `head` if the heads were summed.
    """
    for part, owner in (result.parts or {"": result}).items():
        for name in owner:
            for row in _cells(owner[name]):
                yield (part, name, *row)


def _cells(array: LabelledArray) -> Iterator[tuple[Any, ...]]:
    """Yield (layer, head, query, query_token, key, key_token, value) of each cell."""
    heads: Sequence[int | str] = array.labels.get("head", ("",))
    queries, keys = (
        list(zip(array.labels[axis], array.tokens[axis].strings, strict=True))
        for axis in ("query", "key")
    )
    values = iter(array.values.ravel().tolist())
    for layer in array.labels["layer"]:
        for head in heads:
            for query in queries:
                for key in keys:
                    yield (layer, head, *query, *key, next(values))
