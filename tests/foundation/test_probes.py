"""Which changes of a tensor its samples and the sum of its bits notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from normscope.foundation import probes
from normscope.foundation.probes import bit_sums, bits_of, same_samples, samples

LARGE = (300, 200)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("shape", [(300, 200), (200, 300), (5000, 3), (3, 5000), (64, 100, 3)])
def test_samples_notice_every_row_that_is_moved(shape: tuple[int, ...]) -> None:
    tensor = numbers(*shape)
    before = samples([tensor])
    assert same_samples(before, samples([tensor]))
    assert len(before[0]) < tensor.numel()
    for row in range(0, shape[0] - 1, max(1, shape[0] // 50)):
        tensor[[row, row + 1]] = tensor[[row + 1, row]]
        assert not same_samples(before, samples([tensor]))
        tensor[[row, row + 1]] = tensor[[row + 1, row]]
    tensor[..., [0, 1]] = tensor[..., [1, 0]]
    assert not same_samples(before, samples([tensor]))


def test_a_small_tensor_is_read_as_a_whole() -> None:
    tensor = numbers(64, 64)
    for at in range(0, 64 * 64, 7):
        before = samples([tensor])
        tensor.view(-1)[at] += 1
        assert not same_samples(before, samples([tensor]))


def test_samples_are_few_of_a_huge_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST", 100)
    (sample,) = samples([numbers(5000, 3)])
    assert len(sample) <= 100


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool,
     torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(31, 33), LARGE, (7,), ()])
def test_the_sum_of_bits_notices_every_number(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (10 * numbers(*shape)).to(dtype)
    (before,), sample = bit_sums([tensor]), samples([tensor])
    raw = bits_of(tensor)  # shares the memory
    for at in {0, raw.numel() // 2, raw.numel() - 1}:
        raw[at] ^= 1
        assert bit_sums([tensor]) != [before]
        raw[at] ^= 1
    assert bit_sums([tensor]) == [before]
    assert same_samples(sample, samples([tensor]))


def test_numbers_that_are_not_numbers_equal_themselves() -> None:
    tensor = torch.full((4,), torch.nan)
    assert same_samples(samples([tensor]), samples([tensor.clone()]))
    assert not same_samples(samples([torch.zeros(2)]), samples([-torch.zeros(2)]))


@pytest.mark.parametrize("change", [lambda t: t.T, lambda t: t[1:, :77], lambda t: t[::2]])
def test_views_of_other_layouts(change: Callable[[Tensor], Tensor]) -> None:
    tensor = change(numbers(*LARGE))
    assert bit_sums([tensor]) == bit_sums([tensor.clone()])
    before = samples([tensor])
    tensor[3, 4] += 1
    assert bit_sums([tensor]) == bit_sums([tensor.clone()])
    assert same_samples(samples([tensor]), samples([tensor]))
    tensor.mul_(2)
    assert not same_samples(before, samples([tensor]))


def test_what_cannot_be_read_is_left_out() -> None:
    class Packed(Tensor):
        """As quantisers make them: its memory is not its contents."""

    unreadable = [
        *(torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.empty(0)),
        torch.ones(3).as_subclass(Packed),
    ]
    assert samples(unreadable) == bit_sums(unreadable) == []
