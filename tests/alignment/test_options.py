"""Options of align(): one definition for Python and the command line, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

from normscope import InputError, align, translate_align
from normscope.alignment import api
from normscope.alignment.options import AlignOptions
from tests.helpers.alignment_pairs import SOURCE, TARGET, linked
from tests.helpers.tiny import tokenizer


def test_align_has_the_options_and_defaults_of_the_dataclass() -> None:
    parameters = inspect.signature(align).parameters
    fields = {field.name: field.default for field in dataclasses.fields(AlignOptions)}
    assert list(parameters) == ["source", "target", *fields]
    assert {name: parameters[name].default for name in fields} == fields
    own = inspect.signature(translate_align).parameters
    shared = [name for name in own if name in fields]
    assert shared == ["model", "tokenizer", "words", "budget"]
    assert all(own[name].default == fields[name] for name in shared)


def test_every_option_reaches_the_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each option of align() a value of its own and see it arrive under its name."""
    names = [field.name for field in dataclasses.fields(AlignOptions)]
    values: dict[str, Any] = {name: object() for name in names}
    seen: list[dict[str, Any]] = []

    def record(*arguments: Any, **options: Any) -> AlignOptions:
        seen.append(dict(zip(names, arguments, strict=False)) | options)
        raise InputError("seen")

    monkeypatch.setattr(api, "AlignOptions", record)
    for function, sentences in (
        (align, {"source": "a", "target": "b"}),
        (translate_align, {"source": "a"}),
    ):
        with pytest.raises(InputError, match="seen"):
            inspect.unwrap(function)(**sentences, **values)  # unwrapped: without the check of types
    assert seen == [values, values]


def test_the_command_line_is_told_about_its_options() -> None:
    hidden = []
    for field in dataclasses.fields(AlignOptions):
        if field.metadata:
            assert field.metadata["help"].endswith(".")
            assert (field.metadata["metavar"] is None) == (field.default is False)
        else:
            hidden.append(field.name)
    assert hidden == [
        *("tokenizer", "reverse_tokenizer", "criterion", "sample", "copies", "noise", "seed"),
        *("revision", "strict"),
    ]


def test_the_options_are_imported_without_torch() -> None:
    """The command line needs them for its help, which must not take seconds."""
    code = "import sys, normscope.alignment.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_symmetrisation_needs_both_directions(marian: Any) -> None:
    with pytest.raises(InputError, match=r"a prefix names one direction"):
        linked(SOURCE, TARGET, marian, prefix="a", reverse_model=marian)
    with pytest.raises(InputError, match=r"needs both directions.*--reverse-model"):
        linked(SOURCE, TARGET, marian, symmetrize="union")
    with pytest.raises(InputError, match=r"unknown symmetrization 'both'"):
        linked(SOURCE, TARGET, marian, symmetrize="both")
    with pytest.raises(InputError, match=r"unknown method 'ibm'; valid: attention, saliency"):
        linked(SOURCE, TARGET, marian, method="ibm")


def test_baselines_refuse_what_they_would_pass_over(marian: Any) -> None:
    for option in ({"layer": 1}, {"head": "sum"}, {"reading": "awi"}, {"combine": 2}):
        for method in ("saliency", "smoothgrad", "eflomal"):
            (name,) = option
            with pytest.raises(InputError, match=f"{name}=.* the method is {method}: leave it out"):
                align(SOURCE, TARGET, marian, tokenizer(), method=method, **option)
    with pytest.raises(InputError, match=r"map='attn_w' applies to attention only"):
        align(SOURCE, TARGET, marian, tokenizer(), "attn_w", method="saliency")
    with pytest.raises(InputError, match=r"without matrices: leave soft"):
        align(SOURCE, TARGET, method="eflomal", soft=True)
