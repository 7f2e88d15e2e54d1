"""`normscope align` and `translate-align`: which word translates which."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.aer import print_scores, score_file
from normscope.cli.options import Debug, Device, Dtype
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.alignment.api import Alignments

Source = Annotated[
    Path, typer.Option(metavar="FILE", help="The source text, UTF-8, one sentence a line.")
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="An encoder-decoder model from the source's language: a folder, or a name on the "
        "Hugging Face hub (owner/name). Without it, normscope's own German-English model.",
    ),
]
Map = Annotated[
    str,
    typer.Option(
        "--map",
        metavar="MAP",
        help="What is read off the cross-attention. attn_n: the norm ‖αf(x)‖. attn_w: the weight "
        "α. attn_res_ln_n, atb_ff, …: on through norm and feed-forward.",
    ),
]
Layer = Annotated[
    str,
    typer.Option(metavar="auto|N", help="A decoder layer, from 0; auto chooses without gold."),
]
Head = Annotated[
    str,
    typer.Option(metavar="auto|sum|N", help="A head, from 0; sum takes all of a layer together."),
]
Reading = Annotated[
    str,
    typer.Option(
        metavar="auto|awi|awo",
        help="awi: a target word's row is the step that reads it. awo: the step that writes it.",
    ),
]
ReverseModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="A model from the target's language back.")
]
Symmetrize = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="How both directions become one: intersection, union, grow-diag, grow-diag-final, "
        "grow-diag-final-and (the default with --reverse-model).",
    ),
]
Words = Annotated[
    str,
    typer.Option(
        metavar="space|moses",
        help="What a word is: what spaces part, or what Moses' tokeniser says (sacremoses).",
    ),
]
SourceLang = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="The source's language code, for a multilingual model."),
]
TargetLang = Annotated[
    str | None, typer.Option(metavar="CODE", help="The same for the target's language.")
]
Prefix = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Put before each source sentence, as T5 models want it."),
]
Combine = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Average the N best candidates. Without it three, or fewer where there are fewer than "
        "thirty to choose from.",
    ),
]
Soft = Annotated[
    bool, typer.Option("--soft", help="Keep the matrices too; the output must be .jsonl.")
]
SkipLong = Annotated[
    bool,
    typer.Option("--skip-long", help="Leave pairs beyond the model's limit without links."),
]
Budget = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tokens that go through the model at once; they bound the memory. Without it, 4096 "
        "on a CPU and 32768 on a GPU.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the links go: .talp (from 1), .jsonl (with scores), any other name Pharaoh "
        "(from 0). Without it, Pharaoh on standard output.",
    ),
]


def align(
    source: Source,
    target: Annotated[Path, typer.Option(metavar="FILE", help="Its translation, line by line.")],
    model: Model = None,
    gold: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Gold links (.talp, Pharaoh, .jsonl): AER is printed."),
    ] = None,
    map: Map = "attn_n",
    layer: Layer = "auto",
    head: Head = "auto",
    reading: Reading = "auto",
    reverse_model: ReverseModel = None,
    symmetrize: Symmetrize = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="attention, or a baseline: saliency, smoothgrad (gradients), eflomal (learns "
            "from the two texts, without a model).",
        ),
    ] = "attention",
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Another aligner's links (fast_align, GIZA++) to score beside; with --gold. May "
            "be given several times.",
        ),
    ] = None,
    words: Words = "space",
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    prefix: Prefix = "",
    combine: Combine = None,
    soft: Soft = False,
    skip_long: SkipLong = False,
    budget: Budget = None,
    device: Device = None,
    dtype: Dtype = None,
    output: Output = None,
    debug: Debug = False,
) -> None:
    """Say which word translates which.

    The model is made to write the target while it reads the source, and its cross-attention says
    where each word came from: by norm, which sees what weights hide. Layer, head and reading are
    chosen on the two texts themselves, without gold data. An empty line has no links.

    \b
    Examples:
      normscope align --source text.de --target text.en
      normscope align --source text.de --target text.en --gold text.talp --output links.pharaoh
      normscope align --model Helsinki-NLP/opus-mt-fr-en --source a.fr --target a.en \\
                      --reverse-model Helsinki-NLP/opus-mt-en-fr --symmetrize grow-diag-final-and
      normscope align --model facebook/nllb-200-distilled-600M --source-lang deu_Latn \\
                      --target-lang eng_Latn --source text.de --target text.en
    """  # noqa: D301
    from normscope.alignment import api
    from normscope.cli.quiet import quiet as _quiet

    output = None if output == Path("-") else output  # the standard output, as in analyze
    _check_output(output, soft)
    if compare and gold is None:
        raise InputError("--compare scores another aligner's links: give the --gold too")
    texts, written = _texts(source, target)
    with _quiet():
        made = api.align(
            texts, written, model,
            map=map, layer=layer, head=head, reading=reading,
            reverse_model=reverse_model, symmetrize=symmetrize, method=method,
            gold=gold, soft=soft, words=words, source_lang=source_lang, target_lang=target_lang,
            prefix=prefix, combine=combine, skip_long=skip_long, budget=budget,
            device=device, dtype=dtype,
        )  # fmt: skip
    _write(made, output)
    _tell(made, output)
    if made.score is not None and gold is not None:
        lengths = [len(one.source or ()) for one in made], [len(one.target) for one in made]
        scores = {"normscope": made.score}
        for path in compare or ():
            alike = [one for one in compare or () if one.name == path.name]
            plain = len(alike) == 1 and path.name not in scores
            scores[path.name if plain else str(path)] = score_file(gold, path, lengths)
        print_scores(scores, stream=sys.stderr)


def translate_align(
    source: Source,
    model: Model = None,
    map: Map = "attn_n",
    layer: Layer = "auto",
    head: Head = "auto",
    reading: Reading = "auto",
    reverse_model: ReverseModel = None,
    symmetrize: Symmetrize = None,
    beams: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Beams of the search; without it, as the model."),
    ] = None,
    words: Words = "space",
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    prefix: Prefix = "",
    combine: Combine = None,
    soft: Soft = False,
    skip_long: SkipLong = False,
    budget: Budget = None,
    device: Device = None,
    dtype: Dtype = None,
    translation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the translation goes, one sentence a line."),
    ] = None,
    output: Output = None,
    debug: Debug = False,
) -> None:
    """Translate, and say which word was translated as which.

    The links are between the words of the source and those of the model's own translation, which
    --translation keeps; a .jsonl output holds both texts.

    \b
    Examples:
      normscope translate-align --source text.de --translation text.en --output links.pharaoh
      normscope translate-align --source text.de --output links.jsonl
    """  # noqa: D301
    from normscope.alignment import api
    from normscope.alignment.files import read_lines
    from normscope.cli.quiet import quiet as _quiet
    from normscope.results.files import whole_file

    output = None if output == Path("-") else output  # the standard output, as in analyze
    _check_output(output, soft)
    texts = read_lines(source)
    if not texts:
        raise InputError(f"{source} has no lines")
    with _quiet():
        made = api.translate_align(
            texts, model,
            map=map, layer=layer, head=head, reading=reading,
            reverse_model=reverse_model, symmetrize=symmetrize, beams=beams,
            soft=soft, words=words, source_lang=source_lang, target_lang=target_lang,
            prefix=prefix, combine=combine, skip_long=skip_long, budget=budget,
            device=device, dtype=dtype,
        )  # fmt: skip
    if translation is not None:
        with whole_file(str(translation)) as file:
            for one in made:
                file.write((" ".join(one.target) + "\n").encode())
    if output is None and translation is None:
        for one in made:
            print(" ".join(one.target), _pharaoh(one.links), sep="\t")
    else:
        _write(made, output)
    _tell(made, output)


# ---- reading and writing


def _texts(source: Path, target: Path) -> tuple[list[str], list[str]]:
    from normscope.alignment.files import read_lines

    texts, written = read_lines(source), read_lines(target)
    if len(texts) != len(written):
        raise InputError(
            f"{source} has {len(texts)} lines and {target} has {len(written)}: line n of the one "
            "must translate line n of the other"
        )
    if not texts:
        raise InputError(f"{source} has no lines")
    return texts, written


def _check_output(output: Path | None, soft: bool) -> None:
    """Before any work: a name that can be written, and one that can hold what is asked for."""
    from normscope.alignment.files import format_of
    from normscope.results.files import check_file

    if output is not None:
        check_file(output, (output.suffix.lower(),))
        if format_of(output) == "giza":
            raise InputError(f"{output}: GIZA++'s format is read, not written")
    if soft and (output is None or format_of(output) != "jsonl"):
        raise InputError("--soft needs an --output that ends in .jsonl, which can hold matrices")


def _write(made: Alignments, output: Path | None) -> None:
    from normscope.alignment.files import write_links

    if output is None:
        for one in made:
            print(_pharaoh(one.links))
        return
    fields: list[dict[str, Any]] = []
    for one in made:
        told: dict[str, Any] = {"source": one.source, "target": one.target}
        if one.soft is not None:
            told["soft"] = one.soft.tolist()
        fields.append(told)
    write_links(output, made.links, fields=fields)


def _pharaoh(links: Any) -> str:
    return " ".join(f"{s}-{t}" for s, t in links)


def _tell(made: Alignments, output: Path | None) -> None:
    """What was chosen, what was left out, and the signature, on standard error."""
    from normscope.alignment.aligner import FEW

    err = sys.stderr
    chosen = [("took", made.choices), ("took back", made.reverse_choices)]
    for what, choices in chosen:
        if choices:
            print(f"{what}: {'; '.join(str(choice) for choice in choices)}", file=err)
    if made.ranking and len(made) < FEW:
        print(
            f"chosen from {len(made)} pairs only, which is a guess: give more text, or --layer, "
            "--head and --reading",
            file=err,
        )
    empty = sum(one.skipped == "empty" for one in made)
    long = sum(one.skipped == "too long" for one in made)
    dropped = sum(len(side) for one in made for side in one.dropped)
    for count, thing, what in (
        (empty, "pair", "with an empty side: no links"),
        (long, "pair", "too long for the model: no links"),
        (dropped, "word", "dropped by the tokenizer: no links"),
    ):
        if count:
            print(f"normscope: {count} {thing}{'s' * (count > 1)} {what}", file=err)
    if output is not None:
        print(f"wrote {output}", file=err)
    print(made.signature, file=err)
