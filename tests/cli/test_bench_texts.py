"""The texts that `normscope bench` analyses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope import InputError
from normscope.cli import bench_texts, bench_works
from normscope.cli.bench_works import BenchSettings
from normscope.models.architectures import tiny_model


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_texts, "COUNT", 20)


def test_texts_have_the_lengths_that_were_promised() -> None:
    tokenizer = bench_texts.word_tokenizer(200)
    texts = bench_texts.make_texts(tokenizer)
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert len(texts) == 20
    assert 10 <= min(lengths) < max(lengths) <= 120
    assert not any(tokenizer.unk_token_id in tokenizer(text)["input_ids"] for text in texts)
    assert texts == bench_texts.make_texts(tokenizer)
    assert tokenizer("w7 w199").tokens() == ["[CLS]", "w7", "w199", "[SEP]"]


def test_shapes_get_a_tokenizer_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    tiny |= {"intermediate_size": 48, "vocab_size": 60}
    monkeypatch.setitem(bench_works.SHAPES, "minilm-shape", ("Bert", tiny))
    settings = BenchSettings("minilm-shape")
    model = bench_works.model_of(settings)
    seen: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(int(inputs["attention_mask"].sum())), with_kwargs=True
    )
    forward, texts = bench_texts.text_works(settings, model)
    assert forward.call is not None
    assert texts.call is not None
    seen.clear()  # the pass in which the layouts were read
    with torch.no_grad():
        forward.call()
        tokens = sum(seen)
        arrays = texts.call()
    assert sum(seen) == 2 * tokens  # both read the same texts, whatever their batches
    assert len(arrays) == 20 * (4 + 4 + 3 + 1)
    assert sum(array.shape[1] for array in arrays[::12]) == tokens


def test_translation_models_are_refused() -> None:
    model: Any = tiny_model("marian")
    with pytest.raises(InputError, match="without targets"):
        bench_texts.text_works(BenchSettings(), model)
