"""Whether a model is loaded whole: what may lack or be left over, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    Wav2Vec2ConformerConfig,
    Wav2Vec2ConformerModel,
)

from normscope.errors import ModelNotFoundError, UnsupportedModelError
from normscope.models import load
from normscope.models.completeness import made_up, refuse_made_up_head
from normscope.results.signature import weights_hash
from tests.helpers.saved_models import SMALL, SMALL_BERT, Weights, edit, rewrite, save, without

DEEP_BERT = BertConfig.from_dict({**SMALL_BERT.to_dict(), "num_hidden_layers": 3})
GPT2: dict[str, Any] = {"vocab_size": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
LLAMA: dict[str, Any] = {**SMALL, "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
BOTH_SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 8}.items()
}
TRANSLATION: dict[str, Any] = {
    **BOTH_SIDES,
    **dict.fromkeys(("vocab_size", "d_model", "max_position_embeddings"), 8),
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), 1),
}
CONFORMER = Wav2Vec2ConformerConfig(
    **{**SMALL, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8},
    conv_dim=(8,),
    conv_stride=(2,),
    conv_kernel=(2,),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    conv_depthwise_kernel_size=3,
    position_embeddings_type="rotary",
)


def with_more(*names: str) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, **{name: torch.randn(2, 2) for name in names}}


# ---- what would be left out


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertModel"])
def test_layers_that_the_config_does_not_count_are_refused(
    architecture: str, tmp_path: Path
) -> None:
    folder = save(BertForMaskedLM(DEEP_BERT), tmp_path / "m")
    edit(folder / "config.json", num_hidden_layers=1, architectures=[architecture])
    with pytest.raises(
        ModelNotFoundError,
        match=r"have 32 tensors that would be left out.*bert\.encoder\.layer\.1\..*and 28 more; "
        r"correct its config\.json .*strict=False \(--no-strict\)",
    ):
        load(folder)
    model: Any = load(folder, strict=False)[0]
    assert type(model).__name__ == architecture
    assert len(model.base_model.encoder.layer) == 1


def test_layers_of_a_base_model_without_a_prefix_are_refused(tmp_path: Path) -> None:
    folder = save(BertModel(DEEP_BERT), tmp_path / "m")
    edit(folder / "config.json", num_hidden_layers=1)
    with pytest.raises(ModelNotFoundError, match=r"32 tensors .* encoder\.layer\.1\."):
        load(folder)


def quantised(weights: Weights) -> Weights:
    """The weights of attention as integers, each with its scale."""
    changed = dict(weights)
    for name, weight in weights.items():
        if name.endswith("weight") and "attention" in name and weight.dim() == 2:
            scale = weight.abs().amax(dim=1, keepdim=True) / 127
            changed[name] = (weight / scale).round().to(torch.int8)
            changed[f"{name}_scale"] = scale
    return changed


@pytest.mark.parametrize("config", ["GONE", {"quant_method": "somebodys", "bits": 8}])
def test_scales_of_quantised_weights_are_not_ignored(folder: Path, config: Any) -> None:
    rewrite(folder, quantised)
    edit(folder / "config.json", quantization_config=config)
    with pytest.raises(
        ModelNotFoundError, match=r"8 tensors .*weight_scale.* quantised: .*quantization_config"
    ):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.self.query.lora_A.weight",
        "bert.encoder.layer.0.attention.self.query.lora_embedding_A.default",
        "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight",
        "cls.predictions.decoder.lora_A.weight",
    ],
)
def test_an_adapter_among_the_weights_is_not_ignored(folder: Path, name: str) -> None:
    rewrite(folder, with_more(name))
    with pytest.raises(
        ModelNotFoundError, match=r"have 1 tensor that would be left out.*lora_.*merge_and_unload"
    ):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.self.query.qweight",
        "bert.encoder.layer.0.attention.self.query.SCB",
        "bert.encoder.layer.0.attention.self.query.gate",
        "bert.encoder.layer.0.attention.output.more.weight",
        "bert.embeddings.type_embeddings.weight",
    ],
)
def test_what_belongs_into_the_base_model_is_not_left_out(folder: Path, name: str) -> None:
    rewrite(folder, with_more(name))
    with pytest.raises(ModelNotFoundError, match=f"have 1 tensor .*{name}"):
        load(folder)


# ---- what may be left out


LEFT_OVER: list[tuple[Callable[[], Any], str, list[str]]] = [
    (lambda: BertForMaskedLM(SMALL_BERT), "BertModel", ["cls.seq_relationship.weight"]),
    (
        lambda: BertForMaskedLM(SMALL_BERT),
        "BertForMaskedLM",
        [
            *("bert.pooler.dense.weight", "cls.seq_relationship.bias"),
            *("bert.embeddings.position_ids", "classifier.out_proj.weight"),
        ],
    ),
    (lambda: BertModel(SMALL_BERT), "BertModel", ["embeddings.position_ids", "lm_head.bias"]),
    (lambda: BertForSequenceClassification(SMALL_BERT), "BertModel", []),
    (
        lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
        "GPT2LMHeadModel",
        ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"],
    ),
    (
        lambda: GPT2LMHeadModel(GPT2Config(**GPT2)).transformer,
        "GPT2LMHeadModel",
        ["h.0.attn.bias", "h.0.attn.masked_bias"],
    ),
    (lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), "GPT2Model", ["lm_head.weight"]),
    (
        lambda: GPTJForCausalLM(GPTJConfig(**GPT2, rotary_dim=2)),
        "GPTJForCausalLM",
        ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"],
    ),
    (
        lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**LLAMA)),
        "GPTNeoXForCausalLM",
        [
            f"gpt_neox.layers.0.attention.{name}"
            for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
        ],
    ),
    (
        lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
        "LlamaForCausalLM",
        ["model.layers.0.self_attn.rotary_emb.inv_freq"],
    ),
    (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), "LlamaModel", []),
    (
        lambda: BartForConditionalGeneration(BartConfig(**TRANSLATION)),
        "BartForConditionalGeneration",
        ["model.encoder.version", "model.decoder.version", "classification_head.out_proj.bias"],
    ),
    (lambda: MarianMTModel(MarianConfig(**TRANSLATION)), "MarianModel", []),
    (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        ),
        "T5EncoderModel",
        ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
    ),
]


@pytest.mark.parametrize(
    ("make", "architecture", "more"),
    LEFT_OVER,
    ids=[f"{number}-{architecture}" for number, (_, architecture, _) in enumerate(LEFT_OVER)],
)
def test_heads_and_what_is_computed_may_be_left_out(
    make: Callable[[], Any],
    architecture: str,
    more: list[str],
    tmp_path: Path,
    messages: list[str],
) -> None:
    folder = save(make(), tmp_path / "m")
    edit(folder / "config.json", architectures=[architecture])
    rewrite(folder, lambda weights: {**with_more(*more)({}), **weights})
    assert type(load(folder)[0]).__name__ == architecture
    assert not any("LOAD REPORT" in message for message in messages), "nothing to be alarmed about"


# ---- what is missing


def test_statistics_of_a_batch_norm_are_weights(tmp_path: Path) -> None:
    folder = save(Wav2Vec2ConformerModel(CONFORMER), tmp_path / "m")
    rewrite(folder, without("num_batches_tracked", "inv_freq"))
    model: Any = load(folder)[0]  # a count that nothing reads, and a formula
    assert model.encoder.embed_positions.inv_freq[0] == 1
    rewrite(folder, without("running_"))
    with pytest.raises(
        ModelNotFoundError,
        match=r"lack 4 parameters .*random numbers or constants: .*batch_norm\.running_mean",
    ):
        load(folder)
    assert len(load(folder, strict=False)) == 2


def test_strict_may_be_false(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=3, intermediate_size=16)
    with pytest.raises(
        ModelNotFoundError,
        match=r"intermediate\.dense\.weight: \[8, 8\] saved, \[16, 8\] expected.*strict=False",
    ):
        load(folder)
    model: Any = load(folder, strict=False)[0]
    assert len(model.bert.encoder.layer) == 3
    assert model.bert.encoder.layer[0].intermediate.dense.out_features == 16


# ---- what was made up, and is not read


@pytest.fixture
def without_pooler(tmp_path: Path) -> Path:
    folder = save(BertModel(SMALL_BERT), tmp_path / "sentences")
    rewrite(folder, without("pooler"))
    return folder


def test_a_pooler_that_no_file_has_is_not_part_of_the_identity(without_pooler: Path) -> None:
    models: list[Any] = [load(without_pooler)[0] for _ in range(4)]
    poolers = [model.pooler.dense.weight for model in models]
    assert not torch.equal(poolers[0], poolers[1]), "it is random"
    assert {made_up(model) for model in models} == {
        frozenset({"pooler.dense.weight", "pooler.dense.bias"})
    }
    assert len({weights_hash(model) for model in models}) == 1
    model = models[0]
    assert made_up(model.double()) == made_up(models[1])
    assert weights_hash(model) != weights_hash(models[1])
    before = weights_hash(model)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.bias[0] += 1
    assert weights_hash(model) != before


def test_a_pooler_that_was_trained_since_is_part_of_it(without_pooler: Path) -> None:
    model: Any = load(without_pooler)[0]
    before = weights_hash(model)
    with torch.no_grad():
        model.pooler.dense.weight.mul_(2)
    assert made_up(model) == {"pooler.dense.bias"}
    model.pooler.dense = nn.Linear(8, 8)
    assert made_up(model) == frozenset()
    assert weights_hash(model) != before


def test_what_is_loaded_all_the_same_counts_as_it_is(without_pooler: Path, folder: Path) -> None:
    models = [load(without_pooler, strict=False)[0] for _ in range(2)]
    assert [made_up(model) for model in models] == [frozenset()] * 2
    assert weights_hash(models[0]) != weights_hash(models[1])
    assert made_up(load(folder)[0]) == frozenset()
    assert made_up(BertModel(SMALL_BERT)) == frozenset()


def test_a_head_that_no_file_has_writes_nothing(without_pooler: Path, folder: Path) -> None:
    refuse_made_up_head(load(without_pooler)[0])  # its pooler writes nothing
    rewrite(folder, without("cls."))
    model = load(folder)[0]
    with pytest.raises(
        UnsupportedModelError,
        match=r"the output of BertForMaskedLM depends on 6 parameters that no file .*cls\.",
    ):
        refuse_made_up_head(model)
    refuse_made_up_head(load(folder, strict=False)[0])
