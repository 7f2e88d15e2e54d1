"""Translations by the model's own generate()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from normscope import InputError
from normscope.alignment.options import AlignOptions
from normscope.alignment.translate import translate
from normscope.alignment.translator import Translator, translator
from normscope.models.architectures import tiny_model
from tests.helpers.alignment_pairs import SOURCE
from tests.helpers.tiny import tokenizer

WORDS = [line.split() for line in SOURCE]


@pytest.fixture(scope="module")
def bart() -> Translator:
    model: Any = tiny_model("bart", dtype=torch.float32)
    model.generation_config.update(
        max_length=9, do_sample=False, num_beams=1, early_stopping=None,
        forced_bos_token_id=None, no_repeat_ngram_size=None,
    )  # fmt: skip
    return translator(AlignOptions(model, tokenizer(pair=False)))


def test_a_batch_gives_the_translations_of_single_sentences(bart: Translator) -> None:
    reader = tokenizer(pair=False)
    expected = []
    for line in SOURCE:
        ids = bart.model.generate(**reader(line, return_tensors="pt"))
        expected.append(reader.decode(ids[0], skip_special_tokens=True))
    for budget in (None, 1, 30):  # all together, one by one, in two batches
        assert translate(bart, WORDS, budget=budget) == expected


def test_empty_and_long_sentences(bart: Translator) -> None:
    long = ["the"] * 600
    assert translate(bart, [[], []], budget=None) == ["", ""]
    with pytest.raises(InputError, match=r"source sentence 3 has 602 tokens"):
        translate(bart, [[], WORDS[0], long], budget=None)
    (single,) = translate(bart, WORDS[:1], budget=None)
    translations = translate(bart, [[], WORDS[0], long], budget=None, skip_long=True)
    assert translations == ["", single, None]


def test_a_multilingual_decoder_starts_with_its_language(
    nllb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for language in ("eng_Latn", "fra_Latn"):
        model = translator(AlignOptions(nllb, source_lang="deu_Latn", target_lang=language))
        generate = model.model.generate
        generated: list[Any] = []

        def watched(generate: Any = generate, generated: Any = generated, **inputs: Any) -> Any:
            generated.append((inputs, generate(**inputs, max_length=4)))
            return generated[0][1]

        monkeypatch.setattr(model.model, "generate", watched)
        translate(model, [["the", "cats"]], beams=2, budget=None)
        ((inputs, ids),) = generated
        code = model.target_tokenizer.convert_tokens_to_ids(language)
        assert (inputs["forced_bos_token_id"], inputs["num_beams"]) == (code, 2)
        assert ids[0, 1] == code
