"""Shares of rows: where rows have no axis of their own, and for model types of every wiring."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.attribution.account import RowShares, axes_of, by_row
from normscope.attribution.passes import explain
from normscope.cli import sweep
from normscope.errors import InputError
from normscope.linearisation.rules import rules_of
from normscope.models.random_inputs import random_inputs
from normscope.models.shrinking import shrunken_model
from tests.helpers.explained import size, worst_gap

pytestmark = pytest.mark.usefixtures("unchecked_types")


class Layer(nn.Module):
    """Attention of patches to the patches of the same image, with a bias and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, hidden_states: Tensor, blocked: Tensor) -> Tensor:
        states = functional.silu(self.value(hidden_states))
        mask = torch.zeros(blocked.shape, dtype=states.dtype).masked_fill(blocked, -torch.inf)
        mixed: Tensor = functional.scaled_dot_product_attention(states, states, states, mask)
        return hidden_states + self.out(mixed)


class Tower(nn.Module):
    """A model whose states are the patches of all images, in an order of its own."""

    def __init__(self, order: list[int], images: list[int], flat: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(is_encoder_decoder=False)
        self.order, self.flat = torch.tensor(order), flat
        self.images = torch.tensor(images)[self.order]
        self.embed = nn.Linear(4, 6)
        self.layers = nn.ModuleList([Layer(), Layer()])
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).double() / 3

    def forward(self, grid: Tensor, patches: Tensor) -> Tensor:
        states = self.embed(patches)[self.order]
        blocked = self.images[:, None] != self.images
        if self.flat:
            states, blocked = states[None], blocked[None]
        for layer in self.layers:
            states = layer(states, blocked)
        return states[0] if self.flat else states


PATCHES = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
GRID = {"grid": torch.ones(3, 1)}  # three rows; the patches follow each other


def explain_tower(order: list[int], images: list[int], flat: bool = False) -> RowShares:
    """Explain an entry of the last patch of every image."""
    model = Tower(order, images, flat)
    last = [int((model.images == image).nonzero()[-1]) for image in range(3)]
    inputs = {**GRID, "patches": PATCHES}
    return explain(model, inputs, lambda states: states[last, 1:2], rules_of("frozen"))


def alone(order: list[int], images: list[int], image: int) -> tuple[float, np.ndarray]:
    """Return bias and shares of one image, explained without the others."""
    kept = [at for at in order if images[at] == image]
    model = Tower(list(range(len(kept))), [0] * len(kept), flat=False)
    inputs = {"grid": torch.ones(1, 1), "patches": PATCHES[kept]}
    result = explain(model, inputs, lambda states: states[-1:, 1:2], rules_of("frozen"))
    return float(result.bias[0, 0]), result.sources[0].shares[0, 0].reshape(-1, 4).sum(1)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(
    ("order", "images", "places"),
    [
        ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [[0, 1]] * 3),
        ([1, 0, 2, 3, 5, 4], [0, 0, 1, 1, 2, 2], [[1, 0], [0, 1], [1, 0]]),
        # Images of several sizes, or patches in any order: every row has all of them.
        ([0, 1, 2, 3, 4, 5], [0, 1, 1, 1, 2, 2], [[0], [1, 2, 3], [4, 5]]),
        ([3, 0, 5, 1, 4, 2], [0, 1, 2, 0, 1, 2], [[3, 0], [1, 4], [5, 2]]),
    ],
)
def test_patches_of_several_images_in_one_sequence(
    order: list[int], images: list[int], places: list[list[int]], flat: bool
) -> None:
    result = explain_tower(order, images, flat)
    assert worst_gap(result) < 1e-12
    (source,) = result.sources
    for image in range(3):
        bias, shares = alone(order, images, image)
        assert result.bias[image, 0] == pytest.approx(bias, rel=1e-11)
        mine = source.shares[image, 0].reshape(-1, 4).sum(1)
        np.testing.assert_allclose(mine[places[image]], shares, rtol=1e-11)
        assert np.count_nonzero(mine) == len(shares)


