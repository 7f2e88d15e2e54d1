"""The command line: what is common to all commands, and two small ones, `demo` and `version`."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normscope.cli.aer import aer
from normscope.cli.align import align, translate_align
from normscope.cli.analyze import analyze
from normscope.cli.bench import bench
from normscope.cli.corpus import corpus
from normscope.cli.families import families
from normscope.cli.options import Debug
from normscope.cli.quiet import quiet
from normscope.cli.reproduce import reproduce
from normscope.cli.serve import serve
from normscope.cli.view import view
from normscope.errors import NormscopeError

INTERRUPTED = 130  # the status that Ctrl-C gives, to typer too


class _Commands(TyperGroup):
    """Errors as one line on standard error: status 2 for a user's mistake, 1 for anything else."""

    debug = False

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse, run, and leave with a status."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        self.debug = "--debug" in given
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that cannot show α shows an escape, and the rest of the table.
                stream.reconfigure(errors="backslashreplace")
        options["standalone_mode"] = False  # exceptions come here, and Exit as its status
        try:
            status = super().main(given, *more, **options) or 0
            sys.stdout.flush()
        except NormscopeError as error:
            status = self._fail(str(error), 2)
        except BrokenPipeError:  # who read the output has left; nobody is there to be told
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as error:
            # typer's errors are click's, which newer versions of typer keep inside themselves.
            if hasattr(error, "format_message"):
                self.debug = False  # where in typer it was noticed helps nobody
                status = self._fail(_usage(error), 2)
            else:
                what = f"unexpected {type(error).__name__}: {error}"
                hint = "" if self.debug else "; the same command with --debug shows where"
                status = self._fail(what + hint, 1)
        if status == INTERRUPTED:
            self._fail("interrupted", status)
        sys.stderr.flush()
        sys.exit(status)

    def _fail(self, message: str, status: int) -> int:
        if self.debug and sys.exc_info()[0] is not None:
            traceback.print_exc()
        print("normscope: error:", " ".join(message.split()), file=sys.stderr)
        return status


def _usage(error: Any) -> str:
    """`Missing option '--text'; see normscope analyze --help`."""
    command = getattr(getattr(error, "ctx", None), "command_path", "normscope")
    told = error.format_message().replace(" (env var: 'None')", "")  # older typer with newer click
    return f"{told.rstrip('.')}; see {command} --help"


def _print_version(wanted: bool) -> bool:
    if wanted:
        from normscope import __version__

        print(f"normscope {__version__}")
        raise typer.Exit
    return wanted


# Plain help: with rich's markup, the [CLS] of a help text would be taken for a style.
app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and leave."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """See what really moves inside a Transformer.

    An attention head outputs a sum of vectors α·f(x). The weight α alone does not say how much a
    token contributes: f(x) may be short or long. normscope measures the vectors themselves,
    exactly, in any transformers model, and shows where the weights mislead.

    \b
    Examples:
      normscope demo
      normscope analyze --text "The cat sat on the mat."
      normscope analyze --model gpt2 --text "The cat sat." --output cat.png
      normscope analyze --model ./my-model --text "The cat sat." --output cat.html
      normscope corpus --data wiki.txt --output wiki
      normscope align --source text.de --target text.en
      normscope serve
    """  # noqa: D301


def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the picture goes: .png, .pdf or .svg. Without it, normscope-demo.png.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show on a real model what attention weights hide.

    Reads two sentences with the default model and prints, for each layer, how much of the weight
    and how much of the norm [CLS], [SEP], punctuation and all other tokens get; then draws both
    maps of the layer where they differ most, side by side.

    \b
    Example:
      normscope demo --output picture.png
    """  # noqa: D301
    from normscope.cli.demonstration import demo as run_demo

    with quiet():
        run_demo(output)


def version(debug: Debug = False) -> None:
    """Print the versions that numbers may depend on."""
    import platform
    from importlib.metadata import version as installed

    import torch

    from normscope import __version__

    print(f"normscope {__version__}")
    print(f"torch {torch.__version__}")
    # Asked of the installed files: importing it takes seconds.
    print(f"transformers {installed('transformers')}")
    print(f"python {platform.python_version()}")


# In the order in which help shows them.
for command in (
    *(analyze, demo, families, bench, version, corpus),
    *(reproduce, align, translate_align, aer, serve, view),
):
    app.command()(command)


def main() -> None:
    """The command `normscope`."""
    app(prog_name="normscope")
