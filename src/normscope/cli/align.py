"""`normscope align` and `normscope translate-align`: word alignments of translations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.aer import print_scores, score_file
from normscope.cli.options import OUTPUT, CommandArguments, CommonOptions, command, option, shared
from normscope.cli.output import note, quiet
from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.alignment.api import Alignments


@dataclass(frozen=True, kw_only=True)
class AlignmentArguments(CommandArguments):
    """The options that `align` and `translate-align` share."""

    source: Path = option(help="The source text, UTF-8, one sentence per line.", metavar="FILE")
    model: str | None = option(
        None,
        help="An encoder-decoder model that translates from the source language: a folder, or "
        "a name on the Hugging Face hub (owner/name). Default: the German-English model that "
        "comes with normscope.",
        metavar="NAME",
    )
    map: str = option(
        NORMS,
        help=f"The map of the cross-attention to align by. {NORMS}: the norm ‖αf(x)‖. "
        f"{WEIGHTS}: the weight α. Maps with residual, norm and feed-forward work as well; "
        "normscope analyze --help lists them.",
        metavar="MAP",
    )
    layer: str = option(
        "auto", help="A decoder layer, counted from 0; auto: choose without gold.", metavar="auto|N"
    )
    head: str = option(
        "auto",
        help="A head, counted from 0; sum: all heads of a layer together.",
        metavar="auto|sum|N",
    )
    reading: str = option(
        "auto",
        help="awi: align a target word at the decoding step where it is the input. awo: at the "
        "step where it is the output.",
        metavar="auto|awi|awo",
    )
    reverse_model: str | None = option(
        None, help="A model that translates in the other direction.", metavar="NAME"
    )
    symmetrize: str | None = option(
        None,
        help="How to combine both directions: intersection, union, grow-diag, "
        "grow-diag-final, grow-diag-final-and (the default with --reverse-model).",
        metavar="METHOD",
    )
    words: str = option(
        "space",
        help="How to split a line into words: at spaces, or by the Moses tokenizer (sacremoses).",
        metavar="space|moses",
    )
    source_lang: str | None = option(
        None, help="Code of the source language, for a multilingual model.", metavar="CODE"
    )
    target_lang: str | None = option(
        None, help="Code of the target language, for a multilingual model.", metavar="CODE"
    )
    prefix: str = option(
        "", help="Text to put before each source sentence, as T5 models need it.", metavar="TEXT"
    )
    combine: int | None = option(
        None,
        help="Average the N best candidates. Default: three, or fewer if there are fewer than "
        "thirty candidates.",
        metavar="N",
    )
    soft: bool = option(
        False, help="Also write the soft alignment matrices; needs a .jsonl output."
    )
    skip_long: bool = option(
        False, help="Write no links for pairs that are too long for the model."
    )
    budget: int | None = option(
        None,
        help="Tokens in one batch, which bounds the memory. Default: 4096 on a CPU and 32768 "
        "on a GPU.",
        metavar="N",
        min=1,
    )
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
    gold: Path | None = option(
        None, help="Gold links (.talp, Pharaoh, .jsonl) to print scores against.", metavar="FILE"
    )
    method: str = option(
        "attention",
        help="attention, or a baseline: saliency or smoothgrad (gradients), eflomal (learns "
        "from the two texts, without a model).",
        metavar="METHOD",
    )
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
    with quiet():
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
    with quiet():
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
