"""Translate sentences with the model's own ``generate()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normscope.alignment.batches import budget_of, padded
from normscope.alignment.translator import Translator
from normscope.alignment.words import Sentences, Side, reads_target_code
from normscope.models.completeness import refuse_made_up_head
from normscope.models.running import evaluating


def translate(
    translator: Translator,
    source: Sentences,
    *,
    beams: int | None = None,
    budget: int | None,
    skip_long: bool = False,
) -> list[str | None]:
    """Translate each sentence; an empty sentence gives an empty string.

    Args:
        translator: the model, with its tokenizers and languages.
        source: the words of each sentence.
        beams: beams of the search; None: as the model's generation settings say.
        budget: the maximum number of tokens in a batch; None: the default for the device.
        skip_long: give None for a sentence that is too long instead of raising InputError.
    """
    rows = [row for row in range(len(source)) if source[row]]
    translations: list[str | None] = [""] * len(source)
    if not rows:
        return translations
    sides = dict(zip(rows, translator.encode_source([source[row] for row in rows]), strict=True))
    limits = translator.limits("source")
    readable = []
    for row, side in sides.items():
        if limits.accept(side, row, skip_long=skip_long):
            readable.append(row)
        else:
            translations[row] = None
    refuse_made_up_head(translator.model)
    settings = _settings(translator, beams)
    remaining = sorted(readable, key=lambda row: len(sides[row].ids), reverse=True)
    while remaining:
        longest = len(sides[remaining[0]].ids)
        size = max(1, budget_of(translator.model, budget) // (2 * longest))
        batch, remaining = remaining[:size], remaining[size:]
        texts = _generate(translator, [sides[row] for row in batch], settings)
        for row, text in zip(batch, texts, strict=True):
            translations[row] = text
    return translations


def _settings(translator: Translator, beams: int | None) -> dict[str, Any]:
    """Arguments of ``generate()`` that differ from the model's own generation settings."""
    settings: dict[str, Any] = {} if beams is None else {"num_beams": beams}
    tokenizer, code = translator.target_tokenizer, translator.target_lang
    if code is None or reads_target_code(tokenizer):
        return settings
    # A multilingual decoder starts with the code of its language.
    if codes := getattr(tokenizer, "lang_code_to_id", None):
        settings["forced_bos_token_id"] = int(codes[code])
    elif hasattr(tokenizer, "src_lang"):
        settings["forced_bos_token_id"] = int(tokenizer.convert_tokens_to_ids(code))
    return settings


def _generate(translator: Translator, sides: Sequence[Side], settings: dict[str, Any]) -> list[str]:
    model = translator.model
    ids, mask = padded([side.ids for side in sides], translator.padding)
    with evaluating(model), torch.no_grad():
        generated = model.generate(
            input_ids=ids.to(model.device), attention_mask=mask.to(model.device), **settings
        )
    texts: list[str] = translator.target_tokenizer.batch_decode(generated, skip_special_tokens=True)
    return texts
