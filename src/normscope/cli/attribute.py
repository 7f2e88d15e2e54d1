"""`normscope attribute`: which input tokens made an output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.attribution.options import AttributionOptions, Question
from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    command,
    option,
    shared,
)
from normscope.cli.output import PICTURES, is_picture, note, quiet, save_figure
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.results.attribution import Attribution

QUESTION = tuple(item.name for item in fields(Question))
OPTIONS = tuple(item.name for item in fields(AttributionOptions))


@dataclass(frozen=True, kw_only=True)
class AttributeArguments(CommandArguments):
    """The options of `normscope attribute`."""

    text: str | None = option(None, help="The text that the model reads.", metavar="TEXT")
    data: Path | None = option(
        None,
        help="A file of texts, in place of --text: .jsonl with the field text, and answer, foil, "
        "… as the options are called; .csv, .tsv or .parquet with such columns; .txt with a text "
        "in each line.",
        metavar="FILE",
    )
    model: str | None = option(
        None,
        help="A folder, a GGUF file, a name on the Hugging Face hub (owner/name). Default: "
        "SmolLM2-135M-Instruct, a small language model; with --similar-to all-MiniLM-L6-v2.",
        metavar="NAME",
    )
    answer: str | None = shared(Question, "answer")
    foil: str | None = shared(Question, "foil")
    continuation: str | None = shared(Question, "continuation")
    generate: int | None = shared(Question, "generate")
    target: str | None = shared(Question, "target")
    similar_to: str | None = shared(Question, "similar_to")
    text_pair: list[str] | None = option(
        None,
        help="A second text, for models that read pairs; several for a model that chooses "
        "between them.",
        metavar="TEXT",
    )
    position: int | None = shared(Question, "position")
    baseline: list[str] | None = option(
        None,
        help="Explain the difference to this input: a token in place of every token, a text with "
        "as many tokens, zero or mean embeddings. Implies --method secant. May be given several "
        "times: shares are averaged.",
        metavar="TOKEN|TEXT|zero|mean",
    )
    method: str | None = shared(AttributionOptions, "method")
    units: str = shared(AttributionOptions, "units")
    gate: str = shared(AttributionOptions, "gate")
    trace: bool = shared(AttributionOptions, "trace")
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    truncate: bool = option(False, help="Cut a text that is too long for the model.")
    skip_bad: bool = option(
        False, help="With --data: leave out rows that cannot be used, instead of stopping."
    )
    restart: bool = option(
        False, help="With --data: start again, whatever rows an interrupted run has finished."
    )
    output: str | None = option(
        None,
        names=OUTPUT,
        help="Write the shares to FILE: .json, .csv or .safetensors; .html for an interactive "
        "page; .png, .svg or .pdf for a picture. - writes JSON to standard output. With --data: "
        ".parquet or .jsonl. Default: print the text and its largest shares.",
        metavar="FILE",
    )

    def question(self) -> dict[str, Any]:
        """Return what is asked of every text."""
        asked = {name: getattr(self, name) for name in QUESTION}
        asked["text_pair"] = _one_or_all(self.text_pair)
        asked["baseline"] = _one_or_all(self.baseline)
        return asked

    def options(self) -> AttributionOptions:
        """Return how to explain, checked."""
        known = {item.name for item in fields(self)}
        return AttributionOptions(
            **{name: getattr(self, name) for name in OPTIONS if name in known}
        ).checked()

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.attribute`."""
        return self.keywords(*("data", "skip_bad", "restart", "output"), **self.question())


