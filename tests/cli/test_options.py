"""Options declared by dataclasses, and their agreement with the Python functions."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import normscope
from normscope import InputError
from normscope.cli.align import AlignArguments, TranslateAlignArguments
from normscope.cli.analyze import AnalyzeArguments
from normscope.cli.corpus import CorpusArguments
from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    argument,
    command,
    option,
    parse_sample,
    shared,
    split_commas,
)


@dataclass(frozen=True)
class Library:
    """Options of a Python function, with help for the command line."""

    times: int = field(default=2, metadata={"help": "How often.", "metavar": "N"})
    secret: str | None = field(
        default=None, metadata={"help": "A word.", "option": "--word", "envvar": "GREETING_WORD"}
    )


@dataclass(frozen=True, kw_only=True)
class GreetingArguments(CommandArguments):
    names: list[str] = argument(help="Whom to greet.", metavar="NAME")
    times: int = shared(Library, "times")
    secret: str | None = shared(Library, "secret")
    file: Path = option(help="A file.", metavar="FILE", names=OUTPUT)
    width_limit: float = option(0.5, help="A limit.", metavar="X", min=0.0, max=1.0)
    loud: bool = option(False, help="Shout.")


received: list[GreetingArguments] = []


@command
def greet(arguments: GreetingArguments) -> None:
    """Greet somebody."""
    received.append(arguments)


app = typer.Typer(rich_markup_mode=None)
app.command()(greet)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_dataclass_becomes_options() -> None:
    assert invoke("Ann", "Bob", "-o", "x", "--width-limit", "1", "--loud").exit_code == 0
    assert received.pop() == GreetingArguments(
        names=["Ann", "Bob"], file=Path("x"), width_limit=1.0, loud=True, times=2, secret=None
    )
    done = CliRunner().invoke(
        app, ["Ann", "--output", "x", "--times", "3", "--debug"], env={"GREETING_WORD": "psst"}
    )
    assert done.exit_code == 0
    arguments = received.pop()
    assert (arguments.times, arguments.secret) == (3, "psst")
    with pytest.raises(FrozenInstanceError):
        arguments.times = 4  # type: ignore[misc]


def test_limits_and_required_options_are_checked() -> None:
    assert "--output" in invoke("Ann").output
    assert "NAME" in invoke("-o", "x").output
    assert "--width-limit" in invoke("Ann", "-o", "x", "--width-limit", "2").output
    assert received == []


def test_help_lists_required_options_first_and_debug_last() -> None:
    text = invoke("--help").output
    assert "Greet somebody." in text
    options = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  -")]
    assert [name.split()[0].strip(",") for name in options if "completion" not in name] == [
        *("-o", "--times", "--word", "--width-limit", "--loud", "--debug", "--help")
    ]
    assert "How often.  [default: 2]" in text
    assert "[env var: GREETING_WORD]" in text


def test_keywords() -> None:
    arguments = GreetingArguments(names=["Ann"], file=Path("x"))
    assert arguments.keywords("names", "file", "loud", width_limit=7, more=8) == {
        "times": 2,
        "secret": None,
        "width_limit": 7,
        "more": 8,
    }
    with pytest.raises(KeyError):
        arguments.keywords("nobody")


TEXT: dict[str, Any] = {"source": Path("a")}
COMMANDS: list[tuple[Any, Any]] = [
    (AnalyzeArguments(text="a"), normscope.analyze),
    (CorpusArguments(data=[Path("a")]), normscope.corpus),
    (AlignArguments(**TEXT, target=Path("b")), normscope.align),
    (TranslateAlignArguments(**TEXT), normscope.translate_align),
]


@pytest.mark.parametrize(("arguments", "function"), COMMANDS)
def test_options_have_the_names_and_defaults_of_python(arguments: Any, function: Any) -> None:
    parameters = dict(inspect.signature(function).parameters)
    if function is normscope.translate_align:  # hands all others on
        parameters = {**inspect.signature(normscope.align).parameters, **parameters}
    keywords = arguments.for_python()
    assert set(keywords) <= set(parameters)
    optional = {item.name for item in fields(arguments) if item.default is not MISSING}
    converted = {"text", "data", "maps", "reduce", "statistics", "seed"}
    for name in (optional & set(keywords)) - converted:
        default = parameters[name].default
        assert default in (keywords[name], inspect.Parameter.empty), name


def test_lists_with_commas_have_the_defaults_of_python() -> None:
    statistics = inspect.signature(normscope.corpus).parameters["statistics"].default
    assert tuple(split_commas(CorpusArguments().statistics)) == statistics
    maps = inspect.signature(normscope.analyze).parameters["maps"].default
    assert tuple(AnalyzeArguments(text="a").for_python()["maps"]) == maps


def test_split_commas() -> None:
    assert split_commas("a, b,c") == ["a", "b", "c"]


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("0.01", 0.01), ("1.0", 1.0)])
def test_parse_sample(text: str, size: float) -> None:
    parsed = parse_sample(text)
    assert parsed == size
    assert type(parsed) is type(size)


def test_a_sample_that_is_no_number() -> None:
    with pytest.raises(InputError, match=r"fraction such as 0\.01.*not 'some'"):
        parse_sample("some")
