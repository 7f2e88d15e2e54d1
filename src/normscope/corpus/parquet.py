"""Read the rows of Parquet files. Needs the extra `tables`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from normscope.corpus.readers import (
    Mark,
    RowFields,
    RowFilter,
    SourceFile,
    SourceRow,
    checked,
    not_utf8,
)
from normscope.corpus.records import Content, Problem
from normscope.errors import InputError, MissingExtraError

_BATCH = 512  # rows in memory at once
_TEXT = ("string", "large_string", "binary", "large_binary", "fixed_size_binary")


def _is_dictionary(kind: Any) -> bool:
    return str(kind).startswith("dictionary<")


class ParquetFile(SourceFile):
    """A Parquet file with a column of texts, and maybe one of second texts."""

    format = "parquet"

    def __init__(self, path: Path, fields: RowFields) -> None:
        super().__init__(path)
        self.fields = fields
        self._columns = self._check_columns(str(path))

    def _check_columns(self, path: str) -> list[str]:
        """Return the columns to read; raise InputError if one is missing or not text."""
        schema, fields = self._file.schema_arrow, self.fields
        required = {fields.text: "the text (--text-field)"}
        if fields.pair != RowFields.pair:
            required[fields.pair] = "the second text (--pair-field)"
        for name, what in required.items():
            if name not in schema.names:
                raise InputError(
                    f"{path!r} has no column {name!r}; it has: {', '.join(schema.names)}; name the "
                    f"column with {what}"
                )
        for name in (fields.text, fields.pair):
            if schema.names.count(name) > 1:
                raise InputError(
                    f"{path!r} has {schema.names.count(name)} columns {name!r}; the columns with "
                    "texts must have names of their own: rename all but one"
                )
        columns = [name for name in (fields.text, fields.pair) if name in schema.names]
        if fields.pair in columns and str(schema.field(fields.pair).type) == "null":
            columns.remove(fields.pair)  # all are null, so no row is a pair
        for name in columns:
            kind = schema.field(name).type
            values = str(getattr(kind, "value_type", kind) if _is_dictionary(kind) else kind)
            if not values.startswith(_TEXT):
                raise InputError(
                    f"the column {name!r} of {path!r} holds {kind}, not strings; name the column "
                    "with the text (--text-field, --pair-field)"
                )
        return columns

    @cached_property
    def _file(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow", "tables") from error
        try:
            file = pq.ParquetFile(self.open())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
            raise InputError(f"{str(self.path)!r} is not a whole Parquet file: {problem}") from None
        about = file.metadata
        rows = sum(about.row_group(number).num_rows for number in range(about.num_row_groups))
        if rows != about.num_rows:
            raise InputError(
                f"{str(self.path)!r} is not a whole Parquet file: it names {about.num_rows} rows, "
                f"and its parts have {rows}"
            )
        return file

    def __getstate__(self) -> dict[str, Any]:
        # An open file cannot be pickled; workers open it again.
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def count(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, start: Mark, chosen: RowFilter) -> Iterator[SourceRow]:
        number, groups = self._groups_from(start.number)
        if not groups:
            return
        for batch in self._batches(groups):
            after = number + batch.num_rows
            numbers = list(chosen.numbers(max(number, start.number), after))
            if numbers:
                yield from self._rows(batch, number, numbers)
            number = after
            if chosen.stop is not None and number >= chosen.stop:
                return

    def _groups_from(self, start: int) -> tuple[int, list[int]]:
        """Return the row groups that end after row `start`, and the number of their first row."""
        number, groups = 0, list(range(self._file.num_row_groups))
        while groups:
            size = self._file.metadata.row_group(groups[0]).num_rows
            if number + size > start:
                break
            number += size
            groups.pop(0)
        return number, groups

    def _batches(self, groups: list[int]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            yield from self._file.iter_batches(
                # One thread: reading is a seek and a read, which must not be mixed.
                _BATCH,
                row_groups=groups,
                columns=self._columns,
                use_threads=False,
            )
        except (pa.ArrowException, OSError) as problem:
            raise InputError(
                f"{str(self.path)!r} is damaged and cannot be read to its end: {problem}"
            ) from None

    def marks(self, start: Mark, chosen: RowFilter) -> Iterator[Mark]:
        return (Mark(0, number + 1) for number in chosen.numbers(start.number, self.count()))

    def _rows(self, batch: Any, first: int, numbers: list[int]) -> Iterator[SourceRow]:
        """Return the rows with these numbers from a batch that begins with row `first`."""
        columns = {name: _raw(batch.column(name)) for name in self._columns}
        for number in numbers:
            row = {name: values[number - first] for name, values in columns.items()}
            yield SourceRow(number, self._content(self.where(number), row), Mark(0, number + 1))

    def _content(self, where: str, row: dict[str, bytes | None]) -> Content | Problem:
        if row[self.fields.text] is None:
            return Problem(where, "missing", f"the field {self.fields.text!r} is null")
        try:
            text, pair = (
                None if (value := row.get(name)) is None else value.decode()
                for name in (self.fields.text, self.fields.pair)
            )
        except UnicodeDecodeError as error:
            return not_utf8(where, error)
        return checked(where, text, pair)


def _raw(column: Any) -> list[bytes | None]:
    """Return the bytes of a column of texts.

    A string column may hold bytes that are not UTF-8, for which pyarrow would fail as a whole.
    """
    import pyarrow as pa

    if _is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values
