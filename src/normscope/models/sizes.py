"""Sizes that make any model small: rules by the name of an attribute, and exceptions by type."""

from __future__ import annotations

from typing import Any

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

KEPT = {
    "chunk_size_feed_forward", "id2label", "label2id", "dtype", "architectures", "return_dict",
    "output_hidden_states", "problem_type", "transformers_version", "is_encoder_decoder",
}  # fmt: skip


def _kv(value: int) -> int:
    return 1 if value == 1 else 2


SIZES: tuple[tuple[str, Any], ...] = (
    (r"(num_|n_)?vocab_size\w*|\w+_vocab_size|\w+_vocab(ulary)?_size", 100),
    (r"(max_)?(\w+_)?position_embeddings|n_positions|max_position_embeddings|max_(target|source)_positions|n_ctx|seq_length|max_seq_len|max_sequence_length", 64),
    (r"(\w+_)?(num_hidden_layers|num_layers|n_layers?|depth)|layers|(en|de)coder_layers|num_(en|de)coder_layers|num_blocks", 2),
    (r"(\w+_)?(num_key_value_heads|num_kv_heads|n_kv_heads|num_kv_heads)", _kv),
    (r"(\w+_)?(num_attention_heads|num_heads|n_heads?|attention_heads|nhead)", 4),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim", 8),
    (r"qk_head_dim", 16),
    (r"(\w+_)?(head_dim|d_kv|dim_head|head_size|kv_channels|attention_head_size)", 16),
    (r"q_lora_rank|kv_lora_rank", 16),
    (r"(\w+_)?(intermediate_size|ffn_dim|ffn_hidden_size|mlp_dim|d_ff|n_inner|hidden_dim|feedforward_dim|ffn_size|dim_ff|mlp_hidden_size)(_\w+)?", 48),
    (r"(\w+_)?(hidden_size|d_model|n_embd|embed_dim|emb_dim|dim_model|projection_dim|embedding_size|embedding_dim|dim|word_embed_proj_dim)(_\w+)?", 64),
    (r"(\w+_)?(num_experts|n_routed_experts|num_local_experts|num_routed_experts|n_experts)", 4),
    (r"(\w+_)?(num_experts_per_tok(en)?|moe_topk|top_k_experts|experts_per_token|moe_top_k|moe_k)", 2),
    (r"n_group", 2),
    (r"topk_group", 1),
    (r"(\w+_)?(sliding_window|window_size|local_attention|attention_window|attention_chunk_size)", 4),
    (r"first_k_dense_replace|max_window_layers|num_kv_shared_layers", 1),
    (r"query_pre_attn_scalar", 16),
    (r"image_size", 16),
    (r"patch_size", 4),
)  # fmt: skip

EXCEPTIONS: dict[str, dict[str, Any]] = {}
UNBUILDABLE: dict[str, str] = {}
