"""Attributions of every row of a file, in a run that can be interrupted and continued.

Finished rows are appended to a partial file beside the output (`FinishedRows`). When all rows are
done, the output is written in one step and the partial file is removed.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from normscope.attribution.options import AttributionOptions, Question
from normscope.corpus.finished import FinishedRows, partial_of
from normscope.corpus.snapshot import summarise
from normscope.errors import InputError, MissingExtraError, NormscopeError
from normscope.foundation.files import check_file, check_name, whole_file
from normscope.foundation.texts import json_line

OUTPUTS = (".parquet", ".jsonl")
INPUTS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
FIELDS = tuple(item.name for item in fields(Question))
NUMBERS = ("generate", "position")  # fields that are numbers, which CSV writes as text


@dataclass(frozen=True)
class DataRow:
    """A row of the data: its place, its text, and what is asked."""

    where: str
    text: Any
    question: Question
    name: str | None = None


def read_rows(path: Path, asked: Mapping[str, Any]) -> list[DataRow]:
    """Read the rows of a file; fields that a row lacks are those in `asked`.

    Raises:
        InputError: the file cannot be read, or a row cannot be used.
    """
    if path.suffix.lower() not in INPUTS:
        raise InputError(
            f"cannot tell the format of {str(path)!r} from its name; it must end in one of: "
            f"{', '.join(INPUTS)}"
        )
    try:
        rows = list(_read(check_name(path)))
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{str(path)!r} is not UTF-8: {problem}") from None
    if not rows:
        raise InputError(f"{str(path)!r} has no rows")
    return [_data_row(where, row, asked) for where, row in rows]


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow", "tables") from error
        try:
            table = pq.read_table(path)
        except pa.ArrowException as problem:
            raise InputError(f"{str(path)!r} is not a whole Parquet file: {problem}") from None
        for number, row in enumerate(table.to_pylist()):
            yield f"{path.name}, row {number + 1}", row
        return
    text = path.read_text(encoding="utf-8-sig")
    if suffix == ".tsv" and _without_header(text):
        for number, line in enumerate(text.split("\n")):
            if line.strip():
                content, _, label = line.rstrip("\r").rpartition("\t")
                yield f"{path.name}, line {number + 1}", {"text": content, "label": label}
        return
    if suffix in (".csv", ".tsv"):
        reader = csv.DictReader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ",")
        for number, row in enumerate(reader):
            yield f"{path.name}, row {number + 1}", {k: v or None for k, v in row.items() if k}
        return
    for number, line in enumerate(text.split("\n")):
        where = f"{path.name}, line {number + 1}"
        if not line.strip():
            continue
        if suffix == ".txt":
            yield where, {"text": line.rstrip("\r")}
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter if it is nested too deeply
            raise InputError(f"{where}: broken JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f'{where}: a row is an object with a field "text", not {row!r:.60}')
        yield where, row


def _without_header(text: str) -> bool:
    """Return whether a TSV file has the lines "text<TAB>label", with a whole number as the label.

    Quotation marks in such a file are letters like others.
    """
    content, tab, label = text.split("\n", 1)[0].rstrip("\r").rpartition("\t")
    return bool(tab and content) and label.isdecimal()


def _data_row(where: str, row: dict[str, Any], asked: Mapping[str, Any]) -> DataRow:
    if row.get("text") is None:
        there = ", ".join(map(repr, list(row)[:8])) or "nothing"
        raise InputError(f"{where}: no field 'text'; there is: {there:.200}")
    for field in set(row) - {*FIELDS, "text", "id"}:
        if close := difflib.get_close_matches(field, FIELDS, 1, cutoff=0.8):
            raise InputError(f"{where}: unknown field {field!r:.60}; did you mean {close[0]!r}?")
    own = {name: row[name] for name in FIELDS if row.get(name) is not None}
    for name in NUMBERS:
        if isinstance(own.get(name), str):
            try:
                own[name] = int(own[name])
            except ValueError:
                raise InputError(f"{where}: {name} is a number, not {own[name]!r:.40}") from None
    try:
        question = Question(**{**_without_rivals(asked, own), **own}).checked()
    except InputError as error:
        raise InputError(f"{where}: {error!s:.400}") from None
    number = row.get("id")
    return DataRow(where, row["text"], question, None if number is None else str(number))


def _without_rivals(asked: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked of all rows, less what a row replaces by a question of its own."""
    kinds = {"answer", "target", "continuation", "generate", "similar_to"}
    if kinds.isdisjoint(own):
        return dict(asked)
    return {name: value for name, value in asked.items() if name not in {*kinds, "foil"}}


# ---- the run


