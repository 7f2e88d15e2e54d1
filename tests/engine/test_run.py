"""The loop: measures side by side in one pass, early ends; signatures; weights that change."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor

import normscope
from normscope.decomposition.available import available
from normscope.decomposition.layer import LayerView
from normscope.engine.batch import Batch
from normscope.engine.measure import Measure, Needs, Observed, Part, StopPass
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import look, run
from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.measures.analysis import analyze_inputs, analyze_views
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.helpers.tiny import tokenizer

TEXT = "the cat sat on the mat , and looked at it ."


class Noting:
    """Notes the layer's number and the sums of the norms; ends the pass after some layers."""

    def __init__(self, last: int = 99, every: int = 1) -> None:
        self.needs, self.last, self.every = Needs(weights=True), last, every

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        layer = view.captured.layer
        sums = view.transformed_norm.sum(dim=(1, 2))
        if layer % self.every == 0:
            view.maps(["attn_n"])
        if layer == self.last:
            raise StopPass
        return {"sums": sums, f"only {layer}": sums.new_full((len(sums), layer + 1), layer)}

    def finish(self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]) -> Any:
        (observed,) = parts.values()
        return observed


def one_pass(*measures: Measure) -> list[Any]:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    (judged,) = run(model, [Batch(model, inputs)], list(measures), attention="eager")
    return judged.results


def test_measures_do_not_disturb_each_other() -> None:
    alone, (first, second) = one_pass(Noting())[0], one_pass(Noting(every=2), Noting())
    assert_array_equal(first["sums"], alone["sums"])
    assert_array_equal(second["sums"], alone["sums"])
    assert alone["sums"].shape == (3, 3)  # row, layer
    assert [len(alone.lists(f"only {n}")[0][0]) for n in range(3)] == [1, 2, 3]
    assert_array_equal(second.gaps["attn_n"], alone.gaps["attn_n"])


def test_layers_of_which_nothing_was_read_have_nothing_to_judge() -> None:
    (observed,) = one_pass(Noting(every=2))
    gaps = observed.gaps["attn_n"]
    assert gaps.shape == (3, 3)  # layer, row
    assert (gaps[1] == 0).all()
    assert (gaps[[0, 2]] > 0).any(axis=1).all()


def test_a_measure_may_end_the_pass_and_is_judged_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (observed,) = one_pass(Noting(last=1))
    assert observed["sums"].shape == (3, 1)
    assert observed.gaps["attn_n"].shape == (2, 3)
    right = LayerView.take_gaps

    def wrong(self: LayerView) -> dict[str, Tensor]:
        return {name: gap + (self.captured.layer == 1) for name, gap in right(self).items()}

    monkeypatch.setattr(LayerView, "take_gaps", wrong)
    with pytest.raises(ExactnessError, match=r"attn_n of encoder\.layer\.1"):
        one_pass(Noting(last=1))


def test_a_pass_goes_on_for_the_other_measures() -> None:
    stopped, whole = one_pass(Noting(last=0), Noting())
    assert stopped.arrays == {}
    assert whole["sums"].shape == (3, 3)


def test_a_part_without_the_wanted_map_is_not_looked_at() -> None:
    """A decoder that reads a cache has no map of its own, but its cross-attention has."""
    model: Any = tiny_model("bart")
    inputs = tiny_inputs("bart", batch=1)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    one = {**inputs, "decoder_input_ids": inputs["decoder_input_ids"][:, :1]}
    one.pop("decoder_attention_mask", None)
    (result,) = normscope.analyze_inputs(
        model, {**one, "past_key_values": cache}, maps=("atb_ff_res_ln",)
    )
    assert "cross" in result.parts
    assert "decoder" not in result.parts


def test_looking_leaves_the_models_output_and_its_modes() -> None:
    model: Any = tiny_model("gpt2").train()
    inputs = tiny_inputs("gpt2")
    seen: list[int] = []
    _, output = look(model, inputs, lambda view: seen.append(view.captured.layer))
    assert seen == [0, 1, 2]
    assert model.training
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model.eval()(**inputs).logits
    assert torch.equal(output.logits, expected)


