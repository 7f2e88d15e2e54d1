"""Run the notebooks in docs/notebooks and store their output.

    python docs/run_notebooks.py

Needs the extra `dev`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def main() -> None:
    """Run each notebook in an empty folder, without progress bars in its output."""
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
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
    main()
