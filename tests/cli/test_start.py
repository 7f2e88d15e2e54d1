"""What commands import before they print, by the names of modules and not by time."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from normscope.cli import status

REPORT = (
    "import gc, json, sys\n"
    "packages = {name.partition('.')[0] for name in sys.modules if name in sys.modules}\n"
    "third = sorted(packages - sys.stdlib_module_names)\n"
    "print(json.dumps([third, gc.get_freeze_count(), gc.isenabled()]), file=sys.stderr)\n"
)
REFERENCE = "import torch\nfrom transformers import BertModel, BertTokenizerFast\n"
ANALYZE = (
    "from normscope.cli import main\n"
    "try:\n"
    "    main()\n"
    "except SystemExit as left:\n"
    "    assert not left.code\n"
)
# What the command line needs besides torch and transformers; typer imports pydantic.
LIGHT = {
    *("normscope", "typer", "click", "rich", "shellingham", "annotated_doc", "pygments"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "markdown_it", "mdurl"),
    *("jaxtyping", "wadler_lindig"),
}


def packages_after(code: str, *arguments: str) -> tuple[set[str], int, bool]:
    """The packages outside Python's own that a process has imported, and the state of its gc."""
    command = [sys.executable, "-c", code + REPORT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packages, frozen, collecting = json.loads(done.stderr.splitlines()[-1])
    return {name for name in packages if not name.startswith("_")}, frozen, collecting


@pytest.mark.slow
def test_analyze_imports_little_besides_the_model_and_its_tokenizer() -> None:
    reference, _, _ = packages_after(REFERENCE)
    packages, frozen, collecting = packages_after(ANALYZE, "analyze", "The cat sat.")
    assert packages - reference - LIGHT == set()
    assert not {"matplotlib", "pandas", "pyarrow", "datasets", "ray", "beartype"} & packages
    assert frozen > 100_000  # what was imported is not searched for garbage
    assert collecting


def test_the_function_analyze_imports_no_transformers() -> None:
    packages, frozen, collecting = packages_after("import normscope\nnormscope.analyze\n")
    assert not {"transformers", "matplotlib", "pandas", "rich", "typer"} & packages
    assert (frozen, collecting) == (0, True)  # a library leaves that to its caller


def test_later_imports_leave_garbage_collection_alone() -> None:
    import transformers.modeling_utils  # noqa: F401

    frozen = gc.get_freeze_count()
    status.import_transformers()
    assert gc.get_freeze_count() == frozen
    assert gc.isenabled()
