"""`normscope faithfulness` and `normscope compare`: methods on the same texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    command,
    option,
    shared,
    split_commas,
)
from normscope.cli.output import is_picture, note, save_figure, say
from normscope.cli.status import working
from normscope.errors import InputError
from normscope.faithfulness.conventions import DEFAULT_METRICS, METRICS, PRESETS, conventions_for
from normscope.foundation.files import check_file
from normscope.foundation.progress import stage
from normscope.foundation.texts import shortened
from normscope.models.sources import check_source

if TYPE_CHECKING:
    from normscope.corpus.attributions import DataRow
    from normscope.corpus.evaluations import Measured, Meter
    from normscope.faithfulness.agreement import Agreement
    from normscope.faithfulness.result import MethodFigures

LOADING = ("device", "dtype", "revision", "strict")


@dataclass(frozen=True, kw_only=True)
class MethodArguments(CommandArguments):
    """The options that both commands share."""

    data: Path | None = option(
        None,
        help="The texts: .jsonl with a field text, and optionally answer, foil and so on; .csv, "
        ".tsv or .parquet with such columns; .tsv without a header, of texts and labels; .txt with "
        "one text per line.",
        metavar="FILE",
    )
    text: list[str] | None = option(
        None, help="A text, instead of --data; may be given several times.", metavar="TEXT"
    )
    method: list[str] | None = option(
        None,
        help="A method of normscope attribute, with its baseline if it has one (secant@[MASK]), or "
        "random. May be given several times. Default: frozen, attn_lrp, input_x_gradient, random.",
        metavar="METHOD[@BASELINE]",
    )
    model: str | None = option(
        None,
        help="A folder, a GGUF file or a name on the Hugging Face hub. Default: smollm2, a small "
        "language model.",
        metavar="NAME",
    )
    answer: str | None = option(
        None,
        help="What to explain of every text that has no answer of its own. Default: the model's "
        "own choice.",
        metavar="TEXT",
    )
    foil: str | None = option(None, help="What the answer is compared with.", metavar="TEXT")
    limit: int | None = option(None, help="Only the first N texts.", metavar="N", min=1)
    part: str | None = option(
        None,
        help="Only a part of the texts: 2/4 is the second of four. Results of all parts can be "
        "merged (--merge).",
        metavar="K/N",
    )
    merge: list[Path] | None = option(
        None,
        help="Merge the JSON results of parts instead of measuring; give it once for each.",
        metavar="FILE",
    )
    resamples: int = option(
        9999, help="Bootstrap resamples of the texts for the intervals.", metavar="N", min=0
    )
    seed: int = option(0, help="Seed of the bootstrap and of the random order.", metavar="N", min=0)
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    strict: bool = shared(CommonOptions, "strict")
    truncate: bool = option(False, help="Truncate a text that is too long for the model.")
    skip_bad: bool = option(False, help="Leave out rows that cannot be used, instead of stopping.")
    restart: bool = option(False, help="Start over, discarding the rows of an interrupted run.")

    def methods(self, default: Sequence[str]) -> list[str]:
        """Return the methods."""
        return list(self.method or default)


@dataclass(frozen=True, kw_only=True)
class FaithfulnessArguments(MethodArguments):
    """The options of `normscope faithfulness`."""

    metrics: str = option(
        ",".join(DEFAULT_METRICS),
        help=f"Which metrics, separated by commas: {', '.join(METRICS)}.",
        metavar="NAMES",
    )
    conventions: str | None = option(
        None,
        help="Bins, rounding and so on of every metric as in a paper. Default: each metric's usual "
        "ones.",
        metavar="|".join(PRESETS),
    )
    replacement: str | None = option(
        None,
        help="What becomes of a token: the mask token, the padding token, deleted, a zero "
        "embedding, or hidden from attention.",
        metavar="mask|pad|delete|zero|attention",
    )
    minus: str | None = option(
        None, help="Also print paired differences from this method.", metavar="METHOD"
    )
    output: str | None = option(
        None,
        names=OUTPUT,
        help="Write all numbers to FILE: .json, or .csv with one row for each text. FILE.partial "
        "holds the rows finished so far.",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class CompareArguments(MethodArguments):
    """The options of `normscope compare`."""

    absolute: bool = option(False, help="Compare the absolute values of the scores.")
    output: str | None = option(
        None,
        names=OUTPUT,
        help="Write to FILE: .json; .html for a page with the first texts under every method; "
        ".png, .svg or .pdf for a picture of the agreement.",
        metavar="FILE",
    )


@command
def faithfulness(arguments: FaithfulnessArguments) -> None:
    """Measure which methods name the tokens that a model needs.

    Tokens are removed in the order of each method's scores, and the loss of the answer's
    probability is measured, with 95% intervals by bootstrap over texts. All conventions are
    printed with the numbers.

    \b
    Examples:
      normscope faithfulness --model ./classifier --data dev.tsv --method frozen \\
                             --method "secant@[MASK]" --method random
      normscope faithfulness --model ./classifier --data dev.tsv --conventions alti-released \\
                             --metrics comprehensiveness,sufficiency --output dev.json
      normscope faithfulness --text "The keys to the cabinet" --replacement attention
      normscope faithfulness --model ./classifier --data dev.tsv --part 1/2 --output a.json
      normscope faithfulness --merge a.json --merge b.json --output dev.json

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    chosen = conventions_for(
        split_commas(arguments.metrics), arguments.conventions, arguments.replacement
    )
    if arguments.output is not None:
        check_file(arguments.output, (".json", ".csv"))
    sampling = (arguments.resamples, 0.95, arguments.seed)

    def measured(model: Any, tokenizer: Any) -> Meter:
        from normscope.faithfulness.api import DEFAULT_METHODS
        from normscope.faithfulness.evaluation import FaithfulnessMeter
        from normscope.faithfulness.methods import calls_of

        calls = calls_of(arguments.methods(DEFAULT_METHODS), tokenizer, arguments.seed)
        return FaithfulnessMeter(model, tokenizer, calls, chosen, truncate=arguments.truncate)

    def result(meter: Any, done: Measured) -> MethodFigures:
        from normscope.faithfulness.api import collected
        from normscope.faithfulness.evaluation import TextRecord

        records = [TextRecord.from_dict(record) for record in done.records]
        about: dict[str, Any] = {"texts": done.names, "problems": done.problems}
        return collected(meter, records, **about, sampling=sampling)

    def merged(paths: Sequence[Path]) -> MethodFigures:
        from normscope.faithfulness.result import MethodFigures

        return _merged([MethodFigures.load(path) for path in paths])

    def finish(figures: MethodFigures) -> None:
        if arguments.output is not None:
            figures.save(arguments.output)

    figures = _run(arguments, measured, result, merged, finish)
    figures.show()
    if arguments.minus is not None:
        _print_differences(figures, arguments.minus)


