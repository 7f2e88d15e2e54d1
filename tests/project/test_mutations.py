"""The tests detect mistakes: each mistake below makes the check named beside it fail.

A mistake replaces one attribute of the package by a wrong version of it while the check runs, in
the same process. A replaced attribute that no longer exists is an error, and so is a check that
passes in spite of the mistake.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from normscope.decomposition.scopes import NORMS, SCOPES
from normscope.errors import ExactnessError
from normscope.kernels import Linear
from normscope.linearisation.activations import KNOWN
from tests.capture import test_capture
from tests.decomposition import test_exactness, test_layer, test_precision, test_related
from tests.deep.mutants import FILES
from tests.kernels import test_products
from tests.measures import test_rollout

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "normscope"


def _anew(check: Callable[..., None], *arguments: Any) -> None:
    """Run a check whose results are kept from test to test."""
    test_related.run.cache_clear()
    try:
        check(*arguments)
    finally:
        test_related.run.cache_clear()


# The checks are tests themselves, with their parameters.
CHECKS: dict[str, Callable[[], None]] = {
    "bert is seen exactly": partial(test_exactness.test_family_is_seen_exactly, "bert"),
    "llama is seen exactly": partial(test_exactness.test_family_is_seen_exactly, "llama"),
    "albert is seen exactly": partial(test_exactness.test_family_is_seen_exactly, "albert"),
    "cancelling heads": partial(test_exactness.test_cancelling_heads_keep_six_digits, 1e-3, 8),
    "grouped heads": partial(test_exactness.test_cancelling_heads_keep_six_digits, 1.0, 2),
    "cancelling heads in float32": partial(test_products.test_heads_that_cancel_in_float32, 1e-3),
    "both precisions": partial(test_precision.test_both_precisions_agree, "bert"),
    "products kept": test_products.test_kept_until_the_weight_changes_in_whatever_way,
    "marian's residual": partial(test_capture.test_residual_is_what_enters_the_layer, "marian"),
    "bert's block by loops": test_layer.test_bert_block_against_loops,
    "gemma's scopes": partial(test_layer.test_every_scope_is_complete, "gemma", "path"),
    "secants of GELU": partial(
        test_layer.test_secants_against_integration_of_the_derivative, "gelu", False
    ),
    "feed-forward by integration": partial(
        test_layer.test_feed_forward_against_numerical_integration, "bert", "path"
    ),
    "closeness by loops": partial(
        _anew, test_related.test_closeness_routes_and_effective_attention_against_loops, "bert"
    ),
    "closeness in gpt2": partial(
        _anew, test_related.test_closeness_routes_and_effective_attention_against_loops, "gpt2"
    ),
    "globenc by loops": partial(_anew, test_related.test_globenc_of_bert_against_loops),
    "value zeroing by running again": partial(
        _anew, test_related.test_value_zeroing_is_running_the_layer_again, "llama"
    ),
    "rollout by loops": partial(test_rollout.test_rollout_of_every_map_against_loops, "gpt_oss"),
    "alti+ by its definition": partial(test_rollout.test_alti_plus, "marian"),
}


class Mistake(NamedTuple):
    """A wrong version of one attribute, and the check that must fail with it."""

    target: str  # "module:attribute"
    wrong: Callable[[Any], Any]  # returns the wrong version; called with the right one
    check: str


MISTAKES: dict[str, Mistake] = {}


def mistake(target: str, check: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Add a mistake to the table, under the name of the function that makes it."""

    def add(wrong: Callable[[Any], Any]) -> Callable[[Any], Any]:
        MISTAKES[wrong.__name__] = Mistake(f"normscope.{target}", wrong, check)
        return wrong

    return add


