"""Loading: the right class, the right weights and tokenizer; a model or its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
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
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from normscope.errors import InputError, ModelNotFoundError
from normscope.models import identity, load, resolve
from normscope.models.default import DEFAULT_REVISION
from tests.helpers.saved_models import COMMIT, SMALL, SMALL_BERT, edit, put_in_cache, save

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


# ---- classes and kernels that a config names


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
        ModelNotFoundError,
        match=r"lack 16 parameters .* random numbers or constants: bert\.encoder\.layer\.2\.",
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
    with pytest.raises(ModelNotFoundError, match=r"random numbers or constants: decoder\.block\.0"):
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