def test_several_views_of_a_text_come_from_one_forward_pass() -> None:
    model: Any = tiny_model("bert")
    available(model)  # the layouts of layers are read from a pass of their own
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    lengths: list[int] = []

    def views(_: Any, length: int) -> list[AnalysisOptions]:
        lengths.append(length)
        return [AnalysisOptions(heads="each"), AnalysisOptions(("attn_n", "attn_res_ln_n", "atb"))]

    each, summed = analyze_views(model, tokenizer(), TEXT, views)
    assert (len(passes), lengths) == (1, [len(each.tokens)])
    alone: Any = normscope.analyze(model, tokenizer(), TEXT, heads="each")
    assert_array_equal(each["attn_n"].values, alone["attn_n"].values)
    maps = ["attn_n", "attn_res_ln_n", "atb"]
    alone = normscope.analyze(model, tokenizer(), TEXT, maps=maps)
    for name in maps:
        assert_array_equal(summed[name].values, alone[name].values)
    assert summed.error == alone.error


def test_nothing_outlives_a_call() -> None:
    """Neither the model nor its output waits for the garbage collector."""
    model: Any = tiny_model("gpt2")
    alive: list[Any] = []
    model.register_forward_hook(lambda *given: alive.append(weakref.ref(given[2].logits)))
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        texts = [TEXT, "the cat", "the dog sat"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("normscope.measures.analysis.BATCH_TOKENS", 8)
            results = normscope.analyze(model, tokenizer(), texts)
        assert len(alive) == 3
        assert all(logits() is None for logits in alive)
        there = weakref.ref(model)
        del model, results
        assert there() is None
    finally:
        if enabled:
            gc.enable()


def test_errors_name_a_text_by_its_place_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LayerView.take_gaps

    def wrong(self: LayerView) -> dict[str, Tensor]:
        return {name: gap + torch.eye(len(gap))[0].to(gap) for name, gap in right(self).items()}

    monkeypatch.setattr(LayerView, "take_gaps", wrong)
    with pytest.raises(ExactnessError, match=r"^text 1: attn_w of encoder"):
        normscope.analyze(tiny_model("bert"), tokenizer(), ["the cat", TEXT])  # longest first


def test_no_texts_give_no_results() -> None:
    assert normscope.analyze(tiny_model("bert"), tokenizer(), []) == []
    assert normscope.analyze(tiny_model("bart"), tokenizer(), [], target=[]) == []


# ---- signatures


def test_each_batch_has_its_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a list of short and long texts, some are computed with fused attention."""
    monkeypatch.setattr("normscope.engine.run.LONG", 8)
    monkeypatch.setattr("normscope.measures.analysis.BATCH_TOKENS", 16)
    model = tiny_model("llama")
    long, short = normscope.analyze(model, tokenizer(), [TEXT, "the cat"])
    assert "path:fused" in long.signature
    assert "path:interface" in short.signature


def test_an_unread_signature_does_not_keep_the_model_alive() -> None:
    model: Any = tiny_model("bert")
    result: Any = normscope.analyze(model, tokenizer(), TEXT)
    read: Any = normscope.analyze(model, tokenizer(), TEXT)
    assert "weights:sha256=" in read.signature
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert "weights:deleted-before-hashing" in result.signature
    assert "weights:sha256=" in read.signature


def test_a_model_that_is_loaded_for_one_call_is_hashed_before_it_is_deleted(tmp_path: Any) -> None:
    tiny_model("bert").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    result: Any = normscope.analyze(tmp_path, text=TEXT)
    gc.collect()
    assert "weights:sha256=" in result.signature


def test_the_default_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.models import loading

    first: Any = normscope.analyze(None, None, "The cat sat.")

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("the default model was loaded again")

    monkeypatch.setattr(loading, "_load", refused)
    second: Any = normscope.analyze(None, None, "The cat sat.")
    assert_array_equal(first["attn_n"].values, second["attn_n"].values)
    assert np.isfinite(second["attn_n"].values).all()


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_the_bar_over_layers_is_closed(
    error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the pass ends before the last layer: a bar left open spoils the terminal."""
    import tqdm

    opened: list[Any] = []

    class Bar(tqdm.tqdm):  # type: ignore[type-arg]  # not generic when it runs
        closed = False

        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"disable": False, "file": io.StringIO()})
            opened.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            if error is not None:
                raise error
            return super().update(n)

        def close(self) -> None:
            self.closed = True
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    model = tiny_model("bert")
    with pytest.raises(error) if error else nullcontext():
        analyze_inputs(model, tiny_inputs("bert"), maps=["atb_ff_res_ln"])
    assert [bar.closed for bar in opened] == [True]
    assert opened[0].n == (3 if error is None else 0)


