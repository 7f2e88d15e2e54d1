"""Maps from replay: equal to the factored form where there is one, to slow loops where not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

import normscope
from normscope.capture.layers import LayerCapture, capture_layers
from normscope.capture.wiring import Reading
from normscope.decomposition.chain import scopes_of
from normscope.decomposition.layer import LayerView
from normscope.decomposition.replayed import ReplayedLayer, Replays, Run
from normscope.decomposition.scopes import SCOPES, by_vectors
from normscope.engine.measure import Needs
from normscope.engine.run import PlainBatch, look
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.linearisation.network import Network
from normscope.linearisation.replay import Kind, Replay
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.testing import FullPrecision, check_layers, check_untouched
from tests.helpers.expert_reference import MIXTURES, behind

pytestmark = pytest.mark.usefixtures("unchecked_types")


def replayed(model: Any, inputs: Any, kind: Kind = "cross") -> dict[Run, ReplayedLayer]:
    """Replay every map of vectors, also those that have a factored form."""

    def choose(layout: Any, of: Kind) -> list[str]:
        return [scope.name for scope in by_vectors(scopes_of(layout, of))]

    batch = PlainBatch(model, inputs)
    return Replays(model, partial(batch.call, model), inputs, choose, kind).run()


def compare(view: LayerView, layer: ReplayedLayer, seen: set[str]) -> None:
    """Compare lengths, and those of sums and of the bias, with the factored form."""
    real = view.positions.queries.unsqueeze(-1)
    layout = view.chain.layout
    for name in (name for name in layer.scopes if name in view.scopes):
        seen.add(f"{view.kind} {name}")
        factored, found = view.maps([name])[name], layer.scopes[name]
        assert factored.values is not None
        assert factored.values.shape == found.lengths.shape
        if layout.parallel and SCOPES[name].behind_feed_forward:
            # The factored form leaves the whole feed-forward, biases included, with the query.
            parts = view.parts("ff_residual")
            assert parts.own is not None
            bias = 0 if parts.bias is None else parts.bias
            difference = (found.own + found.bias - parts.own - bias).norm(dim=-1, keepdim=True)
            assert difference.masked_fill(~real, 0).max() < 1e-10, name
            continue
        size = factored.values + factored.values.mean(dim=-1, keepdim=True)
        gap = (factored.values - found.lengths).abs() / size
        assert gap.masked_fill(~real, 0).max() < 1e-10, name
        vectors = (found.own, found.total - found.own, found.bias)
        lengths = (factored.own, factored.others, factored.bias)
        for length, vector in zip(lengths, vectors, strict=True):
            assert length is not None
            gap = (length - vector.norm(dim=-1)).abs().unsqueeze(-1)
            assert gap.masked_fill(~real, 0).max() < 1e-9, name


@pytest.mark.parametrize("name", FAMILIES)
def test_replay_equals_the_factored_form(name: str) -> None:
    """Every map of every family, of self-attention and of cross-attention."""
    model, inputs = tiny_model(name), tiny_inputs(name)
    seen: set[str] = set()
    two = FAMILIES[name].group == "encoder-decoder"
    with FullPrecision():
        for kind in ("self", "cross") if two else ("self",):
            compare_all(model, inputs, replayed(model, inputs, kind), seen)
    assert "self attn_n" in seen
    if two:
        assert {"cross attn_n", "self whole_layer", "cross atb"} <= seen


def compare_all(model: Any, inputs: Any, layers: dict[Run, ReplayedLayer], seen: set[str]) -> None:
    """Compare every layer, in the order in which they run."""
    runs: dict[str, int] = {}

    def check(view: LayerView) -> None:
        if view.kind == layers[view.name, 0].kind:
            number = runs[view.name] = runs.get(view.name, -1) + 1
            compare(view, layers[view.name, number], seen)

    look(model, inputs, check, needs=Needs(whole_layers=True, weights=True))


# ---- mixtures of experts


def routed_layers(model: Any, inputs: Any, router: str) -> list[tuple[LayerCapture, Any]]:
    """Return the layers that have a router, with what it gave."""
    given: dict[str, Any] = {}
    found: list[tuple[LayerCapture, Any]] = []

    def take(layer: LayerCapture) -> None:
        if layer.name in given:
            found.append((layer, given.pop(layer.name)))

    hooks = []
    for path, module in model.named_modules():
        if path.endswith(f".{router}"):
            layer = path.removesuffix(f".{router}")

            def note(_: Any, __: Any, output: Any, layer: str = layer) -> None:
                given[layer] = output

            hooks.append(module.register_forward_hook(note))
    with torch.no_grad(), FullPrecision(), capture_layers(model, take):
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_against_loops(name: str) -> None:
    """Lengths, mixing ratios and bias of the feed-forward and of the whole layer."""
    model, inputs = tiny_model(name), tiny_inputs(name)
    for module in model.modules():  # so low that gates and states are really clamped
        if hasattr(module, "limit"):
            setattr(module, "limit", 0.4)  # noqa: B010
    by_path: dict[str, Any] = {}
    maps = ["atb_ln_ff", "atb_ln_ff_res", "whole_layer"]

    def check(view: LayerView) -> None:
        if "atb_ln_ff" in view.scopes:
            by_path[view.name] = view.maps(maps)

    needs = Needs(whole_layers=True, weights=True, replay=tuple(maps))
    with FullPrecision():
        look(model, inputs, check, needs=needs)
    layers = routed_layers(model, inputs, MIXTURES[name][2])
    assert len(layers) == {"mixtral": 3, "gpt_oss": 3, "deepseek_v3": 2, "nllb-moe": 2}[name]
    masks = {"decoder": inputs.get("decoder_attention_mask"), "": inputs["attention_mask"]}
    for layer, routed in layers:
        mask = masks["decoder" if "decoder" in layer.name else ""]
        assert mask is not None
        for row in range(len(mask)):
            count = int(mask[row].sum())
            for parts, scope in zip(behind(name, layer, routed, row), maps, strict=False):
                made = by_path[layer.name][scope]
                assert_allclose(
                    made.values[row, :count], parts[:count, :-1].norm(dim=-1), rtol=1e-9, atol=1e-12
                )
                assert_allclose(made.bias[row, :count], parts[:count, -1].norm(dim=-1), rtol=1e-9)
                own = parts[:, -2] if layer.cross is not None else _diagonal(parts)
                others = parts[:, :-1].sum(dim=1) - own
                ratio = others.norm(dim=-1) / (others.norm(dim=-1) + own.norm(dim=-1))
                assert_allclose(made.mixing_ratio[row, :count], ratio[:count], rtol=1e-8)
        whole = by_path[layer.name]["whole_layer"]
        assert torch.equal(whole.values, by_path[layer.name]["atb_ln_ff_res"].values)


def _diagonal(parts: Tensor) -> Tensor:
    return torch.stack([parts[query, query] for query in range(len(parts))])


def test_analyze_gives_the_maps_of_experts() -> None:
    model, inputs = tiny_model("mixtral"), tiny_inputs("mixtral")
    maps = ["attn_n", "atb", "atb_ln_ff_res", "whole_layer"]
    with FullPrecision(), check_untouched(model):
        results = normscope.analyze_inputs(model, inputs, maps=maps)
    for row, result in enumerate(results):
        count = int(inputs["attention_mask"][row].sum())
        assert list(result) == maps
        assert result["whole_layer"].shape == (3, count, count)
        assert_allclose(result["whole_layer"].values, result["atb_ln_ff_res"].values)
        assert max(result.error.values()) < 1e-13
        assert result.mixing_ratio["whole_layer"].values.max() <= 1
        assert (result.bias_share["whole_layer"].values == 0).all()  # Mixtral has no bias
        assert "replay" in str(result.signature)
    reduced = normscope.analyze_inputs(
        model, inputs, maps=maps, reduce=("row_sum", "argmax", "mixing_ratio")
    )
    for whole, kept in zip(results, reduced, strict=True):
        assert not list(kept)
        rows = whole["whole_layer"].values.sum(axis=-1)
        assert_allclose(kept.extras["row_sum"]["whole_layer"].values, rows, rtol=1e-5)
        largest = whole["whole_layer"].values.argmax(axis=-1)
        assert (kept.extras["argmax"]["whole_layer"].values == largest).all()


def test_only_what_has_no_factored_form_is_replayed() -> None:
    model, inputs = tiny_model("mixtral"), tiny_inputs("mixtral")
    assert "replay" not in str(normscope.analyze_inputs(model, inputs, maps=["atb"])[0].signature)
    bert = normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=["whole_layer"])[
        0
    ]
    assert "replay" not in str(bert.signature)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gptj", "olmo2", "marian", "t5"])
def test_the_whole_layer_is_the_last_map(name: str) -> None:
    lasts = {"bert": "atb_ff_res_ln", "olmo2": "atb_ff_res", "marian": "atb_ff_res_ln"}
    last = lasts.get(name, "atb_ln_ff_res")
    results = normscope.analyze_inputs(
        tiny_model(name), tiny_inputs(name), maps=[last, "whole_layer"]
    )
    for result in results:
        for part in result.parts.values() if result.parts else [result]:
            assert_allclose(part["whole_layer"].values, part[last].values)


# ---- layers of unknown wiring


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "gemma2", "t5", "fsmt"])
def test_layers_of_unknown_wiring(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    with FullPrecision():
        factored = normscope.analyze_inputs(model, inputs, maps=["attn_n", "whole_layer"])
        for what in ("layout", "partial"):
            monkeypatch.setattr(Reading, what, lambda self: None)
        model = tiny_model(name)  # of which no layout is known yet
        unknown = normscope.analyze_inputs(model, inputs, maps=["attn_n", "whole_layer"])
        with pytest.raises(UnsupportedModelError):
            normscope.analyze_inputs(model, inputs, maps=["attn_res_n", "whole_layer"])
    for one, other in zip(factored, unknown, strict=True):
        assert "replay" in str(other.signature)
        pairs = [(one.parts[k], other.parts[k]) for k in one.parts] or [(one, other)]
        for known, by_replay in pairs:
            assert list(known) == list(by_replay)
            for map_name in known:
                assert_allclose(by_replay[map_name].values, known[map_name].values, rtol=1e-6)


# ---- mistakes that are noticed


def error_of(name: str) -> float:
    with FullPrecision():
        return max(check_layers(tiny_model(name), tiny_inputs(name)).values())


def test_checked_layers_include_replay() -> None:
    with FullPrecision():
        worst = check_layers(tiny_model("gpt_oss"), tiny_inputs("gpt_oss"))
    assert {"atb_ln_ff", "atb_ln_ff_res", "whole_layer"} <= set(worst)
    assert max(worst.values()) < 1e-13


def test_values_without_their_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """b_V belongs to f: without it the parts lack it."""
    given = Replay._of_values

    def without(self: Replay, run: Any, kind: Any, values: Tensor) -> Tensor | None:
        return given(self, run, kind, values - 0.3)

    monkeypatch.setattr(Replay, "_of_values", without)
    with pytest.raises(ExactnessError):
        error_of("gpt_oss")


def test_an_output_bias_given_to_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completeness does not see it: only the comparison with the factored form does."""
    counted, made = Replay._counted, Replay.__init__

    def make(self: Replay, *args: Any) -> None:
        made(self, *args)
        self.ledger.counting = True

    def to_first(self: Replay) -> bool:
        if self.pushed.part == "keys":
            return self.pushed.keys[0] == 0 and len(self.running) > 0
        return counted(self) and self.pushed.part != "constants"

    monkeypatch.setattr(Replay, "__init__", make)
    monkeypatch.setattr(Replay, "_counted", to_first)
    monkeypatch.setattr("normscope.decomposition.replayed.POSITIONS", 1)  # one key at a time
    with pytest.raises(ExactnessError, match="atb_ln_ff"):
        error_of("gpt_oss")


