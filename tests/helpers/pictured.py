"""Tiny models that read images and recordings, their processors, and images drawn by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

from normscope.models.architectures import randomize_

WORDS = (
    "<s> <pad> </s> <unk> <image> what colour is the shape in upper left lower right red green "
    "blue a photo of cat dog ?"
)
IMAGE = 4  # the id of <image>
TEXT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 128, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip
ROPE: dict[str, Any] = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
QWEN: dict[str, Any] = {
    "text_config": TEXT | {"num_key_value_heads": 2, "rope_parameters": ROPE},
    "image_token_id": IMAGE, "video_token_id": 58, "vision_start_token_id": 57,
    "vision_end_token_id": 56,
}  # fmt: skip
WORDS_MODEL = transformers.LlamaConfig(**TEXT, num_key_value_heads=2)


def drawn(high: int = 20, wide: int = 30, seed: int = 0) -> NDArray[np.uint8]:
    """An image: random colours."""
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), dtype=np.uint8)


def sound(seconds: float = 0.5, seed: int = 0) -> NDArray[np.float32]:
    """A recording at 16 kHz: noise."""
    noise = np.random.default_rng(seed).normal(size=int(16_000 * seconds)) * 0.1
    return noise.astype(np.float32)


@cache
def tokenizer() -> Any:
    """A tokenizer of whole words, with <image>."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: index for index, word in enumerate(WORDS.split())}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )


def _built(model: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        built = model(config).to(torch.float64).eval()
    randomize_(built)
    return built


def _vision(kind: Any, **more: Any) -> Any:
    return kind(**(VISION | more))


def _llava(vision: Any, text: Any = WORDS_MODEL, **more: Any) -> Any:
    return transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        vision_feature_layer=more.pop("layer", -1),
        **more,
    )


def _configs() -> dict[str, tuple[str, Any]]:
    """The class and the configuration of each model, by a short name."""
    t: Any = transformers
    without = {name: value for name, value in VISION.items() if name != "intermediate_size"}
    pixtral = _vision(t.PixtralVisionConfig, image_size=32, head_dim=12)
    clip = _vision(t.CLIPVisionConfig, projection_dim=16)
    qwen_vision = {
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    llava = "LlavaForConditionalGeneration"
    return {
        "vit": ("ViTForImageClassification", _vision(t.ViTConfig, num_labels=4)),
        "registers": (
            "Dinov2WithRegistersForImageClassification",
            t.Dinov2WithRegistersConfig(**without, num_register_tokens=3, mlp_ratio=2),
        ),
        "yolos": (
            "YolosForObjectDetection",
            _vision(t.YolosConfig, image_size=[12, 16], num_detection_tokens=5, num_labels=4),
        ),
        "clip": (
            "CLIPModel",
            t.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16),
        ),
        "siglip": (
            "SiglipModel",
            t.SiglipConfig(text_config=TEXT | {"projection_size": 24}, vision_config=VISION),
        ),
        "llava": (llava, _llava(clip)),
        "llava (layer)": (llava, _llava(clip, layer=-2)),
        "pixtral": (llava, _llava(pixtral, vision_feature_select_strategy="full")),
        "llava next": (
            "LlavaNextForConditionalGeneration",
            t.LlavaNextConfig(
                vision_config=clip,
                text_config=WORDS_MODEL,
                image_token_index=IMAGE,
                vision_feature_layer=-1,
                image_grid_pinpoints=[[12, 24], [24, 12], [24, 24]],
            ),
        ),
        "mistral3": (
            "Mistral3ForConditionalGeneration",
            t.Mistral3Config(
                vision_config=pixtral,
                text_config=t.MistralConfig(**TEXT, num_key_value_heads=2),
                image_token_index=IMAGE,
                vision_feature_layer=-1,
                spatial_merge_size=2,
            ),
        ),
        "gemma3": (
            "Gemma3ForConditionalGeneration",
            t.Gemma3Config(
                text_config=t.Gemma3TextConfig(**TEXT, num_key_value_heads=2, head_dim=8),
                vision_config=_vision(t.SiglipVisionConfig, image_size=16),
                mm_tokens_per_image=4,
                image_token_index=IMAGE,
            ),
        ),
        "idefics3": (
            "Idefics3ForConditionalGeneration",
            t.Idefics3Config(
                vision_config=VISION | {"image_size": 16},
                text_config=WORDS_MODEL,
                image_token_id=IMAGE,
                scale_factor=2,
            ),
        ),
        "internvl": (
            "InternVLForConditionalGeneration",
            t.InternVLConfig(
                vision_config=_vision(
                    t.InternVLVisionConfig, image_size=[16, 16], patch_size=[4, 4]
                ),
                text_config=t.Qwen2Config(**TEXT, num_key_value_heads=2),
                image_token_id=IMAGE,
                downsample_ratio=0.5,
            ),
        ),
        "qwen2-vl": (
            "Qwen2VLForConditionalGeneration",
            t.Qwen2VLConfig(
                vision_config=qwen_vision
                | {"depth": 2, "embed_dim": 24, "mlp_ratio": 2, "hidden_size": 32},
                **QWEN,
            ),
        ),
        "qwen2.5-vl": (
            "Qwen2_5_VLForConditionalGeneration",
            t.Qwen2_5_VLConfig(
                vision_config=qwen_vision
                | {"depth": 2, "hidden_size": 24, "intermediate_size": 40, "out_hidden_size": 32}
                | {"window_size": 16, "fullatt_block_indexes": [1]},
                **QWEN,
            ),
        ),
        "detr": (
            "DetrForObjectDetection",
            t.DetrConfig(
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone_config=t.ResNetConfig(
                    embedding_size=8,
                    hidden_sizes=[8, 8, 8, 16],
                    depths=[1, 1, 1, 1],
                    out_features=["stage4"],
                ),
                d_model=32,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=2,
                decoder_attention_heads=4,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                num_queries=6,
                num_labels=4,
            ),
        ),
        "whisper": (
            "WhisperForConditionalGeneration",
            t.WhisperConfig(
                vocab_size=60,
                num_mel_bins=80,
                d_model=32,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=2,
                decoder_attention_heads=4,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                max_source_positions=50,
                max_target_positions=64,
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=2,
                decoder_start_token_id=2,
            ),
        ),
        "wav2vec2": (
            "Wav2Vec2ForSequenceClassification",
            t.Wav2Vec2Config(
                vocab_size=60,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=40,
                conv_dim=(12, 16),
                conv_kernel=(10, 8),
                conv_stride=(5, 4),
                num_conv_pos_embeddings=4,
                num_conv_pos_embedding_groups=2,
                num_labels=3,
            ),
        ),
    }


