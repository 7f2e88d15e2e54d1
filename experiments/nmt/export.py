"""A trained model as a plain transformers folder, or as small parts that travel.

    python -m experiments.nmt.export PARTS FOLDER

The parts are arrays with Marian's names, float16 or int8 with one scale a row, none larger than
15 MiB, and ``about.json`` with the shape and the tokenizers. Joining them writes the folder.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from experiments.nmt.model import Shape, Translator
from experiments.nmt.subwords import EOS, PAD, SPECIAL
from experiments.nmt.text import AFTER_LOWER, QUOTES

LARGEST = 15 << 20

_ATTENTION = {"project": ("q_proj", "k_proj", "v_proj"), "output": ("out_proj",)}
_CROSS = {"project_query": ("q_proj",), "project": ("k_proj", "v_proj"), "output": ("out_proj",)}


def _names(shape: Shape) -> dict[str, list[str]]:
    """Each parameter here → the Marian parameters stacked in it."""
    names = {
        "source_embedding.weight": ["model.encoder.embed_tokens.weight"],
        "target_embedding.weight": ["model.decoder.embed_tokens.weight"],
        "output.weight": ["lm_head.weight"],
    }
    for side, layers in (("encoder", shape.encoder_layers), ("decoder", shape.decoder_layers)):
        for layer in range(layers):
            here, there = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            for kind in ("weight", "bias"):
                for part, parts in _ATTENTION.items():
                    names[f"{here}.attention.{part}.{kind}"] = [
                        f"{there}.self_attn.{name}.{kind}" for name in parts
                    ]
                names[f"{here}.attention.norm.{kind}"] = [f"{there}.self_attn_layer_norm.{kind}"]
                names[f"{here}.feedforward.inner.{kind}"] = [f"{there}.fc1.{kind}"]
                names[f"{here}.feedforward.outer.{kind}"] = [f"{there}.fc2.{kind}"]
                names[f"{here}.feedforward.norm.{kind}"] = [f"{there}.final_layer_norm.{kind}"]
                if side == "decoder":
                    for part, parts in _CROSS.items():
                        names[f"{here}.cross.{part}.{kind}"] = [
                            f"{there}.encoder_attn.{name}.{kind}" for name in parts
                        ]
                    names[f"{here}.cross.norm.{kind}"] = [f"{there}.encoder_attn_layer_norm.{kind}"]
    return names


def to_marian(model: Translator) -> dict[str, Tensor]:
    """The weights under Marian's names; a tied output projection is there once."""
    state = model.state_dict()
    result = {}
    for here, there in _names(model.shape).items():
        if model.shape.tied and here == "output.weight":
            continue
        for name, part in zip(there, state[here].chunk(len(there)), strict=True):
            result[name] = part
    return result


def from_marian(state: dict[str, Tensor], shape: Shape) -> Translator:
    """The model with these weights."""
    model = Translator(shape)
    own = {}
    for here, there in _names(shape).items():
        if shape.tied and here == "output.weight":
            there = ["model.decoder.embed_tokens.weight"]
        own[here] = torch.cat([state[name].float() for name in there])
    model.load_state_dict(own)
    return model


def marian_config(shape: Shape) -> Any:
    """The configuration of transformers' Marian for this shape."""
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=shape.source_vocabulary,
        decoder_vocab_size=shape.target_vocabulary,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=shape.tied,
        d_model=shape.hidden,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feedforward,
        decoder_ffn_dim=shape.feedforward,
        activation_function="relu",
        dropout=shape.dropout,
        scale_embedding=True,
        max_position_embeddings=shape.positions,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )


