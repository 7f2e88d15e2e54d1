"""The forms of inputs that few model types have, as data.

A form is the kind of a tensor and its shape, whose sizes are numbers, "batch", "length" or numbers
of the configuration by their names, or products of these; None leaves an argument out.
"""

from __future__ import annotations

from typing import Any

Form = dict[str, Any]

_IMAGE = ("num_channels", "image_size", "image_size")
_IMAGES: Form = {"pixel_values": ("float", "batch", 1, *_IMAGE)}  # several for each row
_PAIR: Form = {"pixel_values": ("float", "batch", 2, *_IMAGE)}
_VIDEO: Form = {"pixel_values": ("float", "batch", "num_frames", *_IMAGE)}
_TILES: Form = {"pixel_values": ("float", "batch", 2, *_IMAGE), "image_sizes": ("sizes",)}
_SIZED: Form = {"image_sizes": ("sizes",)}
_BOXES: Form = {"bbox": ("boxes", "batch", "length")}
# Spectrograms with frames before bins.
_FRAMES: Form = {"input_features": ("float", "batch", 64, "num_mel_bins")}
_LONG: Form = {"input_values": ("float", "batch", 1, 1920)}
_FLAT: Form = {
    "pixel_values": ("float", "batch", 16, "num_channels*patch_size*patch_size"),
    "pixel_attention_mask": ("ones", "batch", 16),
    "spatial_shapes": ("value", [4, 4]),
}
_PATCHES = ("float", "batch*16", "in_channels*patch_size*patch_size")
_SERIES: Form = {
    "past_values": ("float", "batch", 15),
    "past_time_features": ("float", "batch", 15, 1),
    "past_observed_mask": ("ones", "batch", 15),
    "future_values": ("float", "batch", 4),
    "future_time_features": ("float", "batch", 4, 1),
}
_POINTS: Form = {
    "input_points": ("float", "batch", 1, 2, 2),
    "input_labels": ("ones", "batch", 1, 2),
}

