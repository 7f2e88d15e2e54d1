"""Sizes that make any model small: rules by the name of an attribute, and exceptions by type.

Everything that `shrinking` knows of single types is data here.
"""

from __future__ import annotations

from typing import Any

# Special ids, all below the ids that are drawn.
TOKENS = {
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "mask_token_id": 3,
    "decoder_start_token_id": 2, "cls_token_id": 0, "sep_token_id": 2, "unk_token_id": 3,
    "image_token_id": 4, "image_token_index": 4, "video_token_id": 5, "video_token_index": 5,
    "audio_token_id": 6, "audio_token_index": 6, "vision_start_token_id": 7,
    "vision_end_token_id": 8, "image_start_token_id": 7, "image_end_token_id": 8,
    "boi_token_id": 7, "eoi_token_id": 8, "boi_token_index": 7, "eoi_token_index": 8,
    "video_start_token_id": 7, "video_end_token_id": 8, "audio_bos_token_id": 9,
    "audio_eos_token_id": 10, "audio_start_token_id": 9, "audio_end_token_id": 10,
    "boa_token_id": 9, "eoa_token_id": 10, "boa_token_index": 9, "eoa_token_index": 10,
    "vision_token_id": 11, "blank_token_id": 3, "forced_eos_token_id": 2, "forced_bos_token_id": 0,
    "eod_token_id": 2, "eod_id": 2, "image_patch_id": 4,
}  # fmt: skip

# What is left as it is.
KEPT = {
    "chunk_size_feed_forward", "id2label", "label2id", "dtype", "architectures", "return_dict",
    "output_hidden_states", "problem_type", "transformers_version", "is_encoder_decoder",
    "model_type",
}  # fmt: skip


def _shared_heads(number: int, config: Any) -> int:
    """Return half as many heads of keys and values as of queries, if they were fewer."""
    heads = getattr(config, "num_attention_heads", None) or getattr(config, "num_heads", number)
    return 1 if number == 1 else 4 if number == heads else 2


# The first pattern that an attribute's whole name matches; no number becomes larger.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"(num_|n_)?vocab_size\w*|\w+_vocab_size|\w+_vocab(ulary)?_size", 100),
    (r"(max_)?(\w+_)?position_embeddings|n_positions|n_ctx|seq_length|max_seq_len", 64),
    (r"max_(target|source)_positions|max_sequence_length", 64),
    (r"(\w+_)?(num_hidden_layers|num_layers|n_layers?|depth)|layers|num_blocks", 2),
    (r"(en|de)coder_layers|num_(en|de)coder_layers", 2),
    (r"(\w+_)?(num_key_value_heads|n(um)?_kv_heads)", _shared_heads),
    # State spaces: 8 heads of 16 make up twice the hidden size.
    (r"mamba_n(um)?_heads", 8),
    (r"(mamba_|\w+_)?n_?groups|num_groups", 1),
    (r"(mamba_)?d_state|mamba_dt_rank|ssm_state_size|state_size|time_step_rank", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"mamba_d_head", 16),
    (r"(\w+_)?(num_attention_heads|num_heads|n_heads?|attention_heads|nhead)", 4),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim", 8),
    (r"(\w+_)?(head_dim|d_kv|dim_head|head_size|kv_channels)", 16),
    (r"q_lora_rank|kv_lora_rank", 16),
    (r"(\w+_)?(intermediate_size|mlp_hidden_size|ffn_hidden_size|feedforward_dim)(_\w+)?", 48),
    (r"(\w+_)?(ffn_dim|mlp_dim|d_ff|n_inner|hidden_dim|ffn_size|dim_ff)(_\w+)?", 48),
    (r"(\w+_)?(hidden_size|d_model|n_embd|embed_dim|emb_dim|dim_model|dim)(_\w+)?", 64),
    (r"(\w+_)?(projection_dim|embedding_size|embedding_dim|word_embed_proj_dim)(_\w+)?", 64),
    (r"(\w+_)?(num_(local_|routed_)?experts|n_(routed_)?experts)", 4),
    (r"(\w+_)?(num_experts_per_tok(en)?|moe_top_?k|top_k_experts|experts_per_token|moe_k)", 2),
    (r"n_group", 2),
    (r"topk_group", 1),
    (r"(\w+_)?(sliding_window|window_size|local_attention)", 4),
    (r"(attention_window|attention_chunk_size)", 4),
    (r"first_k_dense_replace|max_window_layers|num_kv_shared_layers", 1),
    (r"query_pre_attn_scalar", 16),
    (r"image_size", 16),
    (r"patch_size", 4),
)

