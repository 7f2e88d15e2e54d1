"""`normscope align` and `normscope translate-align`: word alignments of translations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.alignment.options import AlignOptions
from normscope.cli.aer import print_scores, score_file
from normscope.cli.options import OUTPUT, CommandArguments, CommonOptions, command, option, shared
from normscope.cli.output import note
from normscope.cli.status import working
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.alignment.api import Alignments


@dataclass(frozen=True, kw_only=True)
class AlignmentArguments(CommandArguments):
    """The options that `align` and `translate-align` share."""

    source: Path = option(help="The source text, UTF-8, one sentence per line.", metavar="FILE")
    model: str | None = shared(AlignOptions, "model")
    map: str = shared(AlignOptions, "map")
    layer: str = shared(AlignOptions, "layer")
    head: str = shared(AlignOptions, "head")
    reading: str = shared(AlignOptions, "reading")
    reverse_model: str | None = shared(AlignOptions, "reverse_model")
    symmetrize: str | None = shared(AlignOptions, "symmetrize")
    words: str = shared(AlignOptions, "words")
    source_lang: str | None = shared(AlignOptions, "source_lang")
    target_lang: str | None = shared(AlignOptions, "target_lang")
    prefix: str = shared(AlignOptions, "prefix")
    combine: int | None = shared(AlignOptions, "combine")
    soft: bool = shared(AlignOptions, "soft")
    skip_long: bool = shared(AlignOptions, "skip_long")
    budget: int | None = shared(AlignOptions, "budget")
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    output: Path | None = option(
        None,
        names=OUTPUT,
        help="Write the links to FILE: .talp (counted from 1), .jsonl (with scores), any other "
        "name in Pharaoh format (counted from 0). Default: Pharaoh on standard output.",
        metavar="FILE",
    )

    @property
    def file(self) -> Path | None:
        """The file to write the links to; None for standard output."""
        return None if self.output == Path("-") else self.output


@dataclass(frozen=True, kw_only=True)
class AlignArguments(AlignmentArguments):
    """The options of `normscope align`."""

    target: Path = option(help="The translation of the source, line by line.", metavar="FILE")
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
        return self.keywords("source", "target", "compare", "output")


@dataclass(frozen=True, kw_only=True)
class TranslateAlignArguments(AlignmentArguments):
    """The options of `normscope translate-align`."""

    beams: int | None = option(
        None, help="Beams of the search. Default: the model's setting.", metavar="N", min=1
    )
    translation: Path | None = option(
        None, help="Write the translation to FILE, one sentence per line.", metavar="FILE"
    )

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.translate_align` but for the text."""
        return self.keywords("source", "translation", "output")


@command
def align(arguments: AlignArguments) -> None:
    """Align the words of a text with those of its translation.

    The model is fed the source and made to write the target; its cross-attention shows which source
    words each target word came from, measured by norms, which show what weights hide. Layer, head
    and reading are chosen on the two texts themselves, without gold data. Empty lines get no links.

    \b
    Examples:
      normscope align --source text.de --target text.en
      normscope align --source text.de --target text.en --gold text.talp --output links.pharaoh
      normscope align --model Helsinki-NLP/opus-mt-fr-en --source a.fr --target a.en \\
                      --reverse-model Helsinki-NLP/opus-mt-en-fr --symmetrize grow-diag-final-and
      normscope align --model facebook/nllb-200-distilled-600M --source-lang deu_Latn \\
                      --target-lang eng_Latn --source text.de --target text.en
    """  # noqa: D301
    import normscope

    _check_output(arguments.file, arguments.soft)
    if arguments.compare and arguments.gold is None:
        raise InputError("--compare needs gold links to score against: give --gold too")
    source, target = _read(arguments.source), _read(arguments.target)
    if len(source) != len(target):
        raise InputError(
            f"{arguments.source} has {len(source)} lines and {arguments.target} has "
            f"{len(target)}: each line must be the translation of the same line of the other file"
        )
    with working("the model"):
        alignments = normscope.align(source, target, **arguments.for_python())
    _write_links(alignments, arguments.file)
    _print_report(alignments, arguments.file)
    _print_scores(alignments, arguments)


@command
def translate_align(arguments: TranslateAlignArguments) -> None:
    """Translate a text and align the words.

    The links are between the words of the source and those of the model's own translation, which
    --translation writes to a file; a .jsonl output contains both texts.

    \b
    Examples:
      normscope translate-align --source text.de --translation text.en --output links.pharaoh
      normscope translate-align --source text.de --output links.jsonl
    """  # noqa: D301
    import normscope
    from normscope.foundation.files import whole_file

    _check_output(arguments.file, arguments.soft)
    source = _read(arguments.source)
    with working("the model"):
        alignments = normscope.translate_align(source, **arguments.for_python())
    sentences = [" ".join(pair.target) for pair in alignments]
    if arguments.translation is not None:
        with whole_file(str(arguments.translation)) as file:
            file.writelines(f"{sentence}\n".encode() for sentence in sentences)
    if arguments.file is None and arguments.translation is None:
        for sentence, links in zip(sentences, alignments.links, strict=True):
            print(sentence, _pharaoh(links), sep="\t")
    else:
        _write_links(alignments, arguments.file)
    _print_report(alignments, arguments.file)


def _read(path: Path) -> list[str]:
    from normscope.alignment.files import read_lines

    lines = read_lines(path)
    if not lines:
        raise InputError(f"{path} has no lines")
    return lines


def _check_output(output: Path | None, soft: bool) -> None:
    """Raise InputError, before any work, for a file that cannot be written or hold the matrices."""
    from normscope.alignment.files import format_of
    from normscope.foundation.files import check_file

    if output is not None:
        check_file(output, (output.suffix.lower(),))
        if format_of(output) == "giza":
            raise InputError(
                f"{output}: normscope reads GIZA++'s format but does not write it; choose another "
                "ending, such as .pharaoh"
            )
    if soft and (output is None or format_of(output) != "jsonl"):
        raise InputError("--soft needs an --output that ends in .jsonl, which can hold matrices")


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


def _print_report(alignments: Alignments, output: Path | None) -> None:
    """Print to standard error what was chosen, what has no links, and the signature."""
    from normscope.alignment.aligner import FEW

    for label, choices in (
        ("chosen", alignments.choices),
        ("chosen for the reverse direction", alignments.reverse_choices),
    ):
        if choices:
            print(f"{label}: {'; '.join(str(choice) for choice in choices)}", file=sys.stderr)
    if alignments.ranking and len(alignments) < FEW:
        note(
            f"the choice is unreliable because it is based on {len(alignments)} pairs; give more "
            "text, or --layer, --head and --reading"
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
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
    print(alignments.signature, file=sys.stderr)


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