@command
def attribute(arguments: AttributeArguments) -> None:
    """Show which words of a text made the model's answer.

    Every token gets an exact, signed share of the answer's logit. The shares and the share of the
    model's biases add up to the logit, which is printed with the error as the proof. Without
    --answer, the model's own choice is explained. With --baseline, the shares are those of the
    difference to another input.

    \b
    Examples:
      normscope attribute --text "The keys to the cabinet" --answer " are" --foil " is"
      normscope attribute --text "Once upon a time" --generate 12
      normscope attribute --text "A man plays a guitar." --similar-to "Someone makes music."
      normscope attribute --model ./classifier --text "a gripping film" --answer positive
      normscope attribute --model ./classifier --text "a gripping film" --baseline "[MASK]"
      normscope attribute --model Helsinki-NLP/opus-mt-de-en \\
                          --text "Guten Tag." --target "Good day."
      normscope attribute --text "The keys" --continuation " are here" --output keys.html
      normscope attribute --text "The keys" --trace --output - | jq .trace.heads
      normscope attribute --data prompts.jsonl --output shares.parquet

    \b
    Files:
      .json         {"answer": …, "tokens": […], "scores": […], "value": …, "bias": …, …}
      .csv          step,answer,position,token,text,side,share,…; the bias has a row too
      .safetensors  everything, bit for bit: normscope.load(FILE) in Python
      .html         an interactive page
      .png          a picture of the shares; also .svg and .pdf
      .parquet      with --data: one row for each text and answer, with lists of tokens and
                    shares; also .jsonl. FILE.partial has the rows that are finished until
                    then: the same command continues an interrupted run

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 interrupted
    """  # noqa: D301
    if (arguments.text is None) == (arguments.data is None):
        raise InputError("give --text, or --data with a file of texts")
    options = arguments.options()
    if arguments.data is not None:
        _attribute_file(arguments, options, arguments.data)
        return
    import normscope

    _check(arguments, options)
    with quiet():
        result = normscope.attribute(**arguments.for_python())
    _write(result, arguments.output)


def _one_or_all(entries: list[str] | None) -> Any:
    """Return one entry as itself, and several as a list."""
    return entries[0] if entries and len(entries) == 1 else entries or None


def _check(arguments: AttributeArguments, options: AttributionOptions) -> None:
    """Raise InputError for arguments that cannot be used, before the model is loaded."""
    from normscope.results.files import check_output

    for name in ("skip_bad", "restart"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} goes with --data")
    options.method_for(Question(**arguments.question()).checked())
    if arguments.output is not None:
        check_output(arguments.output, PICTURES)


def _write(result: Attribution, output: str | None) -> None:
    """Print a result, or write it to a file of any kind."""
    if output is None:
        from rich.console import Console

        result.show(Console())
        return
    suffix = Path(output).suffix.lower()
    if output == "-":
        # As bytes: JSON is UTF-8, whatever the encoding of the terminal.
        data = json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"
        sys.stdout.flush()
        sys.stdout.buffer.write(data.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
        return
    if is_picture(output):
        from normscope.show.plots import attribution

        save_figure(attribution(result).figure, output, dpi=150)
    else:
        kinds = {".safetensors": "save", ".html": "to_html", ".json": "to_json", ".csv": "to_csv"}
        getattr(result, kinds[suffix])(output)
    print(f"wrote {output}\n{result.signature}", file=sys.stderr)


def _attribute_file(arguments: AttributeArguments, options: AttributionOptions, data: Path) -> None:
    """Explain every row of a file."""
    from normscope.attribution.api import resolved
    from normscope.corpus.attributions import FileRun, check_data_output, read_rows
    from normscope.results.arrays import printable

    output = check_data_output(arguments.output)
    rows = read_rows(data, arguments.question())
    for row in rows:
        try:
            options.method_for(row.question)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from None
    similar = any(row.question.similar_to is not None for row in rows)
    where = {name: getattr(arguments, name) for name in ("device", "dtype", "revision")}
    with quiet(), _hint_on_interrupt(output):
        model, tokenizer = resolved(arguments.model, None, similar=similar, **where)
        run = FileRun(model, tokenizer, options, output, arguments.truncate, arguments.skip_bad)
        problems = run.run(rows, data, restart=arguments.restart)
    for problem in problems:
        note(f"left out: {printable(problem)}")
    print(f"wrote {output}: {len(rows) - len(problems)} of {len(rows)} rows", file=sys.stderr)


@contextmanager
def _hint_on_interrupt(output: Path) -> Iterator[None]:
    """On Ctrl-C, print whether the run that writes to `output` can be continued."""
    from normscope.corpus.attributions import partial_of

    try:
        yield
    except KeyboardInterrupt:
        if partial_of(output).is_file():
            note(f"finished rows are in {partial_of(output)}; the same command continues there")
        else:
            note("nothing was computed yet; the same command starts from the beginning")
        raise
