"""`normscope align` and `normscope translate-align`: word alignments of translations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from normscope.alignment.options import EFLOMAL, AlignOptions
from normscope.cli.aer import print_scores, score_file
from normscope.cli.options import OUTPUT, CommandArguments, CommonOptions, command, option, shared
from normscope.cli.output import (
    PICTURES,
    check_page,
    note,
    open_in_browser,
    print_signature,
    save_figure,
    say,
    temporary_page,
)
from normscope.cli.status import working
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.alignment.result import Alignments


PAGES = (".html", ".htm")
OTHER_FORMATS = (".safetensors", ".json", ".csv", ".parquet")  # of other commands
TEXT_WORDS, FILE_WORDS = "punctuation", "space"  # how words are split by default
PRINTING = ("output", "pairs", "open_page", "whole_signature")  # not for `normscope.align`


@dataclass(frozen=True, kw_only=True)
class AlignmentArguments(CommandArguments):
    """The options that `align` and `translate-align` share."""

    text: str | None = option(None, help="One source sentence.", metavar="TEXT")
    source: Path | None = option(
        None,
        help="The source text, UTF-8, one sentence per line; - reads standard input.",
        metavar="FILE",
    )
    model: str | None = shared(AlignOptions, "model")
    map: str = shared(AlignOptions, "map")
    layer: str = shared(AlignOptions, "layer")
    head: str = shared(AlignOptions, "head")
    reading: str = shared(AlignOptions, "reading")
    reverse_model: str | None = shared(AlignOptions, "reverse_model")
    symmetrize: str | None = shared(AlignOptions, "symmetrize")
    words: str | None = shared(AlignOptions, "words", default=None)
    source_lang: str | None = shared(AlignOptions, "source_lang")
    target_lang: str | None = shared(AlignOptions, "target_lang")
    prefix: str = shared(AlignOptions, "prefix")
    combine: int | None = shared(AlignOptions, "combine")
    soft: bool = shared(AlignOptions, "soft")
    skip_long: bool = shared(AlignOptions, "skip_long")
    budget: int | None = shared(AlignOptions, "budget")
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    strict: bool = shared(CommonOptions, "strict")
    output: Path | None = option(
        None,
        names=OUTPUT,
        help="Write the links to FILE: .html for an interactive page; .png, .svg or .pdf for a "
        "picture of one pair; .talp (counted from 1), .jsonl (with scores), any other name in "
        "Pharaoh format (counted from 0). Default: print word pairs for --text and Pharaoh links "
        "for files.",
        metavar="FILE",
    )
    pairs: bool = option(False, help="For files, print word pairs instead of Pharaoh links.")
    open_page: bool = option(
        False,
        names=("--open",),
        help="Open the interactive page in the browser; without --output, from a temporary file.",
    )
    whole_signature: bool = option(
        False, names=("--signature",), help="Print the full signature, on one long line."
    )

    @property
    def file(self) -> Path | None:
        """The file to write the links to; None for standard output."""
        return None if self.output == Path("-") else self.output

    @property
    def splitting(self) -> str:
        """How to split words: as asked, or by default for a sentence or for files."""
        return self.words or (FILE_WORDS if self.text is None else TEXT_WORDS)

    @property
    def prints_pairs(self) -> bool:
        """Whether standard output gets word pairs for people rather than Pharaoh links."""
        return self.file is None and (self.pairs or self.text is not None)

    @property
    def keeps_matrices(self) -> bool:
        """Whether to keep soft matrices: if asked for, and for the page of a single sentence."""
        page = self.file is not None and self.file.suffix.lower() in PAGES
        return self.soft or (page and self.text is not None)


@dataclass(frozen=True, kw_only=True)
class AlignArguments(AlignmentArguments):
    """The options of `normscope align`."""

    target_text: str | None = option(None, help="The translation of --text.", metavar="TEXT")
    target: Path | None = option(
        None,
        help="The translation of the source, line by line. Not needed if each line of --source "
        "has both sentences, separated by a tab.",
        metavar="FILE",
    )
    gold: Path | None = shared(AlignOptions, "gold")
    method: str = shared(AlignOptions, "method")
    compare: list[Path] | None = option(
        None,
        help="Links of another aligner (fast_align, GIZA++) to score as well; needs --gold. "
        "May be given several times.",
        metavar="FILE",
    )

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.align` but for the two texts."""
        soft = self.keeps_matrices and self.method != EFLOMAL
        without = ("text", "target_text", "source", "target", "compare")
        return self.keywords(*without, *PRINTING, words=self.splitting, soft=soft)


