"""The house: imports go one way, one loop and one judge, one table of scopes, one name a thing.

ARCHITECTURE.md explains the order of the folders. After an intended change of the public API,
renew its record and read the difference:

    python -m tests.project.test_house
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
    *(
        "errors",
        "foundation",
        "text",
        "models",
        "kernels",
        "linearisation",
        "capture",
        "decomposition",
    ),
    *("results", "engine", "measures", "testing", "attribution", "faithfulness", "show"),
    *("alignment", "corpus", "reproduce", "serve", "cli"),
]
FACADE = ("__init__", "__main__")  # the public names: those after analysis may use them

# Methods of results that hand over to a later step, which is imported when they are called.
HANDING_OVER = {("results", "show"), ("faithfulness", "show")}

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
    table = text.partition("## Each folder's one job")[2].partition("\n## ")[0]
    first_column = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    named = re.findall(r"`([a-z_]+)/?`", " ".join(first_column))
    assert named == ORDER


# ------------------------------------------------------------------------- one of each thing


def _nodes(module: str, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(MODULES[module]) if isinstance(node, kinds))


def _strings(module: str) -> Iterator[str]:
    """Every string of a module that is not documentation."""
    explained = set()
    for node in _nodes(module, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            explained.add(id(first.value))
    for node in _nodes(module, ast.Constant):
        if isinstance(node.value, str) and id(node) not in explained:
            yield node.value


def test_the_top_level_has_the_folders_and_four_modules() -> None:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert modules == {"__init__", "__main__", "errors", "testing"}
    assert folders | {"errors", "testing"} == set(ORDER)


def test_one_module_runs_models_under_capture() -> None:
    """The loop over recorded passes is written once; everything else is a measure."""
    entered = set()
    for module in MODULES:
        for call in _nodes(module, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in ("capture", "capture_layers") and _step(module) != "capture":
                entered.add(module)
    assert entered == {"engine.run"}


def test_one_module_judges_exactness() -> None:
    bounded = {
        module
        for module in MODULES
        for node in _nodes(module, ast.Compare)
        if {"limit", "bound", "BOUNDS"} & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        and any(isinstance(o, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for o in node.ops)
        and "gap" in ast.unparse(node)
    }
    assert bounded == {"engine.judge"}
    raising = {
        module
        for module in MODULES
        for node in _nodes(module, ast.Raise)
        if node.exc is not None and "ExactnessError" in ast.unparse(node.exc)
    }
    # The engine adds advice; the conformance checks also compare outputs bit for bit.
    assert raising == {"engine.judge", "engine.run", "testing"}


# What can write to a file, by the name of the call, and by the argument that says how.
WRITING = {
    *("write_text", "write_bytes", "touch", "mkstemp", "NamedTemporaryFile", "copyfile"),
    *("savefig", "savez", "savez_compressed", "save_file", "write_table", "to_excel", "to_parquet"),
    *("replace_file", "fdopen", "dump", "makedirs", "mkdir", "truncate"),
}
# Those that write into memory or to an open file, and two that write to no file of a user.
INTO_OPEN_FILES = {
    ("corpus.attributions", "write_table"),  # into whole_file
    ("corpus.checkpoint", "savez"),
    ("corpus.dump", "write_table"),  # into whole_file
    ("corpus.output", "savefig"),
    ("corpus.output", "write_table"),
    ("cli.output", "savefig"),  # into whole_file
    ("reproduce.report", "savefig"),
    ("cli.bench_timing", "write_text"),  # /proc/self/clear_refs
    *(("cli.app", "fdopen"), ("serve.worker", "fdopen")),  # the standard streams
}


def _writing(call: ast.Call) -> str | None:
    """The name of a call that writes to a file."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [str(value.value) for value in values if isinstance(value, ast.Constant)]
    if name == "open" and any(re.fullmatch(r"[wax+][bt+]*|r[bt]*\+[bt]*", t) for t in texts):
        return name
    return name if name in WRITING else None


def test_one_module_writes_files() -> None:
    """All others pass content or an open file: so every file is whole and keeps its permissions."""
    found = {
        (module, name)
        for module in MODULES
        for call in _nodes(module, ast.Call)
        if (name := _writing(call))
    }
    home = {(module, name) for module, name in found if module == "foundation.files"}
    assert {name for _, name in home} == {"open", "touch", "mkdir"}
    assert found - home == INTO_OPEN_FILES


def test_text_is_encoded_for_files_in_one_way() -> None:
    """JSON that is not plain ASCII, and CSV, come from one module, which knows surrogates."""
    found = {
        module
        for module in MODULES
        for call in _nodes(module, ast.Call)
        if any(keyword.arg == "ensure_ascii" for keyword in call.keywords)
        or ast.unparse(call.func) in ("csv.writer", "csv.DictWriter")
    }
    assert found == {"foundation.texts"}


def test_scopes_are_named_in_their_table_alone() -> None:
    from normscope.decomposition.scopes import NAMES

    # A paper's name may be that of its map: alti-plus and alti-released are other things.
    name = re.compile(rf"\b(?:{'|'.join(NAMES)})\b(?!-)")
    papers = {("faithfulness.conventions", "alti")}
    parsing = re.compile(r"^(?:_(?:ff|ln|res)_?|(?:ff|ln|res)_|(?:atb|attn)_?)$")
    found = {
        (module, text[:60])
        for module in MODULES
        if module != "decomposition.scopes" and _step(module) != "reproduce"
        for text in _strings(module)
        if name.search(text) or parsing.match(text)
    }
    assert found == papers


def test_no_class_name_is_defined_twice() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in _nodes(module, ast.ClassDef):
            homes.setdefault(node.name, []).append(module)
        for node in MODULES[module].body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                alias = node.targets[0].id
                if re.match(r"_?[A-Z][a-z]", alias):
                    homes.setdefault(alias, []).append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


FILLERS = {"one", "made", "found", "told", "taken", "given", "here"}


def test_names_say_what_they_hold() -> None:
    names = [n.id for m in MODULES for n in _nodes(m, ast.Name) if isinstance(n.ctx, ast.Store)]
    assert sum(name in FILLERS for name in names) < 0.02 * len(names)


LONGEST = 60  # lines, signature and docstring not counted
MOST_PARAMETERS = 8
# The documented API, whose options are keyword-only and become one dataclass at once.
DOCUMENTED = {
    *("analyze", "analyze_views", "analyze_inputs", "attribute", "attribute_inputs"),
    *("corpus", "align", "translate_align", "faithfulness", "compare", "evidence"),
}


def test_functions_fit_on_a_screen() -> None:
    long = {}
    for module in MODULES:
        for function in _nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            size = function.end_lineno - body[0].lineno + 1 if body else 0
            if size > LONGEST:
                long[f"{module}.{function.name}"] = size
    assert long == {}


def test_public_functions_have_few_parameters() -> None:
    many = {}
    for module in MODULES:
        for function in _nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            arguments = function.args
            positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            count = len([a for a in positional if a not in ("self", "cls")])
            count += 0 if function.name in DOCUMENTED else len(arguments.kwonlyargs)
            if count > MOST_PARAMETERS and not function.name.startswith("_"):
                many[f"{module}.{function.name}"] = count
    assert many == {}


def test_public_names_are_few() -> None:
    import normscope

    assert len(normscope.__all__) <= 25


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
