"""`normscope corpus`: how its options are read. What it measures is tested in tests/corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normscope import InputError
from normscope.cli.corpus import CorpusArguments, parse_categories, parse_tokens
from tests.helpers.commands import fail


def test_options_become_keyword_arguments() -> None:
    arguments = CorpusArguments(
        data=[Path("a.txt")],
        more=[Path("b.txt")],
        sample="0.5",
        seed=7,
        masking=0.0,
        category=["stop=the,a"],
    )
    keywords = arguments.for_python()
    assert keywords["data"] == [Path("a.txt"), Path("b.txt")]
    assert keywords["sample"] == 0.5
    settings = keywords["settings"]
    assert (settings.seed, settings.masking) == (7, 0.0)
    assert settings.categories == {"stop": ["the", "a"]}


def test_data_is_needed() -> None:
    assert fail("corpus") == "no data was given: name the files, as in --data wiki.txt"


def test_categories() -> None:
    categories = parse_categories(["stop=the,a", "digits=/[0-9]+/", "slash=/", "equal=a=b"])
    assert categories == {
        "stop": ["the", "a"],
        "digits": re.compile("[0-9]+"),
        "slash": ["/"],
        "equal": ["a=b"],
    }


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["stop"], r"must be NAME=TOKEN,TOKEN or NAME=/REGEX/.*not 'stop'"),
        (["=the"], "not '=the'"),
        (["a=/(/"], r"--category a: '/\(/' is not a valid regular expression"),
        (["a=b", "a=c"], "--category a was given twice; .*a=TOKEN,TOKEN"),
        (["a=b,,c"], "separate them by single commas"),
    ],
)
def test_categories_that_cannot_be_read(entries: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_categories(entries)


def test_tokens_are_split_as_in_a_csv_file() -> None:
    assert parse_tokens('the,",",of') == ["the", ",", "of"]
    with pytest.raises(InputError, match="cannot read the tokens"):
        parse_tokens('the,"')
