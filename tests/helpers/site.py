"""The documentation site, built as `make docs` builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = 600  # seconds; the first build makes the live pages, for which it loads three models


def build(folder: Path) -> Path:
    """Build the site strictly into a folder, without the network."""
    # No proxy would answer there: whatever asks the network fails at once.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SLOW,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder
