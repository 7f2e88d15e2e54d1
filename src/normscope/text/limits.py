"""What a model can read: how many tokens, and which ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normscope.errors import InputError
from normscope.text.tokens import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

# Families whose position table starts after the padding index: the first token of a text is at
# position padding_idx + 1, so that many rows of the table are never used.
_POSITIONS_AFTER_PADDING = re.compile(
    "altclip_text_model|bridgetower_text_model|camembert|clap_text_model|data2vec-text|esm|ibert|"
    "layoutlmv3|lilt|longformer|luke|markuplm|mpnet|(xlm-)?roberta(-xl|-prelayernorm)?|xmod"
)

# Where a config keeps the length of its position table, for text that is read and text that is
# written. Never n_positions: T5's old config files carry one that the model does not have, and
# where it is real (GPT-2, GPT-J) transformers also answers to max_position_embeddings.
_LIMITS = ("max_position_embeddings", "max_text_positions", "max_seq_len")
_SOURCE_LIMITS = ("max_encoder_position_embeddings", *_LIMITS)
_TARGET_LIMITS = ("max_decoder_position_embeddings", "max_target_positions", *_LIMITS)


def max_length_of(
    model_config: PreTrainedConfig, tokenizer: Tokenizer | None = None, *, as_target: bool = False
) -> int | None:
    """The most tokens a text may have, special tokens included; None where nothing limits it.

    The size of the position table, less the rows before the first position; for rotary and
    sinusoidal positions the length the model was trained for. A tokenizer that asks for less is
    believed. Models that only know relative distances (T5, BLOOM, XLNet) have no limit.
    """
    config: Any = model_config
    for name in ("decoder" if as_target else "encoder", "text_config"):
        # Composite models keep the limit in the part that reads this text.
        if hasattr(part := getattr(config, name, None), "model_type"):
            config = part
    names = _TARGET_LIMITS if as_target else _SOURCE_LIMITS
    found = (getattr(config, name, None) for name in names)
    limit = next((value for value in found if isinstance(value, int)), 0)
    if limit <= 0:  # XLNet says -1
        return None
    if _POSITIONS_AFTER_PADDING.fullmatch(config.model_type):
        # MPNet's padding index is fixed in its code, whatever its config says.
        padding = None if config.model_type == "mpnet" else config.pad_token_id
        limit -= (1 if padding is None else padding) + 1
    # A tokenizer that knows no limit says int(1e30).
    return int(min(limit, getattr(tokenizer, "model_max_length", None) or limit))


def check_fits(
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    encoded: Encoded | None = None,
    *,
    as_target: bool = False,
) -> None:
    """Refuse a tokenizer that gives ids the model has no embedding for.

    With `encoded`, its ids (and token types) are checked: a tokenizer may know a few added tokens
    that the model does not, as long as the text has none. Without, the tokenizer's vocabulary is.
    """
    table = embedding_table(model, as_target=as_target)
    if table is None:  # a model without token ids has nothing to compare
        return
    rows, size = table.shape[0], tokenizer.vocab_size
    kinds = getattr(model.config, "type_vocab_size", None) or 0
    problem = ""
    if encoded is None:
        if size > rows:
            problem = f"it gives ids up to {size - 1}"
    elif (largest := max(encoded.ids)) >= rows:
        piece = encoded.tokens.strings[encoded.ids.index(largest)]
        problem = f"it gives id {largest} for {piece!r}"
    elif (kind := max(encoded.extra.get("token_type_ids", [0]))) >= kinds > 0:
        problem = f"it gives token type {kind}, and the model has {kinds} (type_vocab_size)"
    if problem:
        raise InputError(
            f"the tokenizer ({type(tokenizer).__name__}, {len(tokenizer)} tokens) does not fit the "
            f"model ({type(model).__name__}, {rows} embedding rows): {problem}; use the tokenizer "
            "that was saved with the model"
        )


def embedding_table(model: PreTrainedModel, *, as_target: bool) -> Tensor | None:
    """The token embeddings (id, hidden) of the side that reads the text, if the model has any."""
    part: Any = model
    if as_target and model.config.is_encoder_decoder and hasattr(model, "get_decoder"):
        part = model.get_decoder()
    try:
        embedding = part.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(embedding, "weight", None)
    # An image model's "input embeddings" is a convolution: four axes, and no ids.
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 else None
