"""LabelledArray: selecting, merging words, converting; expected numbers worked out by hand."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch

from normscope.errors import InputError, MissingExtraError
from normscope.results.arrays import LabelledArray, merge_words, take
from normscope.text.tokens import Tokens

# "cats sat": [CLS] cat ##s sat [SEP]
CATS = Tokens(
    strings=("[CLS]", "cat", "##s", "sat", "[SEP]"),
    ids=(101, 4937, 2015, 2938, 102),
    special=(True, False, False, False, True),
    texts=("[CLS]", "cat", "s", "sat", "[SEP]"),
    word_of=(0, 1, 1, 2, 3),
    words=("[CLS]", "cats", "sat", "[SEP]"),
)
# "s catss": the same surface text three times, once as a piece of its own
PIECES, TEXTS = ("s", "cat", "##s", "##s"), ("s", "cat", "s", "s")
REPEATED = Tokens(PIECES, None, (False,) * 4, TEXTS, (0, 1, 1, 1), ("s", "catss"))
NO_WORDS = Tokens(("position 0", "position 1"), None, (False, False), ("a", "b"), None, None)


def numbered(*shape: int, dtype: str = "float64") -> np.ndarray[Any, Any]:
    """0, 1, 2, … in C order: every cell tells where it came from."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def square(layers: int = 3, tokens: Tokens = CATS, dtype: str = "float64") -> LabelledArray:
    values = numbered(layers, len(tokens), len(tokens), dtype=dtype)
    both = {"query": tokens, "key": tokens}
    return LabelledArray(values, ("layer", "query", "key"), both, name="attn_n")


def per_head() -> LabelledArray:
    both = {"query": CATS, "key": CATS}
    return LabelledArray(
        numbered(2, 3, 5, 5), ("layer", "head", "query", "key"), both, name="attn_n"
    )


def test_shape_axes_dtype_labels_and_indexing() -> None:
    array = square(dtype="float32")
    assert array.shape == (3, 5, 5)
    assert array.axes == ("layer", "query", "key")
    assert array.dtype == np.float32
    assert array.labels == {"layer": (0, 1, 2), "query": (0, 1, 2, 3, 4), "key": (0, 1, 2, 3, 4)}
    assert array[2, 1, 3] == 58
    assert type(array[1]) is np.ndarray
    assert array[1, :, 2].tolist() == [27, 32, 37, 42, 47]
    assert array[-1, -1, -1] == 74


def test_numpy_reads_it_without_a_copy_and_converts() -> None:
    array = square(dtype="float32")
    assert np.shares_memory(np.asarray(array), array.values)
    assert np.asarray(array, dtype=np.float64).dtype == np.float64
    assert np.array_equal(np.asarray(array, dtype=np.float64), numbered(3, 5, 5))
    assert np.sqrt(array)[0, 1, 4] == 3
    copied = np.array(array)
    assert not np.shares_memory(copied, array.values)
    assert copied.flags.writeable
    assert np.shares_memory(np.asarray(array, copy=False), array.values)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(array, dtype=np.float64, copy=False)


