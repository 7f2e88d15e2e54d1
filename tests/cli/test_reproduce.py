"""`normscope reproduce`: how its options are read. Experiments are tested in tests/reproduce."""

from __future__ import annotations

from pathlib import Path

from normscope.cli.reproduce import ReproduceArguments
from normscope.reproduce import ReproduceOptions


def test_options_become_reproduce_options() -> None:
    arguments = ReproduceArguments(experiment="emnlp2021", data=[Path("a")], sample="60")
    options = ReproduceOptions(data=(Path("a"),), sample=60)
    assert ReproduceOptions(**arguments.for_python()) == options
