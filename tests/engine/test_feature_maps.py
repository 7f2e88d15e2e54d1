"""Positions behind a backbone of convolutions: where they stand, and what is no grid."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.engine.feature_maps import feature_map
from normscope.engine.footprints import footprints_of
from normscope.engine.grids import Grid
from tests.helpers.pictured import inputs_of, model_of, pixels


def combined(high: int, wide: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers (row, down, across) behind two convolutions of overlapping regions, and pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 6, 7, 4, 3), nn.Tanh(), nn.Conv2d(6, 1, 5, 2, 2)]
    image = pixels(rows, 3, high, wide).requires_grad_()
    return nn.Sequential(*layers).double()(image)[:, 0], image


def test_the_positions_of_a_detector_are_the_cells_of_its_feature_map() -> None:
    (encoder,) = footprints_of(model_of("detr"), inputs_of("detr")).values()
    assert encoder.grids == {0: Grid(3, 4, (0, 0, 96, 128))}
    assert encoder.places == tuple((0, row, column) for row in range(3) for column in range(4))
    assert encoder.names == {}


def test_each_row_has_an_image_and_the_last_cells_may_stand_over_its_edge() -> None:
    numbers, image = combined(36, 60, rows=2)
    found = feature_map(numbers.flatten(1), image)
    assert found is not None
    places, grids = found
    assert numbers.shape == (2, 5, 8)
    assert grids == {0: Grid(5, 8, (0, 0, 40, 64)), 1: Grid(5, 8, (0, 0, 40, 64))}
    assert places[8] == (0, 1, 0)
    assert places[-1] == (1, 4, 7)


def test_a_position_reads_most_around_its_cell() -> None:
    numbers, image = combined(48, 48)
    found = feature_map(numbers.flatten(1), image)
    assert found is not None
    for position, (_, row, column) in enumerate(found[0]):
        (grad,) = torch.autograd.grad(numbers.flatten()[position], [image], retain_graph=True)
        energy = grad.square().sum(dim=(0, 1))
        for axis, at in ((0, row), (1, column)):
            along = energy.sum(dim=1 - axis)
            middle = float((along * (torch.arange(48) + 0.5)).sum() / along.sum())
            assert abs(middle - 8 * (at + 0.5)) < 8  # pixels: the side of a cell


@pytest.mark.parametrize("order", ["columns", "shuffled", "mixed", "more"])
def test_other_orders_are_no_grid(order: str) -> None:
    numbers, image = combined(64, 64)
    flat = numbers.flatten(1)
    generator = torch.Generator().manual_seed(1)
    if order == "columns":
        flat = numbers.transpose(1, 2).flatten(1)
    elif order == "shuffled":
        flat = flat[:, torch.randperm(64, generator=generator)]
    elif order == "mixed":
        flat = flat @ torch.randn(64, 64, dtype=flat.dtype, generator=generator)
    else:
        flat = torch.cat([flat, flat[:, :1]], dim=1)
    assert feature_map(flat, image) is None
    assert feature_map(numbers.flatten(1), image) is not None


def test_pixels_of_no_single_image_are_no_grid() -> None:
    numbers, image = combined(64, 64)
    assert feature_map(numbers.flatten(1), image.unsqueeze(1)) is None
    assert feature_map(numbers.flatten(1), torch.cat([image, image])) is None
    assert feature_map(numbers.detach().requires_grad_().flatten(1), image) is None
