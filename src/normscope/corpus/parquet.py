"""Parquet files as a source of rows. Needs the extra `tables`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from normscope.corpus.readers import Choice, Fields, Found, Mark, SourceFile, checked, not_utf8
from normscope.corpus.records import Content, Problem
from normscope.errors import InputError, MissingExtraError

_BATCH = 512  # rows in memory at once
_TEXT = ("string", "large_string", "binary", "large_binary", "fixed_size_binary")


def _is_dictionary(kind: Any) -> bool:
    return str(kind).startswith("dictionary<")


class ParquetFile(SourceFile):
    """A column of text, and one of second texts where there is one."""

    format = "parquet"

    def __init__(self, path: Path, fields: Fields) -> None:
        super().__init__(path)
        self.fields = fields
        schema = self._file.schema_arrow
        self._columns = [name for name in (fields.text, fields.pair) if name in schema.names]
        if fields.text not in self._columns:
            raise InputError(
                f"{str(path)!r} has no column {fields.text!r}; it has: {', '.join(schema.names)}; "
                "name the one with the text (--text-field)"
            )
        if fields.pair != Fields.pair and fields.pair not in self._columns:
            raise InputError(
                f"{str(path)!r} has no column {fields.pair!r}; it has: {', '.join(schema.names)}; "
                "name the one with the second text (--pair-field)"
            )
        if fields.pair in self._columns and str(schema.field(fields.pair).type) == "null":
            self._columns.remove(fields.pair)  # nothing but nulls: no row is a pair
        for name in self._columns:
            kind = schema.field(name).type
            held = str(getattr(kind, "value_type", kind) if _is_dictionary(kind) else kind)
            if not held.startswith(_TEXT):
                raise InputError(
                    f"the column {name!r} of {str(path)!r} holds {kind}, not strings; name the "
                    "column with the text (--text-field, --pair-field)"
                )

    @cached_property
    def _file(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow", "tables") from error
        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as problem:
            raise self._broken(problem) from None

    def _broken(self, problem: Exception) -> InputError:
        return InputError(f"{str(self.path)!r} is not a whole Parquet file: {problem}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def count(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, start: Mark, choice: Choice) -> Iterator[Found]:
        number = 0
        groups: list[int] = []
        sizes = [
            self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)
        ]
        for index, size in enumerate(sizes):
            if number + size <= start.number and not groups:
                number += size  # a whole group before the start is not read
            else:
                groups.append(index)
        if not groups:
            return
        for batch in self._batches(groups):
            after = number + batch.num_rows
            chosen = choice.numbers(max(number, start.number), after)
            yield from self._batch(batch, number, chosen)
            number = after
            if choice.stop is not None and number >= choice.stop:
                return

    def _batches(self, groups: list[int]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            yield from self._file.iter_batches(_BATCH, row_groups=groups, columns=self._columns)
        except (pa.ArrowException, OSError) as problem:
            raise InputError(
                f"{str(self.path)!r} is damaged and cannot be read to its end: {problem}"
            ) from None

    def marks(self, start: Mark, choice: Choice) -> Iterator[Mark]:
        return (Mark(0, number + 1) for number in choice.numbers(start.number, self.count()))

    def _batch(self, batch: Any, first: int, chosen: Iterator[int]) -> Iterator[Found]:
        import pyarrow as pa

        def raw(column: Any) -> list[bytes | None]:
            if _is_dictionary(column.type):
                column = column.dictionary_decode()
            # As bytes: a string column may hold what is not UTF-8, and one row must not fail all.
            values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
            return values

        numbers = list(chosen)
        if not numbers:
            return
        columns = {name: raw(batch.column(name)) for name in self._columns}
        for number in numbers:
            row = {name: values[number - first] for name, values in columns.items()}
            yield Found(number, self._content(self.where(number), row), Mark(0, number + 1))

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
