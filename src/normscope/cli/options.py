"""Options that several commands take, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A folder, or a name on the Hugging Face hub (owner/name). Without it, the default "
        "model: all-MiniLM-L6-v2, a small BERT.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, mps. Without it, cpu."),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="float64, float32, bfloat16, float16. Without it, as stored.",
    ),
]
Revision = Annotated[
    str | None, typer.Option(metavar="REV", help="Commit, tag or branch of a model on the hub.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
