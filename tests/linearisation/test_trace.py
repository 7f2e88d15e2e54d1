"""Shares inside a model: cuts, heads, feed-forwards and edges, against components by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.attribution.passes import explain
from normscope.errors import InputError
from normscope.linearisation.rules import RULES, rules_of
from normscope.linearisation.trace import Trace
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers import component_reference as reference
from tests.helpers.component_reference import State
from tests.helpers.explained import last_position
from tests.helpers.written_out import BASELINE, IDS, shares, written

pytestmark = pytest.mark.usefixtures("unchecked_types")

LENGTH = IDS.shape[1]
HEADS = 4
METHODS = [("bert", method) for method in RULES] + [("llama", "frozen"), ("llama", "secant")]


def trace_of(name: str, method: str) -> Trace:
    trace = shares(name, method, trace=True).trace
    assert trace is not None
    return trace


def by_hand(
    name: str, method: str, kind: str, layer: int, count: int, pieces: Callable[[State], Tensor]
) -> np.ndarray:
    """Return the shares of the pieces of a state, and last that of everything else."""
    model = written(name)
    embeddings = model.embeddings(model.model, IDS[0])
    baseline = model.embeddings(model.model, BASELINE[0]) if method == "secant" else None
    sources = reference.ungrouped(reference.sources_of(embeddings, baseline), count)
    regroup = reference.cut(kind, layer, pieces)
    state = model.run(model.model, sources, reference.Components(method), regroup)
    return state.parts[:, model.answer].numpy()


def whole(state: State) -> Tensor:
    return state.parts.sum(0)


def by_position(state: State) -> Tensor:
    """Cut a (position, hidden) state into positions."""
    mask = torch.eye(LENGTH, dtype=torch.float64)
    return mask[:, :, None] * whole(state)


def by_head(state: State) -> Tensor:
    """Cut a (head, position, size) state into heads."""
    return torch.eye(HEADS, dtype=torch.float64)[:, :, None, None] * whole(state)


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_cuts(name: str, method: str) -> None:
    trace = trace_of(name, method)
    assert [cut.layer for cut in trace.cuts] == [0, 1, 2, 3]
    for cut in trace.cuts:
        expected = by_hand(name, method, "state", cut.layer, LENGTH, by_position)
        found = np.append(cut.shares[""][0, 0], cut.bias[0, 0])
        limit = 1e-12 * np.abs(expected).sum()
        if method == "secant":
            expected[-1] = 0  # biases cancel
        np.testing.assert_allclose(found, expected, rtol=0, atol=limit)
        assert cut.error.max() < 1e-12


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_heads_and_feed_forwards(name: str, method: str) -> None:
    trace = trace_of(name, method)
    for layer, parts in enumerate(trace.layers):
        heads = by_hand(name, method, "context", layer, HEADS, by_head)[:-1]
        limit = 1e-12 * (1 + np.abs(heads).sum())
        np.testing.assert_allclose(parts.heads[0, 0], heads, rtol=0, atol=limit)
        ff = by_hand(name, method, "feed_forward", layer, LENGTH, by_position)[:-1]
        assert parts.feed_forward is not None
        np.testing.assert_allclose(parts.feed_forward[0, 0], ff, rtol=0, atol=limit)
        assert parts.heads_error is not None
        assert parts.feed_forward_error is not None
        assert max(parts.heads_error.max(), parts.feed_forward_error.max()) < 1e-12


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("method", ["frozen", "attn_lrp", "secant"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_edges_add_up_to_heads(name: str, method: str, attention: str) -> None:
    trace = shares(name, method, attention=attention, trace=True).trace
    assert trace is not None
    # Eager attention of Llama keeps its weights in float32 where tangents are taken.
    loose = (name, method, attention) == ("llama", "attn_lrp", "eager")
    for layer, parts in enumerate(trace.layers):
        edges = trace.edges(0, layer)
        assert edges.shape == (HEADS, LENGTH, LENGTH)
        limit = (1e-6 if loose else 1e-12) * np.abs(edges).sum()
        np.testing.assert_allclose(edges.sum((1, 2)), parts.heads[0, 0], rtol=0, atol=limit)
        if name == "llama":
            assert not np.triu(edges, 1).any()  # causal
        largest = trace.top_edges(0, layer, 5)
        order = np.argsort(-np.abs(edges), axis=None)[:5]
        assert [(h, q, k) for h, q, k, _ in largest] == [
            tuple(map(int, np.unravel_index(place, edges.shape))) for place in order
        ]
        assert [share for *_, share in largest] == [edges.flat[place] for place in order]


def test_single_edges_of_the_frozen_network() -> None:
    edges = trace_of("bert", "frozen").edges(0, 1)
    model = written("bert").model
    with torch.no_grad():
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states[1][0]
    attention = model.bert.encoder.layer[1].attention.self
    q, k, v = (
        projection(states).unflatten(-1, (HEADS, -1)).transpose(0, 1).detach()
        for projection in (attention.query, attention.key, attention.value)
    )
    alpha = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)

    def pieces(state: State) -> Tensor:
        parts = torch.zeros(HEADS * LENGTH * LENGTH, *whole(state).shape, dtype=torch.float64)
        at = 0
        for head in range(HEADS):
            for query in range(LENGTH):
                for key in range(LENGTH):
                    parts[at, head, query] = alpha[head, query, key] * v[head, key]
                    at += 1
        return parts

    expected = by_hand("bert", "frozen", "context", 1, HEADS * LENGTH**2, pieces)[:-1]
    np.testing.assert_allclose(edges.ravel(), expected, rtol=0, atol=1e-13)


def test_edges_of_a_layer_that_is_not_there() -> None:
    with pytest.raises(InputError, match="there is no layer 3: layers go to 2"):
        trace_of("bert", "frozen").edges(0, 3)


@pytest.mark.parametrize("name", ["bart", "t5", "falcon", "gpt_neox", "siglip"])
def test_heads_of_rows_and_steps(name: str) -> None:
    """Cross-attention, parallel layers and towers: a row in a batch is the row alone."""
    model: Any = tiny_model(name)
    inputs = tiny_inputs(name)
    steps = 1 if name == "siglip" else 2
    with FullPrecision():
        result = explain(
            model, inputs, last_position(inputs, steps), rules_of("frozen"), trace=True
        )
    trace = result.trace
    assert trace is not None
    for layer, parts in enumerate(trace.layers):
        for row in range(3):
            for step in range(steps):
                calls = trace.attentions[layer]
                found = [call.whole(row, step).sum((1, 2)) for call in calls]
                np.testing.assert_allclose(
                    np.concatenate(found), parts.heads[row, step], rtol=0, atol=1e-12
                )


def test_states_that_are_changed_in_place() -> None:
    """Falcon adds the attention's output to that of its feed-forward in place."""
    model: Any = tiny_model("falcon (grouped)")
    inputs = {"input_ids": IDS}

    def value(output: Any) -> Tensor:
        logits: Tensor = output.logits
        return logits[:, -1, [5]]

    result = explain(model, inputs, value, rules_of("frozen"), trace=True)
    assert result.trace is not None
    outputs: list[Tensor] = []
    second = model.transformer.h[2].mlp.dense_4h_to_h
    handle = second.register_forward_hook(lambda *a: outputs.append(a[2].detach().clone()))
    states: list[Tensor] = []
    layer = model.transformer.h[2]
    other = layer.register_forward_hook(lambda *a: states.append(a[2][0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    other.remove()
    # The last layer's feed-forward reaches the logit through the final norm alone.
    norm, head = model.transformer.ln_f, model.lm_head.weight[5].detach()
    last = states[0][0, -1]
    scale = 1 / (last.var(correction=0) + norm.eps).sqrt()
    vector = outputs[0][0, -1]
    expected = ((vector - vector.mean()) * scale * norm.weight.detach()) @ head
    found = result.trace.layers[2].feed_forward
    assert found is not None
    assert found[0, 0, -1] == pytest.approx(expected.item(), abs=1e-12)
    assert np.abs(found[0, 0, :-1]).max() == 0
