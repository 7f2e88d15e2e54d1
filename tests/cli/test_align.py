"""The commands align, translate-align and aer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from normscope import align
from normscope.alignment.aer import score
from normscope.alignment.files import read_links
from normscope.models.architectures import tiny_model
from tests.cli.test_commands import fail, succeed
from tests.helpers.tiny import tokenizer

SOURCE = ["the cats sat .", "", "raining in the garden , never"]
TARGET = ["cats looked at it", "the dogs", "rain"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny-bart"
    made: Any = tiny_model("bart", dtype=torch.float32)
    made.generation_config.max_length = 8
    made.generation_config.forced_bos_token_id = None
    made.save_pretrained(folder)
    tokenizer(pair=False).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "a.de").write_text("\n".join(SOURCE) + "\n")
    (tmp_path / "a.en").write_text("\n".join(TARGET) + "\n")
    (tmp_path / "a.talp").write_text("1-2 2-1 3p4\n\n1-1\n")
    return "--source", str(tmp_path / "a.de"), "--target", str(tmp_path / "a.en")


def test_links_on_standard_output(model: str, texts: tuple[str, ...]) -> None:
    done = succeed("align", "--model", model, *texts)
    expected = align(SOURCE, TARGET, model)
    assert done.stdout == "".join(
        " ".join(f"{s}-{t}" for s, t in one.links) + "\n" for one in expected
    )
    assert f"took: {expected.choices[0]}" in done.stderr
    assert "normscope: 1 pair with an empty side: no links" in done.stderr
    assert expected.signature in done.stderr


@pytest.mark.parametrize("name", ["links.pharaoh", "links.talp", "links.jsonl"])
def test_files(model: str, texts: tuple[str, ...], tmp_path: Path, name: str) -> None:
    done = succeed(
        "align", "--model", model, *texts, "--layer", "1", "--head", "sum", "--reading", "awo",
        "--output", str(tmp_path / name),
    )  # fmt: skip
    assert done.stdout == ""
    expected = align(SOURCE, TARGET, model, layer=1, head="sum", reading="awo")
    assert read_links(tmp_path / name) == expected.links


def test_soft_matrices(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "links.jsonl"
    how = ["--layer", "0", "--head", "2", "--reading", "awi", "--map", "attn_w"]
    succeed("align", "--model", model, *texts, *how, "--soft", "-o", str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    made = align(SOURCE, TARGET, model, map="attn_w", layer=0, head=2, reading="awi", soft=True)
    assert lines[0]["source"] == SOURCE[0].split()
    assert lines[0]["target"] == TARGET[0].split()
    assert made[0].soft is not None
    np.testing.assert_array_equal(np.float32(lines[0]["soft"]), made[0].soft)
    assert "soft" not in lines[1]
    scores = {(s, t): one for s, t, one in lines[0]["links"]}
    assert scores == made[0].links.scores
    told = fail("align", "--model", model, *texts, "--soft")
    assert "--soft needs an --output that ends in .jsonl" in told


def test_gold_and_another_aligner(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "fast.pharaoh").write_text("0-1 1-0\n\n0-0\n")
    gold = ["--gold", str(tmp_path / "a.talp")]
    how = ["--layer", "1", "--head", "sum", "--reading", "awi"]
    other = ["--compare", str(tmp_path / "fast.pharaoh")]
    done = succeed("align", "--model", model, *texts, *how, *gold, *other)
    made = align(SOURCE, TARGET, model, layer=1, head="sum", reading="awi")
    rate = score(read_links(tmp_path / "a.talp"), made.links).aer
    rows = {line.split()[0]: line.split() for line in done.stderr.splitlines() if line.split()}
    assert rows["normscope"][1] == f"{100 * rate:.1f}"
    assert rows["fast.pharaoh"][1] == "0.0"
    assert "--gold too" in fail("align", "--model", model, *texts, *other)
    alike = [tmp_path / "x" / "normscope", tmp_path / "y" / "normscope"]
    for path, links in zip(alike, ("0-1 1-0\n\n0-0\n", "\n\n\n"), strict=True):
        path.parent.mkdir()
        path.write_text(links)
    two = [part for path in alike for part in ("--compare", str(path))]
    told = succeed("align", "--model", model, *texts, *how, *gold, *two, "-o", "-")
    assert told.stdout == done.stdout  # "-" is the standard output
    assert sum(line.split()[:1] == ["normscope"] for line in told.stderr.splitlines()) == 1
    for path in alike:
        assert path.parent.name + "/normscope" in told.stderr.replace("\n", "")
    back = ["--reverse-model", model, "--symmetrize", "union"]
    told = succeed("align", "--model", model, *texts, *how, *back).stderr
    assert "took back: layer 1" in told


def test_translate_align(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    files = ["--translation", str(tmp_path / "b.en"), "--output", str(tmp_path / "b.jsonl")]
    succeed("translate-align", "--model", model, *texts[:2], *files, "--beams", "1")
    written = (tmp_path / "b.en").read_text().split("\n")
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [" ".join(line["target"]) for line in lines] == written[:-1]
    assert written[1] == ""
    assert written[0] != ""
    printed = succeed("translate-align", "--model", model, *texts[:2], "--beams", "1").stdout
    assert [line.split("\t")[0] for line in printed.splitlines()] == written[:-1]


def test_mistakes_of_align(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    short = tmp_path / "short.en"
    short.write_text("a\n")
    wrong = [*texts[:3], str(short)]
    told = fail("align", "--model", model, *wrong)
    assert "a.de has 3 lines and" in told
    assert "short.en has 1" in told
    (tmp_path / "none").write_text("")
    none = str(tmp_path / "none")
    assert "has no lines" in fail("align", "--model", model, "--source", none, "--target", none)
    assert "cannot read" in fail("align", "--model", model, *texts[:3], str(tmp_path / "x"))
    assert "no layer '7'" in fail("align", "--model", model, *texts, "--layer", "7")
    assert "no folder" in fail("align", "--model", model, *texts, "-o", str(tmp_path / "x" / "y"))
    assert "read, not written" in fail("align", "--model", model, *texts, "-o", "a.final")
    assert "valid: attention, saliency" in fail("align", *texts, "--method", "giza")
    assert not (tmp_path / "links.pharaoh").exists()
    bert = tmp_path / "bert"
    tiny_model("bert").save_pretrained(bert)
    tokenizer().save_pretrained(bert)
    assert "no encoder-decoder model" in fail("align", "--model", str(bert), *texts)


# ---- aer


def test_aer_by_hand(tmp_path: Path) -> None:
    # S = {00, 11}, P = S + {12, 21}; A = {00, 12, 30}: AER 2/5, P 2/3, R 1/2, F1 4/7.
    (tmp_path / "gold.talp").write_text("1-1 2-2 2p3 3p2\n")
    (tmp_path / "made").write_text("0-0 1-2 3-0\n")
    files = "--gold", str(tmp_path / "gold.talp"), "--hypothesis", str(tmp_path / "made")
    printed = succeed("aer", *files).stdout
    row = next(line for line in printed.splitlines() if line.startswith(str(tmp_path / "made")))
    for value in ("40.0", "66.7", "50.0", "57.1"):
        assert f" {value} [{value}, {value}]" in row  # one sentence: every resample is it
    assert "1 sentences, 3 links; gold 2 sure, 4 possible; hits 1 sure, 2 possible" in printed
    told = json.loads(succeed("aer", *files, "--json").stdout)[str(tmp_path / "made")]
    assert told["aer"] == 2 / 5
    assert told["counts"]["possible_hits"] == 2
    assert told["intervals"]["aer"] == [0.4, 0.4]
    assert "[" not in succeed("aer", *files, "--resamples", "0").stdout


def test_mistakes_of_aer(tmp_path: Path) -> None:
    (tmp_path / "gold.talp").write_text("1-1\n1-1\n")
    (tmp_path / "one").write_text("0-0\n")
    (tmp_path / "mixed.talp").write_text("1-1\n0-1\n")
    (tmp_path / "far").write_text("0-0\n5-0\n")
    (tmp_path / "text").write_text("a b\nc\n")

    def told(name: str, *more: str) -> str:
        made = str(tmp_path / name)
        return fail("aer", "--gold", str(tmp_path / "gold.talp"), "--hypothesis", made, *more)

    assert "gold.talp has 2 lines" in told("one")
    assert "mixed.talp, line 2: '0-1' has an index 0" in told("mixed.talp")
    text = "--source", str(tmp_path / "text"), "--target", str(tmp_path / "text")
    assert "far, line 2: the link 5-0" in told("far", *text)
    assert "unknown format 'x'" in told("far", "--hypothesis-format", "x")
