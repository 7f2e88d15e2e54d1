"""Pages from the command line: `analyze --output x.html` and `view`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.attributions import attribution
from tests.helpers.commands import addresses, run


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("analyze", "--text", "The cat sat.", "--output", "cat.html")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("wrote cat.html\nsignature  all-MiniLM-L6-v2, weights ")
    text = (tmp_path / "cat.html").read_text(encoding="utf-8")
    assert '"name":"attn_res_ln_n"' in text
    assert '"heads":[0,1,2,3,4,5,6,7,8,9,10,11]' in text
    words = ("analyze", "--text", "The cat sat.", "--maps", "attn_n", "--layer", "2")
    assert run(*words, "-o", "one.html").exit_code == 0
    one = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert '"layers":[2]' in one
    assert '"name":"attn_w"' not in one
    assert run(*words, "-o", "cat.safetensors").exit_code == 0
    done = run("view", "cat.safetensors", "--output", "again.html")
    assert (done.exit_code, done.stderr) == (0, "wrote again.html\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == one
    for wrong in (("view", "none.safetensors"), ("view", "cat.safetensors", "-o", "x.png")):
        done = run(*wrong)
        assert done.exit_code == 2
        assert done.stderr.startswith("normscope: error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cat.json", "view reads .safetensors files, which analyze and attribute write: write it"),
        ("cat.csv", "with --output cat.safetensors"),
        ("cat.html", "is already a page: open it in a browser"),
        (
            "links.jsonl",
            "To look at an alignment, write a page: normscope align … --output links.html",
        ),
        ("none.json", "there is no file"),
        ("none.safetensors", "there is no file"),
    ],
)
def test_other_files_are_refused_with_advice(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not name.startswith("none"):
        Path(name).touch()
    done = run("view", name)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_without_an_output_the_page_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = addresses(monkeypatch)
    attribution().save(tmp_path / "keys.safetensors")
    done = run("view", str(tmp_path / "keys.safetensors"))
    assert done.exit_code == 0
    assert opened == [Path(done.stdout.strip()).as_uri()]


def test_a_saved_attribution_is_viewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = attribution(trace=True)
    result.save("keys.safetensors")
    result.to_html("keys.html")
    done = run("view", "keys.safetensors", "--output", "again.html")
    assert (done.exit_code, done.stderr) == (0, "wrote again.html\n")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "keys.html").read_bytes()
    done = run("view", "keys.safetensors", "keys.safetensors", "-o", "two.html")
    assert done.exit_code != 0
    assert "one result of attribute()" in " ".join(done.stderr.split())