@dataclass(frozen=True)
class FileRun:
    """Attributions of the rows of a file.

    Attributes:
        model: a loaded model.
        tokenizer: its tokenizer.
        options: checked options.
        output: the file to write, .parquet or .jsonl.
        truncate: cut texts that are too long for the model.
        skip: leave out rows that cannot be used, and list them, instead of stopping.
    """

    model: Any
    tokenizer: Any
    options: AttributionOptions
    output: Path
    truncate: bool = False
    skip: bool = False

    @property
    def partial(self) -> Path:
        """The file with the rows that are finished."""
        return partial_of(self.output)

    def run(self, rows: Sequence[DataRow], data: Path, *, restart: bool = False) -> list[str]:
        """Compute all rows that are not finished yet, and write the output.

        Returns:
            Why rows were left out, for each of them.
        """
        finished = FinishedRows(self.partial, self._header(rows, data))
        work = partial(self._explain, rows)
        done = finished.complete(len(rows), work, description="attribute", restart=restart)
        records = [{"row": number, **done[number]} for number in sorted(done)]
        self._write([record for record in records if "problem" not in record])
        finished.remove()
        return [record["problem"] for record in records if "problem" in record]

    def _header(self, rows: Sequence[DataRow], data: Path) -> dict[str, Any]:
        """Return what the run is: a run with another header is another run."""
        from normscope.attribution.api import signature_of

        options = self.options
        about = {"method": options.method or "by row", "gate": options.gate, "units": options.units}
        return {
            "signature": signature_of(self.model, self.tokenizer, about).text(),
            "data": summarise(data).sha256,
            "rows": len(rows),
            "questions": digest(rows),
            "trace": self.options.trace,
            "truncate": self.truncate,
            "skip": self.skip,
        }

    def _explain(
        self, rows: Sequence[DataRow], chunk: list[int], count: Callable[[int], Any] = int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the records of some rows; one at a time if they cannot be done together."""
        from normscope.attribution.api import Explainer, gradients

        explainer = Explainer(self.model, self.tokenizer, self.options, truncate=self.truncate)
        asked = [(rows[number].text, rows[number].question) for number in chunk]
        records = []
        try:
            with gradients():
                for at, result in explainer.explain(asked):
                    records.append((chunk[at], _record(rows[chunk[at]], result)))
                    count(1)
        except NormscopeError as error:
            if len(chunk) == 1:
                problem = f"{rows[chunk[0]].where}: {error}"
                if not self.skip:
                    raise type(error)(problem) from error
                yield chunk[0], {"problem": problem}
                return
            count(-len(records))
            for number in chunk:
                yield from self._explain(rows, [number], count)
            return
        yield from sorted(records, key=lambda record: record[0])

    def _write(self, records: list[dict[str, Any]]) -> None:
        with whole_file(self.output) as file:
            if self.output.suffix.lower() == ".jsonl":
                for record in records:
                    file.write(json_line(record))
            else:
                _write_parquet(records, file)


def check_data_output(output: str | None) -> Path:
    """Return the file that attributions of many rows are written to, if that is possible."""
    if output is None or output == "-":
        raise InputError("the shares of many rows go to a file: give --output shares.parquet")
    path = check_file(output, OUTPUTS)
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("pyarrow", "tables") from error
    return path


def digest(rows: Sequence[DataRow]) -> str:
    """Return a hash of what is asked of all rows, the defaults of the command included."""
    import hashlib

    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.text, vars(row.question)], default=str).encode())
    return digest.hexdigest()


def _record(row: DataRow, result: Any) -> dict[str, Any]:
    """Return a result in plain JSON types, with the name of its row."""
    return {"id": row.name, **result.to_dict()}


def _write_parquet(records: list[dict[str, Any]], file: BinaryIO) -> None:
    """Write one row for each answer, with lists of tokens and shares."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers, words = pa.list_(pa.float64()), pa.list_(pa.string())
    schema = {
        "row": pa.int64(),
        "id": pa.string(),
        "step": pa.int64(),
        "answer": pa.string(),
        "foil": pa.string(),
        "value": pa.float64(),
        "bias": pa.float64(),
        "error": pa.float64(),
        "tokens": words,
        "texts": words,
        "sides": words,
        "shares": numbers,
        "signature": pa.string(),
    }
    traced = bool(records) and "trace" in records[0]
    if traced:
        schema |= {"layers": pa.list_(numbers), "heads": pa.list_(numbers)}
        schema |= {"feed_forward": pa.list_(numbers)}
    rows = [row for record in records for row in _by_step(record, traced)]
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(schema.items())))
    pq.write_table(table, file)


def _by_step(record: dict[str, Any], traced: bool) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each answer of a result."""
    steps = record["steps"]
    same = ("row", "id", "error", "foil", "signature", "sides", "tokens", "texts")
    by_step = {name: record[name] for name in ("value", "bias")} | {"shares": record["scores"]}
    if traced:
        names = ("layers", "heads", "feed_forward")
        by_step |= {name: record["trace"].get(name) for name in names}
    for step in range(1 if steps is None else len(steps)):
        yield {
            **{name: record[name] for name in same},
            "step": step,
            "answer": record["answer"] if steps is None else steps[step],
            **{
                name: value if steps is None or value is None else value[step]
                for name, value in by_step.items()
            },
        }