@pytest.mark.parametrize("live", ["_softmax", "_scale"])
def test_routing_or_gates_that_are_live(live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.linearisation import network

    handler = Network._unknown
    own: Callable[..., Any] = getattr(Network, live)

    def changed(self: Network, func: Any, args: Any, kwargs: Any) -> Any:
        inside = not getattr(self, "attending", True)
        return handler(self, func, args, kwargs) if inside else own(self, func, args, kwargs)

    monkeypatch.setattr(Network, live, changed)
    network._handlers.cache_clear()
    try:
        with pytest.raises(ExactnessError):
            error_of("deepseek_v3" if live == "_scale" else "mixtral")
    finally:
        monkeypatch.undo()
        network._handlers.cache_clear()


# ---- refusals


def test_a_fixed_bias_is_refused() -> None:
    model, inputs = tiny_model("mixtral"), tiny_inputs("mixtral")
    with pytest.raises(InputError, match=r'atb_ln_ff of Mixtral.* replay.*ff_bias="path"'):
        normscope.analyze_inputs(model, inputs, maps=["atb_ln_ff"], ff_bias="fixed")


def test_vectors_are_refused() -> None:
    model, inputs = tiny_model("mixtral"), tiny_inputs("mixtral")

    def check(view: LayerView) -> None:
        cells = torch.zeros(3, 1, dtype=torch.long)
        with pytest.raises(UnsupportedModelError, match="lengths are kept and no vectors"):
            view.vectors("whole_layer", cells, cells)

    look(
        model, inputs, check, needs=Needs(whole_layers=True, weights=True, replay=("whole_layer",))
    )


def test_a_measure_that_does_not_ask_for_replay() -> None:
    def check(view: LayerView) -> None:
        assert "whole_layer" not in view.scopes
        with pytest.raises(UnsupportedModelError, match="does not ask for"):
            view.maps(["whole_layer"])

    needs = Needs(whole_layers=True, weights=True)
    look(tiny_model("mixtral"), tiny_inputs("mixtral"), check, needs=needs)
