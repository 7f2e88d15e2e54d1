"""Transfers: on a CPU nothing is copied; small tensors are packed into one buffer and unpacked."""

from __future__ import annotations

import torch

from normscope.engine.transfer import Transfer, pack, unpack

DTYPES = (torch.bool, torch.float64, torch.int64, torch.bfloat16, torch.float32, torch.uint8)


def test_packed_tensors_are_unpacked_with_their_shapes_and_dtypes() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (2, 5), (), (0, 4), (1, 7, 3)]
    tensors = [
        torch.randint(0, 2, shape, generator=generator).to(dtype)
        for shape in shapes
        for dtype in DTYPES
    ]
    tensors.append(torch.arange(12.0).view(3, 4).T)  # not contiguous
    packed = pack(tensors)
    assert (packed.dtype, packed.dim()) == (torch.uint8, 1)
    assert packed.numel() == sum(tensor.nbytes for tensor in tensors)
    for view, tensor in zip(unpack(packed, tensors), tensors, strict=True):
        assert view.dtype == tensor.dtype
        assert torch.equal(view, tensor)
        assert view.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()


def test_tensors_of_the_cpu_are_not_copied() -> None:
    transfer = Transfer()
    tensor = torch.arange(3)
    assert transfer.add(tensor) is transfer.add(tensor) is tensor
    layers = [torch.full((2, 3), float(n)) for n in range(4)]
    stack = transfer.add_stack(layers)
    transfer.start()
    assert transfer[tensor] is tensor
    assert transfer[stack].shape == (2, 4, 3)
    copy = transfer[stack]
    transfer.wait()
    layers[0].fill_(9)  # a layer's memory may be used again
    assert copy[:, :, 0].tolist() == [[0, 1, 2, 3]] * 2
