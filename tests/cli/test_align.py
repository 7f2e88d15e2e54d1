"""`normscope align` and `normscope translate-align`."""

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
from tests.helpers.commands import fail, succeed
from tests.helpers.tiny import tokenizer

SOURCE = ["the cats sat .", "", "raining in the garden , never"]
TARGET = ["cats looked at it", "the dogs", "rain"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny-bart"
    translator: Any = tiny_model("bart", dtype=torch.float32)
    translator.generation_config.max_length = 8
    translator.generation_config.forced_bos_token_id = None
    translator.save_pretrained(folder)
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
        " ".join(f"{s}-{t}" for s, t in pair.links) + "\n" for pair in expected
    )
    assert f"chosen: {expected.choices[0]}" in done.stderr
    assert "normscope: 1 pair with an empty side: no links" in done.stderr
    assert expected.signature in succeed("align", "--model", model, *texts, "--signature").stderr


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
    alignments = align(
        SOURCE, TARGET, model, map="attn_w", layer=0, head=2, reading="awi", soft=True
    )
    assert lines[0]["source"] == SOURCE[0].split()
    assert lines[0]["target"] == TARGET[0].split()
    assert alignments[0].soft is not None
    np.testing.assert_array_equal(np.float32(lines[0]["soft"]), alignments[0].soft)
    assert "soft" not in lines[1]
    scores = {(s, t): score for s, t, score in lines[0]["links"]}
    assert scores == alignments[0].links.scores
    message = fail("align", "--model", model, *texts, "--soft")
    assert "--soft needs an --output that ends in .jsonl or .html" in message


def test_gold_and_another_aligner(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "fast.pharaoh").write_text("0-1 1-0\n\n0-0\n")
    gold = ["--gold", str(tmp_path / "a.talp")]
    how = ["--layer", "1", "--head", "sum", "--reading", "awi"]
    other = ["--compare", str(tmp_path / "fast.pharaoh")]
    done = succeed("align", "--model", model, *texts, *how, *gold, *other)
    alignments = align(SOURCE, TARGET, model, layer=1, head="sum", reading="awi")
    rate = score(read_links(tmp_path / "a.talp"), alignments.links).aer
    rows = {line.split()[0]: line.split() for line in done.stderr.splitlines() if line.split()}
    assert rows["normscope"][1] == f"{100 * rate:.1f}"
    assert rows["fast.pharaoh"][1] == "0.0"
    assert "give --gold too" in fail("align", "--model", model, *texts, *other)
    alike = [tmp_path / "x" / "normscope", tmp_path / "y" / "normscope"]
    for path, links in zip(alike, ("0-1 1-0\n\n0-0\n", "\n\n\n"), strict=True):
        path.parent.mkdir()
        path.write_text(links)
    two = [part for path in alike for part in ("--compare", str(path))]
    compared = succeed("align", "--model", model, *texts, *how, *gold, *two, "-o", "-")
    assert compared.stdout == done.stdout  # "-" is the standard output
    assert sum(line.split()[:1] == ["normscope"] for line in compared.stderr.splitlines()) == 1
    for path in alike:
        assert path.parent.name + "/normscope" in compared.stderr.replace("\n", "")
    back = ["--reverse-model", model, "--symmetrize", "union"]
    printed = succeed("align", "--model", model, *texts, *how, *back).stderr
    assert "chosen for the reverse direction: layer 1" in printed


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
    message = fail("align", "--model", model, *wrong)
    assert "a.de has 3 lines and" in message
    assert "short.en has 1" in message
    (tmp_path / "none").write_text("")
    none = str(tmp_path / "none")
    assert "has no lines" in fail("align", "--model", model, "--source", none, "--target", none)
    assert "cannot read" in fail("align", "--model", model, *texts[:3], str(tmp_path / "x"))
    assert "no layer '7'" in fail("align", "--model", model, *texts, "--layer", "7")
    assert "no folder" in fail("align", "--model", model, *texts, "-o", str(tmp_path / "x" / "y"))
    assert "reads GIZA++'s format but does not write it" in fail(
        "align", "--model", model, *texts, "-o", "a.final"
    )
    assert "valid: attention, saliency" in fail("align", *texts, "--method", "giza")
    assert not (tmp_path / "links.pharaoh").exists()
    bert = tmp_path / "bert"
    tiny_model("bert").save_pretrained(bert)
    tokenizer().save_pretrained(bert)
    assert "is not an encoder-decoder model" in fail("align", "--model", str(bert), *texts)


PAIR = ("--text", "the cats sat.", "--target-text", "Cats sat!")


def test_one_sentence_is_printed_as_word_pairs(model: str) -> None:
    how = ["--layer", "1", "--head", "sum", "--reading", "awo"]
    done = succeed("align", "--model", model, *PAIR, *how)
    expected = align(
        "the cats sat.", "Cats sat!", model, layer=1, head="sum", reading="awo", words="punctuation"
    )
    assert expected[0].source == ("the", "cats", "sat", ".")
    assert done.stdout == f"{expected[0]}\n"
    assert expected.signature.split("|")[0].removeprefix("model:") in done.stderr
    spaced = succeed("align", "--model", model, *PAIR, *how, "--words", "space").stdout
    assert spaced.startswith("the cats sat.\nCats sat!\n")
    guess = succeed("align", "--model", model, *PAIR).stderr
    assert "layer and head were chosen from 1 pair, too few to rely on" in guess


