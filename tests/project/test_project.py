"""What holds for the project as a whole: a light import, one version, no trace of one machine."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import normscope

ROOT = Path(__file__).parents[2]

# Run in a fresh interpreter: torch (and jaxtyping, only there for the tests) is the baseline.
IMPORT_AND_REPORT = """
import json, logging, os, sys, warnings
import jaxtyping, torch

def state():
    return {
        "environment": dict(os.environ),
        "warning filters": repr(warnings.filters),
        "log handlers": repr(logging.getLogger().handlers),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "random": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
    }

before, modules = state(), set(sys.modules)
import normscope
after = state()
print(json.dumps({
    "packages": sorted({name.partition(".")[0] for name in set(sys.modules) - modules}),
    "changed": [name for name in before if before[name] != after[name]],
}))
"""

# Run in a fresh interpreter in which jaxtyping cannot be imported.
WITHOUT_JAXTYPING = """
import sys
sys.modules["jaxtyping"] = None
import normscope
from normscope.foundation.shapes import Bool, Float, Int
from torch import Tensor
assert Bool[Tensor, "query key"] is Float[Tensor, "batch 3"] is Int[Tensor, ""] is Tensor
assert Float[Tensor, "..."] | None == Tensor | None
"""

TEXT_SUFFIXES = {"", ".cff", ".md", ".py", ".toml", ".txt", ".typed", ".yaml", ".yml"}
# Joined here, so that this file does not contain what it looks for.
LOCAL_PATHS = ["/".join(parts) for parts in (("", "work", ""), ("..", "shared"), ("", "root", ""))]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def project_files() -> list[Path]:
    """The project's own text files: no environment, cache or build output."""
    own = (".ci", ".github", "benchmarks", "docs", "examples", "experiments", "src", "tests")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in own for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix in TEXT_SUFFIXES]


def test_import_brings_no_other_package_and_changes_nothing() -> None:
    report = json.loads(run_python(IMPORT_AND_REPORT))
    third_party = set(report["packages"]) - sys.stdlib_module_names
    assert third_party == {"normscope"}
    assert report["changed"] == []


def test_import_works_without_jaxtyping() -> None:
    run_python(WITHOUT_JAXTYPING)


def test_shape_annotations_are_checked_in_these_tests() -> None:
    assert type(normscope.__loader__).__module__.startswith("jaxtyping")


def test_there_is_one_version() -> None:
    version = normscope.__version__
    assert metadata.version("normscope") == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_no_file_names_a_path_of_one_machine() -> None:
    files = project_files()
    assert {ROOT / "pyproject.toml", ROOT / ".ci" / "run", Path(__file__)} <= set(files)
    found = [
        f"{path.relative_to(ROOT)}: {local}"
        for path in files
        for local in LOCAL_PATHS
        if local in path.read_text(encoding="utf-8")
    ]
    assert found == []
