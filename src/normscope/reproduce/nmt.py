"""The translation experiment of the 2020 paper, whose scripts are outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from normscope.errors import InputError, MissingExtraError
from normscope.reproduce.options import NMT, ReproduceOptions

SCRIPTS = "experiments.nmt.reproduce"
PACKAGES = ("matplotlib", "sacrebleu", "sacremoses")


def load_scripts() -> Any:
    """Return the module that trains and measures; only the source tree has it."""
    root = Path(__file__).parents[3]  # of a clone, in which the package is in src/
    if (root / "experiments" / "nmt").is_dir() and str(root) not in sys.path:
        sys.path.append(str(root))
    for package in PACKAGES:  # checked now, since some are needed only after hours of training
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "experiments")
    try:
        return importlib.import_module(SCRIPTS)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("experiments"):
            raise
        raise InputError(
            f"{NMT} trains translation models with scripts that are not part of the installed "
            "package; clone the repository of normscope and run the command there"
        ) from None


def reproduce_nmt(options: ReproduceOptions) -> Path:
    """Prepare the data, train both directions, measure, and return the path of the tables.

    Steps whose output exists already are skipped.
    """
    _check(options)
    scripts = load_scripts()
    if options.recipe not in scripts.RECIPES:
        raise InputError(f"unknown recipe {options.recipe!r}; valid: {', '.join(scripts.RECIPES)}")
    tables: Path = scripts.run(
        train_files=list(options.data),
        valid_files=list(options.valid),
        gold=list(options.gold),
        output=options.output,
        recipe=options.recipe,
        minutes=options.minutes,
        steps=options.steps,
        seed=options.seed,
        device=options.device,
    )
    return tables


def _check(options: ReproduceOptions) -> None:
    if options.restart:
        raise InputError(
            f"{NMT} has no --restart, because it would delete the result of hours of training; to "
            "start again, give another --output or delete the folder"
        )
    if len(options.gold) != 3 or not options.data or not options.valid or options.output is None:
        raise InputError(
            f"{NMT} needs --data and --valid (a German and an English file, or a TSV file), --gold "
            "three times (German text, English text, links) and --output"
        )
    if not (options.minutes or options.steps):
        raise InputError(f"{NMT} needs --minutes (of training for each direction) or --steps")
    for file in (*options.data, *options.valid, *options.gold):
        if not file.is_file():
            raise InputError(f"there is no file {str(file)!r}")
