"""Attention in pieces of the sequence: images side by side, and the windows of one image."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.capture.joined import block_diagonal, in_a_row
from normscope.capture.recorder import Pending
from normscope.capture.scores import Scores
from normscope.engine.run import look
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import randomize_
from normscope.testing import FullPrecision, check_architecture, check_layers

GRID = torch.tensor([[1, 4, 2], [1, 2, 2], [1, 2, 4]])  # images of 8, 4 and 8 patches
HEADS, SIZE = 2, 12


def tower(kind: str) -> Any:
    """A tower of two layers that attends within images, and in windows in "qwen2_5_vl"."""
    whole: Any = import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    windowed: Any = import_module("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    shape: dict[str, Any] = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
    if kind == "qwen2_vl":
        sizes: dict[str, Any] = {
            "depth": 2,
            "embed_dim": 24,
            "hidden_size": 24,
            "num_heads": 2,
            "mlp_ratio": 2,
        }
        model: Any = whole.Qwen2VisionTransformerPretrainedModel(
            whole.Qwen2VLVisionConfig(**sizes, **shape)
        )
    else:
        sizes = {"depth": 2, "hidden_size": 24, "num_heads": 2, "intermediate_size": 40}
        config = windowed.Qwen2_5_VLVisionConfig(
            **sizes, **shape, out_hidden_size=24, window_size=16, fullatt_block_indexes=[1]
        )
        model = windowed.Qwen2_5_VisionTransformerPretrainedModel(config)
    model = model.to(torch.float64).eval()
    randomize_(model)
    return model


def pixels(grid: Tensor = GRID) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    patches = int(grid.prod(dim=1).sum())
    shape = patches, 3 * 2 * 4 * 4
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return {"hidden_states": values, "grid_thw": grid}


def captured(model: Any, inputs: dict[str, Tensor], **how: Any) -> list[Capture]:
    with torch.no_grad(), capture(model, **how) as captures:
        model(**inputs)
    return captures


def attended(model: Any, inputs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor, list[int]]]:
    """Queries, keys (head, patch, size) and the lengths of the pieces of every layer."""
    noted: list[tuple[Tensor, Tensor, list[int]]] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        states = args[0]
        qkv = module.qkv(states).reshape(len(states), 3, HEADS, SIZE).permute(1, 2, 0, 3)
        cos, sin = (t.to(states.dtype) for t in kwargs["position_embeddings"])

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        bounds = kwargs["cu_seqlens"].tolist()
        pieces = [b - a for a, b in itertools.pairwise(bounds)]
        noted.append((turned(qkv[0]), turned(qkv[1]), pieces))

    blocks: Any = model.blocks
    handles = [b.attn.register_forward_pre_hook(note, with_kwargs=True) for b in blocks]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return noted


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_weights_are_those_of_each_piece(kind: str, mode: Any) -> None:
    """Against a loop over pairs of patches: a patch attends to those of its own piece alone."""
    model, inputs = tower(kind), pixels()
    with FullPrecision():
        captures, noted = captured(model, inputs, attention=mode), attended(model, inputs)
    assert [c.path for c in captures] == ["fused" if mode == "fused" else "interface"] * 2
    for made, (queries, keys, pieces) in zip(captures, noted, strict=True):
        assert len(pieces) >= 3
        number = [n for n, length in enumerate(pieces) for _ in range(length)]
        assert made.alpha.shape == (1, HEADS, len(number), len(number))
        for h in range(HEADS):
            for i in range(len(number)):
                own = [j for j in range(len(number)) if number[j] == number[i]]
                scores = torch.stack([queries[h, i] @ keys[h, j] for j in own]) / SIZE**0.5
                row = torch.zeros(len(number), dtype=torch.float64)
                row[own] = scores.exp() / scores.exp().sum()
                torch.testing.assert_close(made.alpha[0, h, i], row, rtol=0, atol=1e-13)
        assert float((made.reconstruct(torch.float64) - made.output).abs().max()) < 1e-11


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_several_images_are_exact(kind: str) -> None:
    model, inputs = tower(kind), pixels()
    assert check_architecture(model, inputs).worst < 1e-13
    with FullPrecision():
        assert max(check_layers(model, inputs).values()) < 1e-13


def test_a_model_that_has_read_one_image_reads_several() -> None:
    """What was learnt of a module in its first pass, that nothing acts on its heads, stays true."""
    model = tower("qwen2_vl")
    one = captured(model, pixels(GRID[:1]))
    several = captured(model, pixels())
    assert [c.shape[2] for c in one] == [8, 8]
    assert [c.shape[2] for c in several] == [20, 20]
    again = captured(model, pixels(GRID[:1]))
    assert torch.equal(again[1].alpha, one[1].alpha)


def test_lengths_of_cells() -> None:
    """‖Σ_h αf‖ of every pair of patches, and zero between images."""
    model, inputs = tower("qwen2_vl"), pixels()
    lengths: list[Tensor] = []
    look(model, inputs, lambda view: lengths.append(_values(view)))
    made = captured(model, inputs)[0]
    weight = model.blocks[0].attn.proj.weight.T.unflatten(0, (HEADS, SIZE))
    for i in range(20):
        for j in range(20):
            parts = [made.alpha[0, h, i, j] * made.value[0, h, j] @ weight[h] for h in range(HEADS)]
            expected = sum(parts, torch.zeros(24, dtype=torch.float64)).norm()
            torch.testing.assert_close(lengths[0][0, i, j], expected, rtol=1e-9, atol=1e-12)
    assert not lengths[0][0, :8, 8:].any()


def _values(view: Any) -> Tensor:
    values: Tensor = view.maps(["attn_n"])["attn_n"].values
    return values


class Shuffled(nn.Module):
    """A projection of heads whose positions were put elsewhere."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, heads: Tensor) -> Any:
        return self.inner(heads.flip(0))