@command
def compare(arguments: CompareArguments) -> None:
    """Compare methods on the same texts: agreement and time.

    Prints Spearman's rank correlation of every two methods, mean over texts, and for each method
    the seconds for a text, the peak memory and the completeness error.

    \b
    Examples:
      normscope compare --text "The keys to the cabinet" --method frozen --method attn_lrp
      normscope compare --model ./classifier --data dev.tsv --limit 100 --output methods.html
      normscope compare --model ./classifier --data dev.tsv --output agreement.png

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    if arguments.output is not None:
        check_file(arguments.output, (".json", ".html", ".png", ".svg", ".pdf"))
    sampling = {"resamples": arguments.resamples, "seed": arguments.seed}

    def measured(model: Any, tokenizer: Any) -> Meter:
        from normscope.faithfulness.comparison import DEFAULT_METHODS as usual
        from normscope.faithfulness.comparison import AgreementMeter, Ranking
        from normscope.faithfulness.methods import calls_of

        calls = calls_of(arguments.methods(usual), tokenizer, arguments.seed)
        ranking = Ranking(arguments.absolute)
        return AgreementMeter(model, tokenizer, calls, ranking, truncate=arguments.truncate)

    def result(meter: Any, done: Measured) -> Agreement:
        from normscope.faithfulness.agreement import MethodRecord

        records = [MethodRecord.from_dict(record) for record in done.records]
        agreement: Agreement = meter.result(records, problems=done.problems, **sampling)
        return agreement

    def merged(paths: Sequence[Path]) -> Agreement:
        from normscope.faithfulness.agreement import Agreement

        return _merged([Agreement.load(path) for path in paths])

    def finish(agreement: Agreement) -> None:
        if is_picture(arguments.output):
            from normscope.show import plots

            stage("drawing")
            save_figure(plots.agreement(agreement).figure, str(arguments.output), dpi=150)
        elif arguments.output is not None:
            write = agreement.to_html if arguments.output.endswith(".html") else agreement.to_json
            write(arguments.output)

    _run(arguments, measured, result, merged, finish).show()


# ---- both


def _merged(parts: list[Any]) -> Any:
    """Return the results of all parts as one."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole


