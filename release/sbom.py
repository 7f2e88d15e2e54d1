"""Write a software bill of materials (CycloneDX 1.6, JSON) for a wheel of normscope.

    python release/sbom.py dist/normscope-*.whl

It lists what the wheel requires, with the accepted versions, and the model that the wheel contains,
with its hash. It is written beside the wheel, from the wheel alone: equal wheels give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEVELOPMENT = ("dev", "docs")  # extras that nobody needs to use normscope
MODEL = "normscope/alignment/model/model.safetensors"
MODEL_NAME = "normscope-de-en"


def bill(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials of a wheel."""
    content = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(name))
        model = archive.read(MODEL)
    reference = f"pkg:pypi/{canonicalize_name(about['Name'])}@{about['Version']}"
    components = requirements(about)
    needed = [part["bom-ref"] for part in components if part["scope"] == "required"]
    components.append(
        {
            "type": "machine-learning-model",
            "bom-ref": MODEL_NAME,
            "name": MODEL_NAME,
            "version": about["Version"],
            "scope": "required",
            "hashes": [_hash(model)],
            "properties": [{"name": "normscope:file", "value": MODEL}],
        }
    )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, _hash(content)["content"]).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": about["Name"],
                "version": about["Version"],
                "description": about["Summary"],
                "licenses": [{"license": {"id": about["License-Expression"]}}],
                "purl": reference,
                "hashes": [_hash(content)],
                "properties": [{"name": "python", "value": about["Requires-Python"]}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": reference, "dependsOn": [*needed, MODEL_NAME]},
            *({"ref": part["bom-ref"]} for part in components),
        ],
    }


def requirements(about: Message) -> list[dict[str, Any]]:
    """Return a component for each package that the metadata of a wheel names."""
    own, asked = canonicalize_name(about["Name"]), about.get_all("Requires-Dist", [])
    by_name: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, asked):
        if (name := canonicalize_name(requirement.name)) != own:  # extras that include others
            by_name.setdefault(name, []).append(requirement)
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}",
            "name": name,
            "purl": f"pkg:pypi/{name}",
            "scope": _scope(named),
            "properties": [{"name": "normscope:requires", "value": str(one)} for one in named],
        }
        for name, named in sorted(by_name.items())
    ]


def _scope(named: list[Requirement]) -> str:
    extras = [str(one.marker or "") for one in named]
    if any("extra ==" not in marker for marker in extras):
        return "required"
    development = [f'extra == "{name}"' for name in DEVELOPMENT]
    only = all(any(extra in marker for extra in development) for marker in extras)
    return "excluded" if only else "optional"


def _hash(content: bytes) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}


def main() -> None:
    """Write the bill of each wheel that is named."""
    for name in sys.argv[1:]:
        wheel = Path(name)
        version = wheel.name.split("-")[1]
        target = wheel.with_name(f"normscope-{version}.cdx.json")
        target.write_text(json.dumps(bill(wheel), indent=1, ensure_ascii=False) + "\n")
        print(target)


if __name__ == "__main__":
    main()
