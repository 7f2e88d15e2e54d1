"""Where a model comes from: folders, names on the hub, revisions, and public names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from transformers import BertForMaskedLM, BertModel

from normscope.errors import InputError, ModelNotFoundError
from normscope.models import identity, load
from normscope.models.default import DEFAULT_MODEL, DEFAULT_REVISION
from tests.helpers.saved_models import COMMIT, SMALL_BERT, put_in_cache


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    for name in (str(tmp_path / "no"), tmp_path / "no", "./no", "../no", "a/b/c", "~no/x"):
        with pytest.raises(ModelNotFoundError, match=f"no folder '{re.escape(str(name))}'"):
            load(name)
    with pytest.raises(InputError, match="name is empty"):
        load("  ")


def test_a_file_is_not_a_folder(folder: Path) -> None:
    with pytest.raises(InputError, match=r"is a file; give the folder it is in: '.*tiny-model'"):
        load(folder / "model.safetensors")


def test_a_folder_without_a_model_is_refused_with_what_it_has(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelNotFoundError, match="it is empty"):
        load(empty)
    with pytest.raises(ModelNotFoundError, match="mean a folder inside it: tiny-model"):
        load(tmp_path)
    (empty / "notes.txt").touch()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json; it has: notes\.txt; give"):
        load(empty)
    for index in range(20):
        (empty / f"part-{index:02}.txt").touch()
    with pytest.raises(ModelNotFoundError, match=r"part-10\.txt, and 9 more; give"):
        load(empty)
    (empty / "adapter_config.json").touch()
    with pytest.raises(ModelNotFoundError, match="it is an adapter: merge it"):
        load(empty)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no weights .* it has: config\.json, "):
        load(folder)


def test_a_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(InputError, match="is a folder, and a folder has no revision 'v1'"):
        load(folder, revision="v1")


def test_another_revision_of_the_default_model_is_another_model(
    folder: Path, hub_cache: Path
) -> None:
    put_in_cache(hub_cache, DEFAULT_MODEL, COMMIT, folder)
    model, _ = load(DEFAULT_MODEL, revision=COMMIT)
    assert type(model) is BertForMaskedLM
    assert identity(model) == {"name": DEFAULT_MODEL, "revision": COMMIT}


def test_the_default_model_by_its_name() -> None:
    for name, revision in (
        (DEFAULT_MODEL, None),
        (DEFAULT_MODEL, DEFAULT_REVISION),
        ("minilm", None),
    ):
        model, _ = load(name, revision=revision, tokenizer=False)
        assert identity(model) == {"name": DEFAULT_MODEL, "revision": DEFAULT_REVISION}
    with pytest.raises(InputError, match=f"one revision, {DEFAULT_REVISION}, not 'main'"):
        load(revision="main")


def test_a_folder_with_the_short_name_of_a_default_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, folder.parent / "minilm")
    monkeypatch.chdir(folder.parent)
    assert identity(load("minilm")[0]) == {"name": "minilm", "revision": None}


def test_a_folder_never_gives_its_path_away(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    relative, _ = load(f"{tmp_path.name}/tiny-model")
    monkeypatch.chdir(folder)
    ours, tokenizer = load(folder)
    theirs = BertForMaskedLM.from_pretrained(folder)
    for model in (ours, theirs, tokenizer, relative):
        assert model is not None
        assert identity(model) == {"name": "tiny-model", "revision": None}
    shutil.rmtree(folder)
    assert identity(ours)["name"] == identity(theirs)["name"] == "tiny-model"


def test_a_snapshot_is_called_what_the_hub_calls_it(folder: Path, tmp_path: Path) -> None:
    snapshot = put_in_cache(tmp_path / "cache", "someone/tiny", COMMIT, folder)
    for model in (load(snapshot)[0], BertForMaskedLM.from_pretrained(snapshot)):
        assert identity(model) == {"name": "someone/tiny", "revision": COMMIT}


def test_a_model_that_was_never_saved_is_called_by_its_class() -> None:
    assert identity(BertModel(SMALL_BERT)) == {"name": "BertModel", "revision": None}
