"""Evidence: ranks, precision and mass by hand; from words and characters to tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.errors import InputError
from normscope.faithfulness.evidence import characters_of, positions_of
from normscope.faithfulness.ranking import competition_rank, precision_at
from tests.helpers.attributions import attribution, tokens_of
from tests.helpers.heads import classifier, language_model
from tests.helpers.tiny import tokenizer


def scored(*scores: float, texts: str = "a b c d e") -> Any:
    tokens = tokens_of(texts.split())
    return attribution(
        tokens, parts=np.array([scores]), part_names=("word",), value=sum(scores), bias=0.0
    )


@pytest.mark.parametrize(
    ("scores", "chosen", "rank"),
    [
        ([3, 1, 2, 0, -1], [0], 1),
        ([3, 1, 2, 0, -1], [1], 3),
        ([3, 1, 2, 0, -1], [4, 1], 3),  # the best of several
        ([1, 1, 1, 0, 0], [2], 1),  # equal scores share the better rank
        ([2, 1, 1, 1, 0], [3], 2),
        ([0, 0, 0, 0, 0], [4], 1),
    ],
)
def test_competition_ranks_by_hand(scores: list[float], chosen: list[int], rank: int) -> None:
    assert competition_rank(np.array(scores, dtype=float), chosen) == rank
    result = normscope.evidence([scored(*scores)], [list(chosen)], resamples=0)
    assert result.mean("frozen", "mrr") == pytest.approx(1 / rank)


def test_the_mean_reciprocal_rank_by_hand() -> None:
    results = [scored(3, 1, 2, 0, 0), scored(0, 0, 5, 0, 0), scored(1, 2, 3, 4, 5)]
    result = normscope.evidence({"m": results}, ["b", "a", "a"], resamples=0)
    np.testing.assert_allclose(result.each("m", "mrr"), [1 / 3, 1 / 2, 1 / 5])
    assert result.mean("m", "mrr") == pytest.approx((1 / 3 + 1 / 2 + 1 / 5) / 3)


def test_precision_and_mass_by_hand() -> None:
    results = [scored(4, -2, 1, 1, 0)]
    one = normscope.evidence(results, [["a", "b"]], resamples=0)
    # The first two are a, and c or d, which are equal and no evidence.
    assert one.mean("frozen", "precision") == pytest.approx(1 / 2)
    assert one.mean("frozen", "mass") == pytest.approx(6 / 8)
    assert one.mean("frozen", "positive_mass") == pytest.approx(4 / 6)
    tied = normscope.evidence(results, ["c"], k=2, resamples=0)
    assert tied.mean("frozen", "precision@2") == pytest.approx((0 + 1 / 2) / 2)
    absolute = normscope.evidence(results, [["a", "b"]], absolute=True, resamples=0)
    assert absolute.mean("frozen", "precision") == 1
    nothing = normscope.evidence([scored(0, -1, 0, 0, 0)], ["a"], resamples=0)
    assert np.isnan(nothing.mean("frozen", "positive_mass"))


def test_precision_is_the_mean_over_all_orders_of_equal_scores() -> None:
    scores, chosen = np.array([1.0, 1, 1, 2, 0]), [0, 4]
    for k in range(1, 6):
        shares = []
        for order in itertools.permutations(range(5)):
            ranked = sorted(order, key=lambda at: -scores[at])[:k]
            shares.append(len(set(ranked) & set(chosen)) / k)
        assert precision_at(scores, chosen, k) == pytest.approx(np.mean(shares))


def test_special_tokens_and_continuations_are_not_ranked() -> None:
    tok = tokenizer()
    text = "the cat sat on the mat"
    (each,) = normscope.attribute(classifier(), tok, [text])
    result = normscope.evidence([each], ["cat"], resamples=0)
    plain = each.scores.values[1:-1]
    assert result.mean("frozen", "mrr") == 1 / (1 + (plain > plain[1]).sum())
    assert result.mean("frozen", "mass") == pytest.approx(abs(plain[1]) / abs(plain).sum())
    with pytest.raises(InputError, match="token 0, '<s>', which is special"):
        normscope.evidence([each], [0])
    (more,) = normscope.attribute(
        language_model(), tokenizer(pair=False), [text], continuation=[" and"]
    )
    with pytest.raises(InputError, match="token 7, 'and', which is special or not of the text"):
        normscope.evidence([more], [7])


def test_words_are_sums_of_their_pieces() -> None:
    tok = tokenizer()
    (each,) = normscope.attribute(classifier(), tok, ["the cats jumped and the dogs"])
    words = each.words()
    at = words.tokens.texts.index("dogs")
    result = normscope.evidence([each], ["dogs"], words=True, resamples=0)
    own = words.scores.values[1:-1]
    assert result.mean("frozen", "mrr") == 1 / (1 + (own > own[at - 1]).sum())
    assert len(words.tokens) < len(each.tokens)


def test_from_words_and_characters_to_tokens() -> None:
    tokens = tokens_of(["The", "Cat", "sat", ",", "the", "cát", "ran"])
    text = "The Cat sat, the  cát ran"
    assert positions_of(tokens, "sat") == [2]
    assert positions_of(tokens, "the cat", occurrence="first") == [0, 1]
    assert positions_of(tokens, "the cat", occurrence="last") == [4, 5]
    assert positions_of(tokens, "the cat", occurrence="all") == [0, 1, 4, 5]
    assert positions_of(tokens, [3, "ran", (0, 2)], text=text) == [0, 3, 6]
    assert positions_of(tokens, (2, 5), text=text) == [0, 1]
    expected = [(0, 3), (4, 7), (8, 11), (11, 12), (13, 16), (18, 21), (22, 25)]
    assert characters_of(tokens, text) == expected
    with pytest.raises(InputError, match="'cat' occurs 2 times"):
        positions_of(tokens, "cat")
    for span, message in [
        ("dog", "there is no word 'dog' in: The Cat"),
        (9, "a position below 7"),
        (True, "a position below 7"),
        ([], "has no token"),
        ((3, 3), "no range of characters"),
        ((3, 4), "has no token"),  # a space
    ]:
        with pytest.raises(InputError, match=message):
            positions_of(tokens, span, text=text)
    with pytest.raises(InputError, match="need texts="):
        positions_of(tokens, (0, 2))
    with pytest.raises(InputError, match="the token 'Cat' is not where the text has"):
        positions_of(tokens, (0, 2), text="The old Cat")


def test_wrong_input_is_explained() -> None:
    results = [scored(1, 2, 3, 4, 5)]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"occurrence": "next"}, "occurrence must be one of"),
        ({"k": 0}, "k must be a whole number above 0"),
        ({"texts": []}, "evidence for 1 texts, and 'frozen' has 1 results for 0 texts"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            normscope.evidence(results, ["a"], **options)
    with pytest.raises(InputError, match="evidence for 2 texts"):
        normscope.evidence(results, ["a", "b"])
    with pytest.raises(InputError, match="results are attributions"):
        normscope.evidence([1.0], ["a"])
