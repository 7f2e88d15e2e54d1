"""Rollout, flow and ALTI+ against loops, and their algebra."""

from __future__ import annotations

from typing import Any

import networkx  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import normscope
from normscope.decomposition.scopes import NAMES, SCOPES
from normscope.errors import InputError, MissingExtraError
from normscope.measures import rollout as rolling
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.text.tokens import Tokens
from tests.helpers.tiny import tokenizer

Array = NDArray[np.float64]
SQUARE = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "alti", "globenc", "value_zeroing"]
JOINT = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "alti", "alti_l2", "flow_routes"]


def named(count: int) -> Tokens:
    pieces = tuple(f"t{i}" for i in range(count))
    return Tokens(pieces, None, (False,) * count, pieces)


def result_of(name: str, maps: Array) -> Contributions:
    tokens = named(maps.shape[1])
    array = LabelledArray(
        maps, ("layer", "query", "key"), {"query": tokens, "key": tokens}, name=name
    )
    return Contributions({name: array}, None, tokens, error={name: 1e-9}, signature="here")


def random_maps(layers: int, count: int, seed: int = 0) -> Array:
    maps = np.random.default_rng(seed).random((layers, count, count)) ** 3
    return maps / maps.sum(axis=-1, keepdims=True)


# ------------------------------------------------------------------------------ the definition


def defined(result: Contributions, map: str, normalize: bool) -> Array:
    """R^l by loops over cells, from a result's maps."""
    rolled: list[Array] = []
    for values in result[map].values.astype(np.float64):
        local = np.array(values)
        count = len(local)
        if map == "attn_n" and normalize:
            for i in range(count):
                local[i] = local[i] / local[i].sum()
        if map in ("attn_w", "attn_n"):
            for i in range(count):
                local[i, i] += 1
        for i in range(count):
            local[i] = local[i] / local[i].sum() if normalize else local[i]
        if rolled:
            product = np.zeros((count, count))
            for i in range(count):
                for j in range(count):
                    for k in range(count):
                        product[i, j] += local[i, k] * rolled[-1][k, j]
            local = product
        rolled.append(local)
    return np.stack(rolled)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_oss"])  # the last has attention sinks
def test_rollout_of_every_map_against_loops(name: str) -> None:
    maps = ["attn_w", "attn_n", "alti", "globenc", "value_zeroing"]
    result = normscope.analyze_inputs(tiny_model(name), tiny_inputs(name), maps=maps)[1]
    for map in maps:
        for normalize in (True, False):
            rolled = normscope.rollout(result, map=map, normalize=normalize)[f"rollout_{map}"]
            expected = defined(result, map, normalize)
            # Unnormalised products are rescaled by one number for each layer.
            scale = 1 if normalize else rolled.values[:, :1, :1] / expected[:, :1, :1]
            assert_allclose(rolled.values, expected * scale, rtol=1e-6, atol=1e-9)
        default = normscope.rollout(result, map=map)
        assert default == normscope.rollout(result, map=map, normalize=map != "globenc")
        if map != "globenc":
            assert_allclose(default[f"rollout_{map}"].values.sum(axis=-1), 1, rtol=1e-6)


def test_identity_stochastic_and_horner() -> None:
    eye = np.broadcast_to(np.eye(5), (4, 5, 5)).copy()
    for map in SQUARE:
        rolled = normscope.rollout(result_of(map, eye), map=map)
        assert_allclose(rolled[f"rollout_{map}"].values, eye)
    maps = random_maps(4, 5)
    for map in SQUARE:
        for normalize in (True, False):
            result = result_of(map, maps)
            full = normscope.rollout(result, map=map, normalize=normalize)[f"rollout_{map}"].values
            assert_allclose(full.sum(axis=-1)[:, 0], 1, rtol=1e-12)
            for query in (0, 3, -1, "t2"):
                row = normscope.rollout(result, map=map, normalize=normalize, query=query)
                at = 2 if query == "t2" else int(query) % 5
                array = row[f"rollout_{map}"]
                assert_allclose(array.values, full[-1:, at : at + 1], rtol=1e-12)
                assert array.labels["query"] == (at,)
                assert array.labels["layer"] == (3,)
                assert row.tokens.strings == (f"t{at}",)
    assert result_of("alti", maps).signature in row.signature
    assert "rollout:value_zeroing|normalize:False" in row.signature


