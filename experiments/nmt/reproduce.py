"""The whole experiment: prepare, train both directions, measure, report.

python -m experiments.nmt.reproduce --train europarl.de europarl.en --valid dev.de dev.en \
    --gold de en alignment.talp --minutes 60 --output FOLDER

Each step is left out where FOLDER has what it makes; training broken off goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from experiments.nmt import evaluate, prepare, report, train
from experiments.nmt.recipes import RECIPES
from normscope.errors import InputError


def run(
    *,
    train_files: list[Path],
    valid_files: list[Path],
    gold: list[Path],
    output: Path,
    recipe: str = "released",
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 1,
    device: str | None = None,
    vocabulary: int = 10_000,
) -> Path:
    """Make ``output/report/tables.md`` and everything before it, as far as it is not there."""
    output.mkdir(parents=True, exist_ok=True)
    asked: dict[str, Any] = {"recipe": recipe, "minutes": minutes, "steps": steps, "seed": seed}
    for what, files in (("data", train_files), ("valid", valid_files), ("gold", gold)):
        asked[what] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    _check_same(output / "asked.json", asked)
    packed = output / "corpus.pack"
    if not packed.exists():
        prepare.main(
            [
                *("--train", *map(str, train_files), "--valid", *map(str, valid_files)),
                *("--vocabulary", str(vocabulary)),
                *("--cache", str(output / "tokenised"), "--output", str(packed)),
            ]
        )
    where = [] if device is None else ["--device", device]
    until = ["--minutes", str(minutes)] if steps is None else ["--steps", str(steps)]
    sides = [str(path) for path in gold]
    for name in ("de-en", "en-de"):
        folder = output / name
        if (folder / "hypotheses.txt").exists():  # the last thing that training writes
            continue
        turned = name == "en-de"
        texts = [sides[1], sides[0], sides[2]] if turned else sides
        train.main(
            [
                *("--corpus", str(packed), "--direction", name, "--recipe", recipe, *until, *where),
                *("--seed", str(seed), "--resume", "--output", str(folder)),
                *("--gold", *texts, *(["--gold-turned"] if turned else [])),
            ]
        )
    made = output / "report"
    measured = made / "results.json"
    if not measured.exists() or "symmetrized" not in json.loads(measured.read_text()):
        evaluate.main(
            [
                *("--run", f"de-en={output / 'de-en'}", "--reverse", f"en-de={output / 'en-de'}"),
                *("--corpus", str(packed), "--gold", *sides),
                *("--work", str(output / "models"), "--output", str(made), *where),
            ]
        )
    report.write(made)
    return made / "tables.md"


def _check_same(file: Path, asked: dict[str, Any]) -> None:
    """Refuse to take an older run in the same folder for this one."""
    then = json.loads(file.read_text(encoding="utf-8")) if file.exists() else asked
    if changed := [name for name in asked if then.get(name) != asked[name]]:
        raise InputError(
            f"the folder {str(file.parent)!r} holds a run with other settings: "
            f"{', '.join(f'--{name}' for name in changed)}; give another --output, or remove it"
        )
    file.write_text(json.dumps(asked, indent=1), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--train", type=Path, nargs="+", required=True, help="TSV files, or plain files in twos")
    add("--valid", type=Path, nargs="+", required=True)
    add("--gold", type=Path, nargs=3, required=True, metavar=("SOURCE", "TARGET", "LINKS"))
    add("--output", type=Path, required=True)
    add("--recipe", choices=RECIPES, default="released")
    add("--minutes", type=float, help="of training, for each direction")
    add("--steps", type=int, help="of training instead")
    add("--seed", type=int, default=1)
    add("--device")
    options = parser.parse_args(arguments)
    if not (options.minutes or options.steps):
        parser.error("give --minutes or --steps")
    print(
        run(
            train_files=options.train,
            valid_files=options.valid,
            gold=options.gold,
            output=options.output,
            recipe=options.recipe,
            minutes=options.minutes,
            steps=options.steps,
            seed=options.seed,
            device=options.device,
        )
    )


if __name__ == "__main__":
    main()
