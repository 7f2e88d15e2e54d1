"""Read texts with one sentence per line, and read and write files of links in any format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.alignment.links import FORMATS, Format, Link, Links, parse, write
from normscope.errors import InputError
from normscope.foundation.files import check_name, whole_file
from normscope.foundation.texts import utf8

SUFFIXES: Mapping[str, Format] = {
    ".talp": "talp",
    ".moses": "talp",
    ".jsonl": "jsonl",
    ".final": "giza",
}
ENOUGH = 10  # a file in which so many lines have links, but none an index 0, counts from 1
_GIZA_WORD = re.compile(r"(\S+) \(\{((?: [0-9]{1,9})*) \}\)")


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 file without line ends; only line feeds end a line."""
    try:
        content = check_name(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return text_lines(content, str(path))


def text_lines(content: bytes, name: str) -> list[str]:
    """Return the lines of a UTF-8 text; ``name`` is what messages call it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 (byte {error.start}); convert it first") from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def format_of(path: str | Path, form: str = "auto") -> Format:
    """Return the format ``form`` or, for "auto", the one of the file's suffix."""
    if form == "auto":
        return SUFFIXES.get(Path(path).suffix.lower(), "pharaoh")
    for valid in FORMATS:
        if form == valid:
            return valid
    raise InputError(f"unknown format {form!r}; valid: auto, {', '.join(FORMATS)}")


def read_links(
    path: str | Path,
    form: str = "auto",
    *,
    source: Sequence[int] | None = None,
    target: Sequence[int] | None = None,
) -> list[Links]:
    """Read the links of every sentence pair in a file.

    Args:
        path: the file. ``.talp`` and ``.moses`` count from 1, ``.jsonl`` is JSON, ``.final`` is
            GIZA++'s A3.final, and any other suffix means Pharaoh.
        form: the format if the suffix does not tell it: "pharaoh", "talp", "jsonl" or "giza".
        source: the number of words in each source sentence, to check the indices.
        target: the number of words in each target sentence.

    Raises:
        InputError: the file cannot be read, or a line is not valid; the message names the line.
    """
    chosen = format_of(path, form)
    lines = read_lines(path)
    links = list(_giza(path, lines) if chosen == "giza" else _plain(path, lines, chosen))
    check_links(path, links, source, target)
    if chosen == "pharaoh" and form == "auto":
        _check_base(path, links)
    return links


def write_links(
    path: str | Path,
    links: Iterable[Links],
    form: str = "auto",
    *,
    fields: Iterable[Mapping[str, Any]] | None = None,
) -> None:
    """Write a file of links atomically.

    Args:
        path: the file. Its suffix determines the format as in :func:`read_links`.
        links: the links of each sentence pair.
        form: the format if the suffix does not tell it: "pharaoh", "talp" or "jsonl".
        fields: further fields of each line, for JSONL only.
    """
    chosen = format_of(path, form)
    if chosen == "giza":
        raise InputError(
            "GIZA++'s A3 format can be read, not written; write pharaoh, talp or jsonl"
        )
    links = list(links)
    if chosen == "pharaoh":
        for number, pair_links in enumerate(links, 1):
            if pair_links.sure != pair_links.possible:
                raise InputError(
                    f"sentence {number} has links that are only possible, which a Pharaoh file "
                    "cannot hold; write talp or jsonl"
                )
    more = list(fields) if fields is not None and chosen == "jsonl" else [{}] * len(links)
    with whole_file(str(path)) as file:
        for pair_links, extra in zip(links, more, strict=True):
            file.write(utf8(write(pair_links, chosen, **extra) + "\n"))


def check_links(
    name: str | Path,
    links: Sequence[Links],
    source: Sequence[int] | None,
    target: Sequence[int] | None,
) -> None:
    """Raise InputError if the links do not fit sentences of these lengths.

    ``name`` is what messages call the links: a file, or "the gold".
    """
    for side, lengths in (("source", source), ("target", target)):
        if lengths is not None and len(lengths) != len(links):
            raise InputError(
                f"{name} has {len(links)} lines, but the {side} text has {len(lengths)}: they must "
                "be the same sentences in the same order"
            )
    for axis, side, lengths in ((0, "source", source), (1, "target", target)):
        for number, (pair_links, length) in enumerate(zip(links, lengths or (), strict=False), 1):
            worst = max(pair_links.possible, key=lambda link: link[axis], default=None)
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
    """Parse three lines per pair: a comment, one text, the other text with indices into it."""
    if len(lines) % 3:
        raise InputError(f"{path} has {len(lines)} lines; GIZA++ writes three for each pair")
    for start in range(0, len(lines), 3):
        if not lines[start].startswith("#"):
            raise InputError(f"{path}, line {start + 1}: a pair must start with '# Sentence'")
        last = lines[start + 2]
        words = _GIZA_WORD.findall(last)
        if not words or words[0][0] != "NULL" or _GIZA_WORD.sub("", last).strip():
            raise InputError(
                f"{path}, line {start + 3}: not of the form NULL ({{ }}) word ({{ 1 }})"
            )
        links: set[Link] = set()
        for source, (_, indices) in enumerate(words[1:]):
            links.update((source, int(target) - 1) for target in indices.split())
        if any(min(link) < 0 for link in links):
            raise InputError(f"{path}, line {start + 3}: an index is 0, but GIZA++ counts from 1")
        yield Links.of(links)


def _check_base(path: str | Path, links: Sequence[Links]) -> None:
    """Raise InputError for a file named like Pharaoh that seems to count from 1."""
    linked = [pair_links.possible for pair_links in links if pair_links.possible]
    if len(linked) < ENOUGH:
        return
    if not any(0 in link for possible in linked for link in possible):
        raise InputError(
            f"{path}, lines 1 to {len(links)}: {len(linked)} lines have links, but none has an "
            'index 0, so the file seems to count from 1; read it with form="talp", or with '
            'form="pharaoh" if it does count from 0'
        )
