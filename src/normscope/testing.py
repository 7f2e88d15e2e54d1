"""The public proof: does normscope see this model exactly? For tests and for your own models.

>>> from normscope.testing import check_architecture
>>> check_architecture(model).worst                                         # doctest: +SKIP
3.1e-16
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.capture import Capture, capture, eager
from normscope.capture.inventory import configs_of
from normscope.capture.layers import LayerCapture, capture_layers
from normscope.decomposition.attention import (
    BOUNDS,
    MAPS,
    AttentionDecomposition,
    Positions,
)
from normscope.decomposition.feedforward import FF_BIASES
from normscope.decomposition.layer import LayerDecomposition
from normscope.decomposition.maps import (
    attention_maps,
    bound_of,
    check_maps_of,
    each_head,
    layer_maps,
)
from normscope.engine.runner import evaluating
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.models.architectures import randomize_

__all__ = [
    "FullPrecision",
    "Proof",
    "check_architecture",
    "check_layers",
    "random_inputs",
    "randomize_",
]


@dataclass(frozen=True)
class Proof:
    """What was shown of one model on one batch."""

    model: str  # its class
    attentions: dict[str, int]  # calls by stack and kind: {"encoder.layer self": 12}
    paths: tuple[str, ...]  # the ways in: "interface", "watched"
    worst: float  # the largest relative gap between the parts and the model's own output
    bound: float  # what it had to stay under


def check_architecture(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, *, bound: float | None = None
) -> Proof:
    """Prove that normscope's parts add up to what ``model`` itself computes.

    On one batch (``inputs``, or random ids with padding) it is shown that

    1. the model's outputs under capture are bit for bit those of its own eager attention;
    2. for every attention call Σ_h Σ_j α f(x_j) + b_O is the real output, within ``bound`` of
       the parts' size (default: rounding in the model's dtype);
    3. the factored norms are those of the vectors themselves, at random cells of every map;
    4. the model is afterwards as it was: configuration, hooks, modes.

    Raises ExactnessError or UnsupportedModelError otherwise. Freshly initialised weights hide
    mistakes (zero biases, unit scales): ``randomize_`` them first, in float64.
    """
    kind = type(model).__name__
    inputs = random_inputs(model) if inputs is None else inputs
    calls: Counter[str] = Counter()
    gaps: dict[str, float] = {}
    paths: set[str] = set()
    dtypes: set[torch.dtype] = set()

    def measure(captured: Capture) -> None:
        calls[f"{captured.stack} {captured.kind}"] += 1
        gaps[f"{captured.name} (layer {captured.layer})"] = _gap(captured)
        paths.add(captured.path)
        dtypes.add(captured.output.dtype)

    before = _state(model)
    with evaluating(model), torch.no_grad():
        with eager(model):
            expected = _tensors(model(**inputs))
        with capture(model, measure):
            found = _tensors(model(**inputs))
    if _state(model) != before:
        raise ExactnessError(f"{kind} was not left as it was before the capture")
    for name, tensor in expected.items():
        if name not in found or not torch.equal(tensor, found[name]):
            raise ExactnessError(
                f"{kind}: {name} under capture differs from the model's own eager attention"
            )
    if not gaps:
        raise UnsupportedModelError(f"{kind} ran without any attention that normscope can see")
    limit = max(BOUNDS[dtype] for dtype in dtypes) if bound is None else bound
    place, worst = max(gaps.items(), key=lambda item: (item[1] != item[1], item[1]))
    if not worst <= limit:
        raise ExactnessError(
            f"{place}: the parts differ from the model's own output by {worst:.1e} of their size, "
            f"more than {limit:.0e}"
        )
    return Proof(kind, dict(calls), tuple(sorted(paths)), worst, limit)


class FullPrecision(TorchFunctionMode):
    """Keeps float64 where a model's modules round to float32 for a while, as many norms do.

    Inside, a float64 model is float64 throughout: what is left of a gap is no rounding.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            return args[0].double()
        if args and isinstance(args[0], Tensor):
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in kwargs.items()}
        return func(*args, **kwargs)