def test_values_cannot_be_written_to_and_the_callers_array_still_can() -> None:
    mine = numbered(1, 5, 5)
    array = LabelledArray(mine, ("layer", "query", "key"), {"query": CATS, "key": CATS})
    with pytest.raises(ValueError, match="read-only"):
        array.values[0, 0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(array)[0, 0, 0] = 1
    with pytest.raises(AttributeError):
        array.name = "other"  # type: ignore[misc]
    mine[0, 0, 0] = 7
    free = array.to_numpy()
    free[0, 0, 0] = 8
    assert array[0, 0, 0] == 7


# ---- arrays of tensors


class Unread:
    """Stands for a tensor, and counts how often it is converted."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.conversions = 0

    def numpy(self) -> np.ndarray[Any, Any]:
        self.conversions += 1
        return self.values


def of_tensor(tensor: Any, **more: Any) -> LabelledArray:
    both = {"query": CATS, "key": CATS}
    return LabelledArray(tensor, ("layer", "query", "key"), both, name="attn_n", **more)


def test_a_tensor_is_read_without_a_copy_and_cannot_be_written_to() -> None:
    tensor = torch.from_numpy(numbered(3, 5, 5))
    array = of_tensor(tensor)
    assert np.shares_memory(array.values, tensor.numpy())
    assert array.values is array.values
    assert not array.values.flags.writeable
    assert array == square()
    assert array.tensor.data_ptr() == tensor.data_ptr()
    array.tensor.unsqueeze_(0)  # changes the caller's tensor alone
    assert array.tensor.shape == (3, 5, 5)
    assert not np.shares_memory(array.to_numpy(), tensor.numpy())


def test_a_tensor_is_converted_when_its_values_are_first_read() -> None:
    unread = Unread(numbered(3, 5, 5))
    array = of_tensor(unread)
    facts = (array.shape, array.ndim, array.dtype)
    assert facts == ((3, 5, 5), 3, np.dtype("float64"))
    assert type(array.shape) is tuple
    assert array.labels["layer"] == (0, 1, 2)
    assert "layer=3" in repr(array)
    assert array != of_tensor(Unread(numbered(4, 5, 5)))
    assert unread.conversions == 0
    assert array[1, 0, 0] == 25
    assert array.sum() == 74 * 75 / 2
    assert unread.conversions == 1
    assert array.tensor.tolist() == numbered(3, 5, 5).tolist()


def test_labels_are_made_when_they_are_first_read() -> None:
    array = square()
    assert "labels" not in vars(array)
    assert array == LabelledArray(
        array.values, array.axes, array.tokens, {"layer": (0, 1, 2)}, "attn_n"
    )
    assert "labels" not in vars(array)
    assert array.labels["key"] == (0, 1, 2, 3, 4)
    assert "labels" in vars(array)


def test_the_tensor_of_a_numpy_array_shares_its_memory() -> None:
    """Also after selecting and replacing, which leave read-only arrays: torch warns of those."""
    values = numbered(3, 5, 5)
    array = of_tensor(values)
    assert np.shares_memory(array.tensor.numpy(), values)
    renamed = dataclasses.replace(array, name="attn_w")
    assert renamed.name == "attn_w"
    assert np.shares_memory(renamed.tensor.numpy(), values)
    layer = array.sel(layer=1)
    assert np.shares_memory(layer.tensor.numpy(), values)
    assert layer.tensor.tolist() == values[1].tolist()
    assert of_tensor(values[::-1]).tensor.tolist() == values[::-1].tolist()


def test_a_tensor_keeps_its_precision_and_others_are_refused() -> None:
    for dtype in ("float16", "float32", "float64", "int64"):
        array = of_tensor(torch.zeros(3, 5, 5, dtype=getattr(torch, dtype)))
        assert array.dtype == array.values.dtype == np.dtype(dtype)
    with pytest.raises(InputError, match="dtype bfloat16; valid: float16, float32"):
        of_tensor(torch.zeros(3, 5, 5, dtype=torch.bfloat16))
    with pytest.raises(InputError, match=r"shape \(3, 5\) and axes"):
        of_tensor(torch.zeros(3, 5))
    with pytest.raises(InputError, match="4 query entries but 5 tokens"):
        of_tensor(torch.zeros(3, 4, 5))
    assert of_tensor(torch.zeros(3, 5, 5, requires_grad=True)).values.sum() == 0


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_and_pickles_of_a_view_hold_its_numbers_alone(duplicate: Any) -> None:
    batch = torch.zeros(100, 3, 6, 6, dtype=torch.float64)
    view = batch[7, :, :5, 1:]
    view.copy_(torch.from_numpy(numbered(3, 5, 5)))
    array = of_tensor(view)
    assert len(pickle.dumps(array)) < 3000
    again = duplicate(array)
    assert again == array == square()
    assert not again.values.flags.writeable


def test_a_view_is_selected_merged_summed_and_listed_as_a_contiguous_array() -> None:
    view = torch.from_numpy(numbered(3, 5, 7))[:, :, 1:6]
    array, plain = of_tensor(view), of_tensor(view.numpy().copy())
    assert not array.values.flags.c_contiguous
    assert array == plain
    assert array.sel(query="cat", key=[0, 2]) == plain.sel(query="cat", key=[0, 2])
    assert array.words() == plain.words()
    assert array.sum("key") == plain.sum("key")
    assert array.to_pandas().equals(plain.to_pandas())
    assert array.to_xarray().equals(plain.to_xarray())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies_and_pickles_are_equal_and_still_read_only(duplicate: Any) -> None:
    array = square().sel(layer=[2, 0])
    again = duplicate(array)
    assert again == array
    assert again.labels["layer"] == (2, 0)
    assert not again.values.flags.writeable


def test_equality_is_exact_and_covers_everything() -> None:
    array = square()
    assert array == square()
    assert array != square(dtype="float32")
    assert array != square(tokens=take(CATS, [0, 1, 2, 4, 3]))
    assert array != "attn_n"
    nudged = array.to_numpy()
    nudged[0, 1, 1] = np.nextafter(nudged[0, 1, 1], 10)
    both = {"query": CATS, "key": CATS}
    assert array != LabelledArray(nudged, array.axes, both, name="attn_n")
    assert array != LabelledArray(array.values, array.axes, both, name="attn_w")
    assert array != LabelledArray(array.values, array.axes, both, {"layer": (0, 1, 3)}, "attn_n")
    assert array != LabelledArray(array.values, array.axes, both, {}, "attn_n", "mean")
    # Zeros of different sign compare equal as numbers; bit for bit they are not.
    zero = LabelledArray(np.zeros(1), ("layer",), {})
    assert zero != LabelledArray(-np.zeros(1), ("layer",), {})
    with pytest.raises(TypeError):
        hash(array)


def test_repr_names_axes_dtype_and_tokens_once() -> None:
    text = repr(square(dtype="float32"))
    assert text == (
        "LabelledArray 'attn_n' (layer=3, query=5, key=5) float32\n"
        "  query, key: [CLS] cat ##s sat [SEP]"
    )
    assert repr(square().sel(query=[1, 2], layer=0)) == (
        "LabelledArray 'attn_n' (query=2, key=5) float64\n"
        "  query: cat ##s\n  key: [CLS] cat ##s sat [SEP]"
    )
    assert repr(square().sel(layer=0, query=0, key=0)) == "LabelledArray 'attn_n' () float64"
    many = Tokens(tuple("abcdefghijklmnop"), None, (False,) * 16, tuple("p" * 16), None, None)
    long = LabelledArray(np.zeros(16), ("key",), {"key": many})
    assert repr(long).endswith("key: a b c d e f g h i j k l … (16)")


def test_repr_writes_out_what_a_terminal_would_obey() -> None:
    strings = ("a\nb", "\x1b[31m", "\u202e", "é")
    tokens = Tokens(strings, None, (False,) * 4, strings, None, None)
    shown = repr(LabelledArray(np.zeros(4), ("key",), {"key": tokens}))
    assert shown.endswith(r"key: a\nb \x1b[31m \u202e é")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": numbered(3, 5)}, r"shape \(3, 5\) and axes"),
        ({"axes": ("query", "layer", "key")}, "in that order"),
        ({"axes": ("layer", "hidden", "query")}, "one name per dimension"),
        ({"axes": ("layer", "query", "query")}, "one name per dimension"),
        ({"values": np.zeros((3, 5, 5), dtype=np.int32)}, "dtype int32; valid: float16, float32"),
        ({"tokens": {"query": CATS}}, r"tokens for \['query'\]"),
        ({"tokens": {"query": CATS, "key": CATS, "head": CATS}}, "those of query and key"),
        ({"tokens": {"query": CATS, "key": REPEATED}}, "5 key entries but 4 tokens"),
        ({"labels": {"layer": (0, 1)}}, r"3 layer entries but labels \(0, 1\)"),
        ({"labels": {"layer": (0, 1, 1)}}, "all different"),
        ({"labels": {"head": (0,)}}, r"labels for \['head'\]"),
        ({"key_reduce": "max"}, "'max'; valid: 'sum', 'mean'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {
        "values": numbered(3, 5, 5),
        "axes": ("layer", "query", "key"),
        "tokens": {"query": CATS, "key": CATS},
        "name": "attn_n",
    }
    LabelledArray(**fitting)
    with pytest.raises(InputError, match=message):
        LabelledArray(**{**fitting, **arguments})


def test_sel_one_label_drops_the_axis() -> None:
    one = per_head().sel(layer=1, head=2)
    assert one.axes == ("query", "key")
    assert one.name == "attn_n"
    # layer 1, head 2 is the sixth and last 5 x 5 block: it starts at 125
    assert np.array_equal(one, 125 + numbered(5, 5))
    assert set(one.labels) == {"query", "key"}
    cell = one.sel(query="sat", key="[CLS]")
    assert cell.shape == ()
    assert float(cell) == 125 + 3 * 5 + 0


def test_sel_lists_and_slices_keep_labels_and_order() -> None:
    array = square(layers=6)
    some = array.sel(layer=[5, 2])
    assert some.labels["layer"] == (5, 2)
    assert np.array_equal(some, array.values[[5, 2]])
    assert np.array_equal(array.sel(layer=slice(1, 3)), array.values[1:3])
    assert array.sel(layer=slice(1, 3)).labels["layer"] == (1, 2)
    assert array.sel(layer=slice(None, None, 2)).labels["layer"] == (0, 2, 4)
    assert array.sel(layer=slice(4, 99)).labels["layer"] == (4, 5)
    assert np.array_equal(array.sel(layer=np.array([1, 4])), array.values[[1, 4]])
    assert np.array_equal(array.sel(layer=np.int64(4)), array.values[4])
    assert array.sel(layer=range(2)).labels["layer"] == (0, 1)


def test_sel_can_be_chained_because_labels_stay() -> None:
    some = square(layers=6).sel(layer=[2, 5]).sel(query=[1, 3])
    assert np.array_equal(some.sel(layer=5), square(layers=6).values[5, [1, 3]])
    assert float(some.sel(layer=5).sel(query=3).sel(key=4)) == 5 * 25 + 3 * 5 + 4
    assert some.sel(layer=slice(3, None)).labels["layer"] == (5,)
    with pytest.raises(InputError, match=r"no layer 0; valid: 2, 5$"):
        some.sel(layer=0)
    with pytest.raises(InputError, match="no axis 'layer'; it has: query, key"):
        some.sel(layer=5).sel(layer=5)


def test_sel_tokens_by_piece_or_surface_text() -> None:
    array = square().sel(layer=0)
    assert np.array_equal(array.sel(query="##s"), [10, 11, 12, 13, 14])
    assert np.array_equal(array.sel(query="s"), [10, 11, 12, 13, 14])
    assert np.array_equal(array.sel(key="sat"), [3, 8, 13, 18, 23])
    picked = array.sel(query=["sat", "cat", 0], key=["[SEP]"])
    assert picked.values.tolist() == [[19], [9], [4]]
    assert picked.tokens["query"].strings == ("sat", "cat", "[CLS]")
    assert picked.tokens["key"].ids == (102,)
    assert picked.labels["query"] == (3, 1, 0)


def test_sel_refuses_a_token_that_is_not_unique_and_lists_where_it_is() -> None:
    array = square(tokens=REPEATED)
    with pytest.raises(InputError, match=r"query 's' .* positions 0 \(s\), 2 \(##s\), 3 \(##s\)"):
        array.sel(query="s")
    with pytest.raises(InputError, match=r"key '##s' .* positions 2 \(##s\), 3 \(##s\); select by"):
        array.sel(key=["cat", "##s"])
    # what is left after a selection counts, under its old positions
    assert np.array_equal(array.sel(query=[1, 3]).sel(query="##s"), array.values[:, 3])


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"layer": 3}, "'attn_n' has no layer 3; valid: 0 to 2$"),
        ({"layer": -1}, "no layer -1; valid: 0 to 2$"),
        ({"layer": [0, 7]}, "no layer 7"),
        ({"layer": "0"}, "no layer '0'"),
        ({"layer": True}, "no layer True"),
        ({"layer": np.array([True, False, True])}, "no layer np.True_|no layer True"),
        ({"layer": 1.0}, "no layer 1.0"),
        ({"layer": None}, "no layer None"),
        ({"layer": []}, r"layer=\[\] selects nothing; valid: 0 to 2"),
        ({"layer": [1, 1]}, "more than once"),
        ({"layer": slice(2, 2)}, "selects nothing"),
        ({"layer": slice(-2, None)}, "not a slice of labels"),
        ({"layer": slice(None, None, -1)}, "not a slice of labels"),
        ({"layer": slice(None, None, 0)}, "not a slice of labels"),
        ({"query": slice("cat", "sat")}, "not a slice of labels"),
        ({"query": -1}, r"no query -1; valid: 0 to 4, or a token: \[CLS\] cat ##s sat \[SEP\]$"),
        ({"query": 5}, "no query 5"),
        ({"query": "dog"}, r"no query 'dog'; valid: 0 to 4, or a token: \[CLS\] cat"),
        ({"query": "cats"}, r"no query 'cats'.* word of several pieces: .* \.words\(\)"),
        ({"query": ["cat", 1]}, "more than once"),
        ({"head": 0}, "no axis 'head'; it has: layer, query, key"),
        ({"token": 0}, "no axis 'token'"),
    ],
)
def test_sel_says_what_is_valid(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        square().sel(**selection)


def test_taking_tokens_renumbers_words() -> None:
    assert take(CATS, [3, 2]) == Tokens(
        ("sat", "##s"), (2938, 2015), (False, False), ("sat", "s"), (0, 1), ("sat", "cats")
    )
    assert take(NO_WORDS, [1]) == Tokens(("position 1",), None, (False,), ("b",), None, None)


def test_words_sum_over_keys_and_average_over_queries() -> None:
    values = [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [6.0, 7.0, 8.0, 9.0, 10.0],  # cat
        [10.0, 20.0, 30.0, 40.0, 50.0],  # ##s
        [0.5, 0.25, 0.5, 1.0, 2.0],
        [9.0, 8.0, 7.0, 6.0, 5.0],
    ]
    both = {"query": CATS, "key": CATS}
    array = LabelledArray(np.array([values]), ("layer", "query", "key"), both, name="attn_n")
    merged = array.words()
    assert merged.values.tolist() == [
        [
            [1.0, 2.0 + 3.0, 4.0, 5.0],
            [(6.0 + 10.0) / 2, (7.0 + 8.0 + 20.0 + 30.0) / 2, (9.0 + 40.0) / 2, 30.0],
            [0.5, 0.25 + 0.5, 1.0, 2.0],
            [9.0, 8.0 + 7.0, 6.0, 5.0],
        ]
    ]
    words = ("[CLS]", "cats", "sat", "[SEP]")
    expected = Tokens(words, None, (True, False, False, True), words, (0, 1, 2, 3), words)
    assert merged.tokens == {"query": expected, "key": expected}
    assert merged.labels == {"layer": (0,), "query": (0, 1, 2, 3), "key": (0, 1, 2, 3)}
    assert merged.name == "attn_n"
    assert float(merged.sel(layer=0, query="cats", key="cats")) == 32.5
    assert merged.words() == merged


def test_words_with_heads_and_after_a_selection() -> None:
    array = per_head()
    merged = array.words()
    assert merged.shape == (2, 3, 4, 4)
    for layer in (0, 1):
        for head in (0, 1, 2):
            alone = array.sel(layer=layer, head=head).words()
            assert np.array_equal(merged[layer, head], alone)
    # Block (1, 2) starts at 125; row cat is 130 to 134, row ##s 135 to 139.
    cats = merged.sel(layer=1, head=2, query="cats")
    assert cats.values.tolist() == [132.5, (131 + 132 + 136 + 137) / 2, 135.5, 136.5]
    # one query piece only: its own row, keys summed
    row = array.sel(layer=1, head=2, query="##s").words()
    assert row.axes == ("key",)
    assert row.values.tolist() == [135, 136 + 137, 138, 139]
    # one piece of a word selected on both axes: merged over what is there
    some = array.sel(layer=1, head=2, query=[1, 4], key=[3, 2]).words()
    assert some.values.tolist() == [[133, 132], [148, 147]]
    assert some.tokens["key"].strings == ("sat", "cats")
    # pieces that a selection put apart still belong together
    apart = array.sel(layer=0, head=0, query=0, key=[2, 3, 1]).words()
    assert apart.values.tolist() == [1 + 2, 3]
    assert apart.tokens["key"].strings == ("cats", "sat")


def test_words_average_what_has_no_query_or_no_key() -> None:
    ratio = LabelledArray(numbered(2, 5), ("layer", "query"), {"query": CATS})
    assert ratio.words().values.tolist() == [[0, 1.5, 3, 4], [5, 6.5, 8, 9]]
    norm = LabelledArray(
        numbered(1, 2, 5), ("layer", "head", "key"), {"key": CATS}, key_reduce="mean"
    )
    assert norm.words().values.tolist() == [[[0, 1.5, 3, 4], [5, 6.5, 8, 9]]]
    assert norm.sel(layer=0).words().sel(head=1).values.tolist() == [5, 6.5, 8, 9]
    summed = LabelledArray(numbered(1, 2, 5), ("layer", "head", "key"), {"key": CATS})
    assert summed.words().values.tolist() == [[[0, 3, 3, 4], [5, 13, 8, 9]]]


def test_words_leave_special_tokens_and_the_residual_alone() -> None:
    # Even under one word index, special tokens are not merged with anything.
    pieces, special = ("<s>", "</s>", "▁un", "do", "residual"), (True, True, False, False, True)
    texts = ("<s>", "</s>", "un", "do", "residual")
    keys = Tokens(pieces, None, special, texts, word_of=(0, 0, 0, 0, 0), words=("undo",))
    array = LabelledArray(numbered(2, 5), ("layer", "key"), {"key": keys})
    merged = array.words()
    assert merged.tokens["key"].strings == ("<s>", "</s>", "undo", "residual")
    assert merged.tokens["key"].special == (True, True, False, True)
    assert merged.values.tolist() == [[0, 1, 5, 4], [5, 6, 15, 9]]
    assert merged.sel(key="residual").values.tolist() == [4, 9]


def test_words_are_rounded_once() -> None:
    # In float32, 1 + 2^-24 is 1, so rounding on the way loses both: the exact sum is 1 + 2^-23.
    three = Tokens(("a", "b", "c"), None, (False,) * 3, ("a", "b", "c"), (0, 0, 0), words=("abc",))
    tiny = 2.0**-24
    array = LabelledArray(np.array([tiny, 1, tiny], np.float32), ("key",), {"key": three})
    assert array.words().values.tolist() == [1 + 2.0**-23]
    assert array.words().dtype == np.float32


def test_words_need_word_groups() -> None:
    array = LabelledArray(numbered(1, 2), ("layer", "query"), {"query": NO_WORDS})
    with pytest.raises(InputError, match="use a fast tokenizer"):
        array.words()
    # without a token axis there is nothing to merge
    assert array.sel(query=1).words() == array.sel(query=1)
    with pytest.raises(InputError, match="which pieces form a word is not known"):
        merge_words(NO_WORDS)


def test_pandas_has_one_row_per_cell() -> None:
    table = per_head().sel(layer=[1], head=[0, 2], query=["##s"], key=slice(3, 5)).to_pandas()
    assert list(table.columns) == [
        "layer", "head", "query", "query_token", "key", "key_token", "value",
    ]  # fmt: skip
    # layer 1 starts at 75; head 0 query 2 at 85, head 2 query 2 at 135
    assert table.values.tolist() == [
        [1, 0, 2, "##s", 3, "sat", 88.0],
        [1, 0, 2, "##s", 4, "[SEP]", 89.0],
        [1, 2, 2, "##s", 3, "sat", 138.0],
        [1, 2, 2, "##s", 4, "[SEP]", 139.0],
    ]
    assert table["layer"].dtype == np.int64
    ratio = LabelledArray(numbered(2, 5, dtype="float32"), ("layer", "query"), {"query": CATS})
    assert list(ratio.to_pandas().columns) == ["layer", "query", "query_token", "value"]
    assert ratio.to_pandas()["value"].dtype == np.float32
    assert ratio.to_pandas().values.tolist()[6] == [1, 1, "cat", 6.0]
    assert square().sel(layer=0, query=1, key=1).to_pandas().values.tolist() == [[6.0]]
    assert len(square().to_pandas()) == 75


def test_xarray_has_named_dimensions_and_coordinates() -> None:
    array = square().sel(layer=[2, 0]).to_xarray()
    assert array.dims == ("layer", "query", "key")
    assert array.name == "attn_n"
    assert array.coords["layer"].values.tolist() == [2, 0]
    assert array.coords["key_token"].values.tolist() == list(CATS.strings)
    assert array.sel(layer=2, query=1, key=3).item() == 58
    assert array.sel(layer=0).swap_dims(query="query_token").sel(query_token="sat")[4].item() == 19
    array[0, 0, 0] = 1  # a copy: may be written to


@pytest.mark.parametrize("package", ["pandas", "xarray"])
def test_missing_packages_name_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*normscope\[tables\]"):
        getattr(square(), f"to_{package}")()


def test_sums_of_all_values_of_a_named_axis_and_by_numpy() -> None:
    array = square(dtype="float16")
    assert array.sum() == 75 * 74 / 2  # in float16 it would overflow nothing but lose digits
    assert type(array.sum()) is float
    over = square().sum("query")
    assert (over.axes, over.name) == (("layer", "key"), "attn_n")
    assert np.array_equal(over, numbered(3, 5, 5).sum(axis=1))
    assert set(over.tokens) == set(over.labels) - {"layer"} == {"key"}
    assert square().sum("layer").sum("query").sum("key").values == 75 * 74 / 2
    assert np.array_equal(np.sum(square(), axis=(0, 2)), numbered(3, 5, 5).sum(axis=(0, 2)))
    assert np.sum(square()) == 75 * 74 / 2
    assert np.sum(square(), axis=0, keepdims=True).shape == (1, 5, 5)
    with pytest.raises(InputError, match="no axis 'head'; it has: layer, query, key"):
        square().sum("head")
