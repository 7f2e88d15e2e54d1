"""The finished rows of a run over a file, in a partial file beside its output.

The partial file has a header that says what the run is, then one line of JSON for each finished
row. A run that was interrupted continues behind the last whole line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.foundation.files import appended_file, write_file
from normscope.foundation.progress import progress_bar
from normscope.foundation.texts import json_line

CHUNK = 32  # rows that are computed before they are written

# From the numbers of some rows, and a function that counts finished ones, to their records.
RowWork = Callable[[list[int], Callable[[int], Any]], Iterable[tuple[int, dict[str, Any]]]]


def partial_of(output: Path) -> Path:
    """Return the name of the file with the finished rows of an output."""
    return output.with_name(f"{output.name}.partial")


class FinishedRows:
    """The partial file of one run.

    Args:
        path: the partial file.
        header: what the run is: a run with another header is another run.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.header = path, dict(header)

    def complete(
        self, count: int, work: RowWork, *, description: str, restart: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Compute the rows that are not finished yet, in chunks; return all records by number.

        Args:
            count: the number of rows.
            work: yields the records of some rows.
            description: what is written before the progress bar.
            restart: discard the rows that are finished.
        """
        if restart:
            self.remove()
        done = self._resume()
        left = [number for number in range(count) if number not in done]
        with (
            appended_file(self.path) as file,
            progress_bar(count, unit="row", description=description, done=len(done)) as bar,
        ):
            for start in range(0, len(left), CHUNK):
                for number, record in work(left[start : start + CHUNK], bar.update):
                    done[number] = record
                    file.write(json_line({"row": number, **record}))
                file.flush()
                os.fsync(file.fileno())
                bar.update(len(done) - bar.n)
        return done

    def remove(self) -> None:
        """Remove the partial file, if there is one."""
        self.path.unlink(missing_ok=True)

    def _resume(self) -> dict[int, dict[str, Any]]:
        """Return the finished rows; begin the partial file if there is none."""
        if not self.path.is_file():
            write_file(self.path, json_line(self.header))
            return {}
        lines = self.path.read_bytes().split(b"\n")
        # What follows the last end of a line was not written to its end.
        try:
            finished = [json.loads(line) for line in lines[:-1]]
        except ValueError:
            raise InputError(
                f"{str(self.path)!r} is damaged or has not been written by normscope; start "
                "again with --restart"
            ) from None
        if not finished or finished[0] != self.header:
            before = finished[0] if finished else {}
            other = [name for name in self.header if before.get(name) != self.header[name]]
            raise InputError(
                f"{str(self.path)!r} has the rows of another run (not the same: "
                f"{', '.join(other)}); give the same data and options to continue it, or start "
                "again with --restart"
            )
        if lines[-1]:
            write_file(self.path, b"\n".join([*lines[:-1], b""]))
        return {record.pop("row"): record for record in finished[1:]}
