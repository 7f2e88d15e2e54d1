"""The command line: its commands, its exit statuses and how it reports errors."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normscope.cli.aer import aer
from normscope.cli.align import align, translate_align
from normscope.cli.analyze import analyze
from normscope.cli.attribute import attribute
from normscope.cli.bench import bench
from normscope.cli.corpus import corpus
from normscope.cli.demo import demo
from normscope.cli.faithfulness import compare, faithfulness
from normscope.cli.families import families
from normscope.cli.methods import methods
from normscope.cli.options import Debug
from normscope.cli.output import note
from normscope.cli.reproduce import reproduce
from normscope.cli.serve import serve
from normscope.cli.signals import ending_signals
from normscope.cli.view import view
from normscope.errors import NormscopeError
from normscope.foundation.texts import shortened

FAILED, USAGE_ERROR = 1, 2
INTERRUPTED = 130  # what typer returns instead of raising KeyboardInterrupt
LONGEST = 1000  # characters of an error message
# Why standard output cannot be written to; None: as the system says it.
NOT_WRITTEN = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)),
    errno.EBADF: "it is closed",
}


class _Commands(TyperGroup):
    """A group of commands that reports every error as one line on standard error.

    The exit status is 2 for an error that the user can correct, 128 + n if the signal n has ended
    the command (130 for Ctrl-C), and 1 for anything else.
    """

    debug = False

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse the command line, run the command and exit with its status."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        self.debug = "--debug" in words
        _prepare_streams()
        options["standalone_mode"] = False  # raise exceptions, and return the status of Exit
        with ending_signals() as ending:
            status = self._run(words, *more, **options)
            if status == INTERRUPTED:
                status = self._fail(ending.message, ending.status)
            with suppress(OSError):
                sys.stderr.flush()
        sys.exit(status)

    def _run(self, words: list[str], *more: Any, **options: Any) -> int:
        """Run the command, report an error, and return the exit status."""
        try:
            try:
                status: int = super().main(words, *more, **options) or 0
            finally:
                sys.stdout.flush()
        except NormscopeError as error:
            status = self._fail(str(error), USAGE_ERROR)
        except BrokenPipeError:  # the reader closed the pipe, as `head` does
            _discard_output()
            status = FAILED
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NOT_WRITTEN and not error.filename:
                # Errors of files have a name, or are one of ours already.
                _discard_output()
                why = NOT_WRITTEN[error.errno] or error.strerror
                status = self._fail(f"cannot write to standard output: {why}", USAGE_ERROR)
            # Newer versions of typer bundle click, so click's exceptions cannot be imported.
            elif hasattr(error, "format_message"):
                self.debug = False  # a traceback through typer would not help
                status = self._fail(_usage(error), USAGE_ERROR)
            else:
                hint = "" if self.debug else "; run the command with --debug for the traceback"
                status = self._fail(f"unexpected {type(error).__name__}: {error}{hint}", FAILED)
        return status

    def _fail(self, message: str, status: int) -> int:
        with suppress(OSError):  # standard error may be full, and there is nowhere else to say so
            if self.debug and sys.exc_info()[0] is not None:
                traceback.print_exc()
            note(f"error: {shortened(' '.join(message.split()), LONGEST)}")
        return status


def _prepare_streams() -> None:
    """Make standard streams that can be used, whatever they are."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The next file that is opened must not get the number of a closed stream. Output to
            # the closed standard output fails, as it should; without standard error none is seen.
            handle = os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show α shows its escape sequence instead of failing.
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard what is not written yet; Python would try to write it once more when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Any) -> str:
    """Format a usage error: `Missing option '--text'; see normscope analyze --help`."""
    command = getattr(getattr(error, "ctx", None), "command_path", "normscope")
    # typer 0.22 with click 8.2 appends this to a missing option.
    message = error.format_message().replace(" (env var: 'None')", "")
    stop = " See" if message.endswith("?") else "; see"
    return f"{message.rstrip('.')}{stop} {command} --help"


def _print_version(wanted: bool) -> bool:
    if wanted:
        from normscope import __version__

        print(f"normscope {__version__}")
        raise typer.Exit
    return wanted


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,  # rich would take the [CLS] of a help text for markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """See what contributes to what inside a Transformer.

    An attention head outputs a sum of vectors α·f(x). The weight α alone does not show how much a
    token contributes: f(x) may be short or long. normscope measures the vectors themselves,
    exactly, in any transformers model, and shows where the weights mislead.

    \b
    Examples:
      normscope demo
      normscope analyze "The cat sat on the mat."
      normscope analyze "The cat sat." --open
      normscope analyze "The cat sat." --model gpt2 --output cat.png
      normscope analyze "The cat sat." --model ./my-model --output cat.html
      normscope attribute "The keys to the cabinet" --answer " are" --foil " is"
      normscope corpus --data wiki.txt --output wiki
      normscope align --source text.de --target text.en
      normscope serve
    """  # noqa: D301


def version(debug: Debug = False) -> None:
    """Print the versions that results depend on."""
    import platform
    from importlib.metadata import version as installed

    import torch

    from normscope import __version__

    print(f"normscope {__version__}")
    print(f"torch {torch.__version__}")
    print(f"transformers {installed('transformers')}")  # without importing it, which takes seconds
    print(f"python {platform.python_version()}")


# In the order of the help. These modules import only what is light; a command imports torch when
# it runs, so that help, usage errors and completion are fast.
for _command in (
    *(analyze, attribute, methods, compare, faithfulness, demo, families, bench, version),
    *(corpus, reproduce, align, translate_align, aer, serve, view),
):
    app.command()(_command)


def main() -> None:
    """Run the command `normscope`."""
    app(prog_name="normscope")