# ---- weights that change meanwhile


def weights_of_two_layers(model: Any) -> list[Tensor]:
    layers = model.encoder.layer
    return [layers[0].attention.self.value.weight, layers[2].output.dense.weight]


def write_counted(weight: Tensor, factor: float) -> None:
    with torch.no_grad():
        weight.mul_(factor)


def write_through_data(weight: Tensor, factor: float) -> None:
    weight.data.mul_(factor)


WRITES = [write_counted, write_through_data]


@pytest.mark.parametrize("write", WRITES)
def test_results_are_of_one_state_while_another_thread_writes(write: Any) -> None:
    model: Any = tiny_model("bert")
    states = [[w.detach().clone() for w in weights_of_two_layers(model)]]

    def train(most: int, done: Event) -> None:
        for number in range(most):
            sleep(0.001)
            if done.is_set():
                return
            write(weights_of_two_layers(model)[number % 2], 1.01)
            states.append([w.detach().clone() for w in weights_of_two_layers(model)])

    results: list[Any] = []
    for most in (1, 9, 2, 9, 1):
        done = Event()
        writer = Thread(target=train, args=(most, done))
        writer.start()
        with suppress(UnsupportedModelError):
            results.append(normscope.analyze(model, tokenizer(), TEXT, maps=["attn_n"]))
        done.set()
        writer.join()
    assert len(results) >= 2  # a single write is noticed, and the text is run again
    possible = []
    for state in states:
        for weight, values in zip(weights_of_two_layers(model), state, strict=True):
            weight.data.copy_(values)
        possible.append(normscope.analyze(model, tokenizer(), TEXT, maps=["attn_n"]))
    for result in results:
        gaps = [np.abs(result["attn_n"].values - r["attn_n"].values).max() for r in possible]
        assert min(gaps) < 1e-12


def write_once(model: Any, calls: int, write: Any) -> Any:
    """Write to the first layer when the last has been called so often."""
    left = iter(range(calls))

    def hook(*_: Any) -> None:
        if next(left, None) == calls - 1:
            write(weights_of_two_layers(model)[0], 2)

    return model.encoder.layer[2].register_forward_hook(hook)


@pytest.mark.parametrize("write", WRITES)
def test_a_batch_is_run_again_if_the_weights_change_in_the_first_one(write: Any) -> None:
    model: Any = tiny_model("bert")
    write_once(model, 1, write)
    result: Any = normscope.analyze(model, tokenizer(), TEXT, maps=["attn_res_ln_n"])
    after: Any = normscope.analyze(model, tokenizer(), TEXT, maps=["attn_res_ln_n"])
    assert_array_equal(result["attn_res_ln_n"].values, after["attn_res_ln_n"].values)
    assert result.signature == after.signature
    assert "changed" not in result.signature


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_one_call_is_of_one_state(calls: int, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batch in which the weights change: other passes may have begun before."""
    monkeypatch.setattr("normscope.measures.analysis.BATCH_TOKENS", 8)
    model: Any = tiny_model("bert")
    texts = [TEXT, "the cat", "the dog sat"]
    write_once(model, calls, write)
    try:
        results = normscope.analyze(model, tokenizer(), texts, maps=["attn_n"])
    except UnsupportedModelError as error:
        message = str(error)
        results = []
    after = normscope.analyze(model, tokenizer(), texts, maps=["attn_n"])
    for result, right in zip(results, after, strict=False):
        assert_array_equal(result["attn_n"].values, right["attn_n"].values)
    if calls == 3:
        assert not results
        assert "BertModel were changed while it was measured" in message