def _run(arguments: Any, measured: Any, result: Any, merged: Any, finish: Any) -> Any:
    """Measure or merge, write the output, and return the result.

    Args:
        arguments: the options.
        measured: returns what measures texts, of a model and a tokenizer.
        result: returns the result of what measures and what was measured.
        merged: returns the result of several files.
        finish: writes the output.
    """
    if arguments.merge:
        if arguments.data is not None or arguments.text:
            raise InputError("--merge reads results: leave out --data and --text")
        whole = merged(arguments.merge)
        finish(whole)
        if arguments.output is not None:
            say(f"wrote {arguments.output}: {len(whole)} texts")
        return whole
    rows = _rows(arguments)
    check_source(arguments.model, arguments.revision)
    where = {name: getattr(arguments, name) for name in LOADING}
    output = None if arguments.output is None else Path(arguments.output)
    with working(arguments.model or "smollm2"), _hint_on_interrupt(output):
        from normscope.attribution.api import resolved
        from normscope.corpus.evaluations import EvaluationRun, part_of

        model, tokenizer = resolved(arguments.model, None, similar=False, **where)
        run = EvaluationRun(measured(model, tokenizer), output, arguments.skip_bad)
        done = run.run(part_of(rows, arguments.part), arguments.data, restart=arguments.restart)
        whole = result(run.meter, done)
        finish(whole)
        run.remove()
    for problem in done.problems:
        note(f"left out: {shortened(problem, 300)}")
    if output is not None:
        say(
            f"wrote {output}: {len(done.records)} of {len(done.records) + len(done.problems)} texts"
        )
    return whole


def _rows(arguments: MethodArguments) -> list[DataRow]:
    """Return the texts and what is asked of them."""
    from normscope.attribution.options import Question
    from normscope.corpus.attributions import DataRow, read_rows

    asked = {"answer": arguments.answer, "foil": arguments.foil}
    if (arguments.data is None) == (not arguments.text):
        raise InputError("give the texts: --data FILE, or --text TEXT (one of the two)")
    if arguments.data is not None:
        return read_rows(arguments.data, asked)[: arguments.limit]
    question = Question(**asked).checked()
    listed = list(arguments.text or ())[: arguments.limit]
    return [DataRow(f"text {at + 1}", text, question) for at, text in enumerate(listed)]


def _print_differences(figures: MethodFigures, minus: str) -> None:
    """Print each method's paired difference from one of them."""
    print(f"\nminus {minus}:")
    for row in figures.differences(minus):
        print(
            f"  {row['method']}, {row['figure']}: {row['mean']:+.4f} "
            f"[{row['low']:+.4f}, {row['high']:+.4f}] {row['verdict']}"
        )


@contextmanager
def _hint_on_interrupt(output: Path | None) -> Iterator[None]:
    """On an interrupt, print whether the run can be continued."""
    from normscope.corpus.finished import partial_of

    try:
        yield
    except KeyboardInterrupt:
        if output is not None and partial_of(output).is_file():
            note(f"finished rows are in {partial_of(output)}; the same command resumes there")
        else:
            note("nothing was saved; a run with --output FILE can be resumed")
        raise