FORMS: dict[str, Form] = {
    "audio-spectrogram-transformer": {
        "input_values": ("float", "batch", "max_length", "num_mel_bins")
    },
    "autoformer": _SERIES,
    "blip_2_qformer": {
        "query_embeds": ("float", "batch", 4, "hidden_size"),
        "encoder_hidden_states": ("float", "batch", 5, "encoder_hidden_size"),
        "input_ids": None,
    },
    "bros": {"bbox": ("float", "batch", "length", 4)},
    "canary": _FRAMES,
    "clap": {"input_features": ("float", "batch", 1, 64, "num_mel_bins")},
    "clap_audio_model": {"input_features": ("float", "batch", 1, 64, "num_mel_bins")},
    "clvp": {"input_features": ("float", "batch", "feature_size", 32)},
    "cohere_asr": _FRAMES,
    "colmodernvbert": _IMAGES,
    "dac": _LONG,
    "decision_transformer": {
        "states": ("float", "batch", 5, "state_dim"),
        "actions": ("float", "batch", 5, "act_dim"),
        "rewards": ("float", "batch", 5, 1),
        "returns_to_go": ("float", "batch", 5, 1),
        "timesteps": ("zeros", "batch", 5),
        "attention_mask": ("mask", "batch", 5),
    },
    "deepseek_vl_hybrid": {"high_res_pixel_values": ("float", "batch", 3, 64, 64)},
    "dia": {"decoder_input_ids": ("ids", "batch", 5, "num_channels")},
    "efficientloftr": {"pixel_values": ("float", "batch", 2, 3, 64, 64)},
    "encodec": _LONG,
    "fun_asr_nano_encoder": {
        "input_features": ("float", "batch", 16, 560),
        "input_features_mask": ("mask", "batch", 16),
    },
    "gemma3n_audio": {
        "audio_mel": ("float", "batch", 64, "input_feat_size"),
        "audio_mel_mask": ("no", "batch", 64),
    },
    "gemma4_audio": {"input_features": ("float", "batch", 64, 128)},
    "granite4_vision": _TILES,
    "granite_speech5_ctc": {"input_features": ("float", "batch", 32, 160)},
    "granite_speech5_encoder": {"input_features": ("float", "batch", 32, 160)},
    "idefics": {**_IMAGES, "image_attention_mask": ("ones", "batch", "length", 1)},
    "idefics2": _IMAGES,
    "idefics3": _IMAGES,
    "informer": _SERIES,
    "instructblip": {
        "qformer_input_ids": ("ids", "batch", 5),
        "qformer_attention_mask": ("ones", "batch", 5),
    },
    "instructblipvideo": {
        "pixel_values": ("float", "batch", 2, 3, "image_size", "image_size"),
        "qformer_input_ids": ("ids", "batch", 5),
        "qformer_attention_mask": ("ones", "batch", 5),
    },
    "kimi_k25": {
        "pixel_values": ("float", "batch*16", 3, "patch_size", "patch_size"),
        "image_grid_thw": ("value", [1, 4, 4]),
    },
    "kimi_k25_vision": {
        "pixel_values": ("float", "batch*16", 3, "patch_size", "patch_size"),
        "grid_thw": ("value", [1, 4, 4]),
    },
    "kosmos-2": {"image_embeds_position_mask": ("leading", "batch", "length", "latent_query_num")},
    "lasr_ctc": _FRAMES,
    "lasr_encoder": _FRAMES,
    "layoutlm": _BOXES,
    "layoutlmv3": _BOXES,
    "lfm2_vl": _FLAT,
    "lightglue": {"pixel_values": ("float", "batch", 2, 3, 64, 64)},
    "lighton_ocr": _SIZED,
    "lilt": _BOXES,
    "llava_next": _TILES,
    "llava_next_video": _TILES,
    "llava_onevision": _TILES,
    "lxmert": {
        "visual_feats": ("float", "batch", 4, "visual_feat_dim"),
        "visual_pos": ("float", "batch", 4, "visual_pos_dim"),
    },
    "mimi": _LONG,
    "mimi_encoder": _LONG,
    "mistral3": _SIZED,
    "mistral_large4": _SIZED,
    "mllama": {
        "pixel_values": ("float", "batch", 1, 4, *_IMAGE),
        "aspect_ratio_ids": ("ones", "batch", 1),
        "aspect_ratio_mask": ("ones", "batch", 1, 4),
        "cross_attention_mask": ("ones", "batch", "length", 1, 4),
    },
    "mllama_vision_model": {
        "pixel_values": ("float", "batch", 1, 4, *_IMAGE),
        "aspect_ratio_ids": ("ones", "batch", 1),
        "aspect_ratio_mask": ("ones", "batch", 1, 4),
    },
    "modernvbert": _IMAGES,
    "moonshine": {"input_values": ("float", "batch", 2048)},
    "moonshine_streaming": {"input_values": ("float", "batch", 1920)},
    "nemotron3_5_asr": _FRAMES,
    "nemotron3_5_transcribe_asr_audio": _FRAMES,
    "nemotron3_5_transcribe_audio": _FRAMES,
    "nemotron3_diarization": _FRAMES,
    "nemotron3_diarization_audio": _FRAMES,
    "nemotron_asr_streaming": _FRAMES,
    "nemotron_asr_streaming_encoder": _FRAMES,
    "neomme": {
        "pixel_values": ("float", "batch*16", "3*patch_size*patch_size"),
        "image_grid_thw": ("value", [1, 4, 4]),
    },
    "oneformer": {"task_inputs": ("ids", "batch", "task_seq_len")},
    "paddleocr_vl": {
        "pixel_values": ("float", "batch*16", 3, "patch_size", "patch_size"),
        "image_grid_thw": ("value", [1, 4, 4]),
    },
    "paddleocr_vl_vision": {
        "pixel_values": ("float", 1, "batch*16", 3, "patch_size", "patch_size")
    },
    "parakeet_ctc": _FRAMES,
    "parakeet_encoder": _FRAMES,
    "parakeet_rnnt": _FRAMES,
    "parakeet_tdt": _FRAMES,
    "patchtst": {"past_values": ("float", "batch", "context_length", "num_input_channels")},
    "patchtsmixer": {"past_values": ("float", "batch", "context_length", "num_input_channels")},
    "pe_audio": _LONG,
    "pe_audio_encoder": _LONG,
    "perceiver": {"inputs": ("float", "batch", 6, "d_model")},
    "pix2struct": {
        "flattened_patches": ("patches", "batch", 9, "patch_embed_hidden_size"),
        "attention_mask": ("mask", "batch", 9),
    },
    "pixtral": _SIZED,
    "sam": _POINTS,
    "sam2": _POINTS,
    "sam_hq": _POINTS,
    "seggpt": {
        "prompt_pixel_values": ("float", "batch", *_IMAGE),
        "prompt_masks": ("float", "batch", *_IMAGE),
        "pixel_values": ("float", "batch", *_IMAGE),
    },
    "siglip2": _FLAT,
    "siglip2_vision_model": _FLAT,
    "smolvlm": _IMAGES,
    "speech_to_text": {"input_features": ("float", "batch", 32, "input_feat_per_channel")},
    "speecht5": {
        "input_values": ("float", "batch", 9, "hidden_size"),
        "decoder_input_values": ("float", "batch", 7, "hidden_size"),
    },
    "superglue": {"pixel_values": ("float", "batch", 2, 3, 64, 64)},
    "time_series_transformer": _SERIES,
    "timesfm2_5": {"past_values": ("float", "batch", 64)},
    "timesformer": _VIDEO,
    "udop": {"bbox": ("float", "batch", "length", 4)},
    "ultravbert": _IMAGES,
    "video_llama_3": {
        "pixel_values": ("float", "batch*16", "num_channels*patch_size*patch_size"),
        "image_grid_thw": ("value", [1, 4, 4]),
        "image_merge_sizes": ("all", 2, "batch"),
    },
    "video_llama_3_vision": {
        "pixel_values": ("float", "batch*16", "num_channels*patch_size*patch_size"),
        "grid_thw": ("value", [1, 4, 4]),
        "merge_sizes": ("all", 2, "batch"),
    },
    "videomae": _VIDEO,
    "videomt": {"pixel_values_videos": ("float", "batch", 2, *_IMAGE)},
    "videoprism": {"pixel_values_videos": ("float", "batch", "num_frames", *_IMAGE)},
    "videoprism_vision_model": {"pixel_values_videos": ("float", "batch", "num_frames", *_IMAGE)},
    "visual_bert": {
        "visual_embeds": ("float", "batch", 4, "visual_embedding_dim"),
        "visual_attention_mask": ("ones", "batch", 4),
        "visual_token_type_ids": ("ones", "batch", 4),
    },
    "vit_mae": {"noise": ("float", "batch", 16)},
    "vivit": _VIDEO,
    "vjepa2": {"pixel_values_videos": ("float", "batch", "frames_per_clip", 3, 16, 16)},
    "wav2vec2-bert": {
        "input_features": ("float", "batch", 9, "feature_projection_input_dim"),
        "attention_mask": ("mask", "batch", 9),
    },
    "xclip": _VIDEO,
}
