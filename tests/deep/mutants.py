"""Mutants of the source: functions in which one node of the syntax tree is changed."""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "normscope"
FOLDERS = (
    "decomposition",
    "kernels",
    "engine",
    "measures",
    "linearisation",
    "attribution",
    "alignment",
)
# Only Triton's interpreter or a GPU executes the one; the interpreter is too slow to run for each
# mutant. The other draws pictures, and most of its numbers are sizes and places on a page.
LEFT_OUT = ("kernels/triton", "alignment/plots.py")
# The tests that are run on mutants. Tests that measure time, start processes or servers, or read
# the project's files detect few of them.
FILES = (
    *("decomposition/test_attention.py", "decomposition/test_exactness.py"),
    *("decomposition/test_layer.py", "decomposition/test_scopes.py"),
    *("kernels/test_backend.py", "kernels/test_gram.py", "kernels/test_products.py"),
    *("decomposition/test_norms.py", "decomposition/test_precision.py"),
    *("decomposition/test_replayed.py", "kernels/test_scratch.py", "kernels/test_vectors.py"),
    *("engine/test_batches.py", "engine/test_footprints.py", "engine/test_fused.py"),
    *("engine/test_given.py", "engine/test_judge.py", "engine/test_options.py"),
    *("engine/test_recordings.py", "measures/test_items.py"),
    *("engine/test_run.py", "engine/test_transfer.py", "measures/test_analysis.py"),
    *("measures/test_analysis_inputs.py", "measures/test_comparison.py"),
    *("measures/test_properties.py", "measures/statistics/test_base.py"),
    *("measures/statistics/test_batch.py", "measures/statistics/test_categories.py"),
    *("measures/statistics/test_check.py", "measures/statistics/test_feedforward.py"),
    *("measures/statistics/test_frequency.py", "measures/statistics/test_hashing.py"),
    *("measures/statistics/test_joint.py", "measures/statistics/test_measurer.py"),
    *("measures/statistics/test_mixing.py", "measures/statistics/test_moments.py"),
    *("measures/statistics/test_settings.py", "measures/statistics/test_statistics.py"),
    *("measures/statistics/test_vocabulary.py", "attribution/test_answers.py"),
    *("attribution/test_api.py", "attribution/test_diagnosis.py", "attribution/test_families.py"),
    *("attribution/test_inputs.py", "attribution/test_items.py"),
    *("linearisation/test_network.py",),
    *("linearisation/test_operators.py", "attribution/test_passes.py"),
    *("linearisation/test_projections.py", "linearisation/test_rules.py"),
    *("linearisation/test_trace.py", "attribution/test_tracing.py", "alignment/test_aer.py"),
    *("alignment/test_aligner.py", "alignment/test_api.py", "alignment/test_auto.py"),
    *("alignment/test_batches.py", "alignment/test_extract.py", "alignment/test_files.py"),
    *("alignment/test_gradients.py", "alignment/test_options.py"),
    *("alignment/test_packaged_model.py", "alignment/test_statistical.py"),
    *("alignment/test_symmetrize.py", "alignment/test_words.py"),
)

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult,
}  # fmt: skip


class Mutant(NamedTuple):
    """A node of a file, the lines of its statement and how it is changed."""

    file: str
    number: int
    line: int
    lines: range
    how: str

    @property
    def place(self) -> str:
        """The file, line and number of the node."""
        return f"{self.file}:{self.line}:{self.number}"


def nodes(
    tree: ast.AST, lines: range | None = None, inside: bool = False
) -> Iterator[tuple[ast.AST, range]]:
    """Yield the nodes inside functions, with the lines of their statements.

    Annotations, docstrings, imports and error messages are left out, and so is the ``strict`` of
    zip, which like an assertion has no effect in correct code.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            within, span = inside or isinstance(child, ast.FunctionDef), lines
            if isinstance(child, ast.FunctionDef):  # defaults count where the function is called
                span = range(child.body[0].lineno, (child.end_lineno or 0) + 1)
            elif isinstance(child, ast.stmt):
                block = getattr(child, "body", None) or getattr(child, "cases", None)
                first = block[0].lineno if block and hasattr(block[0], "lineno") else None
                last = child.end_lineno or child.lineno
                span = range(child.lineno, max(first or last + 1, child.lineno + 1))
            if within and span is not None:
                yield child, span
            yield from nodes(child, span, within)


def mutate(node: ast.AST) -> str | None:
    """Change a node in place and return how, or None if there is nothing to change."""
    before = ast.unparse(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        node.ops[0] = COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in COMPUTED:
        node.op = COMPUTED[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        vars(node).update(vars(ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])))
        node.__class__ = ast.Call  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node.value = ast.Constant(None)
    else:
        return None
    return f"{before[:70]}  →  {ast.unparse(node)[:70]}"


def mutants(folder: str) -> list[Mutant]:
    """List all mutants of a folder."""
    listed = []
    for path in sorted((SOURCE / folder).glob("**/*.py")):
        file = str(path.relative_to(SOURCE))
        if not file.startswith(LEFT_OUT):
            for number, (node, lines) in enumerate(nodes(ast.parse(path.read_text()))):
                how = mutate(copy.deepcopy(node))
                if how is not None:
                    listed.append(Mutant(file, number, getattr(node, "lineno", 0), lines, how))
    return listed


def apply(mutant: Mutant) -> None:
    """Replace the code of the mutant's function in memory by the changed code."""
    path = SOURCE / mutant.file
    tree = ast.parse(path.read_text())
    node = list(nodes(tree))[mutant.number][0]
    mutate(node)
    ast.fix_missing_locations(tree)
    name, definition = next(pair for pair in _functions(tree, "") if node in ast.walk(pair[1]))
    (code,) = (c for c in _codes(compile(tree, str(path), "exec")) if c.co_qualname == name)
    arguments, changed = definition.args, 0
    for function in gc.get_objects():
        # Not isinstance, which asks some objects for their class, and they warn.
        if type(function) is not FunctionType or function.__code__.co_filename != str(path):
            continue
        if function.__code__.co_qualname == name:
            function.__code__ = code
            function.__defaults__ = tuple(_value(node, function) for node in arguments.defaults)
            pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            function.__kwdefaults__ = {
                argument.arg: _value(default, function)
                for argument, default in pairs
                if default is not None
            }
            changed += 1
    assert changed, f"{path} has no {name} in memory"


def _value(default: ast.expr, function: FunctionType) -> Any:
    return eval(compile(ast.Expression(default), "default", "eval"), function.__globals__)


def _functions(tree: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield functions and methods with their qualified names, but not functions in functions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef):
            yield within + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")
        else:
            yield from _functions(child, within)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            if "<locals>" not in constant.co_qualname:
                yield from _codes(constant)