# Where a type has no base model, the head that is built; other mappings follow by their names.
PREFERRED = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
)

# Types that do not run in float64: masks that overflow, or float32 in their own code.
SINGLE = (
    *("autoformer", "fastspeech2_conformer", "fastspeech2_conformer_with_hifigan", "fsmt"),
    *("ernie4_5_vl_moe", "gemma4_audio", "informer", "mra", "slanext", "tapas", "xglm"),
)


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _mrope(*sections: int, **more: Any) -> dict[str, Any]:
    """Return rotary positions in several directions, whose sections add up to half a head."""
    return {"rope_parameters": {**_ROPE, "mrope_section": list(sections), **more}}


_HYBRIDS = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
_SERIES = {"prediction_length": 4, "context_length": 8, "num_time_features": 1}
_PYRAMID = {
    "image_size": 64, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
}  # fmt: skip
_SWIN = {
    "embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 4, 4), "window_size": 2,
    "image_size": 64,
}  # fmt: skip
_CONVNEXT = {"image_size": 64, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_WINDOWS = {"window_size": 16, "fullatt_block_indexes": [1]}
_TILED = {"image_grid_pinpoints": [[16, 16]]}
_SAM = {
    "output_channels": 64, "num_pos_feats": 32, "window_size": 2, "global_attn_indexes": [1],
    "image_size": 16,
}  # fmt: skip
_DINO = {
    "model_type": "dinov2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "reshape_hidden_states": False, "apply_layernorm": True,
}  # fmt: skip
_NECK = {
    "backbone_config": _DINO, "neck_hidden_sizes": [8, 8, 8, 8], "reassemble_hidden_size": 64,
    "fusion_hidden_size": 8,
}  # fmt: skip
_RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1], "out_features": ["stage4"],
}  # fmt: skip
_RESNET3 = {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]}
_DETR = {"backbone_config": _RESNET, "use_timm_backbone": False, "num_queries": 5}
_RT_DETR = {
    "backbone_config": {**_RESNET3, "model_type": "rt_detr_resnet"},
    "encoder_in_channels": [8, 16, 16], "encoder_hidden_dim": 64,
    "decoder_in_channels": [64, 64, 64], "num_queries": 5,
}  # fmt: skip
_HGNET = {"model_type": "hgnet_v2", "out_features": ["stage2", "stage3", "stage4"]}
_OMNI = {"vision_start_token_id": 7, "vision_end_token_id": 8}

