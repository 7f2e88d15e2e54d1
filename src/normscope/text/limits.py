"""What a model can read: how many tokens, and which ids."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.text.tokens import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

# Where a config keeps the length of its position table, for text that is read and text that is
# written. n_positions is left out: T5's old config files carry one that the model does not have,
# and where it is real (GPT-2, GPT-J) transformers also provides max_position_embeddings.
_LIMITS = ("max_position_embeddings", "max_text_positions", "max_seq_len")
_SOURCE_LIMITS = ("max_encoder_position_embeddings", *_LIMITS)
_TARGET_LIMITS = ("max_decoder_position_embeddings", "max_target_positions", *_LIMITS)


def max_length_of(
    model_config: PreTrainedConfig, tokenizer: Tokenizer | None = None, *, as_target: bool = False
) -> int | None:
    """Return the most tokens a text may have, special tokens included; None if there is no limit.

    That is the size of the position table, less the rows before the first position; for rotary
    and sinusoidal positions, the length that the model was trained for. A smaller limit of the
    tokenizer counts too. Models with relative positions only (T5, BLOOM, XLNet) have no limit.

    Args:
        model_config: the configuration of the model.
        tokenizer: its tokenizer.
        as_target: the limit of the text that an encoder–decoder model writes.
    """
    config: Any = model_config
    for name in ("decoder" if as_target else "encoder", "text_config"):
        # Composite models keep the limit in the part that reads this text.
        if hasattr(part := getattr(config, name, None), "model_type"):
            config = part
    names = _TARGET_LIMITS if as_target else _SOURCE_LIMITS
    values = (getattr(config, name, None) for name in names)
    limit = next((value for value in values if isinstance(value, int)), 0)
    if limit <= 0:  # XLNet says -1
        return None
    limit -= _first_position(config)
    # A tokenizer without a limit says int(1e30).
    return int(min(limit, getattr(tokenizer, "model_max_length", None) or limit))


def _first_position(config: Any) -> int:
    """The row of the position table that a text's first token uses.

    RoBERTa and its relatives count from the padding index on. Their embedding modules have a
    ``padding_idx`` beside their ``position_embeddings``; one is built here, without memory for
    its weights, to read the index, because some models (MPNet) do not take it from the config.
    """
    config_class: type = type(config)
    for embeddings in _embeddings_with_padding(config_class):
        try:
            with torch.device("meta"):
                padding = embeddings(config).padding_idx
        except AttributeError:  # a module for another part of a composite model
            continue
        if padding is not None:
            return int(padding) + 1
    return 0


@functools.cache
def _embeddings_with_padding(config_class: type) -> tuple[type, ...]:
    """The embedding classes, beside a config class of transformers, that have a padding index."""
    name = config_class.__module__.replace(".configuration_", ".modeling_")
    if name == config_class.__module__:  # not one of transformers' own
        return ()
    try:
        module = importlib.import_module(name)
    except ImportError:
        return ()
    classes = [c for c in vars(module).values() if inspect.isclass(c) and "__init__" in vars(c)]
    return tuple(
        c
        for c in classes
        if c.__module__ == name
        and {"padding_idx", "position_embeddings"}
        <= set(inspect.unwrap(c.__init__).__code__.co_names)
    )


def check_fits(
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    encoded: Encoded | None = None,
    *,
    as_target: bool = False,
) -> None:
    """Raise InputError for a tokenizer that gives ids the model has no embedding for.

    With ``encoded``, its ids and token types are checked: a tokenizer may know a few added tokens
    that the model does not, as long as the text has none of them. Without, the whole vocabulary
    is checked.
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
    """Return the token embeddings (id, hidden) of the side that reads the text, or None."""
    part: Any = model
    if as_target and model.config.is_encoder_decoder and hasattr(model, "get_decoder"):
        part = model.get_decoder()
    try:
        embedding = part.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(embedding, "weight", None)
    # An image model's "input embeddings" are a convolution: four axes, and no ids.
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 else None
