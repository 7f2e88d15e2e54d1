"""Clark et al.'s pickles: read as they are, and nothing in a pickle ever runs."""

from __future__ import annotations

import builtins
import os
import pickle
import pickletools
import struct
import subprocess
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normscope.corpus.pickles import ADMITTED, INSTRUCTIONS, _PlainUnpickler, load
from normscope.corpus.readers import ALL, START, open_file
from normscope.corpus.records import Content
from normscope.errors import InputError
from tests.helpers.corpora import contents_of

TOKENS = ["[CLS]", "the", "café", "##s", "猫", "[SEP]"]


def saved(path: Path, data: bytes) -> Path:
    file = path / "a.pkl"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_files_as_released_are_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    attns = np.random.default_rng(0).random((2, 3, 6, 6)).astype(np.float16)
    rows = [
        {"tokens": TOKENS, "attns": attns, "n": np.float32(3), "kind": attns.dtype},
        {"attns": np.asfortranarray(attns), "tokens": tuple(TOKENS[:2]), "big": 1 << 100},
        {"tokens": ["x"], "attns": np.zeros((400, 400)), "more": [None, True, 1.5, b"a", {1: 2}]},
    ]
    source = open_file(saved(tmp_path, pickle.dumps(rows, protocol)))
    found = [one.content for one in source.read(START, ALL)]
    wanted = [
        Content(tokens=tuple(TOKENS)),
        Content(tokens=("[CLS]", "the")),
        Content(tokens=("x",)),
    ]
    assert found == wanted


def test_strings_that_python_2_wrote_are_latin_1(tmp_path: Path) -> None:
    # [{'tokens': ['caf\xe9']}] as cPickle of Python 2 writes it.
    data = b"\x80\x02]q\x01}q\x02U\x06tokensq\x03]q\x04U\x04caf\xe9q\x05asa."
    (found,) = open_file(saved(tmp_path, data)).read(START, ALL)
    assert found.content == Content(tokens=("café",))


