"""A small language model as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KEY_HEADS, INNER = 2, 64, 4, 2, 32
SPECIAL = ["<end>", "<start>", "<pad>"]
# In the order of the ids: special tokens, then letters, a space, digits, and what merges make.
LETTERS = [*"abc", "Ġ", *"12", "Ċ"]
MERGES = ["Ġ a", "b c", "Ċ Ċ"]
PIECES = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]


def write_gguf(file: Path, **metadata: Any) -> dict[str, np.ndarray]:
    """Write a Llama of random weights, some quantised; return the tensors as the file has them.

    Keyword arguments are further metadata, with `__` for a dot in their names.
    """
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(PIECES))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(PIECES) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_pad_token_id(2)
    for name, value in metadata.items():
        key = name.replace("__", ".")
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint16(key, value)
        else:
            writer.add_string(key, value)
    tensors = _tensors()
    stored = {}
    for name, tensor in tensors.items():
        quantised = name.endswith("attn_v.weight")
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
        packed = gguf.quantize(tensor, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        stored[name] = gguf.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    keys = HIDDEN // HEADS * KEY_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(PIECES), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        inside = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (keys, HIDDEN),
            "attn_v": (keys, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in inside.items()}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
