"""The options of a reproduction."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

from normscope.reproduce import ReproduceOptions


def test_every_field_is_an_option_with_help() -> None:
    for field in fields(ReproduceOptions):
        assert field.metadata["help"].endswith("."), field.name
        assert (field.metadata["metavar"] is None) == (field.name == "restart")
    (output,) = [field for field in fields(ReproduceOptions) if field.name == "output"]
    assert output.metadata["option"] == ("--output", "-o")


def test_options_load_without_torch() -> None:
    code = "import sys, normscope.reproduce.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