def test_maps_are_not_kept_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    attns = np.zeros((6, 6, 128, 128), dtype=np.float16)  # 1.2 MB each
    rows = [{"tokens": TOKENS, "attns": attns + number} for number in range(12)]
    file = saved(tmp_path, pickle.dumps(rows, 2))
    tracemalloc.start()
    try:
        load(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 13e6
    assert peak < 6e6  # one array, in the forms it takes while it is passed over


def test_half_of_a_surrogate_pair_is_a_bad_row(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b\ud800"]}, {"tokens": ["a"]}]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(rows))
    bad, good = contents_of(open_file(tmp_path / "a.pkl"))
    assert (bad.kind, bad.message) == ("encoding", "token 1 has half of a surrogate pair")
    assert good.tokens == ("a",)


def test_rows_without_tokens_are_bad_rows(tmp_path: Path) -> None:
    rows: list[Any] = [{"attns": 1}, {"tokens": "abc"}, {"tokens": [1]}, {"tokens": []}, 7]
    source = open_file(saved(tmp_path, pickle.dumps(rows)))
    kinds = [getattr(one.content, "kind", None) for one in source.read(START, ALL)]
    assert kinds == ["missing", "type", "type", "empty", "type"]
    with pytest.raises(InputError, match="holds one dict"):
        open_file(saved(tmp_path, pickle.dumps({"tokens": ["a"]}))).count()


# ------------------------------------------------------------------------- what must not run


class Bomb:
    """Pickles as a call of whatever function it is given."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _touch(marker: Path) -> str:
    return f"touch {marker}"


def bombs(marker: Path) -> dict[str, bytes]:
    """Pickles that leave a file behind if any of them is run."""
    command, code = _touch(marker), f"open({str(marker)!r}, 'w').close()"
    objects = np.array([Bomb(os.system, command)], dtype=object)
    made = {
        "os.system": Bomb(os.system, command),
        "eval": Bomb(eval, code),
        "exec": Bomb(exec, code),
        "subprocess": Bomb(subprocess.call, ["touch", str(marker)]),
        "import": Bomb(__import__, "os"),
        "getattr": Bomb(getattr, os.stat_result, "__reduce__"),
        "open": Bomb(builtins.open, str(marker), "w"),
        "in a row": [{"tokens": ["a"], "attns": Bomb(os.system, command)}],
        "in an object array": [{"tokens": ["a"], "attns": objects}],
        "numpy loads": Bomb(np.load, str(marker)),
        "numpy's own eval": Bomb(np.memmap, str(marker), "uint8", "w+", 0, (1,)),
        "class": OrderedDict(a=1),
        "set state": Path("a"),
        "map": Bomb(map, eval, [code]),
    }
    data = {name: pickle.dumps(one) for name, one in made.items()}
    data |= {f"{name}, old": pickle.dumps(one, 0) for name, one in made.items()}
    posix = f"cposix\nsystem\n(S{command!r}\ntR.".encode()
    data["by hand"] = posix
    data["INST"] = f"(S{command!r}\nios\nsystem\n.".encode()
    data["OBJ"] = f"(cos\nsystem\nS{command!r}\no.".encode()
    data["NEWOBJ"] = f"cos\nsystem\n(S{command!r}\nt\x81.".encode()
    data["dotted name"] = b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93."
    data["name from the data"] = b"\x80\x04\x8c\x02os\x8c\x06system\x93."
    data["extension registry"] = b"\x80\x02\x82\x01."
    data["persistent id"] = b"Pabc\n."
    data["calls a string"] = b"(S'os.system'\n(tR."
    data["state for a list"] = b"](dS'a'\nS'b'\nsb."
    return data


def test_nothing_runs_and_every_bomb_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for name, data in bombs(marker).items():
        file = saved(tmp_path, data)
        with pytest.raises(InputError, match=r"is not read|not a whole pickle"):
            load(file)
        assert not marker.exists(), name
    # The bombs are live: Python's own unpickler runs one.
    pickle.loads(bombs(marker)["os.system"])
    assert marker.exists()


def test_the_refusal_names_what_was_asked_for(tmp_path: Path) -> None:
    file = saved(tmp_path, pickle.dumps(Bomb(eval, "1")))
    with pytest.raises(
        InputError, match=r"asks for builtins\.eval; .* nothing in the file was run"
    ):
        load(file)
    file = saved(tmp_path, pickle.dumps(Bomb(os.system, "true")))
    with pytest.raises(InputError, match=r"asks for posix\.system"):
        load(file)


def test_admitted_names_are_never_called(tmp_path: Path) -> None:
    # Arguments that the real functions would fail on, or that make huge arrays.
    for module, name in ADMITTED:
        data = f"c{module}\n{name}\n(I1000000000000\nI2\nI3\ntR.".encode()
        assert repr(load(saved(tmp_path, data))) == "<array>"
        data = f"c{module}\n{name}\n(dS'__setstate__'\nS'b'\nsb.".encode()
        assert repr(load(saved(tmp_path, data))) == "<array>"


def nested(depth: int) -> bytes:
    return b"]" * depth + b"a" * (depth - 1) + b"."


def laughs() -> bytes:
    """Tuples in tuples, sixty doublings deep, as the key of a dictionary."""
    return b"}(" + b"I1\n" + b"2\x86" * 60 + b"I2\nu."


def test_bombs_of_size_and_depth_are_harmless(tmp_path: Path) -> None:
    assert isinstance(load(saved(tmp_path, nested(30_000))), list)
    # A memo with an entry of a very high number: pickle's unpickler in C makes room for all below.
    assert load(saved(tmp_path, b"]r\xff\xff\xff\x7f.")) == []
    for data in (
        laughs(),
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc.",  # a string of 2**60 bytes
        b"B" + struct.pack("<I", 0xFFFFFFFF) + b"abc.",
        b"\x8b" + struct.pack("<i", 1 << 30) + b"abc.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"].",  # a frame
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc.",  # a bytearray
        b"I" + b"9" * 100_000 + b"\n.",
    ):
        with pytest.raises(InputError, match="not a whole pickle"):
            load(saved(tmp_path, data))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_give_data_or_an_error_in_words(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps([{"tokens": TOKENS, "attns": np.ones(3)}], 2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for one in (bytes(whole), bytes(whole[:cut])):
        with suppress(InputError):  # and nothing else
            load(saved(tmp_path, one))


def test_every_instruction_is_known_or_refused() -> None:
    codes = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
    assert set(codes) - INSTRUCTIONS == {
        *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
        *("NEXT_BUFFER", "READONLY_BUFFER"),
    }
    assert set(_PlainUnpickler.dispatch) == {codes[name] for name in INSTRUCTIONS}
