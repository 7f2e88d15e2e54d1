"""Random inputs: what a model reads, padding, placeholders as many as there are vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.models.architectures import tiny_model
from normscope.models.random_inputs import FIRST_ID, modality_of, random_inputs
from normscope.models.shrinking import shrunken_model


def test_ids_are_padded_and_ordinary() -> None:
    model: Any = tiny_model("bart")
    inputs = random_inputs(model, batch=4)
    assert inputs["attention_mask"].sum(1).tolist() == [9, 8, 7, 9]
    assert inputs["decoder_attention_mask"].sum(1).tolist() == [7, 5, 6, 7]
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    for side in ("", "decoder_"):
        ids, mask = inputs[f"{side}input_ids"], inputs[f"{side}attention_mask"].bool()
        assert (ids[~mask] == pad).all()
        real = ids[mask] if not side else ids[:, 1:][mask[:, 1:]]
        assert (real >= FIRST_ID).all()
        assert (real < model.config.vocab_size).all()
    assert (inputs["decoder_input_ids"][:, 0] == start).all()


def test_the_same_seed_gives_the_same_inputs() -> None:
    model = tiny_model("clip")
    first, second, other = (random_inputs(model, seed=seed) for seed in (0, 0, 1))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert "mask" in name or not torch.equal(tensor, other[name])
        assert tensor.dtype in (torch.float64, torch.long)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_as_many_placeholders_as_vectors_of_the_image(name: str) -> None:
    model = shrunken_model(name)
    inputs = random_inputs(model)
    token = model.config.image_token_id
    images = (inputs["input_ids"] == token).sum(1)
    assert (images == {"llava": 16, "qwen2_vl": 4}[name]).all()
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
        inputs["pixel_values"] = inputs["pixel_values"] + 1
        assert not torch.equal(model(**inputs).last_hidden_state, states)


def test_special_ids_of_the_configuration_are_not_drawn() -> None:
    model = tiny_model("bert")
    model.config.image_token_id = 30
    drawn = [random_inputs(model, seed=seed)["input_ids"] for seed in range(50)]
    assert 30 not in torch.cat(drawn)
    assert {29, 31} <= set(torch.cat(drawn).flatten().tolist())


def test_frames_of_a_waveform_are_counted() -> None:
    model: Any = tiny_model("wav2vec2")
    inputs = random_inputs(model, length=6)
    assert model(**inputs).last_hidden_state.shape[1] == 6
    assert (inputs["input_values"] * (1 - inputs["attention_mask"]) == 0).all()


class Other(nn.Module):
    main_input_name = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self.config: Any = tiny_model("bert").config

    def forward(self, numbers: Any) -> Any:
        return numbers


def test_other_inputs_are_refused() -> None:
    with pytest.raises(InputError, match=r"Other reads numbers, for which.*inputs="):
        random_inputs(Other())


def test_modalities() -> None:
    assert modality_of(["input_ids", "attention_mask"]) == "text"
    assert modality_of(["pixel_values", "input_ids", "pixel_attention_mask"]) == "image + text"
    assert modality_of(["input_features", "decoder_input_ids"]) == "sound + text"
    assert modality_of(["pixel_values_videos"]) == "video"
    assert modality_of(["past_values"]) == "numbers"
