"""statistics.json that was edited: the error names the file, the field and what is valid there."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from normscope.corpus.checkpoint import Folder
from normscope.errors import InputError
from tests.helpers.corpora import mixed_corpus, quick_measuring, quick_run

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = mixed_corpus(tmp_path_factory.mktemp("finished"))
    with quick_measuring():
        quick_run(home, home / "out")
    return home


def sums(content: dict[str, Any]) -> Any:
    return content["tables"]["sums"]


EDITS: list[tuple[str, Change]] = [
    ("signature is None; valid: a text", lambda c: c.update(signature=None)),
    (r"identity is \[\]; valid: an object", lambda c: c.update(identity=[])),
    ("counts is 3; valid", lambda c: c.update(counts=3)),
    (r"counts\.rows is '3'; valid: an integer", lambda c: c["counts"].update(rows="3")),
    (r"counts\.bad\.json is -1", lambda c: c["counts"]["bad"].update(json=-1)),
    (r"problems\[0\] is 'x'", lambda c: c["problems"].insert(0, "x")),
    (r"problems\[0\]\.kind is 1", lambda c: c["problems"][0].update(kind=1)),
    (r"problems\[0\] is .*where, kind, message", lambda c: c["problems"][0].update(more="x")),
    (r"tables\.sums is None", lambda c: c["tables"].update(sums=None)),
    (r"tables\.sums\.title is 1", lambda c: sums(c).update(title=1)),
    (r"tables\.sums\.columns is None", lambda c: sums(c).pop("columns")),
    (r"columns\.at is \[1\]; .*numbers", lambda c: sums(c)["columns"]["at"].append([1])),
    (r"lengths \{'at': 33.*all equal", lambda c: sums(c)["columns"]["at"].append(1)),
]


@pytest.mark.usefixtures("quick")
def test_an_edited_result_is_refused(finished: Path) -> None:
    file = finished / "out" / "statistics.json"
    before = file.read_bytes()
    for message, edit in EDITS:
        content = json.loads(before)
        edit(content)
        file.write_text(json.dumps(content))
        with pytest.raises(InputError, match=message) as caught:
            quick_run(finished, finished / "out")
        assert str(caught.value).startswith(f"{str(file)!r} was not written by normscope corpus")
    file.write_bytes(before)
    assert quick_run(finished, finished / "out").counts["sequences"] == 59


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000, "{", '{"identity": 1}'])
def test_what_is_no_result(text: str, finished: Path, tmp_path: Path) -> None:
    # Its folder is taken for a run's because of these two words.
    (tmp_path / "statistics.json").write_text(text + ' "identity" "signature"')
    with pytest.raises(InputError, match=r"was not written by normscope corpus, or is damaged"):
        quick_run(finished, tmp_path)


@pytest.mark.usefixtures("quick")
def test_a_file_where_the_tables_belong(finished: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:  # a run that has measured all and written nothing
        module = import_module("normscope.corpus.run")
        patch.setattr(module, "write", lambda folder, _: (folder.path / "tables").touch())
        patch.setattr(Folder, "close_run", lambda _: None)
        quick_run(finished, tmp_path)
    with pytest.raises(InputError, match=r"cannot write to the folder .*tables': there is a file"):
        quick_run(finished, tmp_path)
