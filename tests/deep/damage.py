"""Damaged files and requests, as many as possible: each is read, or refused in a few words.

A case is told by the seed, its reader and its number, so that it can be made again by itself. It
is a whole file of the reader's format, changed at a few places: bytes, pieces of other files,
texts that are hard to read, and, where there is JSON in it, values of that JSON.
"""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import signal
import struct
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from normscope import Contributions, load
from normscope.alignment.files import read_links
from normscope.alignment.links import FORMATS as LINK_FORMATS
from normscope.corpus.attributions import read_rows
from normscope.corpus.checkpoint import FILE, FINISHED, Folder
from normscope.corpus.output import from_dict
from normscope.corpus.readers import ALL, START, open_file
from normscope.corpus.records import Content, Problem
from normscope.errors import NormscopeError
from normscope.models.gguf_files import read_metadata
from normscope.models.sides import read_json
from tests.deep import valid

LONGEST = 1000  # characters of an error message
SECONDS = 20  # for one case

# Pieces of text that readers have had difficulties with, or might have.
PIECES = [
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n", b"\t", b'"'),
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 5000, b"1" + b"0" * 400, b"null"),
    *(b"[" * 2000, b'{"a":' * 2000, b"[]", b"{}", b"\\ud800", b"\\u0000", b"true", b"\xe2\x80\xa8"),
    *(b"<script>", b"../../x", b"=1+1", b"%s%n", b"({", b"})", b"1-1", b"2p3", b"\xd9\xa3"),
    *(struct.pack("<Q", 2**63), struct.pack("<Q", 2**64 - 1), struct.pack("<i", -1)),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, float("nan")),
    *(float("inf"), "", "a", "\x00", "\ud800", "9" * 5000, [], {}, [[]], [None], {"a": None}),
    *("0x1p99999", "<script>alert(1)</script>", "../../etc/passwd", [0, 1], ["a", "b"], "float64"),
]


class Reader(NamedTuple):
    """What reads one format.

    Attributes:
        name: The format.
        file: The name of the file that is damaged.
        whole: Valid contents.
        read: Reads the folder with the file; raises what normscope raises, or AssertionError.
        inside: Where in the file there is JSON: "all", "lines", "header" or nowhere.
        share: How often it is chosen: slow readers are chosen less often.
    """

    name: str
    file: str
    whole: Sequence[bytes]
    read: Callable[[Path], object]
    inside: str = ""
    share: int = 20


# ---- damage


def damaged(draw: random.Random, whole: Sequence[bytes], inside: str) -> bytes:
    """Return one of the contents, changed at one to four places."""
    data = draw.choice(whole)
    if inside and draw.random() < 0.5:
        data = _edit(draw, data, inside)
        if draw.random() < 0.7:
            return data
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(changed))
        size = min(draw.choice((1, 1, 2, 4, 8, 32)), len(changed) - at)
        match draw.randrange(7):
            case 0:
                changed[at : at + size] = draw.randbytes(size)
            case 1:
                changed[at : at + size] = b""
            case 2:
                changed[at:at] = draw.choice(PIECES)
            case 3:
                changed[at : at + size] = draw.choice(PIECES)
            case 4:
                changed[at:at] = changed[at : at + 32]
            case 5 if changed[at : at + 1]:
                changed[at] ^= 1 << draw.randrange(8)
            case 5 | 6 if draw.random() < 0.3:
                other = draw.choice(whole)
                changed[at:] = other[draw.randint(0, len(other)) :]
    return bytes(changed)


def _edit(draw: random.Random, data: bytes, inside: str) -> bytes:
    """Change values of the JSON in a file."""
    if inside == "lines":
        lines = data.split(b"\n")
        at = draw.randrange(len(lines))
        lines[at] = _edit(draw, lines[at], "all")
        return b"\n".join(lines)
    if inside == "header":  # of a result file: JSON within JSON, behind the length of the outer one
        (size,) = struct.unpack("<Q", data[:8])
        outer, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
        if draw.random() < 0.7:
            (kind,) = outer["__metadata__"]
            inner = _edit(draw, outer["__metadata__"][kind].encode(), "all")
            outer["__metadata__"][kind] = inner.decode(errors="replace")
            text = json.dumps(outer).encode()
        else:
            text = _edit(draw, data[8 : 8 + size], "all")
        return struct.pack("<Q", len(text)) + text + rest
    try:
        tree = json.loads(data)
    except ValueError:
        return data
    for _ in range(draw.randint(1, 3)):
        tree = _with_other_value(draw, tree)
    return json.dumps(tree).encode(errors="surrogatepass")


