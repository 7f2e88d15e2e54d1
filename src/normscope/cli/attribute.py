"""`normscope attribute`: which input tokens made an output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.attribution.options import AttributionOptions, Question
from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    argument,
    command,
    option,
    shared,
)
from normscope.cli.output import (
    PICTURES,
    check_page,
    is_picture,
    note,
    open_in_browser,
    print_written,
    save_figure,
    say,
    temporary_page,
)
from normscope.cli.status import working
from normscope.cli.texts import check_images, check_media, check_texts, images_given, read_text
from normscope.errors import InputError
from normscope.foundation.progress import stage
from normscope.models.sources import check_source
from normscope.results.formats import STDOUT, check_output

if TYPE_CHECKING:
    from normscope.results.attribution import Attribution

QUESTION = tuple(item.name for item in fields(Question))
LOADING = ("device", "dtype", "revision", "strict")  # how a model is loaded
OPTIONS = tuple(item.name for item in fields(AttributionOptions))


@dataclass(frozen=True, kw_only=True)
class AttributeArguments(CommandArguments):
    """The options of `normscope attribute`."""

    given: str | None = argument(
        None,
        help="The text that the model reads, such as a prompt; - reads it from standard input, "
        "which is also the default at the end of a pipe.",
        metavar="[TEXT]",
    )
    text: str | None = option(
        None, help="The text to read; the same as the argument TEXT.", metavar="TEXT"
    )
    image: list[Path] | None = option(
        None,
        help="An image that the model reads, with its processor; may be given several times. The "
        "text, if any, has the image's token where it belongs.",
        metavar="FILE",
    )
    audio: Path | None = option(
        None, help="A recording that the model hears, as a WAV file.", metavar="FILE"
    )
    data: Path | None = option(
        None,
        help="A file of texts instead of a single text: .jsonl with a field text, and optionally "
        "answer, foil and so on, named like the options; .csv, .tsv or .parquet with such "
        "columns; .txt with one text per line.",
        metavar="FILE",
    )
    model: str | None = option(
        None,
        help="A folder, a GGUF file, a name on the Hugging Face hub (owner/name), or de-en (a "
        "small translation model). Default: smollm2, a small language model; with --similar-to, "
        "minilm, a small encoder.",
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
        help="A second text, for models that read pairs; repeat it for a model that chooses "
        "between several.",
        metavar="TEXT",
    )
    position: int | None = shared(Question, "position")
    baseline: list[str] | None = option(
        None,
        help="Explain the difference from this input: a token in place of every token, a text "
        "with the same number of tokens, or zero or mean embeddings. Implies --method secant. "
        "May be given several times: the shares are averaged.",
        metavar="TOKEN|TEXT|zero|mean",
    )
    method: str | None = shared(AttributionOptions, "method")
    units: str = shared(AttributionOptions, "units")
    gate: str = shared(AttributionOptions, "gate")
    trace: bool = shared(AttributionOptions, "trace")
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    strict: bool = shared(CommonOptions, "strict")
    truncate: bool = option(False, help="Truncate a text that is too long for the model.")
    skip_bad: bool = option(
        False, help="With --data: leave out rows that cannot be used, instead of stopping."
    )
    restart: bool = option(
        False, help="With --data: start over, discarding the rows of an interrupted run."
    )
    words: bool = option(False, help="Merge the pieces of each word.")
    open_page: bool = option(
        False,
        names=("--open",),
        help="Open the interactive page in the browser; without --output, from a temporary file.",
    )
    whole_signature: bool = option(
        False, names=("--signature",), help="Print the full signature, on one long line."
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
        return self.keywords(
            *("given", "data", "skip_bad", "restart", "output", "image"),
            *("words", "open_page", "whole_signature"),
            images=images_given(self.image),
            **self.question(),
        )


@command
def attribute(arguments: AttributeArguments) -> None:
    """Show which words of a text made the model's answer.

    Every token gets an exact, signed share of the answer's logit. Together with the share of
    the model's biases, they add up to the logit; the sum and its error are printed as proof.
    Without --answer, the model's own choice is explained. With --baseline, the shares explain the
    difference from another input.

    \b
    Examples:
      normscope attribute "The keys to the cabinet" --answer " are" --foil " is"
      normscope attribute "The keys to the cabinet" --open
      normscope attribute "Once upon a time" --generate 12
      normscope attribute "A man plays a guitar." --similar-to "Someone makes music."
      normscope attribute "a gripping film" --model ./classifier --answer positive
      normscope attribute "a gripping film" --model ./classifier --baseline "[MASK]"
      normscope attribute "Guten Tag." --target "Good day." \\
                          --model Helsinki-NLP/opus-mt-de-en
      normscope attribute "The keys" --continuation " are here" --output keys.html
      normscope attribute "The keys" --trace --output - | jq .trace.heads
      normscope attribute --data prompts.jsonl --output shares.parquet
      normscope attribute --image cat.png --model ./classifier --open
      normscope attribute "<image> What is this?" --image cat.png --model ./llava
      normscope attribute --audio speech.wav --model ./whisper --generate 8

    \b
    Files:
      .json         {"answer": …, "tokens": […], "scores": […], "value": …, "bias": …, …}
      .csv          step,answer,position,token,text,side,share,…; the bias has a row too
      .safetensors  everything, bit for bit: normscope.load(FILE) in Python
      .html         an interactive page
      .png          a picture of the shares; also .svg and .pdf
      .parquet      with --data: one row for each text and answer, with lists of tokens and
                    shares; also .jsonl. FILE.partial holds the rows finished so far: the same
                    command resumes an interrupted run

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    options = arguments.options()
    if arguments.data is not None:
        _check_data(arguments)
        _attribute_file(arguments, options, arguments.data)
        return
    arguments = _with_text(arguments, options)
    with working(arguments.model or ("smollm2" if arguments.similar_to is None else None)):
        import normscope

        result = normscope.attribute(**arguments.for_python())
        if arguments.words:
            result = result.words()
        if arguments.output not in (None, STDOUT):
            _write(result, arguments.output)
    _note_on_space(result)
    if arguments.output in (None, STDOUT):
        _print(result, arguments)
        return
    print_written(arguments.output, result.signature, whole=arguments.whole_signature)
    if arguments.open_page:
        open_in_browser(arguments.output)


