"""GGUF files: weights, tokenizer, names; what is refused; what reading leaves behind."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging

from normscope import analyze
from normscope.errors import InputError, MissingExtraError, ModelNotFoundError
from normscope.models import identity, load, resolve
from normscope.models.gguf_files import read_metadata
from tests.helpers.gguf_models import HEADS, KEY_HEADS, write_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def test_the_weights_are_those_of_the_file_dequantised(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    stored = {name: torch.from_numpy(value) for name, value in write_gguf(file).items()}
    model: Any = load(file)[0]
    assert type(model) is LlamaForCausalLM
    assert (model.dtype, model.training) == (torch.float32, False)
    assert model.config._attn_implementation == "sdpa"
    assert not hasattr(model, "hf_quantizer")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, stored["token_embd.weight"])
    assert torch.equal(model.model.norm.weight, stored["output_norm.weight"])
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for name, module in {
            "attn_norm": layer.input_layernorm,
            "attn_v": attention.v_proj,
            "attn_output": attention.o_proj,
            "ffn_norm": layer.post_attention_layernorm,
            "ffn_gate": layer.mlp.gate_proj,
            "ffn_up": layer.mlp.up_proj,
            "ffn_down": layer.mlp.down_proj,
        }.items():
            assert torch.equal(module.weight, stored[f"blk.{index}.{name}.weight"])
        # llama.cpp rotates neighbours, transformers halves: the rows of a head are interleaved.
        for name, module, heads in (
            ("attn_q", attention.q_proj, HEADS),
            ("attn_k", attention.k_proj, KEY_HEADS),
        ):
            rows = stored[f"blk.{index}.{name}.weight"].unflatten(0, (heads, -1, 2))
            assert torch.equal(module.weight, rows.transpose(1, 2).flatten(0, 2))


def test_dtype(file: Path) -> None:
    exact = load(file, tokenizer=False)[0].state_dict()
    assert load(file, tokenizer=False)[1] is None
    for name, dtype in {"float64": torch.float64, "bfloat16": torch.bfloat16}.items():
        converted = load(file, dtype=name, tokenizer=False)[0].state_dict()
        assert all(torch.equal(converted[key], exact[key].to(dtype)) for key in exact)


def test_the_name_and_the_hash_of_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = f"sha256={hashlib.sha256(file.read_bytes()).hexdigest()}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name in (file, "tiny.gguf", "./tiny.gguf", "~/tiny.gguf"):
        model, _ = load(name, tokenizer=False)
        assert identity(model) == {"name": "tiny.gguf", "revision": revision}
    result = analyze(file, text="abc a")
    assert result.signature.startswith(f"model:tiny.gguf|revision:{revision}|weights:sha256=")
    assert max(result.error.values()) < 1e-5


# ---- the tokenizer


def test_special_tokens_are_those_of_the_file(file: Path) -> None:
    tokenizer: Any = load(file)[1]
    special = (tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    assert special == ("<end>", "<start>", "<end>", "<pad>")
    assert not tokenizer.clean_up_tokenization_spaces


def test_a_first_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    for wanted in (True, False):
        file = tmp_path / f"{wanted}.gguf"
        write_gguf(file, tokenizer__ggml__add_bos_token=wanted)
        tokenizer: Any = load(file)[1]
        first = ["<start>"] if wanted else []
        assert tokenizer.convert_ids_to_tokens(tokenizer("bc a")["input_ids"]) == [
            *first,
            *("bc", "Ġa"),
        ]
        pair = tokenizer.convert_ids_to_tokens(tokenizer("bc", "a")["input_ids"])
        assert pair == [*first, "bc", *first, "a"]
        assert tokenizer.decode(tokenizer("bc a")["input_ids"], skip_special_tokens=True) == "bc a"


def test_digits_are_split_off_where_the_model_was_trained_so(tmp_path: Path) -> None:
    pieces = {}
    for name in ("gpt-2", "smollm"):
        file = tmp_path / f"{name}.gguf"
        write_gguf(file, tokenizer__ggml__pre=name)
        tokenizer: Any = load(file)[1]
        pieces[name] = tokenizer.convert_ids_to_tokens(tokenizer("a\n\n12")["input_ids"])
    assert pieces["gpt-2"] == ["a", "Ċ", "Ċ", "1", "2"]
    assert pieces["smollm"] == ["a", "ĊĊ", "1", "2"]


def test_files_beside_it_are_not_read(file: Path, folder: Path) -> None:
    expected = load(file)
    for other in folder.iterdir():
        shutil.copy(other, file.parent)
    (file.parent / "config.json").write_text(json.dumps({"model_type": "bert"}))
    model, tokenizer = load(file)
    assert type(model) is type(expected[0])
    assert tokenizer is not None
    assert expected[1] is not None
    assert tokenizer.get_vocab() == expected[1].get_vocab()


# ---- what is refused


def test_there_is_no_such_file(tmp_path: Path) -> None:
    for name in (tmp_path / "no.gguf", "no.gguf", "owner/no.gguf"):
        with pytest.raises(ModelNotFoundError, match=r"there is no file '.*no\.gguf'.*on the hub"):
            load(name)


def test_a_file_has_no_revision(file: Path) -> None:
    with pytest.raises(InputError, match="is a file, and a file has no revision 'v1'"):
        load(file, revision="v1")


def test_a_folder_with_a_gguf_file(file: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"give the GGUF file itself: '.*tiny\.gguf'"):
        load(file.parent)


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 24, 60, 200, 1000])
def test_a_start_that_is_cut_short(file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelNotFoundError, match="is cut short or is not a GGUF file"):
        load(file)


def test_weights_that_are_cut_short(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelNotFoundError, match="check that the file is complete"):
        load(file)


def test_what_is_no_gguf_file(file: Path) -> None:
    content = file.read_bytes()
    for spoilt in (b"PK" + content[2:], content[:4] + b"\x00\x00\x00\x03" + content[8:]):
        file.write_bytes(spoilt)
        with pytest.raises(ModelNotFoundError, match="is not a GGUF file of version 2 or 3"):
            load(file)


def test_metadata_with_any_wrong_byte_is_read_or_refused(file: Path) -> None:
    content = file.read_bytes()
    for position in range(4, 600):
        for byte in (0, 255):
            file.write_bytes(content[:position] + bytes([byte]) + content[position + 1 :])
            try:
                read_metadata(file)
            except ModelNotFoundError:
                continue


def test_one_of_several_files(tmp_path: Path) -> None:
    file = tmp_path / "tiny-00001-of-00003.gguf"
    write_gguf(file, split__count=3)
    with pytest.raises(ModelNotFoundError, match="one of the 3 files of a model; join them"):
        load(file)


def test_an_architecture_that_is_not_read(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b"llama", b"ilama"))
    with pytest.raises(ModelNotFoundError, match="reads GGUF files of this architecture"):
        load(file)


def test_a_layer_without_weights_is_refused(file: Path) -> None:
    key = b"llama.block_count\x04\x00\x00\x00"
    content = file.read_bytes()
    assert content.count(key + b"\x02") == 1
    file.write_bytes(content.replace(key + b"\x02", key + b"\x03"))
    with pytest.raises(ModelNotFoundError, match=r"lack 9 parameters .*model\.layers\.2\."):
        load(file)


def test_layers_that_are_not_counted_are_refused(file: Path) -> None:
    key = b"llama.block_count\x04\x00\x00\x00"
    content = file.read_bytes()
    file.write_bytes(content.replace(key + b"\x02", key + b"\x01"))
    with pytest.raises(
        ModelNotFoundError, match=r"has layers that would be left out.*block_count.* 1: blk\.1;"
    ):
        load(file)
    model: Any = load(file, strict=False)[0]
    assert len(model.model.layers) == 1


def test_without_the_package(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "gguf" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(MissingExtraError, match=r"this needs gguf, .*'normscope\[gguf\]'"):
        load(file)


# ---- what reading leaves behind


@pytest.fixture
def untouched() -> Iterator[None]:
    module: Any = modeling_gguf_pytorch_utils

    def parts() -> tuple[Any, ...]:
        return gguf.GGUFReader, gguf.get_tensor_name_map, module.tqdm

    before = parts()
    yield
    assert parts() == before


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_and_the_file_is_parsed_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Any] = []
    real = gguf.GGUFReader.__init__

    def counting(self: Any, *arguments: Any) -> None:
        parsed.append(arguments)
        real(self, *arguments)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counting)
    load(file)
    assert len(parsed) == 1
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ModelNotFoundError):
        load(file)


def test_bars_obey_the_switch_of_transformers(
    file: Path, capfd: pytest.CaptureFixture[str], messages: list[str]
) -> None:
    logging.disable_progress_bar()
    _, tokenizer = resolve(file)
    assert tokenizer is not None
    tokenizer.decode(tokenizer("abc a")["input_ids"])
    assert capfd.readouterr() == ("", "")
    assert messages == []
    logging.enable_progress_bar()
    load(file)
    assert "de-quantizing" in capfd.readouterr().err
