"""A run with another model, other data or other settings is another run, and is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope.errors import InputError
from tests.helpers.corpora import (
    SETTINGS,
    OtherSums,
    contents,
    interrupt,
    quick_measuring,
    save_model,
)
from tests.helpers.corpora import quick_run as run

pytestmark = pytest.mark.usefixtures("quick")


def changed_weights(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {"model": save_model(tmp_path / "model", seed=1)}


def changed_config(folder: Path, tmp_path: Path) -> dict[str, Any]:
    made = save_model(tmp_path / "model")
    config = json.loads((made / "config.json").read_text())
    config["layer_norm_eps"] = 1e-3
    (made / "config.json").write_text(json.dumps(config))
    return {"model": made}


def changed_data(folder: Path, tmp_path: Path) -> dict[str, Any]:
    text = (folder / "a.txt").read_text()
    (tmp_path / "a.txt").write_text(text.replace("cat", "dog", 1))
    return {"data": [tmp_path / "a.txt", folder / "b.jsonl"]}


def fewer_data(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {"data": [folder / "a.txt"]}


def other(**changes: Any) -> Any:
    return lambda folder, tmp_path: changes


CHANGES = [
    (changed_weights, r"model\.weights was"),
    (changed_config, r"model\.config was"),
    (changed_data, r"data\[0\]\.sha256 was"),
    (fewer_data, r"data\[1\]\.name was \"b.jsonl\" and is not there"),
    (other(max_length=16), r"options\.max_length was 64 and is 16"),
    (other(batch_tokens=32), r"options\.batch_tokens was 64 and is 32"),
    (other(text_field="body"), r"options\.text_field was not there and is \"body\""),
    (other(pair_field="next"), r"options\.pair_field was not there and is \"next\""),
    (other(limit=30), r"options\.limit was not there and is 30"),
    (other(sample=0.5), r"options\.sample was not there and is 0\.5"),
    (other(seed=3), r"settings\.seed was 0 and is 3"),
    (other(bad_rows="error"), r"options\.bad_rows was \"skip\" and is \"error\""),
    (other(settings=replace(SETTINGS, categories={"the": ["the"]})), r"settings\.categories"),
    (other(statistics=("mixing",)), r"statistics was .*Sums.* and is \[\"mixing\"\]"),
    (other(dtype="float64"), r"model\.dtype was \"float32\" and is \"float64\""),
]


@pytest.fixture(scope="module")
def standing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that was interrupted."""
    home = tmp_path_factory.mktemp("standing")
    with quick_measuring():
        run(folder, home / "finished")
        interrupt(folder, home / "begun", after=3)
    return {"finished": home / "finished", "begun": home / "begun"}


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_changed_model_data_or_setting_is_refused_by_name(
    folder: Path, standing: dict[str, Path], tmp_path: Path, change: Any, words: str
) -> None:
    changes = change(folder, tmp_path)
    for output in standing.values():
        before = contents(output)
        with pytest.raises(InputError, match=words) as caught:
            run(folder, output, **changes)
        assert "--restart" in str(caught.value)
        assert contents(output) == before


def test_another_version_is_refused(
    folder: Path, standing: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normscope, "__version__", "9.9.9")
    with pytest.raises(InputError, match=r'versions.normscope was "0.1.0" and is "9.9.9"'):
        run(folder, standing["begun"])


def test_a_statistic_that_was_changed_is_another_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "out", statistics=[OtherSums()])
    changed = OtherSums()
    changed.least = 3  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="statistics was"):
        run(folder, tmp_path / "out", statistics=[changed])
    run(folder, tmp_path / "out", statistics=[OtherSums()])
    monkeypatch.setattr("inspect.getsource", lambda made: "class Other: ...")
    with pytest.raises(InputError, match="statistics was"):
        run(folder, tmp_path / "out", statistics=[OtherSums()])


def test_the_order_of_categories_is_part_of_a_run(folder: Path, tmp_path: Path) -> None:
    """A token belongs to the first category that names it."""
    one = {"a": ["the"], "b": ["the", "cat"]}
    settings = replace(SETTINGS, categories=one)
    run(folder, tmp_path / "out", settings=settings)
    run(folder, tmp_path / "out", settings=settings)
    turned = replace(SETTINGS, categories=dict(reversed(one.items())))
    with pytest.raises(InputError, match=r"settings\.categories was"):
        run(folder, tmp_path / "out", settings=turned)


def test_one_row_is_not_all_of_them(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", sample=1)
    with pytest.raises(InputError, match=r"options\.sample was 1 and is 1\.0"):
        run(folder, tmp_path / "out", sample=1.0)