def test_sinks_divide_by_the_real_sum_of_the_row() -> None:
    """With a row of weights that sums to a half, the residual is two thirds, not a half."""
    maps = random_maps(1, 4) / 2
    values = normscope.rollout(result_of("attn_w", maps), map="attn_w")["rollout_attn_w"].values
    assert_allclose(values[0], (maps[0] + np.eye(4)) / 1.5)


def test_from_a_model_from_a_result_and_a_list() -> None:
    model, reads = tiny_model("bert"), tokenizer()
    texts = ["the cats sat on a mat", "a dog ran"]
    both = normscope.rollout(model, reads, texts, map="alti")
    results = normscope.analyze(model, reads, texts, maps=["alti"])
    assert both == normscope.rollout(results)
    single = normscope.rollout(model, reads, texts[1])["rollout_alti"]
    assert_allclose(both[1]["rollout_alti"].values, single.values, rtol=1e-9, atol=1e-12)
    assert both[0].error["rollout_alti"] == results[0].error["alti"]


def test_weights_of_single_heads_are_averaged(tmp_path: Any) -> None:
    inputs = tiny_inputs("gpt2")
    each = normscope.analyze_inputs(tiny_model("gpt2"), inputs, heads="each")[0]
    mean = normscope.analyze_inputs(tiny_model("gpt2"), inputs)[0]
    rolled = normscope.rollout(each, map="attn_w")
    expected = normscope.rollout(mean, map="attn_w")["rollout_attn_w"].values
    assert_allclose(rolled["rollout_attn_w"].values, expected, rtol=1e-9)
    with pytest.raises(InputError, match="single heads"):
        normscope.rollout(each, map="attn_n")
    rolled.save(tmp_path / "rolled.safetensors")
    assert normscope.load(tmp_path / "rolled.safetensors") == rolled


# ----------------------------------------------------------------------------------------- flow


def solved(maps: Array, query: int) -> Array:
    """The same by networkx, with real capacities: an independent solver."""
    graph = networkx.DiGraph()
    layers, count, _ = maps.shape
    for layer in range(layers):
        for i in range(count):
            for j in range(count):
                ends = (layer + 1, i), (layer, j)
                graph.add_edge(*ends, capacity=float(maps[layer, i, j]))
    flows = [networkx.maximum_flow_value(graph, (layers, query), (0, key)) for key in range(count)]
    return np.array(flows) / sum(flows)


def test_flow_equals_an_independent_solver() -> None:
    maps = random_maps(3, 6, seed=1)
    result = result_of("alti", maps)
    flows = normscope.flow(result, map="alti", query=[4, "t1"])["flow_alti"]
    assert flows.shape == (1, 2, 6)
    for row, query in zip(flows.values[0], (4, 1), strict=True):
        assert_allclose(row, solved(maps, query), atol=1e-6)
    residual = (maps + np.eye(6)) / 2
    row = normscope.flow(result_of("attn_w", maps), query=-1)["flow_attn_w"].values[0, 0]
    assert_allclose(row, solved(residual, 5), atol=1e-6)


def test_flow_of_one_layer_is_the_row_and_is_bounded_by_the_ends() -> None:
    maps = random_maps(1, 6, seed=2)
    assert_allclose(rolling.flow_row(maps, 3), maps[0, 3], atol=1e-8)
    deep = random_maps(3, 6, seed=3)
    deep[0, :, 2] = 0  # nothing reads input 2
    row = rolling.flow_row(deep, 3)
    assert row[2] == 0
    bounds = np.minimum(deep[-1, 3].sum(), deep[0].sum(axis=0))
    unscaled = row / row.max() * bounds[row.argmax()]
    assert (unscaled <= bounds + 1e-6).all()


def test_flow_of_long_texts_warns_and_needs_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of("attn_w", random_maps(1, 65))
    with pytest.warns(UserWarning, match="65 maximum-flow problems with up to 4,225 edges"):
        normscope.flow(result, query=0)
    import sys

    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[flow\]"):
        normscope.flow(result_of("attn_w", random_maps(1, 4)), query=0)


# ---------------------------------------------------------------------------------------- ALTI+


