"""Whatever is in a file or a request: an answer or an error in words; no crash, no code run.

`make test` tries a few, `make test-deep` many more: see profiles.py.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from normscope import load
from normscope.alignment.files import read_lines, read_links, write_links
from normscope.alignment.links import FORMATS as LINK_FORMATS
from normscope.alignment.links import Links
from normscope.corpus import pickles
from normscope.corpus.readers import ALL, FORMATS, START, open_file
from normscope.corpus.records import Content, Problem
from normscope.errors import InputError
from normscope.measures.analysis import analyze_inputs
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results.saved import CONTRIBUTIONS
from tests.helpers.profiles import examples
from tests.helpers.serving import HOME, in_app

# Anything that JSON can say, half characters and numbers beyond every range among it.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**320)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=()), max_size=6), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """The file with some bytes changed, cut out, put in, or with its end missing."""

    def change(edits: list[tuple[str, float, bytes]]) -> bytes:
        data = bytearray(whole)
        for what, place, new in edits:
            at = int(place * len(data))
            if what == "set":
                data[at : at + len(new)] = new
            elif what == "insert":
                data[at:at] = new
            elif what == "cut":
                del data[at : at + 1 + len(new)]
            else:
                del data[at:]
        return bytes(data)

    edit = st.tuples(
        st.sampled_from(["set", "set", "insert", "cut", "end"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=4),
    )
    return st.lists(edit, min_size=1, max_size=4).map(change)


@contextmanager
def tells(words: str) -> Iterator[list[Any]]:
    """What is done inside succeeds, or is refused by normscope in a few words, these among them."""
    done: list[Any] = []
    message = words
    try:
        yield done
    except InputError as error:
        message = str(error)
        done.clear()
    assert words in message
    assert len(message) < 1000


# ---- result files


@cache
def saved_result() -> bytes:
    import tempfile

    model, inputs = tiny_model("marian"), tiny_inputs("marian", batch=1, length=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.safetensors"
        analyze_inputs(model, inputs)[0].save(path)
        return path.read_bytes()


def taken_apart() -> tuple[dict[str, Any], bytes]:
    whole = saved_result()
    (size,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def put_together(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def loads_or_says_why(path: Path) -> None:
    said = f"could not load {path}: "
    with tells(said) as loaded:
        loaded.append(load(path))
    for result in loaded:  # damage that hit a number or a name: what was loaded is a whole result
        assert [len(part.tokens) for part in result.parts.values() or [result]]


@examples(60)
@given(data=st.data())
def test_damaged_result_files(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "result.safetensors"
    path.write_bytes(data.draw(damaged(saved_result())))
    loads_or_says_why(path)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a nested structure."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        inner = list(tree.items())
    elif isinstance(tree, list):
        inner = list(enumerate(tree))
    return [(*at, key) for key, _ in inner] + [
        place for key, value in inner for place in places(value, (*at, key))
    ]


def edited(tree: Any, place: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    *way, last = place
    for step in way:
        tree = tree[step]
    if remove:
        del tree[last]
    else:
        tree[last] = value
    return tree


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("parts", "encoder", "error", "attn_n"), "0x1p99999"),
        (("parts", "encoder", "arrays", "attn_n", "labels", "layer"), [0, float("inf")]),
        (("version",), float("nan")),
        (("tokens",), [[[]]] * 3),
    ],
)
def test_numbers_beyond_every_range_in_a_header(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    header, numbers = taken_apart()
    ours = json.loads(header["__metadata__"][CONTRIBUTIONS])
    edited(ours, place, value, remove=False)
    header["__metadata__"][CONTRIBUTIONS] = json.dumps(ours)
    path = tmp_path / "result.safetensors"
    path.write_bytes(put_together(header, numbers))
    loads_or_says_why(path)


@examples(80)
@given(data=st.data())
def test_result_files_whose_header_says_something_else(tmp_path: Path, data: st.DataObject) -> None:
    header, numbers = taken_apart()
    ours = json.loads(header["__metadata__"][CONTRIBUTIONS])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places(ours)))
        edited(ours, place, data.draw(JSON), remove=data.draw(st.booleans()))
    header["__metadata__"][CONTRIBUTIONS] = json.dumps(ours)
    path = tmp_path / "result.safetensors"
    path.write_bytes(put_together(header, numbers))
    loads_or_says_why(path)


# ---- links between words

LINK_TEXT = st.text(
    st.sampled_from(list('0123456789-p \t\n#({})NUL[],:"linksposie.eE²٣\u2028\r\x00é'))
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
)
LINK_LINES = LINK_TEXT | st.sampled_from(
    [
        "9" * 5000 + "-1",
        "1-" + "9" * 5000,
        '{"links": [[0, 1, 1' + "0" * 400 + "]]}",
        '{"links": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"links": [[' + "9" * 5000 + ", 1]]}",
        "# a\nb\nNULL ({ }) c ({ " + "9" * 5000 + " })",
        '{"links": [[0, 1, NaN]]}',
        '{"links": [[true, 1]]}',
        "0-0\n1-1",
        "1-1 2p3",
        '{"links": [[0, 0]], "possible": [[1, 2, 0.5]]}',
        "# Sentence\nein Haus\nNULL ({ }) a ({ 1 }) house ({ 2 })",
    ]
)


@examples(80)
@given(lines=st.lists(LINK_LINES, max_size=4), form=st.sampled_from(LINK_FORMATS))
def test_files_of_links(tmp_path: Path, lines: list[str], form: Any) -> None:
    path = tmp_path / "links"
    path.write_bytes("\n".join(lines).encode())
    with tells(str(path)) as read:
        read.append(read_links(path, form))
    for found in read if form != "giza" else []:  # written and read again, it is the same
        write_links(tmp_path / "again", found, form)
        assert read_links(tmp_path / "again", form) == found


@examples(30)
@given(data=st.binary(max_size=60), form=st.sampled_from(LINK_FORMATS))
def test_files_of_links_that_are_no_text(tmp_path: Path, data: bytes, form: Any) -> None:
    path = tmp_path / "links"
    path.write_bytes(data)
    with suppress(InputError):
        assert all(isinstance(one, Links) for one in read_links(path, form))
    with suppress(InputError):
        made = b"\n".join(line.encode() for line in read_lines(path))
        assert made in (data + b"\n").replace(b"\r\n", b"\n")


# ---- corpora


def rows_of(path: Path, form: str) -> list[Any]:
    source = open_file(path, form)
    found = list(source.read(START, ALL))
    assert [one.number for one in found] == list(range(len(found)))
    assert len(found) == source.count()
    assert len(list(source.marks(START, ALL))) == len(found)
    return [one.content for one in found]


def is_row(row: Any) -> bool:
    """A problem in words, or a text that a tokenizer can take."""
    if isinstance(row, Problem):
        return bool(row.message) and len(row.message) < 1000
    assert isinstance(row, Content)
    texts = [text for text in (row.text, row.pair, *(row.tokens or ())) if text is not None]
    return bool(texts) and all(text.encode() is not None for text in texts)


LINES = st.binary(max_size=30) | JSON.map(lambda row: json.dumps(row).encode())
FIELDS = st.dictionaries(st.sampled_from(["text", "text_pair", "x"]), JSON, max_size=3)


@examples(80)
@given(
    lines=st.lists(LINES | FIELDS.map(lambda row: json.dumps(row).encode()), max_size=5),
    form=st.sampled_from(["text", "jsonl", "tsv"]),
    end=st.sampled_from([b"\n", b"\r\n", b""]),
)
@example(lines=[b"[" * 100_000], form="jsonl", end=b"\n")
@example(lines=[b"[" * 900 + b"]" * 900], form="jsonl", end=b"\n")
@example(lines=[b'{"text": ' + b"9" * 5000 + b"}"], form="jsonl", end=b"\n")
def test_lines_of_a_corpus(tmp_path: Path, lines: list[bytes], form: str, end: bytes) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(end.join(lines) + end)
    assert all(is_row(row) for row in rows_of(path, form))


@cache
def parquet() -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = pa.table({"text": ["a cat", None, "a dog"] * 3, "text_pair": ["b", "c", None] * 3})
    pq.write_table(table, file, row_group_size=4)
    return file.getvalue()


@examples(60)
@given(data=st.data())
def test_damaged_parquet_files(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(data.draw(damaged(parquet())))
    with tells(str(path)) as rows:
        rows += [one.content for one in open_file(path, "parquet").read(START, ALL)]
    assert all(is_row(row) for row in rows)


def test_every_format_is_fuzzed_here() -> None:
    assert set(FORMATS) == {"text", "jsonl", "tsv", "parquet", "clark"}
    assert set(LINK_FORMATS) == {"pharaoh", "talp", "jsonl", "giza"}


# ---- pickles


class Hostile:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile(mark: Path) -> st.SearchStrategy[Any]:
    """Objects that would leave a file behind, alone and among what is harmless."""
    calls = [
        Hostile(open, str(mark), "w"),
        Hostile(exec, f"open({str(mark)!r}, 'w')"),
        Hostile(eval, f"open({str(mark)!r}, 'w')"),
        Hostile(Path.touch, mark),
        Hostile(subprocess.getoutput, f"touch {mark}"),
        Hostile(np.save, str(mark), 1),
        Hostile(pickle.loads, pickle.dumps(Hostile(open, str(mark), "w"))),
    ]
    harmless = st.sampled_from(["a", 1, None, ("x",), np.ones(2)])
    return st.tuples(harmless, st.sampled_from(calls)).map(
        lambda pair: [{"tokens": ["a", pair[1]], "attns": pair[0]}]
    ) | st.sampled_from(calls)


@examples(40)
@given(data=st.data(), protocol=st.integers(0, 5))
def test_hostile_pickles_run_nothing(tmp_path: Path, data: st.DataObject, protocol: int) -> None:
    mark, path = tmp_path / "mark", tmp_path / "rows.pkl"
    path.write_bytes(pickle.dumps(data.draw(hostile(mark)), protocol))
    with pytest.raises(InputError, match=r"rows\.pkl"):
        rows_of(path, "clark")
    assert not mark.exists()
    # And damaged: what is left of it still runs nothing.
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with suppress(InputError):
        assert all(is_row(row) for row in rows_of(path, "clark"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.pkl"]


CODES = st.sampled_from([opcode.code.encode("latin-1") for opcode in pickletools.opcodes])


@examples(120)
@given(parts=st.lists(CODES | st.binary(max_size=3) | st.just(b"\x04abcd\n"), max_size=25))
def test_programs_of_random_instructions(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "rows.pkl"
    path.write_bytes(b"".join(parts) + b".")
    with suppress(InputError):
        pickles.load(path)


# ---- requests

KNOWN = {200, 202, 400, 401, 403, 404, 405, 413, 415, 421, 429, 503}
ASKED = st.dictionaries(
    st.sampled_from(["text", "text_pair", "target", "maps", "heads", "model", "token"])
    | st.text(st.characters(exclude_categories=()), max_size=6),
    JSON | st.sampled_from(["fake", "translator", "each", "sum", ["attn_n"], "a cat", "mistake"]),
    max_size=5,
).map(lambda fields: json.dumps(fields).encode())
SEGMENT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
PATHS = st.sampled_from(
    ["/", "/health", "/api/models", "/api/jobs", "/api/session", "/static/app.js"]
) | st.tuples(
    st.sampled_from(["/api/jobs/", "/static/", "/"]),
    SEGMENT | st.sampled_from(["..%2f..%2fetc%2fpasswd", "%00", "x/result.json", "x/page"]),
).map("".join)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
REQUEST = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "POST", "POST", "POST", "DELETE", "PUT", "HEAD", "X"]),
        "path": PATHS,
        "query": st.dictionaries(
            st.sampled_from(["wait", "state", "position", "x"]),
            PRINTABLE | st.sampled_from(["0", "nan", "-inf", "1e999", "9" * 5000]),
            max_size=2,
        ),
        "headers": st.dictionaries(
            st.sampled_from(["authorization", "cookie", "accept", "range", "x-forwarded-for"]),
            PRINTABLE.map(str.strip),
            max_size=2,
        ),
        "kind": st.sampled_from(["application/json"] * 4 + ["text/plain", ""]),
        "content": ASKED | ASKED | JSON.map(lambda it: json.dumps(it).encode()) | st.binary(),
    }
)


@examples(4)
@given(data=st.data())
def test_requests(data: st.DataObject) -> None:
    """In one process with the app: what it does not catch would be raised here."""
    requests: list[Any] = [
        data.draw(REQUEST) for _ in range(40)
    ]  # drawn one by one, told one by one

    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        for one in requests:
            try:
                url = httpx.URL(HOME + one["path"], params=one["query"])
            except httpx.InvalidURL:
                continue
            answer = await client.request(
                one["method"],
                url,
                content=one["content"],
                headers={**one["headers"], "content-type": one["kind"]},
            )
            assert answer.status_code in KNOWN, (one, answer.text)
            assert answer.headers["x-content-type-options"] == "nosniff"
            if answer.status_code >= 400 and one["method"] != "HEAD":
                assert list(answer.json()) == ["error"] or answer.status_code == 503
        assert (await client.get("/health")).status_code == 200

    in_app(test, queue=10**4, body=10**5)
