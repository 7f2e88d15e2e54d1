"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: readers see the old file or the whole new one."""
    partial = path.with_name(f".normscope-{uuid.uuid4().hex}.tmp")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):  # where it cannot be removed, it could not be made either
            partial.unlink(missing_ok=True)
        raise
