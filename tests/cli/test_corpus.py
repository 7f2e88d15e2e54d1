"""`normscope corpus`: how its options are read, whole runs, and what Ctrl-C says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import normscope
from normscope import InputError
from normscope.cli import app as cli
from normscope.cli.corpus import CorpusArguments, parse_categories, parse_tokens
from normscope.corpus import work
from normscope.measures.statistics import StatisticSettings
from tests.helpers.commands import fail
from tests.helpers.corpora import contents, mixed_corpus


def test_options_become_keyword_arguments() -> None:
    arguments = CorpusArguments(
        data=[Path("a.txt")],
        more=[Path("b.txt")],
        sample="0.5",
        seed=7,
        masking=0.0,
        category=["stop=the,a"],
    )
    keywords = arguments.for_python()
    assert keywords["data"] == [Path("a.txt"), Path("b.txt")]
    assert keywords["sample"] == 0.5
    settings = keywords["settings"]
    assert (settings.seed, settings.masking) == (7, 0.0)
    assert settings.categories == {"stop": ["the", "a"]}


def test_data_is_needed() -> None:
    assert fail("corpus") == "no data was given: name the files, as in --data wiki.txt"


def test_categories() -> None:
    categories = parse_categories(["stop=the,a", "digits=/[0-9]+/", "slash=/", "equal=a=b"])
    assert categories == {
        "stop": ["the", "a"],
        "digits": re.compile("[0-9]+"),
        "slash": ["/"],
        "equal": ["a=b"],
    }


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["stop"], r"must be NAME=TOKEN,TOKEN or NAME=/REGEX/.*not 'stop'"),
        (["=the"], "not '=the'"),
        (["a=/(/"], r"--category a: '/\(/' is not a valid regular expression"),
        (["a=b", "a=c"], "--category a was given twice; .*a=TOKEN,TOKEN"),
        (["a=b,,c"], "separate them by single commas"),
    ],
)
def test_categories_that_cannot_be_read(entries: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_categories(entries)


def test_tokens_are_split_as_in_a_csv_file() -> None:
    assert parse_tokens('the,",",of') == ["the", ",", "of"]
    with pytest.raises(InputError, match="cannot read the tokens"):
        parse_tokens('the,"')


# ---- whole runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_corpus(tmp_path_factory.mktemp("corpus"))


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["corpus", *arguments], prog_name="normscope")


@pytest.mark.slow
def test_the_command(folder: Path, tmp_path: Path) -> None:
    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt"), "--masking", "0"]
    both = [*common, "--data", str(folder / "b.jsonl"), "--output", str(tmp_path / "out")]
    assert command("--model", str(folder / "model")).exit_code == 2  # no data
    done = command(*both, "--statistics", "mixing,categories", "--sample", "0.8", "--seed", "1")
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "bad row: b.jsonl, line 4: broken JSON" in done.output
    assert f"wrote {tmp_path / 'out'}" in done.output
    before = contents(tmp_path / "out")
    again = command(*both, "--statistics", "mixing,categories", "--sample", "0.8", "--seed", "1")
    assert again.exit_code == 0
    assert contents(tmp_path / "out") == before
    refused = command(*both, "--statistics", "mixing", "--sample", "0.8", "--seed", "1")
    assert refused.exit_code == 2
    assert "holds a run with other settings: statistics was" in " ".join(refused.output.split())
    shown = command(*common, "--statistics", "mixing", "--limit", "10")
    assert shown.exit_code == 0
    assert "attn_res_ln_n" in shown.output
    assert "10 sequences" in shown.output
    # As a shell writes --data *: more files follow the first.
    several = command("--data", str(folder / "a.txt"), str(folder / "b.jsonl"), *common[:2],
                      "--statistics", "dispersion,preserve_mix")  # fmt: skip
    assert several.exit_code == 0, several.output
    assert "bad row: b.jsonl, line 4: broken JSON" in several.output
    assert "…" not in several.stdout  # no number is cut off, and each column has its name
    for name in ("dispersion_transformed_norm", "intervals are in the files", "preserved"):
        assert name in several.output
    assert command(*common, "--sample", "some").exit_code == 2
    assert command(*common, "--bad-rows", "drop").exit_code == 2


def test_categories_on_the_command_line_are_those_of_python(folder: Path, tmp_path: Path) -> None:
    given = ["--category", 'marks=.,","', "--category", "c=/c.*/", "--category", "the=the"]
    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt")]
    done = command(
        *common, "--statistics", "categories,mixing", "--masking", "0", "--replicates", "0",
        *given, "--output", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    own: dict[str, Any] = {"marks": [".", ","], "c": re.compile("c.*"), "the": ["the"]}
    settings = StatisticSettings(categories=own, masking=0.0, replicates=0)
    wanted = normscope.corpus(
        folder / "model", [folder / "a.txt"], ["categories", "mixing"], settings=settings
    )
    for name, table in wanted.tables.items():
        assert (tmp_path / "out" / "tables" / f"{name}.csv").read_text() == table.to_csv()
    assert wanted["categories"].lists()["category"] == ["marks", "c", "the", "others"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["stop"], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["=the"], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["stop="], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["stop=the,,a"], "separate them by single commas"),
        (['stop=the,"'], "separate them by single commas"),
        (["c=/(/"], "is not a valid regular expression"),
        (["c=/zebra[0-9]/"], "no token of the tokenizer's vocabulary"),
        (["stop=zebra"], "is not in the tokenizer's vocabulary"),
        (["stop=the", "stop=a"], "was given twice"),
        (["all=the"], "may not be called 'all'"),
    ],
)
def test_categories_that_cannot_be(folder: Path, given: list[str], message: str) -> None:
    options = [word for one in given for word in ("--category", one)]
    done = command("--model", str(folder / "model"), "--data", str(folder / "a.txt"), *options)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_ctrl_c_says_how_to_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt"), "--replicates=0"]
    common += ["--masking=0", "--statistics=mixing"]
    kept = [*common, "--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(work.CorpusWorker, "run", pressed)
        done, lost = command(*kept), command(*common)
        anew = command(*kept, "--restart")
    assert (done.exit_code, lost.exit_code) == (130, 130)
    where = f"normscope: progress is saved in {tmp_path / 'out'}; the same command resumes"
    assert where in done.output
    assert done.output.endswith("normscope: error: interrupted\n")
    assert "nothing was saved; a run with --output DIR can be resumed" in lost.output
    assert "; the same command without --restart resumes" in anew.output
    again = command(*kept)
    assert again.exit_code == 0, again.output
