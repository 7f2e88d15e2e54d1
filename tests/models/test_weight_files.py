"""The files of weights: what an index may name, adapters, numbers without their scales."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM

from normscope.errors import ModelNotFoundError
from normscope.models import load
from tests.helpers.saved_models import COMMIT, edit, put_in_cache

INDEX = "model.safetensors.index.json"


def divide(folder: Path, shard: str) -> Path:
    """Replace a folder's weights by an index that names one file."""
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "weights")
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)})
    )
    return folder.parent / "weights"


@pytest.mark.parametrize(
    "shard",
    [
        *("../weights", "inner/../../weights.safetensors", "..\\weights.safetensors"),
        *("/weights.safetensors", "C:\\weights.safetensors", "\\\\host\\weights.safetensors"),
    ],
)
def test_an_index_names_no_file_outside_of_its_folder(folder: Path, shard: str) -> None:
    divide(folder, shard)
    with pytest.raises(ModelNotFoundError, match=r"index\.json of .*outside of the model's folder"):
        load(folder)
    with pytest.raises(ModelNotFoundError, match="outside of the model's folder"):
        load(folder, strict=False)


def test_a_file_outside_is_not_read_by_its_whole_path(folder: Path) -> None:
    outside = folder.parent / "other.safetensors"
    divide(folder, str(outside)).rename(outside)
    with pytest.raises(ModelNotFoundError, match="names files outside"):
        load(folder)


def test_an_index_names_no_pickle(folder: Path) -> None:
    weights = divide(folder, "pytorch_model.bin")
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    with pytest.raises(
        ModelNotFoundError, match=r"not safetensors: pytorch_model\.bin; they may be pickles"
    ):
        load(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {"a": 1}}', "{not json"])
def test_an_index_that_is_none(folder: Path, content: str) -> None:
    divide(folder, "x.safetensors")
    (folder / INDEX).write_text(content)
    with pytest.raises(ModelNotFoundError, match=r"is not an index of weights .*save the model"):
        load(folder)


def test_the_config_names_no_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "adapter_model.bin")
    edit(folder / "config.json", transformers_weights="adapter_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"in 'adapter_model\.bin' .*is not safetensors"):
        load(folder)


def test_links_out_of_the_folder_are_followed(folder: Path, hub_cache: Path) -> None:
    """As in the hub's cache, whose snapshots consist of links."""
    shard = "model-00001-of-00001.safetensors"
    divide(folder, shard).rename(folder / shard)
    put_in_cache(hub_cache, "someone/tiny", COMMIT, folder)
    (folder / shard).rename(folder.parent / "elsewhere")
    (folder / shard).symlink_to(folder.parent / "elsewhere")
    assert type(load(folder)[0]) is BertForMaskedLM
    assert type(load("someone/tiny")[0]) is BertForMaskedLM


def test_the_hub_is_no_exception(folder: Path, hub_cache: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    put_in_cache(hub_cache, "someone/adapted", COMMIT, folder)
    with pytest.raises(ModelNotFoundError, match=r"'someone/adapted' has an adapter beside"):
        load("someone/adapted")
    divide(folder, "pytorch_model.bin")
    put_in_cache(hub_cache, "someone/pickled", COMMIT, folder)
    with pytest.raises(ModelNotFoundError, match=r"of 'someone/pickled' names files that are not"):
        load("someone/pickled")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_beside_the_model_is_not_ignored(folder: Path, name: str) -> None:
    (folder / name).write_text("{}")
    with pytest.raises(
        ModelNotFoundError, match=rf"an adapter beside .*\({name}\).*merge_and_unload.*strict=False"
    ):
        load(folder)
    assert type(load(folder, strict=False)[0]) is BertForMaskedLM


def test_integers_without_scales_are_not_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.query.weight"
    weights[name] = (weights[name] * 50).to(torch.int8)
    weights["bert.embeddings.position_ids"] = torch.arange(16)[None]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=rf"are quantised, .*: {name} \(I8\); save"):
        load(folder)
    assert type(load(folder, strict=False)[0]) is BertForMaskedLM
    divided = "model-00001-of-00001.safetensors"
    divide(folder, divided).rename(folder / divided)
    with pytest.raises(ModelNotFoundError, match=rf"{name} \(I8\); save"):
        load(folder)
