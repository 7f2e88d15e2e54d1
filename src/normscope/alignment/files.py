"""Whole files: texts of one sentence a line, and links in any format, with errors by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.alignment.links import FORMATS, Format, Link, Links, parse, write
from normscope.errors import InputError
from normscope.results.files import whole_file

SUFFIXES: Mapping[str, Format] = {
    ".talp": "talp",
    ".moses": "talp",
    ".jsonl": "jsonl",
    ".final": "giza",
}
ENOUGH = 10  # lines with links, none of them at word 0: such a file counts from 1
_GIZA_WORD = re.compile(r"(\S+) \(\{((?: [0-9]{1,9})*) \}\)")


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 text without their ends; a line ends at a line feed and nowhere else."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); convert it first") from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def format_of(path: str | Path, form: str = "auto") -> Format:
    """The format that was asked for, or the one that a file's name tells: Pharaoh if nothing."""
    if form == "auto":
        return SUFFIXES.get(Path(path).suffix.lower(), "pharaoh")
    for known in FORMATS:
        if form == known:
            return known
    raise InputError(f"unknown format {form!r}; valid: auto, {', '.join(FORMATS)}")


def read_links(
    path: str | Path,
    form: str = "auto",
    *,
    source: Sequence[int] | None = None,
    target: Sequence[int] | None = None,
) -> list[Links]:
    """The links of every sentence pair in a file.

    Args:
        path: the file. ``.talp`` and ``.moses`` count from 1, ``.jsonl`` is JSON, ``.final`` is
            GIZA++'s A3.final, and every other name is taken for Pharaoh.
        form: the format, where the name does not tell it.
        source: how many words each source sentence has; indices beyond are errors.
        target: the same for the other side.
    """
    chosen = format_of(path, form)
    lines = read_lines(path)
    found = list(_giza(path, lines) if chosen == "giza" else _plain(path, lines, chosen))
    check_links(path, found, source, target)
    if chosen == "pharaoh" and form == "auto":
        _refuse_other_base(path, found)
    return found


def write_links(
    path: str | Path,
    links: Iterable[Links],
    form: str = "auto",
    *,
    fields: Iterable[Mapping[str, Any]] | None = None,
) -> None:
    """Write a file of links, whole or not at all.

    Args:
        path: the file; its name tells the format as in :func:`read_links`.
        links: those of each sentence pair.
        form: the format, where the name does not tell it.
        fields: further fields of each line, for JSONL alone.
    """
    chosen = format_of(path, form)
    if chosen == "giza":
        raise InputError("GIZA++'s A3 format is read, not written; write pharaoh, talp or jsonl")
    links = list(links)
    if chosen == "pharaoh":
        for number, one in enumerate(links, 1):
            if one.sure != one.possible:
                raise InputError(
                    f"sentence {number} has links that are only possible, which Pharaoh cannot "
                    "say; write talp or jsonl"
                )
    more = list(fields) if fields is not None and chosen == "jsonl" else [{}] * len(links)
    with whole_file(str(path)) as file:
        for one, extra in zip(links, more, strict=True):
            file.write((write(one, chosen, **extra) + "\n").encode())


def check_links(
    name: str | Path,
    links: Sequence[Links],
    source: Sequence[int] | None,
    target: Sequence[int] | None,
) -> None:
    """Refuse links of other sentences than those given, by their number or by their lengths."""
    for side, lengths in (("source", source), ("target", target)):
        if lengths is not None and len(lengths) != len(links):
            raise InputError(
                f"{name} has {len(links)} lines, but the {side} text has {len(lengths)}: they must "
                "be the same sentences in the same order"
            )
    for axis, side, lengths in ((0, "source", source), (1, "target", target)):
        for number, (one, length) in enumerate(zip(links, lengths or (), strict=False), 1):
            worst = max(one.possible, key=lambda link: link[axis], default=None)
            if worst is not None and worst[axis] >= length:
                hint = "; does this file count from 1 (talp)?" if worst[axis] == length else ""
                raise InputError(
                    f"{name}, line {number}: the link {worst[0]}-{worst[1]} (counted from 0) names "
                    f"{side} word {worst[axis]}, but the sentence has {length} words{hint}"
                )


def _plain(path: str | Path, lines: list[str], form: Format) -> Iterator[Links]:
    for number, line in enumerate(lines, 1):
        try:
            yield parse(line, form)
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None


def _giza(path: str | Path, lines: list[str]) -> Iterator[Links]:
    """Three lines a pair: a remark, the one text, and the other with indices into the first."""
    if len(lines) % 3:
        raise InputError(f"{path} has {len(lines)} lines; GIZA++ writes three for each pair")
    for start in range(0, len(lines), 3):
        if not lines[start].startswith("#"):
            raise InputError(f"{path}, line {start + 1}: GIZA++ begins a pair with '# Sentence'")
        last = lines[start + 2]
        words = _GIZA_WORD.findall(last)
        if not words or words[0][0] != "NULL" or _GIZA_WORD.sub("", last).strip():
            raise InputError(
                f"{path}, line {start + 3}: not of the form NULL ({{ }}) word ({{ 1 }})"
            )
        links: set[Link] = set()
        for index, (_, there) in enumerate(words[1:]):
            links.update((index, int(one) - 1) for one in there.split())
        if any(min(link) < 0 for link in links):
            raise InputError(f"{path}, line {start + 3}: an index 0, and GIZA++ counts from 1")
        yield Links.of(links)


def _refuse_other_base(path: str | Path, links: Sequence[Links]) -> None:
    linked = [one for one in links if one.possible]
    if len(linked) < ENOUGH:
        return
    if not any(0 in link for one in linked for link in one.possible):
        raise InputError(
            f"{path}, line 1 to {len(links)}: {len(linked)} lines have links and none has an index "
            "0, so the file seems to count from 1; read it as talp, or as pharaoh by name if it is"
        )
