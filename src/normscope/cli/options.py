"""Declare the options of a command as the fields of one dataclass.

    @dataclass(frozen=True, kw_only=True)
    class GreetArguments(CommandArguments):
        name: str = option(help="Whom to greet.", metavar="NAME")
        times: int = option(1, help="How often.", metavar="N", min=1)

    @command
    def greet(arguments: GreetArguments) -> None:
        ...

A field becomes the option `--field-name` with the field's type and default; its metadata have the
help text and the rest. A field has the name of the keyword argument of the Python function that
does the work, if there is one, so that `CommandArguments.keywords` can hand it on. An option that a
dataclass of the library declares already is taken from there with `shared`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, get_type_hints

import typer

from normscope.errors import InputError

OUTPUT = ("--output", "-o")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def option(
    default: Any = MISSING,
    *,
    help: str,
    metavar: str | None = None,
    names: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """Declare an option. Without a default it is required; `names` replace the field's name.

    `more` may have `min`, `max` and `envvar`, which are handed on to `typer.Option`.
    """
    metadata = {"help": help, "metavar": metavar, "option": names, **more}
    return field(default=default, metadata=metadata)


def argument(default: Any = MISSING, *, help: str, metavar: str) -> Any:
    """Declare a positional argument."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "argument": True})


def shared(options: type, name: str, **default: Any) -> Any:
    """Declare an option with the default and the metadata of a field of another dataclass.

    `default=` replaces the default, where a command has to know whether an option was given.
    """
    (original,) = (item for item in fields(options) if item.name == name)
    return field(default=default.get("default", original.default), metadata=original.metadata)


@dataclass(frozen=True, kw_only=True)
class CommandArguments:
    """Base of the dataclasses that declare the options of a command."""

    def keywords(self, *without: str, **converted: Any) -> dict[str, Any]:
        """Return the fields as keyword arguments, some left out and some replaced."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in without:
            del values[name]
        return {**values, **converted}


@dataclass(frozen=True, kw_only=True)
class CommonOptions(CommandArguments):
    """Options that several commands share."""

    model: str | None = option(
        None,
        help="A folder, a GGUF file, a name on the Hugging Face hub (owner/name), smollm2 (a "
        "small language model) or de-en (a small translation model). Default: all-MiniLM-L6-v2, "
        "a small "
        "BERT.",
        metavar="NAME",
    )
    device: str | None = option(
        None, help="cpu, cuda, cuda:1 or mps. Default: cpu.", metavar="DEVICE"
    )
    dtype: str | None = option(
        None,
        help="float64, float32, bfloat16 or float16. Default: the dtype of the model's file.",
        metavar="DTYPE",
    )
    revision: str | None = option(
        None, help="Commit, tag or branch of a model on the hub.", metavar="REV"
    )
    strict: bool = option(
        True,
        names=("--strict/--no-strict",),
        help="Whether to refuse a model that is not loaded whole: whose file lacks weights of its "
        "layers, or has weights or an adapter that would be left out.",
    )
    as_json: bool = option(False, names=("--json",), help="Print JSON instead of a table.")


def command(function: Callable[[Any], None]) -> Callable[..., None]:
    """Turn a function of one `CommandArguments` into a function that typer can register.

    The returned function has a keyword parameter for each field, required ones first, and one for
    `--debug`, which every command accepts and `normscope.cli.app` evaluates.
    """
    (parameter,) = inspect.signature(function).parameters
    arguments_type = get_type_hints(function)[parameter]
    types = get_type_hints(arguments_type)
    declared = sorted(fields(arguments_type), key=lambda item: item.default is not MISSING)
    parameters = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_declaration(item),
            annotation=types[item.name],
        )
        for item in declared
    ]
    parameters.append(
        inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    )

    def run(*, debug: bool = False, **values: Any) -> None:
        function(arguments_type(**values))

    registered: Any = functools.update_wrapper(run, function)
    registered.__signature__ = inspect.Signature(parameters)
    registered.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


def _declaration(item: Field[Any]) -> Any:
    """Make the typer declaration that a field's metadata describe."""
    metadata = dict(item.metadata)
    default = ... if item.default is MISSING else item.default
    if metadata.pop("argument", False):
        return typer.Argument(default, **metadata)
    names = metadata.pop("option", ()) or f"--{item.name.replace('_', '-')}"
    return typer.Option(default, *((names,) if isinstance(names, str) else names), **metadata)


def split_commas(text: str) -> list[str]:
    """Split "a, b" into ["a", "b"]."""
    return [item.strip() for item in text.split(",")]


def parse_sample(text: str) -> int | float:
    """Parse the size of a sample: 1000 is a number of rows; 0.01, 1.0 or 1e-3 is a fraction."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise InputError(
        f"--sample must be a fraction such as 0.01 or a number of rows such as 1000, not {text!r}"
    )