def test_pieces_in_another_order_are_refused() -> None:
    model = tower("qwen2_vl")
    model.blocks[1].attn.proj = Shuffled(model.blocks[1].attn.proj)
    with pytest.raises(UnsupportedModelError, match=r"^blocks\.1\.attn: "):
        captured(model, pixels())


def pending(queries: int, **how: Any) -> Pending:
    alpha = torch.rand(1, 2, queries, queries)
    value, mixed = torch.rand(1, 2, queries, 3), torch.rand(1, queries, 2, 3)
    made = Pending(nn.Identity(), how.get("path", "interface"), alpha, value, mixed, None)
    made.scale = how.get("scale")
    return made


def test_scales_are_joined_along_the_queries() -> None:
    scale = torch.rand(1, 2, 4)
    joined = in_a_row([pending(3), pending(4, scale=scale)])
    assert joined is not None
    assert joined.scale is not None
    assert torch.equal(joined.scale, torch.cat([torch.ones(1, 2, 3), scale], dim=2))


def test_what_cannot_be_joined() -> None:
    """Calls by hand, whose layout is not known, and heads that something has written into."""
    assert in_a_row([pending(3), pending(4, path="watched")]) is None
    written = pending(3)
    written.mixed.mul_(2)
    assert in_a_row([written, pending(4)]) is None
    other = pending(4)
    other.value = other.value.double()
    assert in_a_row([pending(3), other]) is None


def test_scores_with_masks_are_written_out() -> None:
    """Weights that are computed from queries and keys keep their mask."""

    def scores(queries: int, causal: bool) -> Scores:
        q, k = torch.rand(1, 2, queries, 3), torch.rand(1, 2, queries, 3)
        return Scores(q, k, None, 0.5, causal, torch.rand(1, queries, 2, 3))

    calls = [pending(3), pending(4)]
    pieces = [scores(3, causal=True), scores(4, causal=False)]
    for call, piece in zip(calls, pieces, strict=True):
        call.weights = piece
    joined = in_a_row(calls)
    assert joined is not None
    assert isinstance(joined.weights, Tensor)
    written = [piece.rows(slice(0, piece.shape[2])) for piece in pieces]
    assert torch.equal(joined.weights, block_diagonal(written))
