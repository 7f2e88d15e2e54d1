"""Run the notebooks in docs/notebooks and store their output.

    python docs/run_notebooks.py                 # all
    python docs/run_notebooks.py first_look      # those named

Needs the extra `dev`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def main(*names: str) -> None:
    """Run each notebook in an empty folder, without progress bars in its output."""
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if unknown := set(names) - {path.stem for path in NOTEBOOKS.glob("*.ipynb")}:
        sys.exit(f"docs/notebooks has no {', '.join(sorted(unknown))}")
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        book = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(book, timeout=300, resources={"metadata": {"path": folder}}).execute()
        for cell in book.cells:
            cell.metadata.pop("execution", None)  # the time of the run would change every file
            if "outputs" in cell:
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(book, path)
        print(path.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
