"""The options of a corpus run, for `normscope.corpus` and the command line alike.

This module loads neither numpy nor torch, so that the command line can show the options at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normscope.corpus.readers import RowFields
from normscope.errors import InputError
from normscope.measures.statistics.settings import StatisticSettings, shown

ENGINES = ("local", "ray")
BAD_ROWS = ("skip", "error")
# The statistics that cost little beside the forward pass.
DEFAULT_STATISTICS = ("dispersion", "categories", "frequency", "mixing", "preserve_mix")


@dataclass(frozen=True)
class CorpusOptions:
    """How a corpus is read and measured, and where the results go.

    Fields that are options of the command line have a `help` text and a `metavar` as metadata.

    Attributes:
        output: A folder for tables, figures, report and checkpoints. An interrupted run is
            continued there, and a finished one is read. None keeps nothing.
        settings: Settings of the statistics: categories, masking, bootstrap and so on.
        limit: The number of rows to use, from the first; None uses all.
        sample: The share of these rows to use (a float such as 0.01) or their number (an integer);
            they are chosen by a hash of the row's number and the seed. None uses all.
        seed: The seed of the sample, of masking and of the bootstrap; None takes that of
            `settings`.
        max_length: The number of tokens to which longer sequences are cut; None takes the largest
            number that the model accepts.
        batch_tokens: The number of tokens in a batch, padding included.
        block_rows: The number of rows in a block. Sequences of similar lengths are batched within
            a block, and a run is continued between two blocks.
        bad_rows: "skip" leaves out rows that cannot be used, counts and lists them; "error" stops
            at the first.
        format: The format of the files: text, jsonl, tsv, parquet or clark; None tells it from
            their names.
        text_field: The name of the JSON field or Parquet column with the text.
        pair_field: The name of the field or column with the second text of a pair, if any.
        dump: Whether to write the maps of every sequence as well; needs `output`.
        restart: Whether to delete the run that `output` holds and start a new one.
        checkpoint_seconds: The time between two checkpoints.
        engine: "local" for this process, "ray" for a Ray cluster.
        address: The address of the Ray cluster, or "auto" for the one that this machine belongs
            to; None starts Ray on this machine.
        workers: The number of models that Ray runs at once; None runs one for each GPU, or CPU.
        device: Where the model runs, as a string or a `torch.device`; None runs it on the CPU.
        dtype: The dtype of the model, as a string or a `torch.dtype`; None leaves it as stored.
        revision: The commit, tag or branch of a model on the Hugging Face hub.
        strict: Whether to refuse a model given by name that is not loaded whole.
        progress: Whether to show a progress bar on standard error; None shows it on a terminal.
    """

    output: str | os.PathLike[str] | None = field(
        default=None,
        metadata=shown(
            "Write tables, figures, report and checkpoints to the folder DIR, and continue an "
            "interrupted run there. Default: print the tables and keep nothing.",
            "DIR",
            option=("--output", "-o"),
        ),
    )
    settings: StatisticSettings = field(default_factory=StatisticSettings)
    limit: int | None = field(
        default=None, metadata=shown("Use only the first N rows.", "N", min=1)
    )
    sample: int | float | None = field(
        default=None,
        metadata=shown(
            "Use a fraction (0.01) or a number (1000) of these rows, chosen by a hash of the row's "
            "number and the seed.",
            "SHARE|N",
        ),
    )
    seed: int | None = field(
        default=None, metadata=shown("Seed of the sample, the masking and the bootstrap.", "N")
    )
    max_length: int | None = field(
        default=None,
        metadata=shown("Truncate longer sequences to N tokens. Default: the model's limit.", "N"),
    )
    batch_tokens: int = field(default=4096, metadata=shown("Tokens in one batch.", "N", min=1))
    block_rows: int = 256
    bad_rows: str = field(
        default="skip",
        metadata=shown(
            "What to do with empty rows, invalid UTF-8, broken JSON and the like: skip, count and "
            "report them, or stop at the first.",
            "|".join(BAD_ROWS),
        ),
    )
    format: str | None = field(
        default=None,
        metadata=shown(
            "Format of the files: text, jsonl, tsv, parquet or clark. Default: go by the file "
            "names.",
            "FORMAT",
        ),
    )
    text_field: str = field(
        default=RowFields.text,
        metadata=shown("The JSON field or Parquet column with the text.", "NAME"),
    )
    pair_field: str = field(
        default=RowFields.pair,
        metadata=shown("The field or column with the second text, if any.", "NAME"),
    )
    dump: bool = field(
        default=False,
        metadata=shown("Also write the maps of every sequence: maps/part-*.parquet. Large."),
    )
    restart: bool = field(default=False, metadata=shown("Discard the run in DIR and start over."))
    checkpoint_seconds: float = field(
        default=60.0, metadata=shown("Seconds between checkpoints.", "S", min=0.0)
    )
    engine: str = field(
        default="local",
        metadata=shown("ray: run on all machines of a Ray cluster.", "|".join(ENGINES)),
    )
    address: str | None = field(
        default=None,
        metadata=shown(
            "Address of the Ray cluster; auto: the cluster of this machine. Default: start Ray on "
            "this machine.",
            "ADDRESS",
        ),
    )
    workers: int | None = field(
        default=None,
        metadata=shown(
            "Number of models that Ray runs at once. Default: one per GPU, or per CPU.",
            "N",
            min=1,
        ),
    )
    device: Any = field(
        default=None, metadata=shown("cpu, cuda, cuda:1 or mps. Default: cpu.", "DEVICE")
    )
    dtype: Any = field(
        default=None,
        metadata=shown(
            "float64, float32, bfloat16 or float16. Default: the dtype of the model's file.",
            "DTYPE",
        ),
    )
    revision: str | None = field(
        default=None, metadata=shown("Commit, tag or branch of a model on the hub.", "REV")
    )
    strict: bool = True
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, valid in (("engine", ENGINES), ("bad_rows", BAD_ROWS)):
            value = getattr(self, name)
            if value not in valid:
                raise InputError(f"{name} must be one of {', '.join(valid)}, but is {value!r}")
        for name in ("batch_tokens", "block_rows", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, but is {value!r}")
        if self.engine == "local" and (self.address is not None or self.workers is not None):
            raise InputError(
                'address and workers are for a Ray cluster; give engine="ray" (--engine ray) too, '
                "or leave them out"
            )
        if self.dump and self.output is None:
            raise InputError(
                "dump writes the maps to a folder, but output is None; give output= (--output "
                "DIR) too"
            )

    @property
    def statistic_settings(self) -> StatisticSettings:
        """The settings of the statistics, with the seed of the run."""
        return self.settings if self.seed is None else replace(self.settings, seed=self.seed)

    @property
    def row_fields(self) -> RowFields:
        """The names of the fields that hold a row's texts."""
        return RowFields(self.text_field, self.pair_field)

    @property
    def maps_folder(self) -> Path | None:
        """The folder that maps are dumped to, or None."""
        return None if not self.dump or self.output is None else Path(self.output) / "maps"
