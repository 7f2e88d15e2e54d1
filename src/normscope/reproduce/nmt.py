"""The translation experiment of the 2020 paper, whose scripts live beside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError, MissingExtraError

NAME = "emnlp2020-nmt"
SCRIPTS = "experiments.nmt.reproduce"


def scripts() -> Any:
    """The module that trains and measures; it is part of the source tree, not of the package."""
    root = Path(__file__).parents[3]  # of a clone, where the package lies in src/
    if (root / "experiments" / "nmt").is_dir() and str(root) not in sys.path:
        sys.path.append(str(root))
    for package in ("matplotlib", "sacrebleu", "sacremoses"):  # some are used hours later only
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "experiments")
    try:
        return importlib.import_module(SCRIPTS)
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("experiments"):
            raise
        raise InputError(
            f"{NAME} trains a translation model; its scripts are in the folder experiments of "
            "normscope's source tree, not in the installed package: clone the repository and run "
            "the command there"
        ) from None


def reproduce_nmt(
    data: Sequence[Path],
    valid: Sequence[Path],
    gold: Sequence[Path],
    output: Path | None,
    *,
    recipe: str = "released",
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 1,
    device: str | None = None,
) -> Path:
    """Prepare, train both directions, measure; what is there already is not made again."""
    if len(gold) != 3 or not data or not valid or output is None:
        raise InputError(
            f"{NAME} needs --data and --valid (German and English file, or TSV), --gold three "
            "times (German text, English text, links) and --output"
        )
    if not (minutes or steps):
        raise InputError(f"{NAME} trains until --minutes (for each direction) or --steps are over")
    for file in (*data, *valid, *gold):
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    module = scripts()
    if recipe not in module.RECIPES:
        raise InputError(f"unknown recipe {recipe!r}; valid: {', '.join(module.RECIPES)}")
    tables: Path = module.run(
        train_files=list(data),
        valid_files=list(valid),
        gold=list(gold),
        output=output,
        recipe=recipe,
        minutes=minutes,
        steps=steps,
        seed=seed,
        device=device,
    )
    return tables