def check_layers(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, *, bound: float | None = None
) -> dict[str, float]:
    """Prove every scope of every layer: parts and bias are the model's own hidden states.

    Gives the worst relative gap of each map, spot checks included, over both conventions for the
    feed-forward's bias. Raises ExactnessError above ``bound`` (default: rounding in the dtypes that
    the layers compute in), UnsupportedModelError where a layer's wiring is not known. For a proof
    free of rounding use float64 inside ``FullPrecision()``.
    """
    inputs = random_inputs(model) if inputs is None else inputs
    check_maps_of(model, ["attn_res_n"])
    worst: dict[str, float] = {}

    def measure(layer: LayerCapture) -> None:
        for captured in (layer.attention, layer.cross):
            if captured is None:
                continue
            batch, _, queries, keys = captured.shape
            real = torch.ones(batch, queries, dtype=torch.bool, device=captured.device)
            there = torch.ones(batch, keys, dtype=torch.bool, device=captured.device)
            for ff_bias in FF_BIASES:
                taken = LayerDecomposition(layer, captured.kind, ff_bias=ff_bias)
                positions = Positions(real, there)
                for name, made in layer_maps(taken, taken.scopes, positions).items():
                    assert made.spot is not None
                    gap = max(float(made.gap.max()), float(made.spot.max()))
                    limit = bound_of(taken.dtypes) if bound is None else bound
                    if not gap <= limit:
                        raise ExactnessError(
                            f"{name} of {layer.name}: parts and bias differ from the model's own "
                            f"state by {gap:.1e} of their size, more than {limit:.0e}"
                        )
                    worst[name] = max(gap, worst.get(name, 0.0))

    with evaluating(model), torch.no_grad(), capture_layers(model, measure):
        model(**inputs)
    return worst


def _gap(captured: Capture) -> float:
    """The worst gap of one call: its output, and the spot checks of every map."""
    taken = AttentionDecomposition(captured)
    batch, _, queries, keys = captured.shape
    device = captured.device
    real = [torch.ones(batch, n, dtype=torch.bool, device=device) for n in (queries, keys)]
    positions = Positions(real[0], real[1])
    made = attention_maps(taken, MAPS, positions), each_head(taken, MAPS, positions)
    gaps = [gap for maps in made for one in maps.values() for gap in (one.gap, one.spot)]
    return float(torch.stack([gap.max() for gap in gaps if gap is not None]).max())


def _state(model: nn.Module) -> list[Any]:
    """What a capture changes and must put back."""
    return [
        [(c._attn_implementation_internal, c.to_dict()) for c in configs_of(model).values()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
    ]


def _tensors(output: Any, name: str = "output") -> dict[str, Tensor]:
    """Every tensor in a model's output, by where it stands in it."""
    if isinstance(output, Tensor):
        return {name: output}
    items: Any = ()
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, list | tuple):
        items = enumerate(output)
    return {k: t for key, value in items for k, t in _tensors(value, f"{name}.{key}").items()}


def random_inputs(
    model: Any, *, batch: int = 3, length: int = 9, seed: int = 0
) -> dict[str, Tensor]:
    """Random ids for a text model: a batch with right padding, and decoder ids where they go."""
    if model.main_input_name not in ("input_ids", "decoder_input_ids"):
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, not ids; give "
            "check_architecture a batch of your own as inputs="
        )
    config = model.config.get_text_config()
    draw = torch.Generator().manual_seed(seed)
    lengths = (length - 2 * torch.arange(batch)).clamp_min(2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    pad = config.pad_token_id or 0
    # The lowest ids are where most vocabularies keep their special tokens.
    ids = torch.randint(
        min(10, config.vocab_size // 2), config.vocab_size, mask.shape, generator=draw
    )
    ids = torch.where(mask.bool(), ids, pad)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, 1:]
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}