def _tiled(value: Tensor, heads: int) -> Tensor:
    """Value heads in the order 0 1 0 1, where heads 0 0 1 1 share them."""
    return value.repeat(1, heads // value.shape[1], 1, 1)


# ------------------------------------------------------------------------------- the capture


@mistake("capture.recorder:projection_of", "bert is seen exactly")
def output_bias_dropped(right: Any) -> Any:
    """Forget b_O."""
    return lambda *args: replace(right(*args), bias=None)


@mistake("capture.recorder:Recorder.attended_by", "bert is seen exactly")
def value_bias_counted_twice(right: Any) -> Any:
    """Add b_V to values that contain it."""

    def attended_by(self: Any, pending: Any) -> None:
        bias = pending.module.value.bias
        pending.value = pending.value + bias.view(pending.value.shape[1], 1, -1)
        right(self, pending)

    return attended_by


@mistake("capture.recorder:Recorder.attended_by", "bert is seen exactly")
def query_and_key_swapped(right: Any) -> Any:
    """Record αᵀ instead of α."""

    def attended_by(self: Any, pending: Any) -> None:
        pending.weights = pending.weights.mT
        right(self, pending)

    return attended_by


@mistake("capture.recorder:Recorder.__init__", "albert is seen exactly")
def captures_keyed_by_module(right: Any) -> Any:
    """Keep one record per module, although ALBERT's layers share one module."""

    def init(self: Any, inventory: Any, emit: Any, **options: Any) -> None:
        names: set[str] = set()

        def emit_once(captured: Any) -> None:
            if captured.name not in names:
                names.add(captured.name)
                emit(captured)

        right(self, inventory, emit_once, **options)

    return init


@mistake("capture.recorder:Recorder._residual", "marian's residual")
def post_norm_taken_for_pre_norm_in_cross_attention(right: Any) -> Any:
    """Treat the cross-attention like a self-attention whose input comes from a norm."""
    return lambda self, states, cross: right(self, states, False)


@mistake("capture.installation:register", "bert is seen exactly")
def mask_function_left_out(right: Any) -> Any:
    """Register no mask function; the next capture registers it again."""
    from transformers import AttentionMaskInterface

    from normscope.capture.interface import NAME

    def register() -> None:
        right()
        del AttentionMaskInterface._global_mapping[NAME]

    return register


@mistake("capture.record:Capture.reconstruct", "llama is seen exactly")
def grouped_heads_tiled_in_the_reconstruction(right: Any) -> Any:
    """Assign value heads to the wrong heads when the output is computed again."""
    tiled = lambda self: replace(self, value=_tiled(self.value, self.shape[1]))  # noqa: E731
    return lambda self, dtype=None: right(tiled(self), dtype)


# ------------------------------------------------------------------------------ Gram matrices


@mistake("decomposition.attention:quadratic_norms", "bert is seen exactly")
def query_and_key_swapped_in_the_map(right: Any) -> Any:
    """Return the norms by key and query."""
    return lambda *args: [norms.mT for norms in right(*args)]


@mistake("decomposition.attention:quadratic_norms", "bert is seen exactly")
def heads_averaged(right: Any) -> Any:
    """Average the heads' part of the square instead of summing it."""
    return lambda alpha, *args: [norms / alpha.shape[1] ** 0.5 for norms in right(alpha, *args)]


@mistake("decomposition.attention:product_grams", "llama is seen exactly")
def grouped_heads_tiled_in_the_products(right: Any) -> Any:
    """Assign value heads to the wrong heads in the products of W_O."""

    def product_grams(value: Tensor, products: Any, scratch: Any) -> Any:
        return right(_tiled(value, sum(len(run) for run in products[0])), products, scratch)

    return product_grams


@mistake("decomposition.attention:product_grams", "bert is seen exactly")
def products_counted_once(right: Any) -> Any:
    """Count the product of two different heads once, although only half of G is computed."""

    def product_grams(*args: Any) -> list[Tensor]:
        upper = right(*args)
        return [(grams + torch.diag_embed(grams.diagonal(dim1=2, dim2=3))) / 2 for grams in upper]

    return product_grams


@mistake("kernels.products:tensor_state", "products kept")
def products_kept_although_the_weight_changed(right: Any) -> Any:
    """Compare shapes instead of contents."""
    return lambda tensor: tensor.shape


@mistake("kernels.gram:head_vectors", "grouped heads")
def grouped_heads_tiled_in_the_vectors(right: Any) -> Any:
    """Assign value heads to the wrong heads in f(x)."""
    return lambda value, weight, out=None: right(_tiled(value, len(weight)), weight, out)


@mistake("kernels.gram:head_vectors", "cancelling heads")
def gram_matrix_of_float32(right: Any) -> Any:
    """Round f(x) to float32."""

    def head_vectors(value: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        vectors: Tensor = right(value, weight, out)
        return vectors.copy_(vectors.float())

    return head_vectors


@mistake("capture.record:Capture.own_vectors", "cancelling heads in float32")
def own_vector_left_to_float32(right: Any) -> Any:
    """Compute the query's own vector in the model's precision when float64 is asked for."""
    return lambda self, dtype=None: right(self)


@mistake("decomposition.attention:factor_norms", "both precisions")
def query_and_key_swapped_in_float32(right: Any) -> Any:
    """Return the norms by key and query."""
    return lambda *args: [norms.mT for norms in right(*args)]


@mistake("decomposition.attention:cholesky", "both precisions")
def factors_of_another_key(right: Any) -> Any:
    """Use the vectors of the key before."""
    return lambda grams: right(grams).roll(1, dims=1)


@mistake("capture.record:Capture.own_vectors", "both precisions")
def own_vector_of_another_query(right: Any) -> Any:
    """Return the own vector of the query before."""
    return lambda self, dtype=None: right(self, dtype).roll(1, dims=1)


# ----------------------------------------------------------------------- residuals and norms


@mistake("decomposition.maps:ScopeMap.rows", "bert's block by loops")
def residual_added_to_every_column(right: Any) -> Any:
    """Add the query's own vector to every key, not to itself alone."""

    def rows(self: Any, block: slice, norms: Any) -> Tensor:
        lengths: Tensor = right(replace(self, scope=SCOPES[NORMS]), block, norms)
        return lengths + self.own[:, block].unsqueeze(-1) if self.scope.with_residual else lengths

    return rows


@mistake("decomposition.block:Norm.sigma", "bert's block by loops")
def sigma_of_each_part(right: Any) -> Any:
    """Compute σ without what the positions have in common."""

    def sigma(self: Any) -> Tensor:
        part = self.inputs.double() - self.inputs.double().mean(dim=1, keepdim=True)
        computed: Tensor = self.parameters.sigma(part).squeeze(-1)
        return computed

    return property(sigma)


@mistake("decomposition.block:Norm.bias", "bert's block by loops")
def norm_bias_dropped(right: Any) -> Any:
    """Forget β."""
    return lambda self, bias: None if bias is None else self(bias)


@mistake("decomposition.block:Norm.bias", "bert's block by loops")
def normed_output_bias_dropped(right: Any) -> Any:
    """Forget γ(b_O − mean b_O)."""
    return lambda self, bias: right(self, None if bias is None else torch.zeros_like(bias))


@mistake("decomposition.chain:norm_of", "gemma's scopes")
def unit_offset_forgotten(right: Any) -> Any:
    """Multiply by γ where Gemma's norm multiplies by 1 + γ."""

    def norm_of(*args: Any) -> Any:
        parameters = right(*args)
        return replace(parameters, scale=parameters.scale - 1)

    return norm_of


# -------------------------------------------------------------------------- the feed-forward


@mistake("decomposition.feedforward:FeedForwardSplit.__init__", "feed-forward by integration")
def feed_forward_residual_on_the_diagonal_alone(right: Any) -> Any:
    """Give the residual's parts of all keys to the query itself, so that their sum is kept."""

    def init(self: Any, weights: Any, parts: Any, carried: Any, **options: Any) -> None:
        diagonal = replace(
            carried,
            linear=(*carried.linear, Linear(False, torch.zeros(()))),
            own=carried.own + carried.others,
            others=torch.zeros_like(carried.others),
        )
        right(self, weights, parts, diagonal, **options)

    return init


@mistake("linearisation.activations:CLOSED", "secants of GELU")
def secant_by_division(right: Any) -> Any:
    """Compute θ(p) as g(p) / p, at zero too."""

    def divide(activation: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
        return activation(p) / p

    return {name: partial(divide, activation) for name, activation in KNOWN.items()}


# -------------------------------------------------------------- conventions of other methods


@mistake("decomposition.closeness:row_shares", "closeness by loops")
def rows_are_not_divided(right: Any) -> Any:
    return lambda values, own: values


@mistake("decomposition.closeness:closeness", "closeness by loops")
def the_other_norm(right: Any) -> Any:
    return lambda whole, parts, order: right(whole, parts, 3 - order)


@mistake("decomposition.closeness:closeness", "closeness in gpt2")
def a_floor_below_every_part(right: Any) -> Any:
    return lambda whole, parts, order: right(whole, parts, order).clamp_min(1e-5)


@mistake("decomposition.layer:LayerView.real", "closeness in gpt2")
def the_whole_without_the_bias(right: Any) -> Any:
    def real(self: Any, scope: str) -> Tensor:
        state: Tensor = right(self, scope)
        return state - self.captured.projection.bias if SCOPES[scope].related else state

    return real


@mistake("decomposition.closeness:_transposed", "closeness by loops")
def the_mean_left_in_inner_products(right: Any) -> Any:
    return lambda step, vectors: right(replace(step, centred=False), vectors)


@mistake("decomposition.effective:_groups", "closeness in gpt2")
def weights_projected_beyond_their_keys(right: Any) -> Any:
    return lambda seen, single: [(torch.arange(len(seen)), torch.arange(seen.shape[1]))]


@mistake("decomposition.chain:LayerChain._kept", "globenc by loops")
def the_first_norm_twice(right: Any) -> Any:
    def kept(self: Any) -> Any:
        return self.parts("block").norm(self.norm(self.block.after))

    return kept


@mistake("decomposition.zeroing:_turned", "value zeroing by running again")
def lengths_of_changes(right: Any) -> Any:
    return lambda changed, own: (changed - own).norm(dim=-1)


@mistake("decomposition.zeroing:Tail._core", "value zeroing by running again")
def a_tail_without_its_feed_forward(right: Any) -> Any:
    return lambda self, states: torch.zeros_like(states)


@mistake("measures.rollout:_divided", "rollout by loops")
def sums_of_rows_taken_for_one(right: Any) -> Any:
    return lambda values, square: values / 2


@mistake("measures.rollout:_products", "rollout by loops")
def maps_multiplied_from_the_other_side(right: Any) -> Any:
    return lambda maps: right(maps.swapaxes(1, 2)).swapaxes(1, 2)


@mistake("measures.rollout:joint_products", "alti+ by its definition")
def the_source_before_the_encoder(right: Any) -> Any:
    import numpy as np

    return lambda source, kept, encoder: right(source, kept, np.eye(len(encoder)))


# --------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("check", CHECKS)
def test_checks_pass_without_a_mistake(check: str) -> None:
    CHECKS[check]()


def test_every_check_detects_a_mistake() -> None:
    assert {wrong.check for wrong in MISTAKES.values()} == set(CHECKS)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, wrong, check = MISTAKES[name]
    owner, _, attribute = target.replace(":", ".").rpartition(".")
    # Raises AttributeError if the package has no such attribute.
    monkeypatch.setattr(pkgutil.resolve_name(owner), attribute, wrong(pkgutil.resolve_name(target)))
    with pytest.raises((AssertionError, ExactnessError)) as failure:
        CHECKS[check]()
    # An assertion inside the package would only show that the wrong version does not run.
    raised_by = Path(failure.traceback[-1].path)
    assert failure.errisinstance(ExactnessError) or SOURCE not in raised_by.parents


def test_make_mutants_names_tests_that_exist() -> None:
    assert len(FILES) > 15
    assert not [name for name in FILES if not (TESTS / name).is_file()]
