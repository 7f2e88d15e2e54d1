"""The options of a run: the defaults of `normscope.corpus`, help for the command line, mistakes."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope.corpus.options import CorpusOptions
from normscope.errors import InputError
from normscope.measures.statistics import StatisticSettings


def test_the_function_has_the_options_as_keywords_with_the_same_defaults() -> None:
    parameters = inspect.signature(normscope.corpus).parameters
    keywords = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "tokenizer"
    }
    options = {field.name: getattr(CorpusOptions(), field.name) for field in fields(CorpusOptions)}
    assert keywords.pop("settings") is None
    assert options.pop("settings") == StatisticSettings()
    assert list(keywords.items()) == list(options.items())


def test_every_option_is_explained_and_those_of_the_command_line_have_help() -> None:
    text = inspect.getdoc(CorpusOptions) or ""
    assert all(f"\n    {field.name}: " in text for field in fields(CorpusOptions))
    shown = {field.name: field.metadata for field in fields(CorpusOptions) if field.metadata}
    assert {field.name for field in fields(CorpusOptions)} - set(shown) == {
        *("settings", "block_rows", "progress", "strict")
    }
    assert all(metadata["help"].endswith(".") for metadata in shown.values())
    flags = {name for name, metadata in shown.items() if metadata["metavar"] is None}
    assert flags == {"dump", "restart"}


def test_the_command_line_can_load_the_options_without_torch() -> None:
    code = (
        "import sys; from normscope.corpus import CorpusOptions; CorpusOptions(); "
        "print([name for name in ('numpy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_options_can_be_sent_to_workers() -> None:
    options = CorpusOptions(output=Path("out"), dump=True, settings=StatisticSettings(seed=2))
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_seed_of_the_run_is_that_of_the_statistics() -> None:
    settings = StatisticSettings(seed=3, replicates=7)
    assert CorpusOptions(settings=settings).statistic_settings == settings
    chosen = CorpusOptions(settings=settings, seed=0).statistic_settings
    assert chosen == StatisticSettings(seed=0, replicates=7)


def test_maps_go_to_a_folder_of_the_output() -> None:
    assert CorpusOptions(output="out").maps_folder is None
    assert CorpusOptions(output="out", dump=True).maps_folder == Path("out/maps")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"engine": "spark"}, "engine must be one of local, ray, but is 'spark'"),
        ({"workers": 2}, "address and workers are for a Ray cluster"),
        ({"address": "auto"}, "address and workers are for a Ray cluster"),
        ({"engine": "ray", "workers": 0}, "workers must be at least 1, but is 0"),
        ({"bad_rows": "drop"}, "bad_rows must be one of skip, error, but is 'drop'"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, but is 0"),
        ({"block_rows": -1}, "block_rows must be at least 1, but is -1"),
        ({"dump": True}, "dump writes the maps to a folder, but output is None"),
    ],
)
def test_mistakes_are_told(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CorpusOptions(**wrong)