@dataclass(frozen=True, kw_only=True)
class TranslateAlignArguments(AlignmentArguments):
    """The options of `normscope translate-align`."""

    beams: int | None = option(
        None,
        help="Number of beams in the search. Default: the model's setting.",
        metavar="N",
        min=1,
    )
    translation: Path | None = option(
        None, help="Write the translation to FILE, one sentence per line.", metavar="FILE"
    )

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.translate_align` but for the text."""
        return self.keywords(
            "text",
            "source",
            "translation",
            *PRINTING,
            words=self.splitting,
            soft=self.keeps_matrices,
        )


Given = TypeVar("Given", AlignArguments, TranslateAlignArguments)


@command
def align(arguments: AlignArguments) -> None:
    """Find which words of two sentences translate each other.

    The model reads the source and is forced to produce the target. Its cross-attention shows which
    source words each target word came from, measured by norms, which show what weights hide. Layer,
    head and reading are chosen on the two texts themselves, without gold data. The score of a link
    is the source word's share of what the target word gets. Empty lines get no links.

    \b
    Examples:
      normscope align --text "Das ist gut." --target-text "This is good."
      normscope align --text "Das ist gut." --target-text "This is good." --output good.png
      normscope align --source text.de --target text.en
      normscope align --source text.de --target text.en --gold text.talp --output links.html
      paste text.de text.en | normscope align --source - --pairs
      normscope align --model Helsinki-NLP/opus-mt-fr-en --source a.fr --target a.en \\
                      --reverse-model Helsinki-NLP/opus-mt-en-fr --symmetrize grow-diag-final-and
      normscope align --model facebook/nllb-200-distilled-600M --source-lang deu_Latn \\
                      --target-lang eng_Latn --source text.de --target text.en
    """  # noqa: D301
    import normscope

    if arguments.compare and arguments.gold is None:
        raise InputError("--compare needs gold links to score against: give --gold too")
    source, target = _sentence_pairs(arguments)
    arguments = _with_page(arguments)
    _check_output(arguments, len(source))
    with working("the model"):
        alignments = normscope.align(source, target, **arguments.for_python())
    _write(alignments, arguments)
    _print_report(alignments, arguments)
    _print_scores(alignments, arguments)


@command
def translate_align(arguments: TranslateAlignArguments) -> None:
    """Translate a text and align the words.

    The links are between the words of the source and those of the model's own translation, which
    --translation writes to a file; a .jsonl output contains both texts.

    \b
    Examples:
      normscope translate-align --text "Das ist gut."
      normscope translate-align --source text.de --translation text.en --output links.pharaoh
      normscope translate-align --source text.de --output links.html
    """  # noqa: D301
    import normscope
    from normscope.foundation.files import write_file

    source = _sentences(arguments)
    arguments = _with_page(arguments)
    _check_output(arguments, len(source))
    with working("the model"):
        alignments = normscope.translate_align(source, **arguments.for_python())
    sentences = [" ".join(pair.target) for pair in alignments]
    if arguments.translation is not None:
        write_file(arguments.translation, "".join(f"{sentence}\n" for sentence in sentences))
    if arguments.file is None and arguments.translation is None and not arguments.prints_pairs:
        for sentence, links in zip(sentences, alignments.links, strict=True):
            print(sentence, _pharaoh(links), sep="\t")
    else:
        _write(alignments, arguments)
    _print_report(alignments, arguments)


def _sentences(arguments: AlignmentArguments) -> list[str]:
    """Return the source sentences: the one of --text, or the lines of --source."""
    if (arguments.text is None) == (arguments.source is None):
        raise InputError("give one sentence with --text, or a file with --source")
    if arguments.text is None:
        assert arguments.source is not None
        return _read(arguments.source)
    return [_checked(arguments.text, "--text")]


def _sentence_pairs(arguments: AlignArguments) -> tuple[list[str], list[str]]:
    """Return the sentences of both sides, as many on each."""
    if (arguments.text is None) != (arguments.target_text is None):
        raise InputError("--text and --target-text must be given together: give both sentences")
    if arguments.text is not None and arguments.target is not None:
        raise InputError("--target goes with --source, and --target-text with --text")
    source = _sentences(arguments)
    if arguments.target_text is not None:
        return source, [_checked(arguments.target_text, "--target-text")]
    if arguments.target is None:
        return _split_at_tabs(source)
    if Path("-") == arguments.source == arguments.target:
        raise InputError(
            "standard input can be one of the two texts; for both, give --source - without "
            "--target, and lines with a tab between the two sentences"
        )
    target = _read(arguments.target)
    if len(source) != len(target):
        raise InputError(
            f"{arguments.source} has {len(source)} lines and {arguments.target} has "
            f"{len(target)}: each line must be the translation of the same line of the other file"
        )
    return source, target


def _with_page(arguments: Given) -> Given:
    """Return arguments with a temporary page as output, if --open has no other."""
    if not arguments.open_page:
        return arguments
    check_page(None if arguments.output is None else str(arguments.output))
    if arguments.output is None:
        return replace(arguments, output=Path(temporary_page()))
    return arguments


def _split_at_tabs(lines: list[str]) -> tuple[list[str], list[str]]:
    for number, line in enumerate(lines, 1):
        if line.count("\t") != 1:
            raise InputError(
                "give the translations with --target, or lines with one tab between the two "
                f"sentences: line {number} of the source has {line.count(chr(9)) or 'no'} tab"
                f"{'s' * (line.count(chr(9)) > 1)}"
            )
    halves = [line.split("\t") for line in lines]
    return [first for first, _ in halves], [second for _, second in halves]


def _checked(text: str, name: str) -> str:
    if not text.strip():
        raise InputError(f"{name} is empty: give a sentence")
    return text


def _read(path: Path) -> list[str]:
    from normscope.alignment.files import read_lines, text_lines

    stdin = path == Path("-")
    lines = text_lines(sys.stdin.buffer.read(), "standard input") if stdin else read_lines(path)
    if not lines:
        raise InputError(f"{'standard input' if stdin else path} has no lines")
    return lines


def _check_output(arguments: AlignmentArguments, pairs: int) -> None:
    """Raise InputError, before any work, for a file that cannot be written or hold the result."""
    from normscope.alignment.files import format_of
    from normscope.foundation.files import check_file

    output = arguments.file
    suffix = "" if output is None else output.suffix.lower()
    if output is not None:
        check_file(output, (suffix,))
        if suffix in OTHER_FORMATS:
            raise InputError(
                f"{output}: links cannot be written as {suffix}; choose .pharaoh, .talp or .jsonl "
                "for links, .html for a page, or .png, .svg or .pdf for a picture"
            )
        if suffix not in (*PAGES, *PICTURES) and format_of(output) == "giza":
            raise InputError(
                f"{output}: normscope reads GIZA++'s format but does not write it; choose another "
                "ending, such as .pharaoh"
            )
    if suffix in PICTURES and pairs != 1:
        raise InputError(
            f"a picture shows one sentence pair, and there are {pairs}; write a page (.html), or "
            "give one pair with --text and --target-text"
        )
    holds = suffix in PAGES or (output is not None and format_of(output) == "jsonl")
    if arguments.soft and not holds:
        raise InputError(
            "--soft needs an --output that ends in .jsonl or .html, which can hold matrices"
        )


def _write(alignments: Alignments, arguments: AlignmentArguments) -> None:
    """Print the links, or write them to a file of any kind."""
    output = arguments.file
    if arguments.prints_pairs:
        _print_pairs(alignments)
    elif output is None or output.suffix.lower() not in (*PAGES, *PICTURES):
        _write_links(alignments, output)
    elif output.suffix.lower() in PAGES:
        alignments.to_html(output)
    else:
        from normscope.show.plots import alignment

        save_figure(alignment(alignments[0]).figure, output, dpi=200)


def _print_pairs(alignments: Alignments) -> None:
    """Print a table of word pairs for each sentence pair."""
    for number, pair in enumerate(alignments, 1):
        if len(alignments) > 1:
            print(f"{'' if number == 1 else chr(10)}pair {number}")
        print(pair)


def _write_links(alignments: Alignments, output: Path | None) -> None:
    from normscope.alignment.files import write_links

    if output is None:
        for links in alignments.links:
            print(_pharaoh(links))
        return
    fields: list[dict[str, Any]] = []
    for pair in alignments:
        extra: dict[str, Any] = {"source": pair.source, "target": pair.target}
        if pair.soft is not None:
            extra["soft"] = pair.soft.tolist()
        fields.append(extra)
    write_links(output, alignments.links, fields=fields)


def _pharaoh(links: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{source}-{target}" for source, target in links)


def _print_report(alignments: Alignments, arguments: AlignmentArguments) -> None:
    """Print to standard error what was chosen, what has no links, and the signature."""
    from normscope.alignment.aligner import FEW

    for label, choices in (
        ("chosen", alignments.choices),
        ("chosen for the reverse direction", alignments.reverse_choices),
    ):
        if choices and arguments.text is None:
            say(f"{label}: {'; '.join(str(choice) for choice in choices)}")
    count = len(alignments)
    if alignments.ranking and count < FEW:
        note(
            f"layer and head were chosen from {count} pair{'s' * (count > 1)}, too few to rely "
            f"on; give more text, or --layer, --head and --reading"
        )
    empty = sum(pair.skipped == "empty" for pair in alignments)
    long = sum(pair.skipped == "too long" for pair in alignments)
    dropped = sum(len(words) for pair in alignments for words in pair.dropped)
    for count, noun, reason in (
        (empty, "pair", "with an empty side: no links"),
        (long, "pair", "too long for the model: no links"),
        (dropped, "word", "dropped by the tokenizer: no links"),
    ):
        if count:
            note(f"{count} {noun}{'s' * (count > 1)} {reason}")
    if not any(alignments.links):
        note(
            "no words are linked: check that the source is in the language that the model "
            "translates from, and that the target is its translation"
        )
    if arguments.file is not None:
        say(f"wrote {arguments.file}")
    print_signature(alignments.signature, "--signature", whole=arguments.whole_signature)
    if arguments.open_page and arguments.file is not None:
        open_in_browser(arguments.file)


def _print_scores(alignments: Alignments, arguments: AlignArguments) -> None:
    """Print the scores of these links and of the files to compare them with."""
    if alignments.score is None or arguments.gold is None:
        return
    lengths = (
        [len(pair.source or ()) for pair in alignments],
        [len(pair.target) for pair in alignments],
    )
    scores = {"normscope": alignments.score}
    paths = arguments.compare or []
    names = [path.name for path in paths]
    for path in paths:
        unique = names.count(path.name) == 1 and path.name not in scores
        scores[path.name if unique else str(path)] = score_file(arguments.gold, path, lengths)
    print_scores(scores, stream=sys.stderr)
