"""What people hold instead of a bare model: taken apart without changing numbers, or refused."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from numpy.testing import assert_array_equal
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import normscope
from normscope import InputError, UnsupportedModelError
from normscope.alignment.options import AlignOptions
from normscope.alignment.translator import translator
from normscope.models import resolve
from normscope.models.architectures import tiny_model
from normscope.testing import randomize_
from tests.helpers import tiny

TEXT = "the cat sat on the mat ."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer(pair=False)


@pytest.fixture(scope="module")
def llama() -> Any:
    config = LlamaConfig(
        vocab_size=60, hidden_size=24, num_attention_heads=3, num_hidden_layers=2,
        intermediate_size=40, max_position_embeddings=32, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    randomize_(model)
    return model


class Wrapped(nn.Module):
    """A wrapper whose forward says nothing about its arguments, as those of adapters do."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return next(iter(self.children()))(*args, **kwargs)


class LowRank(nn.Module):
    """A linear map with an adapter that is added to it, as LoRA's."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        size, out = base_layer.in_features, base_layer.out_features
        self.lora_A = nn.Parameter(torch.randn(2, size, dtype=torch.float64) / 4)
        self.lora_B = nn.Parameter(torch.randn(out, 2, dtype=torch.float64) / 4)

    def forward(self, x: Tensor) -> Any:
        return self.base_layer(x) + x @ self.lora_A.T @ self.lora_B.T


def adapted(model: Any, kind: str = "LORA", *, prompts: bool = False) -> Any:
    """A model with adapters, wrapped twice as PEFT does it: PeftModel, then the tuner."""
    config = {"default": SimpleNamespace(peft_type=kind, is_prompt_learning=prompts)}
    inner = model if prompts else Wrapped(model=model)
    peft: Any = Wrapped(base_model=inner)
    if not prompts:
        inner.peft_config, inner.active_adapter = config, ["default"]
    peft.peft_config, peft.active_adapter = config, "default"
    return peft


class Transformer(nn.Module):
    """The first module of a SentenceTransformer."""

    def __init__(self, auto_model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.auto_model, self.tokenizer = auto_model, tokenizer


class Pooling(nn.Module):
    """The second one, with the setting of newer versions, or the flags of older ones."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        vars(self).update(settings)


class SentenceTransformer(nn.Sequential):
    @property
    def tokenizer(self) -> Any:
        return self[0].tokenizer


def same(result: Any, expected: Any) -> None:
    for name in expected:
        assert_array_equal(result[name].values, expected[name].values)


def test_a_model_with_adapters_is_analysed_with_them(llama: Any, tokenizer: Any) -> None:
    plain = normscope.analyze(llama, tokenizer, TEXT)
    model = copy.deepcopy(llama)
    for layer in model.model.layers:
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    expected = normscope.analyze(model, tokenizer, TEXT)
    assert abs(expected["attn_n"].values - plain["attn_n"].values).max() > 0.1
    peft = adapted(model)
    same(normscope.analyze(peft, tokenizer, TEXT), expected)
    encoded = tokenizer(TEXT, return_tensors="pt")
    same(normscope.analyze_inputs(peft, encoded)[0], expected)
    own = normscope.attribute(model, tokenizer, TEXT, answer="dog")
    assert_array_equal(normscope.attribute(peft, tokenizer, TEXT, answer="dog").scores, own.scores)
    tables = [
        normscope.corpus(m, [TEXT], ["dispersion"], tokenizer=tokenizer) for m in (peft, model)
    ]
    assert tables[0]["dispersion_average"].to_csv() == tables[1]["dispersion_average"].to_csv()


def test_wrappers_around_wrappers_are_taken_off(llama: Any, tokenizer: Any) -> None:
    compiled: Any = torch.compile(nn.DataParallel(adapted(llama)), backend="eager")
    assert resolve(compiled, tokenizer) == (llama, tokenizer)
    same(normscope.analyze(compiled, tokenizer, TEXT), normscope.analyze(llama, tokenizer, TEXT))


def test_distributed_data_parallel_stands_for_its_module(llama: Any) -> None:
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = llama
    assert resolve(wrapper)[0] is llama


