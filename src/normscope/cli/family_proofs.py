"""`normscope families`: every family of the table proved, here and now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normscope.decomposition.available import available
from normscope.models import architectures
from normscope.testing import FullPrecision, check_architecture, check_layers

if TYPE_CHECKING:
    from rich.table import Table

BOUND = 1e-10  # what every family is held to, in float64


def names() -> list[str]:
    """The configurations to prove, several of some families: "falcon", "falcon (alibi)"."""
    return list(architectures.FAMILIES)


def prove(name: str) -> dict[str, Any]:
    """What was found of one: attentions by kind, ways in and the worst error, or the failure."""
    family = architectures.FAMILIES[name]
    row: dict[str, Any] = {
        "family": name,
        "group": family.group,
        "model": family.model,
        "failure": None,
        "attentions": {},
        "paths": [],
        "worst": None,
        "scopes": {},
    }
    try:
        model, inputs = architectures.tiny_model(name), architectures.tiny_inputs(name)
        proof = check_architecture(model, inputs, bound=BOUND)
        with FullPrecision():  # anew: NLLB-MoE's router turns itself to float32 when it first runs
            scopes = check_layers(architectures.tiny_model(name), inputs, bound=BOUND)
    except Exception as error:  # one family that breaks must not hide the others
        return {**row, "failure": " ".join(f"{type(error).__name__}: {error}".split())}
    worst = max(proof.worst, *scopes.values())
    found = {"attentions": proof.attentions, "paths": list(proof.paths), "worst": worst}
    # Some layers of a stack may have more than all of them have; a map is of all.
    has = {name for maps in available(model).values() for name in maps}
    return {**row, **found, "scopes": {name: scopes[name] for name in scopes if name in has}}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All rows, how many families they prove, and the worst error of all."""
    worst = _worst(rows)
    return {
        "families": list(rows),
        "proved": len(_proved(rows)),
        "worst": None if worst is None else worst["worst"],
        "bound": BOUND,
    }


def last_line(rows: Sequence[dict[str, Any]]) -> str:
    """The sum of it, in one line."""
    worst = _worst(rows)
    if worst is None:
        return "0 families proved."
    passed = sum(not row["failure"] for row in rows)
    return (
        f"{len(_proved(rows))} families proved, in {passed} configurations. "
        f"Worst error {worst['worst']:.1e} ({worst['family']})."
    )


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One row a configuration."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("family", "attentions", "way in", "maps"):
        made.add_column(title, no_wrap=True)
    made.add_column("worst error", justify="right", no_wrap=True)
    for row in rows:
        if row["failure"]:
            made.add_row(row["family"], "", "", "", "NOT PROVED", style="bold red")
            continue
        calls: Counter[str] = Counter()
        for call, count in row["attentions"].items():
            calls[call.rsplit(" ", 1)[-1]] += count  # "decoder.layers cross"
        made.add_row(
            row["family"],
            ", ".join(f"{count} {kind}" for kind, count in calls.items()),
            ", ".join(row["paths"]),
            str(len(row["scopes"])),
            f"{row['worst']:.1e}",
        )
    return made


def _proved(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Families of which every configuration is proved."""
    bases = {row["family"]: architectures.FAMILIES[row["family"]].base for row in rows}
    return set(bases.values()) - {bases[row["family"]] for row in rows if row["failure"]}


def _worst(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    proved = [row for row in rows if not row["failure"]]
    return max(proved, key=lambda row: float(row["worst"]), default=None)
