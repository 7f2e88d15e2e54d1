"""Attribution: shares that add up, their sums, and every way in and out of a file."""

from __future__ import annotations

import copy
import csv
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope import Attribution, InputError, LabelledArray
from normscope.results.files import write
from normscope.results.traced import TracedShares
from normscope.text.tokens import Tokens
from tests.helpers.attributions import HEADS, KEYS, LAYERS, attribution, tokens_of, words

STEPS = tokens_of(["and", "left", "."])


def simple(**about: Any) -> Attribution:
    facts: dict[str, Any] = {
        "tokens": KEYS,
        "value": 2.0,
        "bias": -1.0,
        "scores": [0, 2.5, 0, 0.5, -1.0, 1.0],
    }
    return Attribution(**facts | about)


def several(*, trace: bool = False) -> Attribution:
    return attribution(words(30), STEPS, trace=trace)


def test_shares_and_bias_add_up_to_the_value() -> None:
    result = attribution()
    assert result.scores.sum() + result.bias == pytest.approx(result.value, rel=1e-12)
    assert isinstance(result.scores.sum(), float)
    assert (result.scores.axes, result.parts.axes) == (("token",), ("part", "token"))
    assert result.scores.dtype == np.float64
    assert result.scores.signed
    assert result.part_names == ("word", "position")
    assert np.allclose(result.parts.sum("part"), result.scores)
    assert result.parts.sel(part="position").shape == (6,)
    assert (result.method, result.units, result.sides) == ("frozen", "logit", ("text",) * 6)
    rows = several()
    assert (rows.scores.axes, rows.parts.axes) == (("step", "token"), ("step", "part", "token"))
    assert np.allclose(rows.scores.sum("token") + rows.bias, rows.value)
    assert rows.scores.tokens == {"token": rows.tokens, "step": STEPS}


def test_error_is_the_gap_of_the_numbers_or_the_larger_one_that_is_given() -> None:
    assert simple().error == 0.0
    assert simple(error=3e-4).error == 3e-4
    # |2 − 3.0001 + 1| / (5.0001 + 1)
    off = simple(scores=[0, 2.5001, 0, 0.5, -1.0, 1.0])
    assert off.error == pytest.approx(1e-4 / 6.0001)
    assert simple(value=0.0, bias=0.0, scores=np.zeros(6)).error == 0.0


