"""Break the source at random places, one at a time, and see whether a test fails.

A sample, not all: `--count` mutants of those that systematic operators give (comparisons, signs,
numbers, truth values, dropped statements), drawn with a seed from the folders below. Each runs the
tests of its folder, stopped at the first failure, in a process forked from one that has the large
imports behind it. What survives is printed, to be read.

    python tests/deep/mutate.py --count 40 --seed 0
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
SOURCE = TESTS.parent / "src" / "normscope"
LAYERS = (
    "test_layers.py::test_bert_block_against_loops",
    "test_exactness.py::test_family_maps_equal_loops[llama]",
    "test_exactness.py::test_cancelling_heads_keep_six_digits",
    "test_layers.py::test_feed_forward_against_numerical_integration[bert-path]",
    "test_layers.py::test_feed_forward_against_numerical_integration[llama-fixed]",
    "test_layers.py::test_every_scope_is_complete[marian-path]",
    "test_layers.py::test_every_scope_is_complete[granite-path]",
    "test_layers.py::test_secants_against_integration_of_the_derivative",
    "test_layers.py::test_identities_and_batches",
    "test_layers.py::test_memory_changes_nothing",
    "test_fused.py::test_fused_is_eager[bert]",
)
# What is broken, and the tests that have to notice: the quick ones of those there are.
FOLDERS: dict[str, tuple[str, ...]] = {
    "decomposition": LAYERS,
    "kernels/gram.py": LAYERS,
    "statistics": ("test_statistics_equal.py", "test_statistics.py"),
    "alignment": (
        *("test_alignment_scores.py", "test_alignment_extract.py", "test_alignment_words.py"),
        "test_alignment_api.py",
    ),
}
LEFT_OUT = ("plots.py", "auto.py", "translator.py", "__init__.py")  # pictures; a trained model
HEAVY = ("torch", "transformers", "scipy.stats")

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult,
}  # fmt: skip


def nodes(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """What is computed: no annotations, no docstrings, no messages of errors, no imports."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                continue
            within = inside or isinstance(child, ast.FunctionDef)
            if within:
                yield child
            yield from nodes(child, within)


def mutate(node: ast.AST) -> str | None:
    """Change the node in place and say how; None where there is nothing to change."""
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


def mutants(file: Path) -> list[tuple[Path, int]]:
    """A file and the number of a node in it, for every node that can be changed."""
    tree = ast.parse(file.read_text())
    found = []
    for number, node in enumerate(nodes(tree)):
        if mutate(copy.deepcopy(node)) is not None:
            found.append((file, number))
    return found


def broken(file: Path, number: int) -> tuple[str, str]:
    """The source with that node changed, and what was done where."""
    tree = ast.parse(file.read_text())
    node: Any = list(nodes(tree))[number]
    how = mutate(node)
    return ast.unparse(tree), f"{file.relative_to(SOURCE)}:{node.lineno}  {how}"


def survives(
    file: Path, text: str, tests: tuple[str, ...], seconds: int, *, unbroken: bool = False
) -> bool:
    """Whether all tests pass on a copy of the source with this text in place of the file's."""
    with tempfile.TemporaryDirectory(prefix="normscope-mutant-") as folder:
        package = Path(folder) / "normscope"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("model", "__pycache__"))
        (package / "alignment" / "model").symlink_to(SOURCE / "alignment" / "model")
        (package / file.relative_to(SOURCE)).write_text(text)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(seconds)  # a mutant that hangs is noticed too
                said = os.open(Path(folder) / "said", os.O_WRONLY | os.O_CREAT)
                os.dup2(said, 1)
                os.dup2(said, 2)
                sys.path[:0] = [folder, str(TESTS)]
                sys.dont_write_bytecode = True
                os.chdir(TESTS.parent)
                import pytest

                given = [str(TESTS / test) for test in tests]
                quiet = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
                quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before
                status = int(pytest.main([*quiet, *given]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        passed = os.waitpid(child, 0)[1] == 0
        if unbroken and not passed:
            sys.exit((Path(folder) / "said").read_text()[-3000:])
        return passed


def main() -> None:
    """Draw, break, test, tell."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--count", type=int, default=40)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--seconds", type=int, default=240, help="for one mutant")
    ask.add_argument("--minutes", type=float, default=600, help="after which no other is begun")
    chosen = ask.parse_args()
    for name in HEAVY:
        importlib.import_module(name)
    draw = random.Random(chosen.seed)
    drawn: list[tuple[str, Path, int]] = []
    checked: list[tuple[str, ...]] = []
    for folder in FOLDERS:
        files = [SOURCE / folder] if folder.endswith(".py") else (SOURCE / folder).glob("*.py")
        there = [m for f in sorted(files) if f.name not in LEFT_OUT for m in mutants(f)]
        share = chosen.count // len(FOLDERS)
        if FOLDERS[folder] not in checked:
            # They pass on what is not broken, or their failing would mean nothing.
            first = there[0][0]
            plain = ast.unparse(ast.parse(first.read_text()))
            survives(first, plain, FOLDERS[folder], 10 * chosen.seconds, unbroken=True)
            checked.append(FOLDERS[folder])
        drawn += [(folder, *one) for one in draw.sample(there, min(share, len(there)))]
        print(f"{folder}: {share} of {len(there)} mutants", flush=True)
    draw.shuffle(drawn)
    began, killed, tried = time.monotonic(), 0, 0
    for folder, file, number in drawn:
        if time.monotonic() - began > 60 * chosen.minutes:
            break
        text, how = broken(file, number)
        tried += 1
        alive = survives(file, text, FOLDERS[folder], chosen.seconds)
        killed += not alive
        print(f"{'SURVIVED' if alive else 'killed  '}  {how}", flush=True)
    print(f"{killed} of {tried} killed")


if __name__ == "__main__":
    main()
