"""`normscope families`: prove the decomposition for every known model family."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from normscope.cli.options import (
    CommandArguments,
    CommonOptions,
    command,
    option,
    shared,
    split_commas,
)
from normscope.cli.output import note, plain_console, quiet
from normscope.cli.status import status
from normscope.errors import InputError
from normscope.foundation.progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

BOUND = 1e-10  # the largest relative error, in float64, that counts as a proof


@dataclass(frozen=True, kw_only=True)
class FamiliesArguments(CommandArguments):
    """The options of `normscope families`."""

    every: bool = option(
        False,
        names=("--all",),
        help="Check every model type of the installed transformers, shrunken, instead: attention, "
        "the whole layer and attribution. Takes some minutes.",
    )
    only: str | None = option(None, help="With --all: these types alone.", metavar="TYPE,TYPE")
    processes: int = option(
        2, help="With --all: types that are checked at the same time.", metavar="N", min=1
    )
    markdown: str | None = option(
        None, help="With --all: also write a page in Markdown.", metavar="FILE"
    )
    as_json: bool = shared(CommonOptions, "as_json")


@dataclass(frozen=True)
class FamilyProof:
    """The proof of one configuration of a family, or why it failed."""

    family: str  # the configuration: "falcon", "falcon (alibi)"
    group: str
    model: str
    failure: str | None = None
    attentions: Mapping[str, int] = field(default_factory=dict)  # calls by place and kind
    paths: Sequence[str] = ()  # how the attentions were captured
    worst: float | None = None  # the largest relative error
    scopes: Mapping[str, float] = field(default_factory=dict)  # error by map


@command
def families(arguments: FamiliesArguments) -> None:
    """Prove the decomposition for every known model family.

    For each family, a tiny model with random weights runs in float64 on a padded batch. It is
    proved if its outputs equal those of its own attention bit for bit and, for every attention
    call, the parts add up to the real output. The error is the largest relative difference.

    A family that is not listed may work as well: --all checks every model type of the installed
    transformers, and normscope.testing.check_architecture(model) a model of your own.

    \b
    Exit status:
      0 all proved, or refused by name with --all
      1 at least one not proved
    """  # noqa: D301
    if arguments.every:
        _sweep(arguments)
        return
    if arguments.only or arguments.markdown:
        raise InputError("--only and --markdown need --all")
    proofs = []
    with status("loading the model families"), quiet():
        from normscope.models.architectures import FAMILIES

        with progress_bar(len(FAMILIES), unit="family", description="proving") as bar:
            for name in FAMILIES:
                proofs.append(prove(name))
                bar.update()
    if arguments.as_json:
        print(json.dumps(_to_dict(proofs), indent=1))
    else:
        plain_console().print(_table(proofs))
        print(f"\n{_summary(proofs)}")
    failures = [proof for proof in proofs if proof.failure]
    for proof in failures:
        note(f"error: not proved: {proof.family}: {proof.failure}")
    if failures:
        raise typer.Exit(1)


def _sweep(arguments: FamiliesArguments) -> None:
    """Check every model type, and show what was found."""
    with status("loading the model types"), quiet():
        from normscope.cli import sweep_page
        from normscope.cli.sweep import sweep
        from normscope.foundation.files import whole_file
        from normscope.models.shrinking import model_types

        names = model_types()
        if arguments.only is not None:
            names = _chosen(names, split_commas(arguments.only))
        found = {}
        with progress_bar(len(names), unit="type", description="checking") as bar:
            for report in sweep(names, processes=arguments.processes):
                found[report.name] = report
                bar.update()
    reports = [found[name] for name in sorted(names)]
    if arguments.markdown is not None:
        with whole_file(arguments.markdown) as file:
            file.write(sweep_page.to_markdown(reports).encode())
    if arguments.as_json:
        print(json.dumps(sweep_page.to_dict(reports), indent=1))
    else:
        plain_console().print(sweep_page.table_of(reports))
        print("", *sweep_page.summary(reports), sep="\n")
    failures = sweep_page.failures_of(reports)
    for name, check, verdict in failures:
        note(f"error: {name}: {check}: {verdict.status}: {verdict.reason}")
    if failures:
        raise typer.Exit(1)


def _chosen(names: Sequence[str], only: Sequence[str]) -> tuple[str, ...]:
    if unknown := [name for name in only if name not in names]:
        raise InputError(
            f"the installed transformers has no model type {unknown[0]!r}; a type is what a "
            'configuration calls its "model_type"'
        )
    return tuple(dict.fromkeys(only))


def prove(name: str) -> FamilyProof:
    """Check a tiny model of one configuration: every attention call, then every map."""
    from normscope.decomposition.available import available
    from normscope.models import architectures
    from normscope.testing import FullPrecision, check_architecture, check_layers

    family = architectures.FAMILIES[name]
    try:
        model, inputs = architectures.tiny_model(name), architectures.tiny_inputs(name)
        proof = check_architecture(model, inputs, bound=BOUND)
        with FullPrecision():  # a new model: NLLB-MoE's router casts itself to float32 when it runs
            errors = check_layers(architectures.tiny_model(name), inputs, bound=BOUND)
    except Exception as error:  # one family that fails must not hide the others
        failure = " ".join(f"{type(error).__name__}: {error}".split())
        return FamilyProof(name, family.group, family.model, failure)
    # check_layers also tests maps that only some layers of a stack have; analyze() offers those
    # that all layers have.
    offered = {scope for scopes in available(model).values() for scope in scopes}
    return FamilyProof(
        name,
        family.group,
        family.model,
        attentions=proof.attentions,
        paths=list(proof.paths),
        worst=max(proof.worst, *errors.values()),
        scopes={scope: error for scope, error in errors.items() if scope in offered},
    )


def _to_dict(proofs: Sequence[FamilyProof]) -> dict[str, Any]:
    worst = _worst(proofs)
    return {
        "families": [asdict(proof) for proof in proofs],
        "proved": len(_proved(proofs)),
        "worst": None if worst is None else worst.worst,
        "bound": BOUND,
    }


def _summary(proofs: Sequence[FamilyProof]) -> str:
    worst = _worst(proofs)
    if worst is None:
        return "0 families proved."
    configurations = sum(not proof.failure for proof in proofs)
    return (
        f"{len(_proved(proofs))} families proved, in {configurations} configurations. "
        f"Worst error {worst.worst:.1e} ({worst.family})."
    )


def _table(proofs: Sequence[FamilyProof]) -> Table:
    """Make a table with a row for each configuration."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("family", "attentions", "captured by", "maps"):
        table.add_column(title, no_wrap=True)
    table.add_column("worst error", justify="right", no_wrap=True)
    for proof in proofs:
        if proof.failure:
            table.add_row(proof.family, "", "", "", "NOT PROVED", style="bold red")
            continue
        kinds: Counter[str] = Counter()
        for call, count in proof.attentions.items():
            kinds[call.rsplit(" ", 1)[-1]] += count  # "decoder.layers cross" is of kind "cross"
        table.add_row(
            proof.family,
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
            ", ".join(proof.paths),
            str(len(proof.scopes)),
            f"{proof.worst:.1e}",
        )
    return table


def _proved(proofs: Sequence[FamilyProof]) -> set[str]:
    """Return the families of which every configuration is proved."""
    from normscope.models.architectures import FAMILIES

    bases = {proof.family: FAMILIES[proof.family].base for proof in proofs}
    return set(bases.values()) - {bases[proof.family] for proof in proofs if proof.failure}


def _worst(proofs: Sequence[FamilyProof]) -> FamilyProof | None:
    """Return the proof with the largest error, or None without any."""
    proved = [proof for proof in proofs if not proof.failure]
    return max(proved, key=lambda proof: proof.worst or 0.0, default=None)
