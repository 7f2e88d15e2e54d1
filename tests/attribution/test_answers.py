"""What is explained of an output: sums of logits, choices, spans, functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from normscope.attribution.answers import (
    CallerValue,
    CosineValue,
    LogitValue,
    Term,
    best_span,
    row_of,
)
from normscope.attribution.heads import CAUSAL, LABELS, SPANS, head_of, is_index
from normscope.errors import InputError
from tests.helpers.heads import tiny_head


def output(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return SimpleNamespace(logits=logits)


PLAIN: dict[str, Any] = {"units": "logit", "exact": False}


def test_terms_are_added_up_by_row_and_step() -> None:
    rows: Any = [[(Term(0, 1), Term(1, 2, -2.0)), (Term(2, 0),)], [(Term(1, 3),)]]
    made = output(2, 3, 4)
    values = LogitValue(CAUSAL, rows, **PLAIN)(made)
    logits = made.logits
    assert values.shape == (2, 2)
    assert values[0, 0] == pytest.approx(float(logits[0, 0, 1] - 2 * logits[0, 1, 2]))
    assert values[0, 1] == logits[0, 2, 0]
    assert values[1].tolist() == [float(logits[1, 1, 3]), 0.0]  # a row with fewer steps


def test_only_some_positions_are_kept() -> None:
    made = output(1, 2, 4)
    value = LogitValue(CAUSAL, [[(Term(7, 1),)]], kept=[5, 7], **PLAIN)
    assert value(made)[0, 0] == made.logits[0, 1, 1]


def test_a_baseline_row_gets_the_choice_of_the_real_row() -> None:
    made = output(4, 5)  # two rows and their baselines
    value = LogitValue(LABELS, [[(Term(0, None),)], [(Term(0, None),)]], **PLAIN)
    chosen = made.logits[:2].argmax(-1)
    assert (made.logits[2:].argmax(-1) != chosen).any()
    values = value(made)
    for row in range(4):
        assert values[row, 0] == made.logits[row, chosen[row % 2]]
    assert [row[0][0].index for row in value.rows] == chosen.tolist()


def test_exact_log_probabilities() -> None:
    made = output(2, 1, 6)
    rows = [[(Term(0, 2),)], [(Term(0, 4),)]]
    exact = LogitValue(CAUSAL, rows, units="logprob", exact=True)(made)
    expected = made.logits.log_softmax(-1)
    assert exact[1, 0] == pytest.approx(float(expected[1, 0, 4]))


def test_probabilities_are_held() -> None:
    made = output(1, 1, 6)
    made.logits.requires_grad_()
    value = LogitValue(CAUSAL, [[(Term(0, 2),)]], units="logprob", exact=False)(made)
    (gradient,) = torch.autograd.grad(value.sum(), made.logits)
    held = made.logits.detach().softmax(-1)
    np.testing.assert_allclose(gradient, torch.eye(6, dtype=torch.float64)[2] - held)


def test_the_size_of_what_cancels_is_known() -> None:
    made = output(2, 1, 6)
    rows: Any = [[(Term(0, 2), Term(0, 3, -1.0))], [(Term(0, 4),)]]
    value: Any = LogitValue(CAUSAL, rows, **PLAIN)
    value(made)
    logits = made.logits[:, 0].abs()
    expected = [[float(logits[0, 2] + logits[0, 3])], [float(logits[1, 4])]]
    np.testing.assert_allclose(value.scale, expected)


def test_half_precision_is_widened() -> None:
    made = SimpleNamespace(logits=torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16))
    value = LogitValue(LABELS, [[(Term(0, 0), Term(0, 1))]], **PLAIN)
    assert value(made)[0, 0] == 257  # 256 in bfloat16


def test_the_best_span_is_that_of_all_pairs() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        table = draw.normal(size=(2, 9))
        positions = sorted(draw.choice(9, size=5, replace=False).tolist())
        pairs = [(i, j) for i in positions for j in positions if i <= j]
        best = max(pairs, key=lambda pair: table[0, pair[0]] + table[1, pair[1]])
        assert best_span(table, positions) == best


def test_spans_exclude_what_is_not_valid() -> None:
    made = SimpleNamespace(start_logits=torch.tensor([[9.0, 1, 2]]), end_logits=torch.ones(1, 3))
    value = LogitValue(SPANS, [[(Term(0, None), Term(1, None))]], valid=[[1, 2]], **PLAIN)
    assert value(made)[0, 0] == 3
    logprob = LogitValue(SPANS, [[(Term(0, 2), Term(1, 2))]], valid=[[1, 2]], units="logprob",
                         exact=True)  # fmt: skip
    start = torch.tensor([1.0, 2]).log_softmax(0)[1]
    assert logprob(made)[0, 0] == pytest.approx(float(start) - np.log(2))


def test_the_cosine_ignores_padding() -> None:
    states = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    fixed = torch.nn.functional.normalize(torch.randn(2, 8, dtype=torch.float64), dim=-1)
    values = CosineValue(fixed, mask)(SimpleNamespace(last_hidden_state=states))
    pooled = torch.stack([states[0, :2].mean(0), states[1].mean(0)])
    expected = torch.cosine_similarity(pooled, fixed)
    np.testing.assert_allclose(values[:, 0], expected)


def test_a_function_gets_one_row() -> None:
    from transformers.modeling_outputs import MaskedLMOutput

    logits = output(3, 2, 4).logits
    made = MaskedLMOutput(logits=logits, hidden_states=(logits, logits + 1))
    values = CallerValue(lambda o: o.logits[0, 1, 2] + o.hidden_states[1][0, 0, 0], 3)(made)
    np.testing.assert_allclose(values[:, 0], logits[:, 1, 2] + logits[:, 0, 0] + 1)
    assert row_of(made, 2, 3).hidden_states[1].shape == (1, 2, 4)
    with pytest.raises(InputError, match="but it gave float"):
        CallerValue(lambda o: 3.0, 3)(made)


def test_a_function_that_depends_on_the_batch_is_given_single_rows() -> None:
    """Pairs are given to a function as a batch only if it treats rows independently."""
    from transformers.modeling_outputs import MaskedLMOutput

    logits = output(2, 3).logits
    made, calls = MaskedLMOutput(logits=logits), list[int]()

    def alone(o: Any) -> torch.Tensor:
        calls.append(len(o.logits))
        value: torch.Tensor = o.logits[:, 1]
        return value

    np.testing.assert_array_equal(CallerValue(alone, 1)(made), logits[:, 1:2])
    assert calls == [1, 1, 2]
    mixed = CallerValue(lambda o: o.logits[:, 1] / len(o.logits), 1)(made)
    np.testing.assert_array_equal(mixed, logits[:, 1:2])


@pytest.mark.parametrize(
    ("family", "model", "head"),
    [
        ("gpt2", "GPT2LMHeadModel", "causal"),
        ("bert", "BertForMaskedLM", "masked"),
        ("marian", "MarianMTModel", "seq2seq"),
        ("t5", "T5ForConditionalGeneration", "seq2seq"),
        ("bert", "BertForNextSentencePrediction", "labels"),
        ("vit", "ViTForImageClassification", "labels"),
        ("wav2vec2", "Wav2Vec2ForCTC", "token labels"),
        ("bert", "BertModel", "none"),
    ],
)
def test_heads_are_told_by_their_class(family: str, model: str, head: str) -> None:
    made = tiny_head(family, model)
    assert head_of(made) == head
    own: Any = type("Mine", (type(made),), {})
    inherited = own.__new__(own)
    inherited.__dict__.update(made.__dict__)
    assert head_of(inherited) == head


def test_whole_numbers() -> None:
    assert all(map(is_index, (3, np.int64(3), torch.tensor(3))))
    assert not any(map(is_index, (True, 3.0, "3", torch.tensor([3]), torch.tensor(3.0))))
