"""The tested model families, as data: one row, one tiny model, one exactness test.

What differs between families (the classes, the sizes, where the norms are, the inputs) is a row of
`FAMILIES`; no code here or elsewhere asks for a family by name. The tiny configurations turn on
whatever could go wrong: biases, grouped value heads, a head size that does not divide the hidden
size, sliding windows shorter than the test sequences, soft-capping, sinks, normalised or clipped
queries and keys, experts, towers and stacks of different depth and width.

`tiny_model` and `tiny_inputs` build the model of a row and inputs for it. To add a family to your
own process, `register` it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.foundation.torch_settings import without_grad

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Group = Literal["encoder", "decoder", "encoder-decoder", "vision", "vision-text", "audio"]
# Where the attention block normalises: its input ("pre"), the residual sum ("post"), its output
# before the residual is added ("branch"), or both its input and its output ("sandwich").
NormPlace = Literal["pre", "post", "branch", "sandwich"]
# ids: a padded batch of token ids; seq2seq: one for each side; pixels: images; pixels+ids: both;
# audio: padded waveforms; features: a spectrogram of fixed length, and target ids.
InputKind = Literal["ids", "seq2seq", "pixels", "pixels+ids", "audio", "features"]


@dataclass(frozen=True)
class Family:
    """One row of the table.

    `name` is transformers' model type; a second configuration of the same family adds a word in
    brackets, "falcon (alibi)". `model` and `config` are names of transformers classes, and `tiny`
    the keyword arguments that make the config small.
    """

    name: str
    group: Group
    model: str
    config: str
    tiny: Mapping[str, Any]
    inputs: InputKind
    norm: NormPlace

    @property
    def base(self) -> str:
        """The family that this row belongs to: "falcon" for "falcon (alibi)"."""
        return self.name.split(" (")[0]


# The same special ids for all families, so that inputs do not depend on the family. Id 3 is the
# mask token where a config needs one; ordinary ids start above these.
_FIRST_ID = 4
_IDS = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_POSITIONS = {"max_position_embeddings": 64}

_BERT = _IDS | _SIZES | _POSITIONS
_BERT_WITH_NARROW_EMBEDDINGS = _BERT | {"embedding_size": 20}
_DISTILBERT = _IDS | _POSITIONS | {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}
# Layer 0 is global, the others see two tokens to either side.
_MODERNBERT = _BERT | {
    "cls_token_id": 0, "sep_token_id": 2, "local_attention": 4,
    "attention_bias": True, "mlp_bias": True, "norm_bias": True,
}  # fmt: skip
_ESM = _BERT | {"mask_token_id": 3, "position_embedding_type": "rotary", "token_dropout": True}
_DEBERTA = _BERT | {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4,
    "norm_rel_ebd": "layer_norm", "position_biased_input": False,
}  # fmt: skip

_GPT2 = _IDS | {"n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 40}
_GPT_NEO = _IDS | _POSITIONS | {
    "hidden_size": 32, "num_layers": 3, "num_heads": 4, "intermediate_size": 40, "window_size": 4,
    "attention_types": [[["global", "local", "global"], 1]],
}  # fmt: skip
_OPT = _BERT | {"ffn_dim": 40}
_BLOOM = _IDS | {"hidden_size": 32, "n_layer": 3, "n_head": 4}
_FALCON = _BERT | {"ffn_hidden_size": 40, "bias": True}

# Two value heads for four query heads, and 4 heads of 12 on a hidden size of 32.
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": 12, "attention_bias": True}
_WINDOW = {"sliding_window": 4}
_MIXED_LAYERS = _WINDOW | {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
}
_QWEN = _LLAMA | _WINDOW | {"use_sliding_window": True, "max_window_layers": 1}
_GEMMA = _LLAMA | _MIXED_LAYERS | {"query_pre_attn_scalar": 12}
# The faster implementations of experts do not support float64.
_MOE = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
_EXPERTS = _MOE | {"num_local_experts": 4}
# Phi and StableLM normalise queries and keys as if the heads made up the hidden size.
_NORMED_HEADS = _BERT | {"num_key_value_heads": 2, "qk_layernorm": True}
# Values are narrower than queries and keys, and both are computed from a low-rank code.
_DEEPSEEK = _BERT | _MOE | {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 6, "attention_bias": True, "first_k_dense_replace": 1,
    "moe_intermediate_size": 24, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip

# The two sides differ in depth, heads and width, so that confusing them is noticed.
_BART = _IDS | _POSITIONS | {
    "d_model": 32, "decoder_start_token_id": 2, "forced_eos_token_id": None,
    "scale_embedding": True,
    "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 40,
    "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
}  # fmt: skip
# FSMT's cache stays on, as is transformers' default, although its decoder then gets no mask: with
# the cache off, FSMT makes a causal mask that overflows in float64.
_FSMT = _BART | {"langs": ["en", "de"], "src_vocab_size": 60, "tgt_vocab_size": 60}
_NLLB_MOE = _BART | {
    "num_experts": 4, "expert_capacity": 64, "encoder_sparse_step": 2, "decoder_sparse_step": 2,
}  # fmt: skip
_WHISPER = _BART | {"num_mel_bins": 6, "max_source_positions": 8, "max_target_positions": 64}
_T5 = _IDS | {
    "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
    "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    "decoder_start_token_id": 1,
}  # fmt: skip

_VIT = _SIZES | {"image_size": 12, "patch_size": 4}
_DINOV2 = {k: v for k, v in _VIT.items() if k != "intermediate_size"} | {"mlp_ratio": 2}
_SMALLER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
_TWO_TOWERS = {
    "text_config": _BERT | {"projection_dim": 16, "projection_size": 24},
    "vision_config": _VIT | _SMALLER | {"projection_dim": 16},
}
_CLIP = _TWO_TOWERS | {"projection_dim": 16}
_WAV2VEC2 = _IDS | _SIZES | {
    "conv_dim": [12, 16], "conv_kernel": [4, 3], "conv_stride": [3, 2], "conv_bias": True,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    # With "group" the convolutions mix padding into real frames, and the model takes no mask.
    "feat_extract_norm": "layer",
}  # fmt: skip


def _rows(
    group: Group, inputs: InputKind, *rows: tuple[str, str, str, dict[str, Any], NormPlace]
) -> list[Family]:
    return [Family(name, group, m, c, tiny, inputs, norm) for name, m, c, tiny, norm in rows]


_ENCODERS = _rows(
    "encoder", "ids",
    ("bert", "BertModel", "BertConfig", _BERT, "post"),
    ("roberta", "RobertaModel", "RobertaConfig", _BERT, "post"),
    ("xlm-roberta", "XLMRobertaModel", "XLMRobertaConfig", _BERT, "post"),
    ("camembert", "CamembertModel", "CamembertConfig", _BERT, "post"),
    ("distilbert", "DistilBertModel", "DistilBertConfig", _DISTILBERT, "post"),
    # All three layers are one module.
    ("albert", "AlbertModel", "AlbertConfig",
     _BERT_WITH_NARROW_EMBEDDINGS | {"num_hidden_groups": 1}, "post"),
    ("electra", "ElectraModel", "ElectraConfig", _BERT_WITH_NARROW_EMBEDDINGS, "post"),
    ("modernbert", "ModernBertModel", "ModernBertConfig", _MODERNBERT, "pre"),
    ("esm", "EsmModel", "EsmConfig", _ESM, "pre"),
    ("mpnet", "MPNetModel", "MPNetConfig", _BERT, "post"),
    ("deberta-v2", "DebertaV2Model", "DebertaV2Config", _DEBERTA, "post"),
)  # fmt: skip

_DECODERS = _rows(
    "decoder", "ids",
    ("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT2, "pre"),
    ("opt", "OPTForCausalLM", "OPTConfig", _OPT, "pre"),
    ("opt (post-norm)", "OPTForCausalLM", "OPTConfig",
     _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20}, "post"),
    ("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _BERT, "pre"),
    ("gptj", "GPTJForCausalLM", "GPTJConfig", _GPT2 | {"rotary_dim": 4}, "pre"),
    ("gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig", _GPT_NEO, "pre"),
    ("bloom", "BloomForCausalLM", "BloomConfig", _BLOOM, "pre"),
    # One value head for all; then two for four; then ALiBi with a head each.
    ("falcon", "FalconForCausalLM", "FalconConfig", _FALCON | {"multi_query": True}, "pre"),
    ("falcon (grouped)", "FalconForCausalLM", "FalconConfig",
     _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, "pre"),
    ("falcon (alibi)", "FalconForCausalLM", "FalconConfig",
     _FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False}, "pre"),
    ("biogpt", "BioGptForCausalLM", "BioGptConfig", _BERT, "pre"),
    ("llama", "LlamaForCausalLM", "LlamaConfig", _LLAMA | {"mlp_bias": True}, "pre"),
    ("mistral", "MistralForCausalLM", "MistralConfig", _LLAMA | _WINDOW, "pre"),
    ("mixtral", "MixtralForCausalLM", "MixtralConfig", _LLAMA | _WINDOW | _EXPERTS, "pre"),
    ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _QWEN, "pre"),
    ("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _QWEN, "pre"),
    ("gemma", "GemmaForCausalLM", "GemmaConfig", _LLAMA, "pre"),
    ("gemma2", "Gemma2ForCausalLM", "Gemma2Config",
     _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}, "sandwich"),
    ("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA, "sandwich"),
    ("phi", "PhiForCausalLM", "PhiConfig", _NORMED_HEADS, "pre"),
    ("phi3", "Phi3ForCausalLM", "Phi3Config",
     _LLAMA | _WINDOW | {"original_max_position_embeddings": 64}, "pre"),
    # A limit low enough that values are really clipped.
    ("olmo", "OlmoForCausalLM", "OlmoConfig", _LLAMA | {"clip_qkv": 1.5}, "pre"),
    ("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _LLAMA, "branch"),
    ("cohere", "CohereForCausalLM", "CohereConfig", _LLAMA | {"use_qk_norm": True}, "pre"),
    ("stablelm", "StableLmForCausalLM", "StableLmConfig",
     _NORMED_HEADS | {"use_qkv_bias": True}, "pre"),
    ("granite", "GraniteForCausalLM", "GraniteConfig",
     _LLAMA | {"mlp_bias": True, "attention_multiplier": 0.5, "residual_multiplier": 0.5}, "pre"),
    # Its default rotary scaling stretches 4096 positions 32 times, and warns of any other number.
    ("gpt_oss", "GptOssForCausalLM", "GptOssConfig",
     _LLAMA | _MIXED_LAYERS | _EXPERTS | {"max_position_embeddings": 131072}, "pre"),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", _DEEPSEEK, "pre"),
)  # fmt: skip

_ENCODER_DECODERS = _rows(
    "encoder-decoder", "seq2seq",
    ("marian", "MarianMTModel", "MarianConfig", _BART, "post"),
    ("bart", "BartForConditionalGeneration", "BartConfig", _BART, "post"),
    ("mbart", "MBartForConditionalGeneration", "MBartConfig", _BART, "pre"),
    ("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", _BART, "pre"),
    ("nllb-moe", "NllbMoeForConditionalGeneration", "NllbMoeConfig", _NLLB_MOE, "pre"),
    ("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", _BART, "pre"),
    ("t5", "T5ForConditionalGeneration", "T5Config", _T5, "pre"),
    ("mt5", "MT5ForConditionalGeneration", "MT5Config", _T5, "pre"),
    ("umt5", "UMT5ForConditionalGeneration", "UMT5Config", _T5, "pre"),
    ("fsmt", "FSMTForConditionalGeneration", "FSMTConfig", _FSMT, "post"),
) + _rows(
    "encoder-decoder", "features",
    ("whisper", "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, "pre"),
)  # fmt: skip

_BEYOND_TEXT = [
    *_rows(
        "vision", "pixels",
        ("vit", "ViTModel", "ViTConfig", _VIT, "pre"),
        ("deit", "DeiTModel", "DeiTConfig", _VIT, "pre"),
        ("dinov2", "Dinov2Model", "Dinov2Config", _DINOV2, "pre"),
    ),
    *_rows(
        "vision-text", "pixels+ids",
        ("clip", "CLIPModel", "CLIPConfig", _CLIP, "pre"),
        ("siglip", "SiglipModel", "SiglipConfig", _TWO_TOWERS, "pre"),
    ),
    *_rows(
        "audio", "audio",
        ("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", _WAV2VEC2, "post"),
        ("wav2vec2 (pre-norm)", "Wav2Vec2Model", "Wav2Vec2Config",
         _WAV2VEC2 | {"do_stable_layer_norm": True}, "pre"),
    ),
]  # fmt: skip

FAMILIES: dict[str, Family] = {
    family.name: family for family in _ENCODERS + _DECODERS + _ENCODER_DECODERS + _BEYOND_TEXT
}


def register(family: Family) -> None:
    """Add a family of your own to `FAMILIES`, for this process."""
    if family.name in FAMILIES:
        raise InputError(
            f"a family named {family.name!r} is already registered; give yours another name, "
            f"for example {family.base + ' (mine)'!r}"
        )
    FAMILIES[family.name] = family


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise InputError(
            f"unknown family {name!r}; known families: {', '.join(FAMILIES)}. "
            "Add your own with normscope.architectures.register(Family(...))"
        )
    return FAMILIES[name]


def _config(family: Family) -> PreTrainedConfig:
    import transformers

    # A copy, because configs keep and change the lists and dicts passed to them.
    config: PreTrainedConfig = getattr(transformers, family.config)(**copy.deepcopy(family.tiny))
    return config


def tiny_model(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Build the tiny model of a family in eval mode, every parameter random (see `randomize_`).

    The same name and seed give the same weights. The global random state is neither used nor
    changed.
    """
    import transformers

    family = _family(name)
    with torch.random.fork_rng(devices=[]):  # transformers initialises from the global generator
        model: PreTrainedModel = getattr(transformers, family.model)(_config(family))
    module: nn.Module = model  # the type hints of nn.Module are the more precise ones
    module.to(dtype).eval()
    randomize_(model, seed)
    return model


