"""What the decoder of an encoder-decoder model reads while it writes a target text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from normscope.text.tokens import Encoded, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer


def decoder_start(model: Any, labels: Sequence[int]) -> int:
    """Return the id that the decoder reads first when it is trained to write ``labels``.

    It is the id that the model's own method puts before the labels (mBART's depends on the last
    label), else the one in the configuration, else the last label.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return int(prepare(torch.tensor([list(labels)], device=model.device))[0, 0])
    start = getattr(model.config, "decoder_start_token_id", None)
    return labels[-1] if start is None else int(start)


def shift_right(model: Any, tokenizer: Tokenizer, target: Encoded) -> Encoded:
    """Return what the decoder reads while it writes ``target``: the start token, then the rest.

    The last token of the target is written but never read, so it is left out. The start token is a
    special token and a word of its own.
    """
    start = decoder_start(model, target.ids)
    name = str(tokenizer.convert_ids_to_tokens(start))
    ids = [start, *target.ids[:-1]]
    tokens = target.tokens
    word_of: tuple[int, ...] | None = None
    words: tuple[str, ...] | None = None
    if tokens.word_of is not None and tokens.words is not None:
        read = tokens.word_of[:-1]
        word_of = (0, *(word + 1 for word in read))
        words = (name, *tokens.words[: len(set(read))])  # words are numbered in their order
    return Encoded(
        ids,
        extra={},
        tokens=Tokens(
            strings=(name, *tokens.strings[:-1]),
            ids=tuple(ids),
            special=(True, *tokens.special[:-1]),
            texts=(name, *tokens.texts[:-1]),
            word_of=word_of,
            words=words,
        ),
    )
