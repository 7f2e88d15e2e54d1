"""Write the maps of every sequence as Parquet files, one for each block. Needs the extra `tables`.

A row is one layer of one sequence:

    key       int64               the number of the sequence in the corpus
    layer     int32               from 0
    tokens    list<string>        the tokenizer's tokens
    ids       list<int32>         their ids
    attn_w    list<list<float>>   [query][key], the weight α, mean over heads
    attn_n    list<list<float>>   [query][key], ‖Σ_h αf(x)‖, heads summed
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.corpus.sequences import batches
from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.foundation.files import make_folder, whole_file
from normscope.measures.analysis import analyze_inputs
from normscope.measures.statistics.base import Row
from normscope.models.running import accepted_by
from normscope.results.arrays import import_tables
from normscope.text.tokens import Encoded, Tokens, pad

MAPS = (WEIGHTS, NORMS)
BATCH_TOKENS = 2048


def schema() -> Any:
    """Return the columns and their types."""
    pa = import_tables("pyarrow")
    cells = pa.list_(pa.list_(pa.float32()))
    return pa.schema(
        [
            ("key", pa.int64()),
            ("layer", pa.int32()),
            ("tokens", pa.list_(pa.string())),
            ("ids", pa.list_(pa.int32())),
            *((name, cells) for name in MAPS),
        ]
    )


def part_name(block: int) -> str:
    """Return the name of a block's file."""
    return f"part-{block:08d}.parquet"


def write_part(folder: Path, block: int, model: Any, tokenizer: Any, rows: Sequence[Row]) -> None:
    """Write the maps of a block's sequences, whole or not at all."""
    pa, pq = import_tables("pyarrow"), import_tables("pyarrow.parquet")
    columns: dict[str, list[Any]] = {name: [] for name in schema().names}
    results: dict[int, Any] = {}
    for batch in batches(rows, BATCH_TOKENS):
        inputs, strings = _inputs(model, tokenizer, batch), _strings(tokenizer, batch)
        batch_results = analyze_inputs(model, inputs, strings)
        results.update(zip((row.key for row in batch), batch_results, strict=True))
    for row, tokens in zip(rows, _strings(tokenizer, rows), strict=True):
        result = results[row.key]
        for index, layer in enumerate(result[WEIGHTS].labels["layer"]):
            columns["key"].append(row.key)
            columns["layer"].append(int(layer))
            columns["tokens"].append(tokens)
            columns["ids"].append(list(row.ids))
            for name in MAPS:
                columns[name].append(list(result[name].values[index]))
    make_folder(folder)
    with whole_file(folder / part_name(block)) as file:
        pq.write_table(pa.table(columns, schema=schema()), file)


def _strings(tokenizer: Any, rows: Sequence[Row]) -> list[list[str]]:
    return [[str(s) for s in tokenizer.convert_ids_to_tokens(list(row.ids))] for row in rows]


def _inputs(model: Any, tokenizer: Any, rows: Sequence[Row]) -> dict[str, Any]:
    labels = Tokens.positions(1)  # a placeholder: padding needs the ids alone
    extras = [{} if row.types is None else {"token_type_ids": list(row.types)} for row in rows]
    encoded = [
        Encoded(list(row.ids), extra, labels) for row, extra in zip(rows, extras, strict=True)
    ]
    pad_id = tokenizer.pad_token_id
    padded = pad(encoded, 0 if pad_id is None else pad_id)
    accepted = accepted_by(model)
    return {name: tensor for name, tensor in padded.items() if name in accepted}
