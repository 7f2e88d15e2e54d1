"""The bill of materials of a wheel: every requirement with its range, and the packaged model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import normscope
from normscope.models.default import DEFAULT_TRANSLATION_SHA256, PACKAGED

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> list[str]:
    """What pyproject.toml asks for, as hatchling writes it into the metadata of a wheel."""
    listed = list(PROJECT["dependencies"])
    for extra, members in PROJECT["optional-dependencies"].items():
        for one in members:
            needs, _, marker = one.partition(";")
            both = f"({marker.strip()}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            listed.append(f"{needs}; {both}")
    return listed


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    version = normscope.__version__
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {PROJECT['name']}",
        f"Version: {version}",
        f"Summary: {PROJECT['description']}",
        f"License-Expression: {PROJECT['license']}",
        f"Requires-Python: {PROJECT['requires-python']}",
        *(f"Provides-Extra: {extra}" for extra in PROJECT["optional-dependencies"]),
        *(f"Requires-Dist: {one}" for one in requirements()),
    ]
    path = tmp_path / f"normscope-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"normscope-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.write(PACKAGED / "model.safetensors", "normscope/alignment/model/model.safetensors")
    return path


def test_the_bill_of_materials(wheel: Path) -> None:
    command = [sys.executable, str(ROOT / "release" / "sbom.py"), str(wheel)]
    target = Path(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    )
    assert target == wheel.parent / f"normscope-{normscope.__version__}.cdx.json"
    first = target.read_bytes()
    subprocess.run(command, check=True, capture_output=True)
    assert target.read_bytes() == first
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)

    component = bill["metadata"]["component"]
    assert component["version"] == normscope.__version__
    assert component["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()

    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    said = {str(Requirement(p["value"])) for part in parts.values() for p in part["properties"][:9]
            if p["name"] == "normscope:requires"}  # fmt: skip
    asked = {str(one) for one in map(Requirement, requirements()) if one.name != "normscope"}
    assert said == asked

    needed = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]}
    scopes = {part["name"]: part["scope"] for part in parts.values() if part["type"] == "library"}
    assert {name for name, scope in scopes.items() if scope == "required"} == needed
    assert scopes["matplotlib"] == scopes["starlette"] == "optional"
    assert scopes["mypy"] == scopes["mkdocs-material"] == "excluded"

    model = parts["normscope-de-en"]
    assert model["hashes"] == [{"alg": "SHA-256", "content": DEFAULT_TRANSLATION_SHA256}]
    references = {component["bom-ref"], *parts}
    assert {entry["ref"] for entry in bill["dependencies"]} == references
    assert set(bill["dependencies"][0]["dependsOn"]) <= references
