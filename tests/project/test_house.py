"""Imports go one way, the public API changes only on purpose, and every public name is explained.

ARCHITECTURE.md says why the steps come in this order. After a change of the public API that is
meant, renew its snapshot and read the difference:

    python tests/project/test_house.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "normscope"
SNAPSHOT = Path(__file__).parents[1] / "helpers" / "public_api.txt"

# Each may import those before it, and none after it.
ORDER = [
    *("errors", "foundation", "text", "models", "kernels", "capture", "decomposition"),
    *("results", "engine", "measures", "testing", "show"),
    *("alignment", "corpus", "reproduce", "serve", "cli"),
]
FACADE = ("__init__", "__main__")  # the public names: those after analysis may use them

# Methods of results that hand over to a later step, which is imported when they are called.
HANDING_OVER = {("results", "show")}

# The names that the site's API pages show beside those of `normscope` itself.
PUBLIC_MODULES = (
    *("models", "models.architectures", "models.layouts", "show.plots", "testing"),
    *("measures.comparison", "measures.properties"),
)


def _modules() -> dict[str, ast.Module]:
    """Every module by its dotted path below the package; a package by its own name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


MODULES = _modules()


def _imports(module: str) -> Iterator[tuple[str, bool]]:
    """What a module imports from the package, and whether it does so after it was imported."""
    tree = MODULES[module]
    inside = {node for later in ast.walk(tree) if _is_later(later) for node in ast.walk(later)}
    for node in ast.walk(tree):
        for name in _named(node, module):
            yield name, node in inside


def _is_later(node: ast.AST) -> bool:
    """What is not run when the module is imported: functions, and imports for annotations."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _named(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == "normscope":
                yield _known(alias.name.removeprefix("normscope").lstrip("."))
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module} imports relatively: name the module in full"
        package, _, rest = (node.module or "").partition(".")
        if package == "normscope":
            for alias in node.names:
                yield _known(f"{rest}.{alias.name}".lstrip("."))


def _known(name: str) -> str:
    """The module that a name is, or the one that it is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def _step(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_has_its_place() -> None:
    steps = {_step(name) for name in MODULES} - set(FACADE)
    assert steps <= set(ORDER), "say in ORDER, and in ARCHITECTURE.md, where the new module stands"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", [m for m in MODULES if m not in FACADE])
def test_imports_go_one_way(module: str) -> None:
    for imported, inside in _imports(module):
        here, there = _step(module), _step(imported)
        if imported in FACADE:
            late = ORDER.index(here) > ORDER.index("measures")
            assert inside or late, f"{module} imports the package that is being imported"
            continue
        if (here, there) in HANDING_OVER:
            assert inside, f"{module} must import {imported} inside the function that needs it"
            continue
        assert ORDER.index(there) <= ORDER.index(here), f"{module} imports {imported}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        module: {name for name, inside in _imports(module) if not inside and name != module}
        for module in MODULES
        if module not in FACADE
    }
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_order_is_that_of_the_architecture_page() -> None:
    """Its table has every step that there is, in this order."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Each module's one job")[2].partition("\n## ")[0]
    first_column = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    named = re.findall(r"`([a-z_]+)/?`", " ".join(first_column))
    assert named == ORDER


# ---------------------------------------------------------------------------------- public names


def _public() -> list[str]:
    import normscope

    lines = [line for name in sorted(normscope.__all__) for line in _described(normscope, name)]
    return ["# Renew with: python tests/project/test_house.py", *lines, ""]


def _described(module: types.ModuleType, name: str) -> Iterator[str]:
    found = getattr(module, name)
    if not inspect.isclass(found):
        yield f"{name}{_signature(found)}"
        return
    bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    data: Any = found
    fields = {f.name for f in dataclasses.fields(data)} if dataclasses.is_dataclass(data) else set()
    annotations = inspect.get_annotations(found)
    if not fields and "__init__" in vars(found):
        yield f"    __init__{_signature(vars(found)['__init__'])}"
    for attribute in sorted(fields | {a for a in vars(found) if not a.startswith("_")}):
        member = inspect.getattr_static(found, attribute, None)
        if attribute in fields:
            yield f"    {attribute}: {annotations.get(attribute, 'inherited')}"
        elif callable(member):
            yield f"    {attribute}{_signature(member)}"
        else:
            yield f"    {attribute}"


class _Bare(str):
    """An annotation as it is written, without the quotes of a string."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    made = _bare(signature.return_annotation)
    return signature.replace(parameters=bare, return_annotation=made)


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _fresh() -> str:
    """The lines, from an interpreter without the tests' import hook, which wraps functions."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.test_house", "--print"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_public_api_is_the_one_on_record() -> None:
    assert _fresh() == SNAPSHOT.read_text(encoding="utf-8"), (
        "names or signatures of normscope.__all__ changed; if that is meant, renew the record with "
        "`python tests/project/test_house.py`, and tell users in CHANGELOG.md"
    )


def _public_objects() -> Iterator[tuple[str, object]]:
    import importlib

    import normscope

    for name in normscope.__all__:
        yield f"normscope.{name}", getattr(normscope, name)
    for name in PUBLIC_MODULES:
        module = importlib.import_module(f"normscope.{name}")
        yield module.__name__, module
        for attribute, found in vars(module).items():
            home = str(getattr(found, "__module__", None))
            own = home == module.__name__ or attribute in getattr(module, "__all__", ())
            if own and not attribute.startswith("_") and callable(found):
                yield f"{module.__name__}.{attribute}", found


def _unexplained() -> list[str]:
    missing = []
    for name, found in _public_objects():
        text = (inspect.getdoc(found) or "").strip()
        # A dataclass that says nothing gets its signature for a docstring.
        if not text or text.startswith(f"{getattr(found, '__name__', '')}("):
            missing.append(name)
        if inspect.isclass(found):
            for attribute, member in vars(found).items():
                method = isinstance(member, types.FunctionType | property | classmethod)
                if method and not attribute.startswith("_") and not inspect.getdoc(member):
                    missing.append(f"{name}.{attribute}")
    return missing


def test_every_public_name_has_a_docstring() -> None:
    assert _unexplained() == []
    assert len(list(_public_objects())) > 30


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE.parent))
    text = "\n".join(_public())
    if "--print" in sys.argv:
        sys.stdout.write(text)
    else:
        SNAPSHOT.write_text(text, encoding="utf-8")
        print(f"wrote {SNAPSHOT}")