@cache
def model_of(name: str) -> Any:
    """A tiny model in float64 with random parameters; do not change it."""
    kind, config = _configs()[name]
    return _built(getattr(transformers, kind), config)


def pixels(*shape: int) -> torch.Tensor:
    """Random pixels."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def _with_ids(count: int, **more: Any) -> dict[str, Any]:
    ids = torch.tensor([[0, *[IMAGE] * count, 5, 6, 7]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def inputs_of(name: str) -> dict[str, Any]:
    """One row of inputs for a model."""
    image = pixels(1, 3, 12, 12)
    if name in ("clip", "siglip"):
        return {"pixel_values": image, "input_ids": torch.tensor([[0, 5, 6, 2]])}
    if name in ("llava", "llava (layer)"):
        return _with_ids(9, pixel_values=image)
    if name == "llava next":  # the whole image, four parts of it, and the ends of six rows
        sizes = torch.tensor([[24, 24]])
        return _with_ids(9 + 36 + 6, pixel_values=pixels(1, 5, 3, 12, 12), image_sizes=sizes)
    if name == "pixtral":
        sizes = torch.tensor([[8, 12]])
        return _with_ids(6, pixel_values=pixels(1, 3, 8, 12), image_sizes=sizes)
    if name == "mistral3":
        sizes = torch.tensor([[16, 24]])
        return _with_ids(6, pixel_values=pixels(1, 3, 16, 24), image_sizes=sizes)
    if name in ("gemma3", "internvl"):
        return _with_ids(4, pixel_values=pixels(1, 3, 16, 16))
    if name == "idefics3":
        return _with_ids(4, pixel_values=pixels(1, 1, 3, 16, 16))
    if name in ("qwen2-vl", "qwen2.5-vl"):
        rows, columns = (4, 6) if name == "qwen2-vl" else (8, 12)
        inputs = _with_ids(rows * columns // 4, pixel_values=pixels(rows * columns, 3 * 2 * 16))
        grid = torch.tensor([[1, rows, columns]])
        kinds = (inputs["input_ids"] == IMAGE).long()
        return inputs | {"image_grid_thw": grid, "mm_token_type_ids": kinds}
    if name == "yolos":
        return {"pixel_values": pixels(1, 3, 12, 16)}
    if name == "detr":
        return {"pixel_values": pixels(1, 3, 96, 128)}
    return {"pixel_values": image}


def processor_of(name: str) -> Any:
    """The processor of a model."""
    crop: Any = {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}
    images = CLIPImageProcessorPil(**crop)
    if name == "llava":
        return transformers.LlavaProcessor(
            images,
            tokenizer(),
            patch_size=4,
            vision_feature_select_strategy="default",
            image_token="<image>",
            num_additional_image_tokens=1,
        )
    if name == "clip":
        return transformers.CLIPProcessor(images, tokenizer())
    if name == "yolos":
        return YolosImageProcessorPil(size={"height": 12, "width": 16}, do_pad=False)
    if name == "whisper":
        extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
        return transformers.WhisperProcessor(extractor, tokenizer())
    if name == "wav2vec2":
        return transformers.Wav2Vec2FeatureExtractor()
    if name == "qwen2-vl":
        return Qwen2VLImageProcessorPil(
            patch_size=4, merge_size=2, min_pixels=64, max_pixels=4096, temporal_patch_size=2
        )
    return ViTImageProcessorPil(size={"height": 12, "width": 12})


def saved(name: str, folder: Path) -> Path:
    """A model and its processor in a folder, in float32."""
    model = model_of(name)
    kind = type(model)
    copy = kind(model.config).eval()
    copy.load_state_dict(model.state_dict())
    copy.to(torch.float32).save_pretrained(folder)
    processor_of(name).save_pretrained(folder)
    return folder