def joint(result: Contributions, map: str) -> tuple[Array, Array]:
    """K_src and K_tgt by the definition: the joint map of each layer, then G."""
    encoder, own, cross = (
        getattr(result, part)[map].values for part in ("encoder", "decoder", "cross")
    )
    rolled = np.eye(encoder.shape[1])
    for local in encoder:
        rolled = local @ rolled
    targets, sources = own.shape[1], encoder.shape[1]
    k_source: list[Array] = []
    k_target: list[Array] = []
    for c_s, c_x in zip(own, cross, strict=True):
        g_source, g_target = np.zeros((targets, sources)), np.zeros((targets, targets))
        for t in range(targets):
            g_source[t] = c_x[t, :sources] @ rolled
            g_target[t] = c_x[t, sources] * c_s[t]
        if k_source:
            k_source.append(g_target @ k_source[-1] + g_source)
            k_target.append(g_target @ k_target[-1])
        else:
            k_source.append(g_source)
            k_target.append(g_target)
    return np.stack(k_source), np.stack(k_target)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_alti_plus(name: str) -> None:
    result = normscope.analyze_inputs(tiny_model(name), tiny_inputs(name), maps=JOINT)[1]
    k_source, k_target = joint(result, "alti")
    rolled = normscope.rollout(result)
    assert_allclose(rolled.cross["rollout_alti"].values, k_source, rtol=1e-5, atol=1e-7)
    assert_allclose(rolled.decoder["rollout_alti"].values, k_target, rtol=1e-5, atol=1e-7)
    for map in JOINT:
        rolled = normscope.rollout(result, map=map)
        cross = rolled.cross[f"rollout_{map}"].values
        own = rolled.decoder[f"rollout_{map}"].values
        assert_allclose(cross.sum(axis=-1) + own.sum(axis=-1), 1, rtol=1e-5)
        row = normscope.rollout(result, map=map, query=-1)
        assert_allclose(row.cross[f"rollout_{map}"].values[0, 0], cross[-1, -1], rtol=1e-5)
        assert_allclose(row.decoder[f"rollout_{map}"].values[0, 0], own[-1, -1], rtol=1e-5)


def test_alti_plus_without_self_attention_is_cross_times_encoder() -> None:
    rng = np.random.default_rng(0)
    across = rng.random((1, 3, 5))
    across /= across.sum(axis=-1, keepdims=True)
    encoder = random_maps(1, 5)[0]
    source, target = rolling.joint_products(across, np.zeros((1, 3, 3)), encoder)
    assert_allclose(source[0], across[0] @ encoder)
    assert not target.any()


# ------------------------------------------------------------------------------------- refusals


def test_refusals() -> None:
    inputs = tiny_inputs("marian")
    result = normscope.analyze_inputs(tiny_model("marian"), inputs, maps=["globenc", "alti"])[0]
    with pytest.raises(InputError, match="globenc is in encoder, cross; use one of: attn_w"):
        normscope.rollout(result, map="globenc")
    with pytest.raises(InputError, match="normalize=True"):
        normscope.rollout(result, map="alti", normalize=False)
    with pytest.raises(InputError, match=r"give one of: result\.encoder"):
        normscope.flow(result, map="alti", query=0)
    with pytest.raises(InputError, match="cross-attention alone"):
        normscope.rollout(result.cross)
    with pytest.raises(InputError, match="unknown map: 'nothing'"):
        normscope.rollout(result, map="nothing")
    with pytest.raises(InputError, match=r"effective may be negative.*attn_w"):
        normscope.rollout(result, map="effective")
    with pytest.raises(InputError, match=r"already has its text.*text"):
        normscope.rollout(result, text="the cat")
    with pytest.raises(InputError, match="no query 9; the queries are 0 to 3"):
        normscope.rollout(result_of("alti", random_maps(2, 4)), query=9)
    with pytest.raises(InputError, match="no query"):
        normscope.flow(result_of("alti", random_maps(2, 4)), map="alti", query=[])


def test_which_maps_are_divided_and_get_the_residual() -> None:
    """GlobEnc does not normalise rows; ALTI, value zeroing and attention do."""
    divided = {name for name in NAMES if SCOPES[name].rows_divided}
    assert divided >= {"attn_w", "attn_n", "attn_res_w", "alti", "alti_l2", "value_zeroing"}
    assert not divided & {"attn_res_n", "attn_res_ln_n", "globenc", "globenc_ff", "whole_layer"}
    added = {name for name in NAMES if SCOPES[name].adds_residual}
    assert added == {"attn_w", "attn_n", "atb_ff", "atb_ln_ff"}


def test_long_rows_never_multiply_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "_products", lambda maps: pytest.fail("a product of maps"))
    maps = random_maps(3, 40)
    row = normscope.rollout(result_of("alti", maps), query=0)["rollout_alti"]
    assert_allclose(row.values[0, 0], (maps[2] @ maps[1] @ maps[0])[0])
    assert torch.is_tensor(row.tensor)