def _with_other_value(draw: random.Random, tree: Any) -> Any:
    """Walk to a random place of nested lists and dicts, and change what is there."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.1:
        return copy.deepcopy(draw.choice(VALUES))
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = draw.choice(keys)
    chance = draw.random()
    if chance < 0.15:
        del tree[key]
    elif chance < 0.25 and isinstance(tree, dict):
        tree[draw.choice(["", "a", "text", str(key) + " "])] = tree.pop(key)
    elif chance < 0.35 and isinstance(tree, list):
        tree.insert(key, copy.deepcopy(tree[draw.randrange(len(tree))]))
    else:
        tree[key] = _with_other_value(draw, tree[key])
    return tree


# ---- readers


def _result(folder: Path) -> None:
    result = load(folder / "it.safetensors")
    if isinstance(result, Contributions):
        assert [len(part.tokens) for part in result.parts.values() or [result]]
    else:
        assert len(result.tokens) == len(result.tokens.strings)


def _corpus(form: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        source = open_file(folder / "it", form)
        rows = [one.content for one in source.read(START, ALL)]
        assert len(rows) == source.count()
        for row in rows:
            assert isinstance(row, Content | Problem)
            if isinstance(row, Problem):
                assert 0 < len(row.message) < LONGEST
            else:
                (row.text or "").encode()

    return read


def _links(form: Any) -> Callable[[Path], object]:
    return lambda folder: read_links(folder / "it", form)


def _finished(folder: Path) -> None:
    content = Folder(folder).finished()
    if content is not None:
        from_dict(content, folder)


def _questions(name: str) -> Callable[[Path], object]:
    return lambda folder: read_rows(folder / name, {})


def readers() -> list[Reader]:
    """Return a reader for every format, with valid contents to damage."""
    results, corpora = valid.results(), valid.corpora()
    listed = [
        Reader("result files", "it.safetensors", results, _result, "header"),
        Reader("corpora: text", "it", [corpora["text"]], _corpus("text")),
        Reader("corpora: JSONL", "it", [corpora["jsonl"]], _corpus("jsonl"), "lines"),
        Reader("corpora: TSV", "it", [corpora["tsv"]], _corpus("tsv")),
        Reader("corpora: Parquet", "it", [corpora["parquet"]], _corpus("parquet"), share=10),
        Reader("corpora: pickles", "it", valid.pickles(), _corpus("clark")),
        Reader("checkpoints", FILE, [valid.checkpoint()], lambda at: Folder(at).load()),
        Reader("finished runs", FINISHED, [valid.finished()], _finished, "all"),
        Reader("questions: JSONL", "q.jsonl", [corpora["asked"]], _questions("q.jsonl"), "lines"),
        Reader("questions: CSV", "q.csv", [corpora["csv"]], _questions("q.csv")),
        Reader("GGUF metadata", "it", [valid.gguf()], lambda at: read_metadata(at / "it")),
        Reader("normscope.json", "normscope.json", valid.SIDES, read_json, "all"),
    ]
    for form in LINK_FORMATS:
        inside = "lines" if form == "jsonl" else ""
        share = 4 if form == "giza" else 20
        whole = [valid.LINKS[form]]
        listed.append(Reader(f"links: {form}", "it", whole, _links(form), inside, share))
    for name in ("config.json", "tokenizer_config.json", valid.INDEX, valid.PART):
        whole = [(valid.model_folder() / name).read_bytes()]
        inside = "all" if name.endswith(".json") else ""
        listed.append(Reader(f"models: {name}", name, whole, valid.load_model, inside, share=1))
    return listed


# ---- running


class Hang(Exception):
    """A case took too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hang if what is done inside takes longer than a case may."""

    def stop(*_: object) -> None:
        raise Hang(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def problem_of(reader: Reader, folder: Path, data: bytes) -> str | None:
    """Read one damaged file; return what is wrong, or None for a result or a short error."""
    (folder / reader.file).write_bytes(data)
    try:
        with limited():
            reader.read(folder)
    except NormscopeError as error:
        return None if len(str(error)) < LONGEST else f"a message of {len(str(error)):,} characters"
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(line.filename).name}:{line.lineno}"
        return f"{type(error).__name__} in {place}: {str(error)[:200]}"
    return None


def case(reader: Reader, seed: int, number: int) -> bytes:
    """Return the damaged file of this number."""
    return damaged(random.Random(f"{seed} {reader.name} {number}"), reader.whole, reader.inside)


def files(
    seed: int, count: int, only: Sequence[str] | None = None, listed: Sequence[Reader] | None = None
) -> tuple[Counter[str], int]:
    """Read so many damaged files; print every kind of failure once, and return the counts."""
    chosen = [one for one in listed or readers() if not only or one.name in only]
    parts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    shares = sum(reader.share for reader in chosen)
    for reader in chosen:
        with _folder(reader) as folder, quiet():
            for number in range(max(1, count * reader.share // shares)):
                data = case(reader, seed, number)
                parts[reader.name] += 1
                if (problem := problem_of(reader, folder, data)) is not None:
                    failures[
                        kind := re.sub(r"(: |[\\d,]+ char).*", "", f"{reader.name} {problem}")
                    ] += 1
                    if failures[kind] == 1:
                        print(f"{reader.name}, seed {seed}, number {number}: {problem}", flush=True)
    return parts, failures.total()


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and reports of transformers."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


@contextmanager
def _folder(reader: Reader) -> Iterator[Path]:
    """Yield a folder for the files of a reader, in memory where there is such a place."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="normscope-damage-", dir=place) as name:
        if reader.read is valid.load_model:
            shutil.copytree(valid.model_folder(), name, dirs_exist_ok=True)
        yield Path(name)