def test_axes() -> None:
    assert axes_of((6, 4), 3) == "rows first"
    assert axes_of((4, 3), 3) == "positions first"
    assert axes_of((1, 6), 3) == "rows first"
    assert axes_of((1, 7), 3) == "unknown"
    assert axes_of((7,), 1) == "rows first"
    numbers = torch.arange(12)
    assert by_row(numbers.view(4, 3), 3, "positions first")[1].tolist() == [1, 4, 7, 10]
    assert by_row(numbers.view(1, 12), 3, "rows first")[1].tolist() == [4, 5, 6, 7]


def test_a_function_that_returns_no_number_for_each_row() -> None:
    model, inputs = Tower([0, 1, 2], [0, 1, 2], False), {**GRID, "patches": PATCHES[:3]}
    with pytest.raises(InputError, match=r"shape \(3,\); return .* here \(3, 1\) or more"):
        explain(model, inputs, lambda states: states[:, 0], rules_of("frozen"))


class Pixels(nn.Module):
    """Convolutions, a pool and a normalisation, without layers or embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(is_encoder_decoder=False)
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 2, 2)
        self.double().eval()

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = functional.relu(self.norm(self.first(pixel_values)))
        pooled: Tensor = self.last(functional.max_pool2d(states, 2)).flatten(1)
        return pooled


def test_pixels_are_sources_where_there_are_no_layers() -> None:
    torch.manual_seed(0)
    model = Pixels()
    pixels = torch.randn(3, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    result = explain(
        model, {"pixel_values": pixels.detach()}, lambda y: y[:, :2], rules_of("frozen")
    )
    (source,) = result.sources
    assert (source.stack, source.part, source.shares.shape) == ("", "pixel_values", (3, 2, 36))
    for step in range(2):  # relu and pools are piecewise linear: the slope is the derivative
        (slope,) = torch.autograd.grad(model(pixels)[:, step].sum(), pixels)
        expected = (slope * pixels).sum(1).flatten(1).detach().numpy()
        np.testing.assert_allclose(source.shares[:, step], expected, rtol=1e-11, atol=1e-15)


class Drawing(Pixels):
    """A model that draws random numbers when it runs."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return super().forward(pixel_values * torch.rand(6, dtype=torch.float64))


def test_random_numbers_are_the_same_in_every_pass() -> None:
    pixels = {"pixel_values": torch.randn(3, 3, 6, 6, dtype=torch.float64)}
    torch.manual_seed(5)
    model = Drawing()
    before = torch.get_rng_state()
    result = explain(model, pixels, lambda y: y[:, :1], rules_of("frozen"))
    assert torch.equal(torch.get_rng_state(), before)
    assert worst_gap(result) < 1e-12
    with torch.no_grad():
        np.testing.assert_allclose(result.value, model(**pixels)[:, :1].numpy(), rtol=1e-13)


# One type for each way in which shares were lost, or could not be computed.
TYPES = [
    "qwen2_5_vl_vision", "pixtral", "canary", "qwen3_next", "deformable_detr", "hrm_text", "sew-d",
    "wavlm", "reformer", "led", "visual_bert", "idefics", "convnext", "mimi", "yoso", "vilt",
    "longt5",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    model = shrunken_model(name)
    inputs = random_inputs(model)
    assert sweep._attribute(copy.deepcopy(model), inputs) < sweep.BOUND
    with sweep._precision(model):
        result = explain(model, inputs, sweep.one_entry(inputs), rules_of("frozen"))
    assert size(result).min() > 0
    assert all(np.isfinite(source.shares).all() for source in result.sources)


def test_states_that_are_changed_in_place() -> None:
    """A model in float32, whose shares add up only because states are copied."""
    model: Any = shrunken_model("gemma4_audio")
    assert sweep._attribute(model, random_inputs(model)) < 1e-5
