"""Families that no table names: seen exactly with no code of their own, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from normscope.errors import UnsupportedModelError
from normscope.models.architectures import randomize_
from normscope.testing import check_architecture
from tests.helpers.captures import captured

BASE = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = BASE | {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT = BASE | {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 40,
    "n_positions": 64,
    "n_ctx": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
BART = BASE | {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
    "max_position_embeddings": 64, "decoder_start_token_id": 2,
}  # fmt: skip
DEEPSEEK = SIZES | EXPERTS | {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 6, "head_dim": 4, "first_k_dense_replace": 1,
    "moe_intermediate_size": 24, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "index_topk": 3, "index_n_heads": 2, "index_head_dim": 8,
}  # fmt: skip
HUBERT = SIZES | {
    "conv_dim": [12, 16], "conv_kernel": [4, 3], "conv_stride": [3, 2],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
}  # fmt: skip
CONVBERT = SIZES | {"embedding_size": 32, "head_ratio": 2, "conv_kernel_size": 3}
XLNET = BASE | {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 40}

LONGT5 = BASE | {
    "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "local_radius": 3, "decoder_start_token_id": 2,
}  # fmt: skip
QWEN3_NEXT = GROUPED | EXPERTS | {
    "num_hidden_layers": 2, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "layer_types": ["full_attention", "linear_attention"],
}  # fmt: skip
MOBILEVIT = {
    "hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 7, "image_size": 64,
    "num_attention_heads": 2, "patch_size": 2,
}  # fmt: skip

# model class: the tiny configuration, and the attention calls of one forward pass
SEEN: dict[str, tuple[dict[str, Any], int]] = {
    "XLMModel": (BASE | {"emb_dim": 32, "n_layers": 3, "n_heads": 4, "pad_index": 1}, 3),
    "Data2VecTextModel": (SIZES, 3),
    "RoFormerModel": (SIZES | {"embedding_size": 20}, 3),
    "BigBirdModel": (SIZES | {"attention_type": "original_full"}, 3),
    "MobileBertModel": (SIZES | {"embedding_size": 32, "intra_bottleneck_size": 16}, 3),
    "LayoutLMModel": (SIZES, 3),
    "DebertaModel": (SIZES | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, 3),
    "GPTBigCodeForCausalLM": (GPT, 3),
    "CodeGenForCausalLM": (GPT | {"rotary_dim": 4}, 3),
    "MptForCausalLM": (BASE | {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}, 3),
    "NemotronForCausalLM": (GROUPED, 3),
    "PersimmonForCausalLM": (SIZES, 3),
    "Starcoder2ForCausalLM": (GROUPED | {"sliding_window": 4}, 3),
    "Exaone4ForCausalLM": (GROUPED, 3),
    "OlmoeForCausalLM": (GROUPED | EXPERTS | {"num_experts": 4}, 3),
    # A sparse mask, which the model makes only for the attentions that it knows by name.
    "DeepseekV32ForCausalLM": (DEEPSEEK, 3),
    "PLBartForConditionalGeneration": (BART, 9),
    "BlenderbotForConditionalGeneration": (BART, 9),
    "BeitModel": (
        {k: v for k, v in SIZES.items() if k not in BASE} | {"image_size": 12, "patch_size": 4}, 3
    ),
    "HubertModel": (HUBERT, 3),
    # Attention in a form of its own, read by probes: streams, chunks, landmarks, convolutions.
    "XLNetModel": (XLNET, 3),
    "LongformerModel": (SIZES | {"attention_window": 4}, 3),
    "LEDForConditionalGeneration": (BART | {"attention_window": 4}, 9),
    "NystromformerModel": (SIZES, 3),
    "ConvBertModel": (CONVBERT, 3),
    "LongT5ForConditionalGeneration": (LONGT5, 6),
    # Factors between the heads and their projection, which are held.
    "DiffLlamaForCausalLM": (GROUPED, 3),
    "GraniteSWAForCausalLM": (GROUPED | {"sliding_window": 4}, 3),
    "Qwen3NextForCausalLM": (QWEN3_NEXT, 1),
    # Attention in some layers of a list, and convolutions in others.
    "MobileViTModel": (MOBILEVIT, 9),
    "Lfm2ForCausalLM": (GROUPED | {"layer_types": ["conv", "full_attention", "conv"]}, 1),
}  # fmt: skip

# model class: the tiny configuration, and what the refusal says
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "FunnelModel": (
        BASE | {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 40, "block_sizes": [1, 1]},
        r"^encoder\.blocks\.0\.0\.attention \(FunnelRelMultiheadAttention\) ran, but",
    ),
    "MambaForCausalLM": (
        BASE | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "^MambaForCausalLM ran without any attention",
    ),
    "FNetModel": (SIZES, "^FNetModel ran without any attention"),
}


def build(name: str, tiny: dict[str, Any]) -> Any:
    kind = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(kind.config_class(**tiny)).to(torch.float64).eval()
    randomize_(model)
    return model


def inputs_of(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        size = 64 if model.config.model_type == "mobilevit" else 12
        return {"pixel_values": torch.randn(2, 3, size, size, generator=generator).double()}
    if model.main_input_name == "input_values":
        return {"input_values": torch.randn(2, 70, generator=generator).double()}
    ids = torch.randint(4, 60, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    inputs = {"input_ids": torch.where(mask.bool(), ids, 1)}
    if "mamba" not in model.config.model_type and model.config.model_type != "fnet":
        inputs["attention_mask"] = mask
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, 1:6]
    return inputs


def existing(*names: str) -> list[str]:
    """Those that the installed transformers has."""
    return [name for name in names if hasattr(transformers, name)]


def has_sdpa_of_its_own(model: nn.Module) -> bool:
    """As some models had before they asked the interface: nothing can be seen of it."""
    return any("Sdpa" in type(module).__name__ for module in model.modules())


UNSEEN = "ran, but normscope did not see it attend"


@pytest.mark.parametrize("name", existing(*SEEN))
def test_seen_exactly(name: str) -> None:
    tiny, calls = SEEN[name]
    model = build(name, tiny)
    if has_sdpa_of_its_own(model):
        with pytest.raises(UnsupportedModelError, match=UNSEEN):
            check_architecture(model, inputs_of(model))
        return
    proof = check_architecture(model, inputs_of(model), bound=1e-10)
    assert sum(proof.attentions.values()) == calls


def test_the_sparse_mask_is_the_models_own() -> None:
    """Three keys at most, as its indexer chooses them: not what it would see without."""
    for name in existing("DeepseekV32ForCausalLM"):
        model = build(name, DEEPSEEK)
        for a in captured(model, {"input_ids": inputs_of(model)["input_ids"][:1]}):
            assert (a.alpha > 0).sum(dim=-1)[0, 0].tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("name", existing(*REFUSED))
def test_refused_by_name(name: str) -> None:
    tiny, message = REFUSED[name]
    model = build(name, tiny)
    message = UNSEEN if has_sdpa_of_its_own(model) else message
    with pytest.raises(UnsupportedModelError, match=message):
        check_architecture(model, inputs_of(model))
