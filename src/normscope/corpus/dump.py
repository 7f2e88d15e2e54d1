"""The maps of every sequence as Parquet files, one for each block. Needs the extra `tables`.

A row is one layer of one sequence:

    key       int64               the sequence's number in the corpus
    layer     int32               from 0
    tokens    list<string>        the tokenizer's pieces
    ids       list<int32>         their ids
    attn_w    list<list<float>>   [query][key], the weight α, mean over heads
    attn_n    list<list<float>>   [query][key], ‖Σ_h αf(x)‖, heads summed
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.corpus.sequences import batches
from normscope.measures.analysis import analyze_inputs
from normscope.measures.statistics import Row
from normscope.models.running import accepted_by
from normscope.results.arrays import import_tables
from normscope.results.files import whole_file
from normscope.text.tokens import Encoded, Tokens, pad

MAPS = ("attn_w", "attn_n")
BATCH_TOKENS = 2048


def schema() -> Any:
    """The columns and their types."""
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
    """What the file of a block is called."""
    return f"part-{block:08d}.parquet"


def write_part(folder: Path, block: int, model: Any, tokenizer: Any, rows: Sequence[Row]) -> None:
    """Write the maps of a block's sequences, whole or not at all; the same each time."""
    pa, pq = import_tables("pyarrow"), import_tables("pyarrow.parquet")
    columns: dict[str, list[Any]] = {name: [] for name in schema().names}
    made: dict[int, Any] = {}
    for batch in batches(rows, BATCH_TOKENS):
        results = analyze_inputs(
            model, _inputs(model, tokenizer, batch), _strings(tokenizer, batch)
        )
        made.update(zip((row.key for row in batch), results, strict=True))
    for row, strings in zip(rows, _strings(tokenizer, rows), strict=True):
        result = made[row.key]
        for at, layer in enumerate(result["attn_w"].labels["layer"]):
            columns["key"].append(row.key)
            columns["layer"].append(int(layer))
            columns["tokens"].append(strings)
            columns["ids"].append(list(row.ids))
            for name in MAPS:
                columns[name].append(list(result[name].values[at]))
    folder.mkdir(exist_ok=True)
    with whole_file(folder / part_name(block)) as file:
        pq.write_table(pa.table(columns, schema=schema()), file)


def _strings(tokenizer: Any, rows: Sequence[Row]) -> list[list[str]]:
    return [[str(s) for s in tokenizer.convert_ids_to_tokens(list(row.ids))] for row in rows]


def _inputs(model: Any, tokenizer: Any, rows: Sequence[Row]) -> dict[str, Any]:
    labels = Tokens.positions(1)  # padding looks at the ids alone
    extras = [{} if row.types is None else {"token_type_ids": list(row.types)} for row in rows]
    encoded = [
        Encoded(list(row.ids), extra, labels) for row, extra in zip(rows, extras, strict=True)
    ]
    filler = tokenizer.pad_token_id
    padded = pad(encoded, 0 if filler is None else filler)
    accepted = accepted_by(model)
    return {name: tensor for name, tensor in padded.items() if name in accepted}
