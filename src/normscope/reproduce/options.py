"""The options of a reproduction, for Python and the command line.

This module imports nothing heavy, so that the command line can show its help at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from normscope.errors import InputError

NMT = "emnlp2020-nmt"  # the experiment that trains translation models
SST2, LM, ALTI_PLUS = "attribution-sst2", "attribution-lm", "alti-plus"
SEQUENCES = 992  # as many as in the papers of the corpus experiments


def _shown(text: str, metavar: str | None = None, **more: Any) -> dict[str, Any]:
    return {"help": text, "metavar": metavar, **more}


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `normscope reproduce`.

    The metadata of a field have the "help" and "metavar" of its option, the names of the option
    ("option") where they are not derived from the field's, and its smallest value ("min").
    """

    model: str | None = field(
        default=None,
        metadata=_shown(
            "A folder, or a name on the Hugging Face hub (owner/name). Default: bert-base-uncased "
            f"from the hub, the model of the papers; {SST2}: MiniLM; {LM}: SmolLM2; {ALTI_PLUS}: "
            "the German-English model of normscope.",
            "NAME",
        ),
    )
    data: tuple[Path, ...] = field(
        default=(),
        metadata=_shown(
            "The papers' sequences, unlabeled_attn.pkl of Clark et al.; or a text file with one "
            f"paragraph per line, from which pairs are made. {SST2}: sentences and labels to "
            f"fine-tune on (.tsv). {LM}: prompts with evidence (.csv), passages (.json), or "
            "folders of them. May be repeated.",
            "FILE",
        ),
    )
    output: Path | None = field(
        default=None,
        metadata=_shown(
            "Folder for the report, its tables and figures, and the checkpoints of the run. "
            "Without it, the tables are printed and nothing is stored.",
            "DIR",
            option=("--output", "-o"),
        ),
    )
    sequences: int | None = field(
        default=None,
        metadata=_shown(
            f"Use the first N sequences, sentences, pairs, or prompts of each set. Default: all; "
            f"{SEQUENCES} of a text.",
            "N",
            min=1,
        ),
    )
    sample: int | float | None = field(
        default=None,
        metadata=_shown(
            "Use a share (0.1) or a number (60) of these sequences, selected by a hash. Default: "
            "all, or 32 for iclr2024, which is expensive.",
            "SHARE|N",
        ),
    )
    ranks: str = field(
        default="ids",
        metadata=_shown(
            "Frequency ranks: tokenizer ids, counts in the text, or a file with lines `rank count "
            "token_id`. Results with tokenizer ids are always shown, too.",
            "ids|corpus|FILE",
        ),
    )
    seed: int = field(
        default=0, metadata=_shown("Seed of the sample, the masking and the bootstrap.", "N")
    )
    device: str | None = field(
        default=None, metadata=_shown("cpu, cuda, cuda:1 or mps. Default: cpu.", "DEVICE")
    )
    dtype: str | None = field(
        default=None,
        metadata=_shown(
            "float64, float32, bfloat16 or float16. Default: the dtype of the stored weights.",
            "DTYPE",
        ),
    )
    revision: str | None = field(
        default=None, metadata=_shown("Commit, tag or branch of a model on the hub.", "REV")
    )
    restart: bool = field(default=False, metadata=_shown("Delete the run in DIR and start again."))
    valid: tuple[Path, ...] = field(
        default=(),
        metadata=_shown(
            f"{NMT}: validation text, in the same format as --data. {SST2}: the sentences and "
            "labels to measure on (.tsv).",
            "FILE",
        ),
    )
    gold: tuple[Path, ...] = field(
        default=(),
        metadata=_shown(
            f"{NMT}, {ALTI_PLUS}: German text, English text and gold links (.talp), in three "
            "options.",
            "FILE",
        ),
    )
    recipe: str = field(
        default="released", metadata=_shown(f"{NMT}: released, paper, small or tiny.", "NAME")
    )
    minutes: float | int | None = field(
        default=None, metadata=_shown(f"{NMT}: minutes of training for each direction.", "N")
    )
    steps: int | None = field(
        default=None,
        metadata=_shown(
            f"{NMT}: number of updates, instead of minutes. {SST2}: number of updates. Default: 5 "
            "times the data.",
            "N",
        ),
    )
    method: tuple[str, ...] = field(
        default=(),
        metadata=_shown(
            f"{SST2}, {LM}: measure only this method of normscope methods. May be repeated. "
            "Default: those of the papers, and more.",
            "METHOD",
        ),
    )

    def check(self, experiment: str, *used: str) -> None:
        """Raise InputError if an option was given that an experiment does not use."""
        always = {"model", "output", "restart", "device", "dtype", "revision", "sequences", "seed"}
        for entry in fields(self):
            given = getattr(self, entry.name) != entry.default
            if given and entry.name not in always and entry.name not in used:
                raise InputError(f"{experiment} has no --{entry.name}; leave it out")
