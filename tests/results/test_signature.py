"""Equal signatures mean equal numbers; what is not known is not given as a hash."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors
from torch import nn

import normscope
from normscope.attribution import passes
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results.descriptions import tokenizer_name
from normscope.results.signature import Signature, signature_line, weights_hash
from tests.helpers.corpora import SETTINGS, Sums, quick_measuring, save_model, text_file
from tests.helpers.tiny import tokenizer

TEXT = "the cat sat on the mat"


def fields(line: str) -> dict[str, str]:
    return dict(field.split(":", 1) for field in line.split("|"))


def analysed(model: Any) -> Any:
    return normscope.analyze(model, tokenizer(), TEXT, maps=["attn_n"])


def heads(model: Any) -> None:
    model.config.num_attention_heads *= 2


def scaling(model: Any) -> None:
    model.encoder.layer[1].attention.self.scaling *= 2


def head_size(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.attention.self.num_attention_heads *= 2
        layer.attention.self.attention_head_size //= 2


def activation_of_config(model: Any) -> None:
    model.config.hidden_act = "relu"


def activation_of_module(model: Any) -> None:
    model.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()


def activation_function(model: Any) -> None:
    del model.encoder.layer[0].intermediate.intermediate_act_fn
    model.encoder.layer[0].intermediate.intermediate_act_fn = torch.tanh


def own_function(model: Any) -> None:
    del model.encoder.layer[0].intermediate.intermediate_act_fn
    model.encoder.layer[0].intermediate.intermediate_act_fn = lambda x: x + 2


def epsilon(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5


def epsilon_of_config(model: Any) -> None:
    model.config.layer_norm_eps = 0.5


def hook(model: Any) -> None:
    model.embeddings.register_forward_hook(lambda module, given, output: 2 * output)


def buffer(model: Any) -> None:
    model.embeddings.token_type_ids.data.add_(1)


def forward(model: Any) -> None:
    layer = model.encoder.layer[0].output
    inner = layer.forward
    layer.forward = lambda *given: 2 * inner(*given)


CHANGES: list[Callable[[Any], None]] = [
    *(heads, scaling, head_size, activation_of_config, activation_of_module, activation_function),
    *(own_function, epsilon, epsilon_of_config, hook, buffer, forward),
]


@pytest.mark.parametrize("change", CHANGES)
def test_another_setting_of_a_module_is_another_signature(change: Callable[[Any], None]) -> None:
    model: Any = tiny_model("bert")
    before = Signature(model, None, {}).text()
    assert Signature(model, None, {}).text() == before
    unread = Signature(model, None, {})
    change(model)
    after = fields(Signature(model, None, {}).text())
    assert after["modules"] not in (fields(before)["modules"], "changed-after-analysis")
    assert after["weights"] == fields(before)["weights"]
    # One that is read only now does not pretend to know how the model was.
    assert fields(unread.text())["modules"] == "changed-after-analysis"
    assert fields(unread.text())["weights"] == fields(before)["weights"]


@pytest.mark.parametrize("change", [scaling, head_size, activation_of_module, epsilon, hook])
def test_equal_signatures_of_results_mean_equal_numbers(change: Callable[[Any], None]) -> None:
    model: Any = tiny_model("bert")
    first, again = analysed(model), analysed(model)
    assert first.signature == again.signature
    assert first == again
    change(model)
    other = analysed(model)
    assert not np.array_equal(first["attn_n"].values, other["attn_n"].values)
    assert fields(other.signature)["modules"] != fields(first.signature)["modules"]


def test_a_hook_that_is_gone_is_not_forgotten() -> None:
    model: Any = tiny_model("bert")
    plain = analysed(model)
    handle = model.embeddings.register_forward_hook(lambda module, given, output: 2 * output)
    hooked = analysed(model)
    handle.remove()
    assert fields(hooked.signature)["modules"] == "changed-after-analysis"
    assert "changed" not in plain.signature


def test_the_same_model_elsewhere_has_the_same_signature(tmp_path: Any) -> None:
    from transformers import BertModel

    model: Any = tiny_model("bert")
    line = fields(Signature(model, None, {}).text())
    assert fields(Signature(copy.deepcopy(model), None, {}).text()) == line
    model.save_pretrained(tmp_path)
    loaded = BertModel.from_pretrained(tmp_path, dtype=torch.float64)
    loaded_line = fields(Signature(loaded, None, {}).text())
    assert (loaded_line["weights"], loaded_line["modules"]) == (line["weights"], line["modules"])
    model.train()
    assert fields(Signature(model, None, {}).text()) == line


# ---- weights


def rows(weight: Any) -> None:
    weight.data[:] = weight.data.flip(0).clone()


def columns(weight: Any) -> None:
    weight.data[:] = weight.data.flip(1).clone()


def two_numbers(weight: Any) -> None:
    weight.data[1, 2], weight.data[5, 7] = weight.data[5, 7].clone(), weight.data[1, 2].clone()


def doubled(weight: Any) -> None:
    weight.data.mul_(2)


def one_number(weight: Any) -> None:
    weight.data[3, 5] += 1e-6


WRITES = [rows, columns, two_numbers, doubled, one_number]


@pytest.mark.parametrize("write", WRITES)
def test_writes_through_data_change_the_hash(write: Callable[[Any], None]) -> None:
    model: Any = tiny_model("bert")
    before = weights_hash(model)
    write(model.encoder.layer[1].intermediate.dense.weight)
    assert weights_hash(model) != before
    assert weights_hash(model) == weights_hash(copy.deepcopy(model))


@pytest.mark.parametrize("write", WRITES)
def test_weights_that_are_written_before_the_signature_is_read(
    write: Callable[[Any], None],
) -> None:
    model: Any = tiny_model("bert")
    weight = model.encoder.layer[1].intermediate.dense.weight
    read, unread = analysed(model), analysed(model)
    assert "weights:sha256=" in read.signature
    write(weight)
    assert "weights:changed-after-analysis" in unread.signature
    after = analysed(model)
    assert fields(after.signature)["weights"] == "sha256=" + weights_hash(model)
    assert after.signature != read.signature


def test_a_number_that_samples_do_not_read_is_noticed() -> None:
    layer: Any = nn.Linear(200, 300)
    signature = Signature(layer, None, {})
    layer.weight.data[1, 7] += 1
    assert "weights:changed-after-analysis" in signature.text()
    assert "weights:sha256=" in Signature(layer, None, {}).text()


def test_a_deleted_model_is_not_described() -> None:
    model: Any = tiny_model("bert")
    result = analysed(model)
    del model
    gc.collect()
    line = fields(result.signature)
    assert line["weights"] == line["modules"] == "deleted-before-hashing"


# ---- tokenizers


def normaliser(backend: Any) -> None:
    backend.normalizer = normalizers.Replace("a", "b")


def splitting(backend: Any) -> None:
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")


def framing(backend: Any) -> None:
    backend.post_processor = processors.TemplateProcessing("$A", "$A $B", [])


def added(backend: Any) -> None:
    backend.add_tokens([AddedToken("cat sat", normalized=False)])


@pytest.mark.parametrize("change", [normaliser, splitting, framing, added])
def test_another_rule_of_the_tokenizer_is_another_signature(
    change: Callable[[Any], None],
) -> None:
    model, own = tiny_model("bert"), tokenizer()
    before = normscope.analyze(model, own, TEXT).signature
    unread = normscope.analyze(model, own, TEXT)
    change(own.backend_tokenizer)
    after = Signature(model, own, {}).text()
    assert fields(after)["tokenizer"] != fields(before)["tokenizer"]
    assert fields(unread.signature)["tokenizer"] == "changed-after-analysis"
    assert fields(unread.signature)["weights"] == fields(before)["weights"]


def test_an_attribute_of_the_tokenizer() -> None:
    own = tokenizer()
    before = tokenizer_name(own)
    own.model_max_length = 5
    assert tokenizer_name(own) != before
    assert tokenizer_name((own, None)) == f"{tokenizer_name(own)}+none"


def test_encoding_and_reloading_keep_the_name(tmp_path: Any) -> None:
    own = tokenizer()
    before = tokenizer_name(own)
    own(TEXT, truncation=True, max_length=4, padding="max_length")
    assert tokenizer_name(own) == before
    own.save_pretrained(tmp_path)
    first = type(own).from_pretrained(tmp_path)
    assert tokenizer_name(first) == tokenizer_name(type(own).from_pretrained(tmp_path))


def test_a_tokenizer_with_rules_in_python_is_not_pretended_to_be_known() -> None:
    class Upper:
        def normalize(self, text: Any) -> None:
            text.uppercase()

    model, own = tiny_model("bert"), tokenizer()
    own.backend_tokenizer.normalizer = normalizers.Normalizer.custom(Upper())
    line = normscope.analyze(model, own, TEXT).signature
    assert fields(line)["tokenizer"].endswith("/unknown")


# ---- attributions


def test_the_signature_of_an_attribution() -> None:
    model: Any = tiny_model("gpt2")
    inputs = tiny_inputs("gpt2", batch=1)
    first = normscope.attribute_inputs(model, inputs)[0]
    again = normscope.attribute_inputs(model, inputs)[0]
    assert first.signature == again.signature
    unread = normscope.attribute_inputs(model, inputs)[0]
    model.transformer.h[0].ln_1.eps = 0.5
    model.transformer.h[0].mlp.c_fc.weight.data.mul_(2)
    line = fields(unread.signature)
    assert line["weights"] == line["modules"] == "changed-after-analysis"
    other = fields(normscope.attribute_inputs(model, inputs)[0].signature)
    assert other["modules"] != fields(first.signature)["modules"]
    assert other["weights"] == "sha256=" + weights_hash(model)


@pytest.mark.parametrize("calls", [1, 2])
def test_an_attribution_is_of_one_state(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that change in the first batch: again; later: an error."""
    monkeypatch.setattr("normscope.attribution.batches.BATCH_TOKENS", 4)
    model: Any = tiny_model("gpt2")
    asked: Any = {"answer": " sat", "method": "frozen"}
    left = iter(range(calls))

    def explain(*given: Any, **named: Any) -> Any:
        shares = passes.explain(*given, **named)
        if next(left, None) == calls - 1:
            model.transformer.h[0].mlp.c_fc.weight.data.mul_(2)
        return shares

    monkeypatch.setattr("normscope.attribution.batches.explain", explain)
    texts = ["the cat", "the cat sat on"]
    if calls == 1:
        first = normscope.attribute(model, tokenizer(), texts, **asked)
        assert first == normscope.attribute(model, tokenizer(), texts, **asked)
        return
    with pytest.raises(UnsupportedModelError, match="changed while it was measured"):
        normscope.attribute(model, tokenizer(), texts, **asked)


# ---- the line


def test_values_cannot_look_like_entries() -> None:
    line = signature_line({"model": "a|weights:b\n\x1b[31m", "maps": "attn_w"})
    assert line == r"model:a\x7cweights:b\n\x1b[31m|maps:attn_w"
    assert signature_line({"a": "\n"}) != signature_line({"a": r"\n"})


def test_names_of_folders_and_settings_are_escaped(tmp_path: Path) -> None:
    home = save_model(tmp_path / "a|maps:x\n\x1b[31m")
    result = normscope.analyze(home, text="the cat sat")
    assert result.signature.startswith(r"model:a\x7cmaps:x\n\x1b[31m|revision:none|")
    with quick_measuring():
        counted = normscope.corpus(
            home, text_file(tmp_path / "a.txt", 3), [Sums()], settings=SETTINGS
        )
    assert counted.signature.startswith(r"model:a\x7cmaps:x\n\x1b[31m|revision:none|")
    model = tiny_model("bert")
    assert "\n" not in normscope.analyze(model, tokenizer(), "the cat sat").signature