@without_grad
def randomize_(model: nn.Module, seed: int = 0) -> None:
    """Overwrite every parameter and every learnt buffer of `model` with seeded random numbers.

    A fresh model has zero biases, unit scales and nearly uniform attention, and hides most
    mistakes. Afterwards biases, sinks and layer scales are N(0, 0.3²), the weights of norms are
    N(1, 0.3²), or N(0, 0.3²) where they are close to 0 before (norms that multiply by 1 + weight),
    and attention is far from uniform. The global random state is neither used nor changed.
    """
    generator = torch.Generator().manual_seed(seed)
    # A buffer that is saved with the model is learnt (running statistics, router offsets); rotary
    # frequencies are computed from the config even where they are saved.
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    done: set[int] = set()  # a tied parameter appears in several modules
    for path, module in model.named_modules():
        kind, role = type(module).__name__, path.rsplit(".", 1)[-1]
        # q_proj, key, Wqkv, ...: large queries and keys keep attention from being uniform, and
        # smaller values keep the tokens of a post-norm stack from becoming alike.
        gain = 1.8 if "q" in role or role.startswith("k") or role == "c_attn" else 0.9
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or id(tensor) in done or id(tensor) not in saved:
                continue
            if not tensor.is_floating_point() or name == "inv_freq":
                continue
            done.add(id(tensor))
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if "Norm" in kind and name in ("weight", "running_var"):
                noise = 0.3 * noise + (0.0 if float(tensor.mean()) < 0.5 else 1.0)
                # A variance must be positive.
                noise = noise.abs() if name == "running_var" else noise
            elif tensor.ndim < 2:
                noise *= 0.3
            else:
                # For a Linear this is its input size; for embeddings, convolutions and stacked
                # experts it keeps the activations within an order of magnitude of one.
                noise *= gain * max(1, *tensor.shape[1:]) ** -0.5
            tensor.copy_(noise)