# Sizes of types for which the rules are not enough; "text_config.head_dim" is a number inside.
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "align": {"vision_config.image_size": 64},
    "align_vision_model": {
        "image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.2,
        "num_hidden_layers": 4,
    },
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "audio-spectrogram-transformer": {
        "max_length": 32, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4,
    },
    "autoformer": _SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "blip-2": {"image_token_index": 4, "num_query_tokens": 4},
    "chameleon": {"vocabulary_map": {"<image>": 4, "IMGIMGA": 5}},
    "clap_audio_model": {
        "depths": (1, 1, 1, 1), "num_attention_heads": (2, 2, 4, 4),
        "patch_embeds_hidden_size": 16, "hidden_size": 128, "spec_size": 64, "num_mel_bins": 16,
        "window_size": 2,
    },
    "clvp_encoder": {"projection_dim": 64, "num_attention_heads": 2},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE},
    },
    "conditional_detr": _DETR,
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "cosmos3_edge_text": _mrope(3, 3, 2),
    "cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2], "depth": [1, 1, 1]},
    "d_fine": {**_RT_DETR, "backbone_config": _HGNET},
    "dab-detr": _DETR,
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 1.5},
    "decision_transformer": {"max_ep_len": 16},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deformable_detr": {**_DETR, "backbone_config": _RESNET3},
    "depth_anything": _NECK,
    "detr": _DETR,
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dinov3_convnext": _CONVNEXT,
    "donut-swin": _SWIN,
    "dots1": {
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "first_k_dense_replace": 1,
    },
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.2},
    "emu3": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 6}},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [48, 32], **_mrope(3, 3, 2)},
    "esm": {"vocab_size": 100, "pad_token_id": 1, "mask_token_id": 3},
    "exaone4_5_vision": _WINDOWS,
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma4": {"vision_config": {"model_type": "gemma4_vision"}},
    "glm4v_moe_text": _mrope(1, 1, 2, partial_rotary_factor=0.5),
    "glm4v_text": _mrope(2, 3, 3),
    "glm_image_text": _mrope(2, 3, 3),
    "glm_ocr_text": _mrope(2, 3, 3),
    "glpn": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "gptj": {"rotary_dim": 8},
    "granite4_vision": _TILED,
    "granite_speech5_ctc": {"encoder_config.context_size": 8},
    "granite_speech5_encoder": {"context_size": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "grounding-dino": {"num_queries": 5},
    "hiera": {
        "image_size": [32, 32], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8],
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16, **_mrope(2, 2, 2, 2)},
    "hyperclovax_vision_v2": {"vision_config.window_size": 16},
    "informer": _SERIES,
    "instructblip": {"image_token_index": 4, "num_query_tokens": 4},
    "instructblipvideo": {"video_token_index": 5, "num_query_tokens": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4},
    "kyutai_speech_to_text": {"codebook_vocab_size": 100},
    "layoutlmv3": {"coordinate_size": 11, "shape_size": 10, "hidden_size": 64, "input_size": 64},
    "levit": {
        "image_size": 64, "hidden_sizes": (16, 24, 32), "num_attention_heads": (2, 2, 2),
        "key_dim": (8, 8, 8), "depths": (1, 1, 1),
        "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 96},
    "llama4_text": {"num_experts_per_tok": 1},
    "llama4_vision_model": {
        "intermediate_size": 256, "vision_output_dim": 64, "projector_input_dim": 64,
        "projector_output_dim": 64,
    },
    "llava_next": _TILED,
    "llava_next_video": _TILED,
    "llava_onevision": _TILED,
    "longcat_flash": {"head_dim": 8},
    "lw_detr_vit": {
        "image_size": 32, "pretrain_image_size": 32, "num_windows": 4, "window_block_indices": [0],
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "mask2former": {"num_queries": 5},
    "maskformer-swin": _SWIN,
    "mgp-str": {"image_size": [16, 32]},
    "mimi": {
        "upsample_groups": 64, "num_filters": 8, "num_quantizers": 2, "codebook_size": 16,
        "vector_quantization_hidden_dimension": 16, "codebook_dim": 16,
    },
    "ministral": {"head_dim": 16},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "mllama_vision_model": {
        "num_global_layers": 1, "attention_heads": 4, "intermediate_layers_indices": [0, 1],
        "vision_output_dim": 192,
    },
    "mm-grounding-dino": {"num_queries": 5},
    "mobilevit": {
        "image_size": 64, "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
    },
    "mobilevitv2": {"image_size": 64, "base_attn_unit_dims": [16, 24, 32]},
    "moonshine_streaming": {"num_key_value_heads": 4, "decoder_start_token_id": 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 1, "mamba_num_heads": 8, "mamba_head_dim": 16},
    "paddleocr_vl_text": _mrope(2, 3, 3),
    "parakeet_encoder": {"subsampling_conv_channels": 16, "num_mel_bins": 16},
    "patchtst": {"context_length": 32},
    "perceiver": {"num_latents": 8, "d_latents": 64, "d_model": 64},
    "prompt_depth_anything": _NECK,
    "pvt": _PYRAMID,
    "pvt_v2": _PYRAMID,
    "qwen2_5_omni_talker": _mrope(2, 3, 3),
    "qwen2_5_omni_text": _mrope(2, 3, 3),
    "qwen2_5_omni_thinker": _OMNI,
    "qwen2_5_omni_vision_encoder": _WINDOWS,
    "qwen2_5_vl_text": _mrope(2, 3, 3),
    "qwen2_5_vl_vision": _WINDOWS,
    "qwen2_vl_text": _mrope(2, 3, 3),
    "qwen3_asr_encoder": {"n_window": 8, "n_window_infer": 16},
    "qwen3_omni_moe_text": _mrope(2, 3, 3),
    "qwen3_omni_moe_thinker": _OMNI,
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {
        "axial_pos_embds_dim": (32, 32), "axial_pos_shape": (8, 8),
        "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
    },
    "rf_detr": {"num_queries": 5, "group_detr": 1},
    "rt_detr": _RT_DETR,
    "rt_detr_v2": _RT_DETR,
    "sam_hq_prompt_encoder": {"image_embedding_size": 4},
    "sam_hq_vision_model": _SAM,
    "sam_mask_decoder": {"iou_head_hidden_dim": 32},
    "sam_prompt_encoder": {"image_embedding_size": 4},
    "sam_vision_model": _SAM,
    "segformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "seggpt": {
        "image_size": [32, 16], "pretrain_image_size": 16,
        "intermediate_hidden_state_indices": [0, 1], "merge_index": 0,
    },
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "siglip2_vision_model": {"num_patches": 16},
    "speech_to_text": {"input_feat_per_channel": 16, "conv_channels": 32},
    "step3p5": {"sliding_window": 4},
    "superpoint": {"descriptor_decoder_dim": 64, "keypoint_decoder_dim": 65},
    "swin": _SWIN,
    "swin2sr": {
        "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 2, "image_size": 16,
        "patch_size": 1,
    },
    "swinv2": {**_SWIN, "pretrained_window_sizes": (0, 0, 0, 0)},
    "t5gemma2": {"encoder.mm_tokens_per_image": 4, "image_token_index": 4},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "table-transformer": _DETR,
    "time_series_transformer": _SERIES,
    "timesformer": {"num_frames": 2},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "videomae": {"num_frames": 4},
    "vipllava": {"vision_feature_layers": [-1]},
    "vitmatte": {"fusion_hidden_sizes": [8, 8, 8, 8]},
    "vitpose_backbone": {"image_size": [16, 16], "patch_size": [4, 4]},
    "vivit": {"num_frames": 4, "tubelet_size": [2, 4, 4]},
    "vjepa2": {"frames_per_clip": 4, "crop_size": 16, "pred_hidden_size": 48},
    "whisper": {"num_mel_bins": 6, "max_source_positions": 8},
    "xclip": {"vision_config.num_frames": 2},
    "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "yolos": {"image_size": [16, 16], "num_detection_tokens": 3},
    "zamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 128,
        "attention_head_dim": 32, "num_hidden_layers": 4, "layers_block_type": _HYBRIDS,
    },
    "zamba2": {
        "attention_hidden_size": 128, "attention_head_dim": 32, "num_hidden_layers": 4,
        "layers_block_type": _HYBRIDS, "hybrid_layer_ids": [1, 3],
    },
}  # fmt: skip
