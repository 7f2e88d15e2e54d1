"""`normscope reproduce`: how its options are read. Experiments are tested in tests/reproduce."""

from __future__ import annotations

from pathlib import Path

from normscope.cli.reproduce import ReproduceArguments
from normscope.reproduce import Request


def test_options_become_a_request() -> None:
    arguments = ReproduceArguments(experiment="emnlp2021", data=[Path("a")], sample="60")
    assert Request(**arguments.for_python()) == Request(data=(Path("a"),), sample=60)