@pytest.mark.parametrize("pooling", [{"pooling_mode": "mean"}, {"pooling_mode_mean_tokens": True}])
def test_a_sentence_transformer_brings_its_tokenizer(pooling: Any) -> None:
    bert, own = tiny_model("bert"), tiny.tokenizer()
    sentences = SentenceTransformer(Transformer(bert, own), Pooling(**pooling))
    assert resolve(sentences) == (bert, own)
    other: Any = tiny.tokenizer()
    assert resolve(sentences, other)[1] is other
    same(normscope.analyze(sentences, text=TEXT), normscope.analyze(bert, own, TEXT))
    result = normscope.attribute(sentences, text=TEXT, similar_to="the dog ran")
    expected = normscope.attribute(bert, own, TEXT, similar_to="the dog ran")
    assert_array_equal(result.scores, expected.scores)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([Pooling(pooling_mode="cls")], "cls pooling"),
        ([Pooling(pooling_mode=("mean", "max"))], r"mean\+max pooling"),
        ([Pooling(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)], "cls_token"),
        ([Pooling(pooling_mode="mean"), nn.Linear(2, 2)], "Linear"),
    ],
)
def test_the_similarity_of_other_embeddings_is_refused(more: Any, named: str) -> None:
    sentences = SentenceTransformer(Transformer(tiny_model("bert"), tiny.tokenizer()), *more)
    with pytest.raises(InputError, match=rf"cosine of mean embeddings.*{named}.*answer="):
        normscope.attribute(sentences, text=TEXT, similar_to="the dog ran")


def test_a_pipeline_stands_for_its_model(llama: Any, tokenizer: Any) -> None:
    generator = transformers.pipeline("text-generation", model=llama, tokenizer=tokenizer)
    assert resolve(generator) == (llama, tokenizer)


def test_a_module_around_a_model_is_refused_with_the_path_of_the_model(llama: Any) -> None:
    nested = Wrapped(steps=nn.Sequential(nn.Identity(), Wrapped(lm=llama)))
    message = r"Wrapped is none; it holds one.*give model\.steps\[1\]\.lm \(LlamaForCausalLM\)$"
    for model in (nested, nn.DataParallel(nested)):
        with pytest.raises(InputError, match=message.replace("Wrapped", r"Wrapped( inside.*)?", 1)):
            normscope.analyze(model, tiny.tokenizer(), TEXT)
    with pytest.raises(InputError, match=r"Linear is none; give the model itself"):
        normscope.attribute_inputs(nn.Linear(2, 2), {"input_ids": torch.ones(1, 2).long()})


@pytest.mark.parametrize(
    ("kind", "prompts", "named"),
    [
        ("PROMPT_TUNING", True, r"puts learned vectors before the text.*get_base_model\(\)"),
        ("PREFIX_TUNING", True, r"puts learned vectors before the text.*get_base_model\(\)"),
        ("XLORA", False, "computes more .* load the model again"),
    ],
)
def test_adapters_that_do_more_than_replace_modules_are_refused(
    llama: Any, kind: str, prompts: bool, named: str
) -> None:
    model = adapted(llama, kind, prompts=prompts)
    with pytest.raises(
        UnsupportedModelError, match=rf"'default' of this Wrapped \({kind}\) {named}"
    ):
        resolve(model)
    model.peft_config["other"] = SimpleNamespace(peft_type="LORA")
    model.active_adapter = "other"
    if prompts:
        assert resolve(model)[0] is llama


def test_a_traced_model_is_refused(llama: Any) -> None:
    traced = torch.jit.ScriptModule()
    with pytest.raises(UnsupportedModelError, match=r"ScriptModule is a traced or scripted module"):
        resolve(traced)
    sharded = type("FullyShardedDataParallel", (Wrapped,), {})(module=llama)
    with pytest.raises(UnsupportedModelError, match="divides its weights among processes"):
        resolve(sharded)


def test_weights_that_are_elsewhere_are_refused(llama: Any) -> None:
    with torch.device("meta"):
        empty: Any = LlamaForCausalLM(llama.config)
    named = r"model\.embed_tokens\.weight"
    with pytest.raises(UnsupportedModelError, match=rf"is on the meta device: {named}"):
        resolve(empty)
    offloaded = copy.deepcopy(llama)
    offloaded.model.layers[1].mlp.to("meta")
    offloaded.model.layers[1].mlp._hf_hook = object()
    named = r"model\.layers\.1\.mlp\.gate_proj\.weight"
    with pytest.raises(UnsupportedModelError, match=rf"offloaded by accelerate: {named}"):
        normscope.analyze(offloaded, tiny.tokenizer(), TEXT)


def test_attribute_refuses_a_model_that_was_compiled_in_place(llama: Any, tokenizer: Any) -> None:
    model = copy.deepcopy(llama)
    model.compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM is compiled"):
        normscope.attribute(model, tokenizer, TEXT)


def test_align_takes_a_wrapped_model() -> None:
    model, tokenizer = tiny_model("marian"), tiny.tokenizer()
    wrapper: Any = nn.DataParallel(model)
    assert translator(AlignOptions(model=wrapper, tokenizer=tokenizer)).model is model
