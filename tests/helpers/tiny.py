"""A tokenizer that fits the tiny models: 60 ids, the special ones where the configs want them."""

from __future__ import annotations

from typing import Any

TEXT = (
    "the a cat cats dog sat on mat , . and looked at it was asleep in house garden big small red "
    "green blue ran jumped over fence with friend who had been there before because he she they "
    "we you not never always sometimes every day night moon sun rain ##s ##ing"
)


def tokenizer(*, pair: bool = True) -> Any:
    """WordPiece with <s> a </s>, or <s> a </s> b </s>; token types 0 and 1 for ``pair``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = ["<s>", "<pad>", "</s>", "<unk>", *TEXT.split()][:60]
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if pair else [])]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=inputs,
    )