def tiny_inputs(
    name: str,
    *,
    batch: int = 3,
    length: int = 9,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Make a batch for `tiny_model(name)`: keyword arguments of its forward pass.

    Ids and waveforms are padded on the right by 0, 1, 2, 0, ... positions; target ids are two
    shorter than source ids, and their rows are padded in the reverse order. `length` counts
    attention positions: ids, or the frames of a waveform. Images and spectrograms have the size
    that the config fixes.
    """
    family = _family(name)
    config = _config(family)
    text: Any = config.get_text_config()
    image: Any = getattr(config, "vision_config", config)
    generator = torch.Generator().manual_seed(seed)
    # Padding is kept short: where a whole sliding window is padding, transformers' eager attention
    # in float64 is NaN (its mask overflows in a float32 softmax), which spreads to real positions.
    lengths = (length - torch.arange(batch) % 3).clamp(min=1)

    def floats(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def mask(lengths: Tensor) -> Tensor:
        return (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def ids(mask: Tensor) -> Tensor:
        drawn = torch.randint(_FIRST_ID, text.vocab_size, mask.shape, generator=generator)
        # Some families number positions by which ids are the padding id, not by the mask.
        return torch.where(mask.bool(), drawn, text.pad_token_id or 0)

    inputs: dict[str, Tensor] = {}
    if family.inputs in ("pixels", "pixels+ids"):
        side = image.image_size
        inputs["pixel_values"] = floats(batch, image.num_channels, side, side)
    if family.inputs in ("ids", "seq2seq", "pixels+ids"):
        inputs["attention_mask"] = mask(lengths)
        inputs["input_ids"] = ids(inputs["attention_mask"])
    if family.inputs == "audio":
        for kernel, stride in reversed(list(zip(text.conv_kernel, text.conv_stride, strict=True))):
            lengths = (lengths - 1) * stride + kernel  # frames back to samples
        inputs["attention_mask"] = mask(lengths)
        inputs["input_values"] = floats(*inputs["attention_mask"].shape)
        inputs["input_values"] *= inputs["attention_mask"]
    if family.inputs == "features":
        frames = 2 * text.max_source_positions
        inputs["input_features"] = floats(batch, text.num_mel_bins, frames)
    if family.inputs in ("seq2seq", "features"):
        inputs["decoder_attention_mask"] = mask((lengths - 2).clamp(min=1).flip(0))
        inputs["decoder_input_ids"] = ids(inputs["decoder_attention_mask"])
        inputs["decoder_input_ids"][:, 0] = text.decoder_start_token_id
    return inputs
