"""`normscope families`: what is proved, proved again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from normscope.cli.options import Debug
from normscope.cli.quiet import quiet


def families(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Debug = False,
) -> None:
    """Prove every known model family, here and now.

    For each family a tiny model with random weights runs in float64 on a padded batch. Proved
    means: its outputs are bit for bit those of its own attention, and for every attention call
    the parts add up to the real output. The error is the largest relative gap.

    A family that is not listed may well work: normscope.testing.check_architecture(model) tells.

    \b
    Exit status:
      0 all proved, 1 at least one is not
    """  # noqa: D301
    from rich.console import Console
    from rich.progress import track

    from normscope.cli import family_proofs as proofs

    names: Iterable[str] = proofs.names()
    errors = Console(stderr=True)
    if errors.is_terminal:
        names = track(names, "Proving", console=errors, transient=True)
    with quiet():
        rows = [proofs.prove(name) for name in names]
    if as_json:
        print(json.dumps(proofs.summary(rows), indent=1))
    else:
        Console(highlight=False, markup=False, emoji=False).print(proofs.table(rows))
        print(f"\n{proofs.last_line(rows)}")
    failed = [row for row in rows if row["failure"]]
    for row in failed:
        print(f"normscope: error: not proved: {row['family']}: {row['failure']}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)