def _note_on_space(result: Attribution) -> None:
    """Say so if an answer continues the last word of a prompt, since its space was forgotten."""
    answer = result.answer if isinstance(result.answer, str) else "".join(result.answer)
    strings, texts = result.tokens.strings, result.tokens.texts
    if (
        "question" not in result.settings
        and result.steps is None
        and result.settings.get("position") == str(len(texts) - 1)
        and any(string.startswith("Ġ") for string in strings)  # a space belongs to the next word
        and all(char.lower() != char.upper() for char in (answer[:1], texts[-1][-1:]))
    ):
        note(
            f"the answer {answer!r} continues the word {texts[-1]!r}; for a word of its own, put "
            f"the space before it: {' ' + answer!r}"
        )


def _one_or_all(entries: list[str] | None) -> Any:
    """Return one entry as itself, and several as a list."""
    return entries[0] if entries and len(entries) == 1 else entries or None


def _with_text(arguments: AttributeArguments, options: AttributionOptions) -> AttributeArguments:
    """Check everything and read the text, before anything heavy is imported."""
    for name in ("skip_bad", "restart"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} is only for --data")
    question = Question(**arguments.question()).checked()
    options.method_for(question)
    output = arguments.output
    if arguments.open_page:
        check_page(output)
    if output is not None:
        check_output(output, PICTURES)
    check_media(arguments.image, arguments.audio)
    needed = not arguments.image and arguments.audio is None
    text = read_text(arguments.given, arguments.text, "attribute", needed=needed)
    check_images(arguments.image, text)
    names = ("answer", "foil", "continuation", "target", "similar_to")
    given = {name: getattr(arguments, name) for name in names}
    check_texts({"text": text})
    for pair in arguments.text_pair or ():
        check_texts({"text_pair": pair})
    if empty := [name for name, value in given.items() if value == ""]:
        raise InputError(f"{empty[0]} is empty; give some text, or leave the option out")
    check_source(arguments.model, arguments.revision)
    if arguments.open_page and output is None:
        output = temporary_page()
    return replace(arguments, given=None, text=text, output=output)


def _check_data(arguments: AttributeArguments) -> None:
    """Raise InputError for options that do not go with a file of texts."""
    if arguments.image or arguments.audio is not None:
        raise InputError("--data is a file of texts: leave out --image and --audio")
    if arguments.given is not None or arguments.text is not None:
        raise InputError("a text and --data were given: give one text, or a file of texts")
    for name, flag in (("words", "--words"), ("open_page", "--open")):
        if getattr(arguments, name):
            raise InputError(f"{flag} is for one text, and --data is a file of texts")


def _print(result: Attribution, arguments: AttributeArguments) -> None:
    """Print a result as text, or as JSON."""
    if arguments.output == STDOUT:
        from normscope.results.files import write

        write(result, STDOUT)
        return
    from rich.console import Console

    from normscope.foundation.texts import printable
    from normscope.show.shares import report
    from normscope.show.wording import short_signature

    report(result, Console())
    whole, short = printable(result.signature), short_signature(result.signature, "--signature", 69)
    print(f"signature  {whole if arguments.whole_signature else short}")


def _write(result: Attribution, output: str) -> None:
    """Write a result to a file of any kind."""
    if is_picture(output):
        from normscope.show.plots import attribution, image_map

        stage("drawing")
        drawn = image_map(result) if result.tokens.pictures else attribution(result)
        save_figure(drawn.figure, output, dpi=150)
        return
    stage(f"writing {Path(output).name}")
    kinds = {".safetensors": "save", ".html": "to_html", ".json": "to_json", ".csv": "to_csv"}
    getattr(result, kinds[Path(output).suffix.lower()])(output)


def _attribute_file(arguments: AttributeArguments, options: AttributionOptions, data: Path) -> None:
    """Explain every row of a file."""
    from normscope.corpus.attributions import FileRun, check_data_output, read_rows

    output = check_data_output(arguments.output)
    rows = read_rows(data, arguments.question())
    for row in rows:
        try:
            options.method_for(row.question)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from None
    check_source(arguments.model, arguments.revision)
    similar = any(row.question.similar_to is not None for row in rows)
    where = {name: getattr(arguments, name) for name in LOADING}
    with (
        working(arguments.model or (None if similar else "smollm2")),
        _hint_on_interrupt(output),
    ):
        from normscope.attribution.api import resolved

        model, tokenizer = resolved(arguments.model, None, similar=similar, **where)
        run = FileRun(model, tokenizer, options, output, arguments.truncate, arguments.skip_bad)
        problems = run.run(rows, data, restart=arguments.restart)
    for problem in problems:
        note(f"left out: {problem}")
    say(f"wrote {output}: {len(rows) - len(problems)} of {len(rows)} rows")


@contextmanager
def _hint_on_interrupt(output: Path) -> Iterator[None]:
    """On an interrupt, print whether the run that writes to `output` can be continued."""
    from normscope.corpus.finished import partial_of

    try:
        yield
    except KeyboardInterrupt:
        if partial_of(output).is_file():
            note(f"finished rows are in {partial_of(output)}; the same command resumes there")
        else:
            note("nothing was computed yet; the same command starts from the beginning")
        raise