def test_the_packaged_model_aligns_one_sentence_without_a_note() -> None:
    done = succeed("align", "--text", "Das ist gut.", "--target-text", "This is good.")
    rows = [line.split()[:2] for line in done.stdout.splitlines()[4:8]]
    assert rows == [["Das", "This"], ["ist", "is"], ["gut", "good"], [".", "."]]
    assert "surest link" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    named = succeed("align", "--model", "de-en", "--text", "gut", "--target-text", "good")
    assert "The target word is linked" in named.stdout


def test_files_are_printed_as_word_pairs_when_asked(model: str, texts: tuple[str, ...]) -> None:
    gold = ["--gold", texts[1].replace("a.de", "a.talp")]
    printed = succeed("align", "--model", model, *texts, *gold, "--pairs").stdout
    expected = align(SOURCE, TARGET, model, gold=gold[1])
    parts = [f"pair {number}\n{pair}\n" for number, pair in enumerate(expected, 1)]
    assert printed == "\n".join(parts)
    assert "missing" in printed


def test_pairs_from_standard_input(model: str, texts: tuple[str, ...]) -> None:
    lines = "".join(f"{s}\t{t}\n" for s, t in zip(SOURCE, TARGET, strict=True))
    expected = succeed("align", "--model", model, *texts).stdout
    assert succeed("align", "--model", model, "--source", "-", stdin=lines).stdout == expected
    source = "\n".join(SOURCE) + "\n"
    both = succeed("align", "--model", model, "--source", "-", *texts[2:], stdin=source)
    assert both.stdout == expected
    message = fail("align", "--model", model, "--source", "-", stdin="a\tb\nc\n")
    assert "line 2 of the source has no tab" in message
    message = fail("align", "--source", "-", "--target", "-", stdin="a\n")
    assert "standard input can be one of the two texts" in message
    assert "standard input has no lines" in fail("align", "--source", "-", stdin="")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_of_one_pair(
    model: str, texts: tuple[str, ...], tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"pair{suffix}"
    done = succeed("align", "--model", model, *PAIR, "-o", str(output))
    assert done.stdout == ""
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert output.read_bytes().startswith(starts[suffix])
    message = fail("align", "--model", "none/such", *texts, "-o", str(output))
    assert "a picture shows one sentence pair, and there are 3; write a page (.html)" in message


def test_pages(model: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    succeed("align", "--model", model, *PAIR, "-o", str(tmp_path / "pair.html"))
    content = (tmp_path / "pair.html").read_text(encoding="utf-8")
    assert "<title>Cats sat ! · normscope</title>" in content
    succeed("align", "--model", model, *texts, "--soft", "-o", str(tmp_path / "all.html"))
    assert "3 aligned pairs" in (tmp_path / "all.html").read_text(encoding="utf-8")
    succeed("translate-align", "--model", model, *PAIR[:2], "-o", str(tmp_path / "own.html"))
    assert (tmp_path / "own.html").exists()


def test_one_sentence_is_translated_and_printed(model: str) -> None:
    printed = succeed("translate-align", "--model", model, *PAIR[:2], "--beams", "1").stdout
    assert printed.startswith("the cats sat .\n")
    assert "target words" in printed or "No words" in printed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--text", " ", "--target-text", "a"], "--text is empty: give a sentence"),
        (["--text", "a", "--target-text", ""], "--target-text is empty: give a sentence"),
        (["--text", "a"], "--text and --target-text must be given together"),
        (
            ["--target-text", "a", "--source", "x"],
            "--text and --target-text must be given together",
        ),
        ([], "give one sentence with --text, or a file with --source"),
        (
            ["--text", "a", "--target-text", "b", "--source", "x"],
            "give one sentence with --text, or a file with --source",
        ),
        (
            ["--text", "a", "--target-text", "b", "--target", "x"],
            "--target goes with --source, and --target-text with --text",
        ),
    ],
)
def test_wrong_sentences_are_refused_before_a_model_is_loaded(
    given: list[str], message: str
) -> None:
    assert message in fail("align", "--model", "none/such", *given)


def test_the_signature_is_one_short_line_unless_it_is_asked_for(model: str) -> None:
    how = ["--layer", "0", "--head", "0", "--reading", "awo"]
    short = succeed("align", "--model", model, *PAIR, *how).stderr.splitlines()
    assert len(short) == 1
    assert short[0].startswith("signature  tiny-bart, weights ")
    assert len(short[0]) <= 80
    whole = succeed("align", "--model", model, *PAIR, *how, "--signature").stderr
    assert "|choice:0.0.awo|" in whole


def test_the_page_is_opened(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    done = succeed("align", "--model", model, *PAIR, "--open")
    assert done.stdout == ""
    assert opened[0].endswith("page.html")
    assert "ns-wire" in Path(opened[0].removeprefix("file://")).read_text(encoding="utf-8")
    message = fail("align", "--model", model, *PAIR, "--open", "-o", "a.png")
    assert "--open shows a page, but --output is 'a.png'" in message