def quantized(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix as int8, with a scale for each row."""
    scale = np.maximum(np.abs(weight).max(1, keepdims=True), 1e-12) / 127
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there in whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def write_parts(
    model: Translator,
    tokenizers: tuple[Tokenizer, Tokenizer],
    folder: Path,
    *,
    precision: str = "int8",
    about: dict[str, object] | None = None,
) -> list[Path]:
    """Write a model so that every file has 15 MiB at most.

    Args:
        model: The model.
        tokenizers: Of the source and the target.
        folder: Where the parts go.
        precision: ``int8`` (matrices; vectors stay float32) or ``float16``.
        about: More to write down beside the shape.
    """
    from safetensors.numpy import save

    if precision not in ("int8", "float16"):
        raise ValueError(f"precision {precision!r}: int8 and float16 are known")
    folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, NDArray[Any]] = {}
    for name, tensor in to_marian(model).items():
        array = tensor.detach().float().cpu().numpy()
        if precision == "float16":
            pieces[name] = array.astype(np.float16)
        elif array.ndim == 2:
            pieces[name], pieces[name + ":scale"] = quantized(array)
        else:
            pieces[name] = array
    groups: list[dict[str, NDArray[Any]]] = [{}]
    held = 0
    for name, array in pieces.items():
        size = array.nbytes + 256  # and its line in the header
        if held + size > LARGEST and groups[-1]:
            groups.append({})
            held = 0
        groups[-1][name] = np.ascontiguousarray(array)
        held += size
    written = []
    for number, group in enumerate(groups):
        path = folder / f"weights-{number}.safetensors"
        write_whole(path, save(group))
        written.append(path)
    texts = [tokenizer.to_str() for tokenizer in tokenizers]
    everything = {"shape": asdict(model.shape), "parts": len(groups), "tokenizers": texts}
    path = folder / "about.json"
    write_whole(path, json.dumps({**(about or {}), **everything}).encode())
    return [*written, path]


def read_parts(folder: Path) -> tuple[Translator, tuple[Tokenizer, Tokenizer], dict[str, Any]]:
    """Read what ``write_parts`` wrote: the model, the tokenizers, and what was written down."""
    from safetensors.numpy import load_file

    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    arrays: dict[str, NDArray[Any]] = {}
    for number in range(about.pop("parts")):
        arrays.update(load_file(folder / f"weights-{number}.safetensors"))
    state = {}
    for name, array in arrays.items():
        if name.endswith(":scale"):
            continue
        whole = array.astype(np.float32)
        if array.dtype == np.int8:
            whole = whole * arrays[name + ":scale"]
        state[name] = torch.from_numpy(whole)
    one, other = (Tokenizer.from_str(text) for text in about.pop("tokenizers"))
    return from_marian(state, Shape(**about.pop("shape"))), (one, other), about


def write_folder(
    model: Translator,
    tokenizers: tuple[Tokenizer, Tokenizer],
    folder: Path,
    *,
    languages: tuple[str, str],
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a folder that transformers loads.

    ``tokenizer.json`` is the source's; the target's lies in ``target/``. ``normscope.json`` says
    so, and how text is normalised before it is cut into words.
    """
    from transformers import GenerationConfig, MarianMTModel, PreTrainedTokenizerFast

    marian: Any = MarianMTModel(marian_config(model.shape))
    missing, unexpected = marian.load_state_dict(to_marian(model), strict=False)
    allowed = {"final_logits_bias", "lm_head.weight"} if model.shape.tied else {"final_logits_bias"}
    left = [name for name in missing if name not in allowed and "embed_positions" not in name]
    if left or unexpected:
        raise RuntimeError(f"Marian has other weights: missing {left}, unexpected {unexpected}")
    marian.tie_weights()
    marian.generation_config = GenerationConfig(
        max_length=model.shape.positions,
        num_beams=4,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        bad_words_ids=[[PAD]],
    )
    marian.to(dtype).save_pretrained(folder)
    for tokenizer, place in zip(tokenizers, (folder, folder / "target"), strict=True):
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=SPECIAL[PAD],
            eos_token=SPECIAL[EOS],
            unk_token="<unk>",
            model_max_length=model.shape.positions,
        ).save_pretrained(place)
    about = {
        "lowercase": True,
        "replace": [[one, other] for one, other in {**QUOTES, **AFTER_LOWER}.items()],
        "unicode": "NFC",
        "languages": list(languages),
        "target_tokenizer": "target",
    }
    text = json.dumps(about, ensure_ascii=False, indent=1) + "\n"
    write_whole(folder / "normscope.json", text.encode())


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", type=Path, help="folder of weights-*.safetensors and about.json")
    parser.add_argument("folder", type=Path, help="the transformers folder to write")
    parser.add_argument("--float32", action="store_true", help="not float16")
    options = parser.parse_args(arguments)
    model, tokenizers, about = read_parts(options.parts)
    one, other = about["languages"]
    dtype = torch.float32 if options.float32 else torch.float16
    write_folder(model, tokenizers, options.folder, languages=(one, other), dtype=dtype)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"{options.folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
