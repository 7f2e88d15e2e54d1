"""Which pixels each position reads: found at once, and by changing the image patch by patch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normscope.engine.footprints import SEVERAL, Footprint, _decoded, footprints_of
from normscope.models.inventory import Inventory
from tests.helpers.pictured import IMAGE, inputs_of, model_of

TOWERS = ("vit", "registers", "yolos", "clip", "siglip")
IN_TEXT = (
    *("llava", "llava (layer)", "llava next", "pixtral", "mistral3", "gemma3", "idefics3"),
    *("internvl", "qwen2-vl", "qwen2.5-vl"),
)
GRIDS = {  # rows and columns of the patches that the language model reads
    "llava": (3, 3), "llava (layer)": (3, 3), "pixtral": (2, 3), "mistral3": (2, 3),
    "gemma3": (2, 2), "idefics3": (2, 2), "internvl": (2, 2), "qwen2-vl": (2, 3),
    "qwen2.5-vl": (4, 6),
}  # fmt: skip
# What a layer adds to its input comes out of modules with these names.
ENDS = ("out_proj", "o_proj", "proj", "fc2", "down_proj", "dense", "output", "projection_layer")


class _Stopped(Exception):
    """The stack has begun."""


def entering(model: Any, inputs: dict[str, Any], stack: str) -> torch.Tensor:
    """The states that enter a stack, as (position, hidden)."""
    first = next(layer for layer, name in Inventory(model).elements.items() if name == stack)
    states: list[torch.Tensor] = []

    def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
        states.append(args[0] if args else kwargs["hidden_states"])
        raise _Stopped

    handle = first.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        with torch.no_grad(), pytest.raises(_Stopped):
            model(**inputs)
    finally:
        handle.remove()
    return states[0].reshape(-1, states[0].shape[-1])


def with_plain_tower(name: str) -> Any:
    """A model whose vision layers add nothing to their input, so that no patch reads another."""
    model = type(model_of(name))(model_of(name).config).to(torch.float64).eval()
    model.load_state_dict(model_of(name).state_dict())
    for layer, stack in Inventory(model).elements.items():
        if "vis" not in stack:
            continue
        with torch.no_grad():
            for path, module in layer.named_modules():
                if path.rpartition(".")[2] in ENDS and isinstance(module, nn.Linear):
                    for parameter in module.parameters():
                        parameter.zero_()
    return model


def changed_patch(
    name: str, inputs: dict[str, Any], footprint: Footprint, place: tuple[int, int, int]
) -> dict[str, Any]:
    """The inputs with other pixels in one patch of a grid; pixels of Qwen are found by hand."""
    image, row, column = place
    grid = footprint.grids[image]
    top, left, bottom, right = grid.covers
    high, wide = (bottom - top) // grid.rows, (right - left) // grid.columns
    values = inputs["pixel_values"].clone()
    if name.startswith("qwen"):
        # Blocks of 2 × 2 patches follow each other, row by row of blocks; a patch has 4 × 4 pixels.
        _, _, columns = inputs["image_grid_thw"][0].tolist()
        for y in range(row * high // 4, (row + 1) * high // 4):
            for x in range(column * wide // 4, (column + 1) * wide // 4):
                block = (y // 2) * (columns // 2) + x // 2
                values[4 * block + 2 * (y % 2) + x % 2] += 1
    else:
        pictures = values.reshape(-1, *values.shape[-3:])
        y, x = top + row * high, left + column * wide
        pictures[image, :, y : y + high, x : x + wide] += 1
    return {**inputs, "pixel_values": values}


def check_by_changing(name: str, model: Any, inputs: dict[str, Any], stack: str) -> Footprint:
    """Every place by changing its patch: exactly the position that has it is another state."""
    footprint = footprints_of(model, inputs)[stack]
    before = entering(model, inputs, stack)
    assert len(footprint.places) == len(before)
    for position, place in enumerate(footprint.places):
        if place is None:
            continue
        after = entering(model, changed_patch(name, inputs, footprint, place), stack)
        different = (after - before).abs().amax(dim=-1) > 1e-9
        assert different.nonzero().flatten().tolist() == [position]
    return footprint


@pytest.mark.parametrize("name", TOWERS)
def test_a_patch_of_a_tower_is_the_state_that_its_pixels_change(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    (stack,) = footprints_of(model, inputs)
    footprint = check_by_changing(name, model, inputs, stack)
    columns = 4 if name == "yolos" else 3
    expected = [(0, row, column) for row in range(3) for column in range(columns)]
    assert [place for place in footprint.places if place is not None] == expected
    assert footprint.grids[0].covers == (0, 0, 12, 4 * columns)


@pytest.mark.parametrize("name", IN_TEXT)
def test_a_patch_in_a_text_is_the_state_that_its_pixels_change(name: str) -> None:
    model, inputs = with_plain_tower(name), inputs_of(name)
    tower, text = footprints_of(model, inputs)
    check_by_changing(name, model, inputs, tower)
    footprint = check_by_changing(name, model, inputs, text)
    is_image = (inputs["input_ids"][0] == IMAGE).tolist()
    if name != "llava next":  # which also has embeddings for the ends of rows
        assert [place is not None for place in footprint.places] == is_image
        assert (footprint.grids[0].rows, footprint.grids[0].columns) == GRIDS[name]


@pytest.mark.parametrize("name", IN_TEXT)
def test_attention_of_the_tower_does_not_change_the_places(name: str) -> None:
    """The real tower mixes patches, which is left out: its places are those of a plain tower."""
    inputs = inputs_of(name)
    plain = footprints_of(with_plain_tower(name), inputs)
    mixing = footprints_of(model_of(name), inputs)
    assert {stack: seen.places for stack, seen in mixing.items()} == {
        stack: seen.places for stack, seen in plain.items()
    }


def test_merged_patches_of_qwen_are_blocks_of_two_by_two() -> None:
    visual, text = footprints_of(model_of("qwen2-vl"), inputs_of("qwen2-vl")).values()
    assert visual.places[:6] == ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 2), (0, 0, 3))
    assert text.places[1:7] == tuple((0, row, column) for row in range(2) for column in range(3))
    assert text.grids[0].covers == visual.grids[0].covers == (0, 0, 16, 24)


def test_windows_put_patches_into_another_order_and_the_text_into_that_of_the_image() -> None:
    visual, text = footprints_of(model_of("qwen2.5-vl"), inputs_of("qwen2.5-vl")).values()
    inside = [place for place in visual.places if place is not None]
    assert sorted(inside) == [(0, row, column) for row in range(8) for column in range(12)]
    assert set(inside[:16]) == {(0, row, column) for row in range(4) for column in range(4)}
    merged = [place for place in text.places if place is not None]
    assert merged == [(0, row, column) for row in range(4) for column in range(6)]


def test_positions_without_pixels_are_called_after_their_parameters() -> None:
    (seen,) = footprints_of(model_of("registers"), inputs_of("registers")).values()
    assert seen.names == {0: "[CLS]", 1: "[REG 0]", 2: "[REG 1]", 3: "[REG 2]"}
    (seen,) = footprints_of(model_of("yolos"), inputs_of("yolos")).values()
    last = {13 + at: f"[DET {at}]" for at in range(5)}
    assert seen.names == {0: "[CLS]", **last}
    (seen,) = footprints_of(model_of("siglip"), inputs_of("siglip")).values()
    assert seen.names == {}


def test_two_rows_have_images_of_their_own() -> None:
    inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs_of("llava").items()}
    _, text = footprints_of(model_of("llava"), inputs).values()
    length = inputs["input_ids"].shape[1]
    first, second = text.places[:length], text.places[length:]
    assert [place and (place[0] + 1, *place[1:]) for place in first] == list(second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_places_do_not_depend_on_the_dtype(dtype: torch.dtype) -> None:
    for name in ("vit", "llava", "qwen2-vl"):
        wide = model_of(name)
        model = type(wide)(wide.config).eval()
        model.load_state_dict(wide.state_dict())
        inputs = {
            key: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for key, tensor in inputs_of(name).items()
        }
        seen = footprints_of(model.to(dtype), inputs)
        expected = footprints_of(wide, inputs_of(name))
        assert {key: each.places for key, each in seen.items()} == {
            key: each.places for key, each in expected.items()
        }


def test_the_model_is_left_as_it_was_also_without_gradients() -> None:
    model, inputs = with_plain_tower("llava"), inputs_of("llava")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        assert len(footprints_of(model, inputs)) == 2
    assert model.training
    hooks = [
        h
        for m in model.modules()
        for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
    ]
    assert not any(hook.__module__.startswith("normscope") for hook in hooks)
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_read_off_gradients(dtype: torch.dtype) -> None:
    """Of no position, of one whose digits are whole, and of several, whose digits are mixed."""
    base = 32 if dtype == torch.float32 else 4
    whole = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 1.0], [1.0, 1.0]])
    low = np.array([[0.0, 0.0], [3.0, 6.0], [1.0, 2.0], [3.001, 3.0]])
    high = np.array([[0.0, 0.0], [2.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    found = _decoded(np.stack([whole, low, high]), torch.zeros(4, dtype=dtype))
    assert found.tolist() == [-1, 3 + 2 * base, SEVERAL, 3]
