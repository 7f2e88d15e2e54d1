"""What cannot be loaded is refused, with what to do about it; nothing of it is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForMaskedLM

from normscope.errors import ModelNotFoundError
from normscope.models import load
from tests.helpers.saved_models import COMMIT, edit, put_in_cache


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


def test_a_name_that_is_not_to_be_had(hub_cache: Path) -> None:
    for name in ("nobody/nothing", "nothing"):
        with pytest.raises(
            ModelNotFoundError,
            match=rf"cannot load the model '{name}'.*owner/name.*without a net",
        ):
            load(name)


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
