"""The model's own translation, by its own generate()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normscope.alignment.batches import budget_of
from normscope.alignment.translator import Translator
from normscope.alignment.words import Side, encode_sides
from normscope.models.running import evaluating


def translate(
    translator: Translator,
    source: Sequence[Sequence[str]],
    *,
    beams: int | None = None,
    budget: int | None,
    skip_long: bool = False,
) -> list[str | None]:
    """A translation of each sentence; an empty one of an empty sentence, None of one too long."""
    rows = [row for row in range(len(source)) if source[row]]
    made: list[str | None] = [""] * len(source)
    if not rows:
        return made
    marian = bool(getattr(translator.source, "supported_language_codes", None))
    sides = encode_sides(
        translator.source,
        [source[row] for row in rows],
        language=translator.target_lang if marian else translator.source_lang,
        prefix=translator.prefix,
        normalization=translator.about.normalization,
    )
    check = translator.check("source")
    fits = [check(side, row, skip_long) for row, side in zip(rows, sides, strict=True)]
    for row, fit in zip(rows, fits, strict=True):
        made[row] = "" if fit else None
    how: dict[str, Any] = {} if beams is None else {"num_beams": beams}
    if (first := _first(translator)) is not None:
        how["forced_bos_token_id"] = first
    readable = [at for at in range(len(sides)) if fits[at]]
    order = sorted(readable, key=lambda at: len(sides[at].ids), reverse=True)
    while order:
        size = max(1, budget_of(translator.model, budget) // (2 * len(sides[order[0]].ids)))
        here, order = order[:size], order[size:]
        written = _generate(translator, [sides[at] for at in here], how)
        for at, text in zip(here, written, strict=True):
            made[rows[at]] = text
    return made


def _first(translator: Translator) -> int | None:
    """The language code that a multilingual decoder must begin with."""
    target, code = translator.target, translator.target_lang
    if code is None or getattr(target, "supported_language_codes", None):
        return None
    known = getattr(target, "lang_code_to_id", None)
    if known:
        return int(known[code])
    return int(target.convert_tokens_to_ids(code)) if hasattr(target, "src_lang") else None


def _generate(translator: Translator, sides: Sequence[Side], how: dict[str, Any]) -> list[str]:
    model = translator.model
    longest = max(len(side.ids) for side in sides)
    ids = [[*side.ids, *[translator.padding] * (longest - len(side.ids))] for side in sides]
    mask = [[1] * len(side.ids) + [0] * (longest - len(side.ids)) for side in sides]
    with evaluating(model), torch.no_grad():
        made = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            **how,
        )
    written: list[str] = translator.target.batch_decode(made, skip_special_tokens=True)
    return written