def with_trace(**changes: Any) -> dict[str, Any]:
    trace = {"layers": np.full((3, 6), 0.5), "layer_bias": [-1.0] * 3, "layer_error": [0.0] * 3}
    return {"trace": TracedShares(**trace | changes)}


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"error": 1e-7, "value": 2.01}, "shares of the tokens do not add up: .* 1.7e-03"),
        ({"scores": np.zeros(5)}, "5 token entries but 6 tokens"),
        ({"scores": np.zeros((1, 6))}, r"(shape|dimension)"),
        ({"scores": [0, 2.5, 0, 0.5, -1.0, np.nan]}, "not finite"),
        ({"scores": None}, "needs scores or parts"),
        ({"parts": np.ones((2, 6)), "part_names": ("a", "b")}, "parts of a token do not add up"),
        ({"parts": [[0, 2.5, 0, 0.5, -1.0, 1.0]], "part_names": ("a", "b")}, "give 1 different"),
        ({"value": [2.0]}, r"value has shape \(1,\)"),
        ({"value": np.inf}, "not finite"),
        ({"steps": STEPS}, "parts has shape"),
        ({"steps": STEPS, "answer": ("a", "b")}, "3 steps but 2 answers"),
        ({"sides": ("text",) * 5}, "one of .* for each token"),
        ({"sides": ("left",) * 6}, "one of .* for each token"),
        ({"error": -1.0}, "not negative"),
        ({"scores": LabelledArray(np.zeros(6), ("key",), {"key": KEYS})}, "has the axes"),
        (with_trace(layers=np.full((3, 6), 0.6)), "shares of a layer do not add up"),
        (with_trace(layer_bias=[-1.0] * 2), "give layer_bias and layer_error for each"),
    ],
)
def test_what_does_not_fit_or_add_up_is_refused(about: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simple(**about)


def test_other_tokens_in_an_array_are_refused() -> None:
    other = replace(KEYS, texts=("x",) * 6)
    with pytest.raises(InputError, match="tokens of scores along 'token' are not the result's"):
        simple(scores=LabelledArray(np.zeros(6), ("token",), {"token": other}))


def test_top_span_and_spans_by_hand() -> None:
    result = simple()
    assert result.top(2) == [("keys", 2.5), ("cab", -1.0)]
    assert len(result.top(99)) == 6
    assert result.spans([(1, 4), (4, 6), (0, 6)]) == [3.0, 0.0, 3.0]
    for wrong in ((3, 3), (-1, 2), (0, 7)):
        with pytest.raises(InputError, match="not a range of tokens; valid: 0 <= a < b <= 6"):
            result.spans([wrong])
    with pytest.raises(InputError, match="spans sums tokens"):
        result.span(0, 1)
    with pytest.raises(InputError, match="n is 0"):
        result.top(0)


def test_several_steps_are_summed_or_chosen() -> None:
    rows = several(trace=True)
    first = max(range(30), key=lambda at: abs(rows.scores[:, at].sum()))
    assert rows.top(1) == [(rows.tokens.texts[first], rows.scores.values.sum(axis=0)[first])]
    assert rows.top(1, step=2)[0][1] == rows.scores[2][np.abs(rows.scores[2]).argmax()]
    with pytest.raises(InputError, match="step is 3; valid: 0 to 2"):
        rows.top(1, step=3)
    both = rows.span(1, 3)
    assert np.array_equal(both.scores, rows.scores[1:3].sum(axis=0))
    assert (both.value, both.bias) == (rows.value[1:3].sum(), rows.bias[1:3].sum())
    assert (both.answer, both.steps, both.error >= rows.error) == (" left .", None, True)
    assert np.allclose(both.layers, rows.layers[1:3].sum(axis=0))
    assert both.scores.sum() + both.bias == pytest.approx(both.value)
    with pytest.raises(InputError, match="valid: 0 <= a < b <= 3"):
        rows.span(2, 4)


def test_words_sum_pieces_and_keep_value_and_answer() -> None:
    result = attribution(trace=True)
    merged = result.words()
    assert merged.tokens.strings == ("The", "keys", "to", "the", "cabinet")
    assert merged.scores[4] == result.scores[4] + result.scores[5]
    assert (merged.value, merged.bias, merged.answer) == (result.value, result.bias, " are")
    assert merged.parts.shape == (2, 5)
    assert merged.layers.shape == (LAYERS + 1, 5)
    assert merged.heads == result.heads
    assert several().words().steps == STEPS
    with pytest.raises(InputError, match="fast tokenizer"):
        simple(tokens=Tokens.positions(6)).words()


def test_words_may_cancel_without_being_refused() -> None:
    pieces = [0, 0, 0, 0, 1e6, -1e6]
    merged = simple(value=0.5, bias=0.0, scores=pieces, error=1e-6).words()
    assert merged.error == 1.0  # the value itself is what is missing


def test_sentences_cover_everything() -> None:
    text = tokens_of(["[CLS]", "It", "rained", ".", "We", "left", "!", "[SEP]"])
    text = replace(text, special=(True, *[False] * 6, True))
    result = attribution(text)
    passages = result.by_sentence()
    assert [sentence for sentence, _ in passages] == ["[CLS]", "It rained.", "We left!", "[SEP]"]
    assert passages[1][1] == result.spans([(1, 4)])[0]
    assert sum(share for _, share in passages) + result.bias == pytest.approx(result.value)
    rows = several()
    assert sum(s for _, s in rows.by_sentence(step=1)) == pytest.approx(rows.scores[1].sum())


def test_a_trace_is_read_or_asked_for() -> None:
    result = attribution(trace=True)
    assert result.traced
    assert result.layers.axes == ("layer", "token")
    assert np.allclose(result.layers.sum("token") + np.asarray(result.layer_bias), result.value)
    assert (result.heads.shape, result.feed_forward.shape) == ((LAYERS, HEADS), (LAYERS, 6))
    assert result.layer_error.shape == (LAYERS + 1,)
    assert (result.heads_error.axes, result.feed_forward_error.axes) == (("layer",),) * 2
    assert several(trace=True).layers.axes == ("step", "layer", "token")
    for name in ("layers", "layer_bias", "heads", "feed_forward"):
        with pytest.raises(InputError, match=f"no {name}: attribute with trace=True"):
            getattr(attribution(), name)
    with pytest.raises(InputError, match="no edges: attribute with trace=True"):
        attribution().edges(0)
    bare = Attribution(tokens=KEYS, value=2.0, bias=-1.0, scores=[0.5] * 6, **with_trace())
    with pytest.raises(InputError, match="no heads: this model has none"):
        bare.heads  # noqa: B018


def test_edges_of_a_layer_whole_or_the_largest() -> None:
    result = attribution(trace=True)
    whole = result.edges(2)
    assert isinstance(whole, LabelledArray)
    assert whole.axes == ("head", "query", "key")
    largest = result.edges(2, top=4)
    assert isinstance(largest, list)
    head, query, key, share = largest[0]
    assert abs(share) == np.abs(whole.values).max()
    assert whole[head, query, key] == share
    assert [abs(edge[3]) for edge in largest] == sorted(np.abs(whole.values).ravel())[:-5:-1]
    with pytest.raises(InputError, match="no layer 9"):
        result.edges(9)
    with pytest.raises(InputError, match="top is 0"):
        result.edges(0, top=0)
    rows = attribution(words(12), STEPS, trace=True)
    with pytest.raises(InputError, match="step is None; valid: 0 to 2"):
        rows.edges(0)
    assert isinstance(rows.edges(0, step=1), LabelledArray)


class Lazy:
    """Edges that are computed when asked for; stands for an object that holds the model."""

    def edges(self, layer: int, *, top: int | None, step: int | None) -> list[Any]:
        return [(layer, top, step or 0, 0.5)]

    def __reduce__(self) -> Any:
        raise AssertionError("must not be pickled")


def test_edges_computed_on_demand_are_called_and_left_behind(tmp_path: Path) -> None:
    trace = attribution(trace=True)._trace
    assert trace is not None
    result = attribution(trace=replace(trace, edges=Lazy()))
    assert result.edges(3, top=2) == [(3, 2, 0, 0.5)]
    for again in (pickle.loads(pickle.dumps(result)), saved(result, tmp_path)):
        assert again == result
        with pytest.raises(InputError, match="no edges"):
            again.edges(3)


def saved(result: Attribution, folder: Path) -> Attribution:
    result.save(folder / "shares.safetensors")
    again = normscope.load(folder / "shares.safetensors")
    assert isinstance(again, Attribution)
    return again


def cases() -> list[Attribution]:
    hostile = tokens_of(["\ud800", '"', "</script>", "猫", "a", "b"])
    labelled: dict[str, Any] = {
        "sides": ("source",) * 3 + ("target",) * 3,
        "settings": {"baseline": "[MASK]"},
    }
    spread = attribution(spread=np.arange(6.0), foil=None, **labelled)
    return [attribution(), attribution(hostile), spread, several(), several(trace=True),
            attribution(trace=True)]  # fmt: skip


@pytest.mark.parametrize("case", range(6))
def test_saved_copied_and_pickled_it_is_the_same_bit_for_bit(case: int, tmp_path: Path) -> None:
    result = cases()[case]
    for again in (
        saved(result, tmp_path),
        copy.deepcopy(result),
        pickle.loads(pickle.dumps(result)),
    ):
        assert again == result
        assert again.signature == "model:tiny|method:frozen"
        assert again.question == result.question
        assert np.asarray(again.value).tobytes() == np.asarray(result.value).tobytes()
    first = (tmp_path / "shares.safetensors").read_bytes()
    result.save(tmp_path / "shares.safetensors")
    assert (tmp_path / "shares.safetensors").read_bytes() == first


def test_equality_covers_everything() -> None:
    result = attribution(trace=True)
    changes: list[dict[str, Any]] = [
        {"foil": None}, {"answer": " were"}, {"error": 1e-6}, {"signature": "other"}, {"seed": 1},
        {"settings": {}}, {"trace": None}, {"spread": np.zeros(6)}, {"sides": ("pair",) * 6},
        {"tokens": replace(KEYS, texts=("x",) * 6)},
    ]  # fmt: skip
    assert result == attribution(trace=True)
    for change in changes:
        assert result != attribution(**{"trace": True} | change)
    assert result != "attribution"
    with pytest.raises(TypeError):
        hash(result)


def test_files_of_other_kinds_and_damaged_ones(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "shares.safetensors"
    result = attribution(trace=True)
    result.save(file)
    tensors = load_file(file)
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not saved by normscope"):
        normscope.load(tmp_path / "other.safetensors")
    about = {"normscope.attribution": json.dumps({"version": 99})}
    save_file(tensors, tmp_path / "newer.safetensors", metadata=about)
    with pytest.raises(InputError, match="format 99, and this normscope reads up to 1"):
        normscope.load(tmp_path / "newer.safetensors")
    with safe_open(file, framework="np") as opened:
        header = json.loads(opened.metadata()["normscope.attribution"])
    changes = {"answer": [[]], "foil": 5, "error": "x", "sides": 3, "tokens": 99}
    for name, value in changes.items():
        about = {"normscope.attribution": json.dumps(header | {name: value})}
        save_file(tensors, tmp_path / "damaged.safetensors", metadata=about)
        with pytest.raises(InputError, match="could not load"):
            normscope.load(tmp_path / "damaged.safetensors")
    about = {"normscope.attribution": json.dumps({"version": 1})}
    save_file(tensors, tmp_path / "empty.safetensors", metadata=about)
    with pytest.raises(InputError, match="header is damaged"):
        normscope.load(tmp_path / "empty.safetensors")


def test_json_has_everything_but_edges(tmp_path: Path) -> None:
    result = attribution(trace=True)
    write(result, str(tmp_path / "shares.json"))
    plain = json.loads((tmp_path / "shares.json").read_text(encoding="utf-8"))
    assert plain == json.loads(json.dumps(result.to_dict()))
    assert plain["scores"] == result.scores.values.tolist()
    assert plain["question"] == "What made the model say ' are' rather than ' is'"
    assert "edges" not in plain["trace"]
    assert np.array_equal(plain["trace"]["layers"], result.layers)


@pytest.mark.parametrize("make", [attribution, several])
def test_the_share_column_of_the_table_adds_up_to_the_values(make: Any, tmp_path: Path) -> None:
    result = make()
    write(result, str(tmp_path / "shares.csv"))
    with (tmp_path / "shares.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = 1 if result.steps is None else len(result.steps)
    assert len(rows) == steps * (len(result.tokens) + 1)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(np.sum(result.value))
    assert [row["side"] for row in rows].count("bias") == steps
    assert float(rows[1]["share_word"]) == np.atleast_2d(result.parts.values)[..., 0, 1].ravel()[0]
    assert result.to_pandas().share.sum() == pytest.approx(np.sum(result.value))


def test_the_question_names_answer_and_foil() -> None:
    assert attribution().question == "What made the model say ' are' rather than ' is'"
    assert attribution(foil=None).question == "What made the model say ' are'"
    assert several().question == "What made the model write ' and left .'"
    asked = {"question": "What makes these sentences similar"}
    assert attribution(settings=asked).question == asked["question"]
    assert simple().question == "What made the model's output"


def test_repr_is_one_line_without_control_characters() -> None:
    shown = repr(attribution(tokens_of(["\x1b[31m", "a\nb"]), answer="x\x1by"))
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert "2 tokens" in shown
    assert "error 2.0e-07" in shown


def test_the_signature_is_made_once_and_only_when_read() -> None:
    class Source:
        calls = 0

        def text(self) -> str:
            self.calls += 1
            return "made"

    source = Source()
    result = attribution(signature=source)
    repr(result), result.words(), result.top(2)
    assert source.calls == 0
    assert result.signature == result.signature == "made"
    assert source.calls == 1
