"""Models with their tokenizers, normalization and languages."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from normscope import (
    InputError,
    ModelNotFoundError,
    UnsupportedModelError,
    align,
    translate_align,
)
from normscope.alignment import translator as translators
from normscope.alignment.metadata import ModelMetadata
from normscope.alignment.options import AlignOptions
from normscope.models.architectures import tiny_model
from tests.helpers import alignment_tokenizers as tokenizers
from tests.helpers.alignment_pairs import FIXED, SOURCE, TARGET, linked
from tests.helpers.saved_models import rewrite, without
from tests.helpers.tiny import tokenizer


def test_a_tokenizer_of_another_model_is_refused(marian: Any) -> None:
    with pytest.raises(InputError, match=r"source sentence 1: the tokenizer .* 60 embedding rows"):
        align(["é"], ["a"], marian, tokenizers.bytelevel())
    with pytest.raises(InputError, match=r"no tokenizer was given"):
        align(SOURCE, TARGET, marian)
    with pytest.raises(InputError, match=r"one tokenizer, or two \(source, target\), not 3"):
        align(SOURCE, TARGET, marian, (tokenizer(), tokenizer(), tokenizer()))


def test_without_a_model_the_embedded_one_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(translators, "EMBEDDED", tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no translation model of its own; name one"):
        align("a", "b")
    tiny_model("marian").save_pretrained(tmp_path)
    tokenizer(pair=False).save_pretrained(tmp_path)
    assert len(align(SOURCE, TARGET, layer=1)) == 3


def test_a_folder_with_two_tokenizers_and_its_own_normalisation(tmp_path: Path) -> None:
    from transformers import MarianMTModel

    tiny_model("marian", dtype=torch.float16).save_pretrained(tmp_path)
    tokenizer(pair=False).save_pretrained(tmp_path)
    tokenizers.dropping().save_pretrained(tmp_path / "target")
    rules = {"lowercase": True, "replace": [["ß", "ss"]], "target_tokenizer": "target"}
    (tmp_path / "normscope.json").write_text(json.dumps(rules), encoding="utf-8")
    alignments = align(["THE Cats sat"], ["THE \u200b CATS ran"], str(tmp_path), soft=True, **FIXED)
    assert alignments[0].source == ("THE", "Cats", "sat")
    assert alignments[0].dropped == ((), (1,))
    both = tokenizer(pair=False), tokenizers.dropping()
    model: Any = MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32)
    model.config._name_or_path = ""  # no folder to find rules in
    known = align(["the cats sat"], ["the \u200b cats ran"], model, both, soft=True, **FIXED)
    assert alignments[0].links == known[0].links
    assert alignments[0].soft is not None
    assert known[0].soft is not None
    np.testing.assert_allclose(alignments[0].soft, known[0].soft, rtol=1e-5)
    assert "|dtype:float32|" in alignments.signature


def test_language_codes_reach_the_model(nllb: Path) -> None:
    german: Any = {"source_lang": "deu_Latn", "target_lang": "eng_Latn"}
    alignments = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED, **german)
    assert alignments[0].soft is not None
    assert alignments[0].soft.shape == (2, 3)
    french = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED,
                   source_lang="deu_Latn", target_lang="fra_Latn")  # fmt: skip
    assert french[0].soft is not None
    assert not np.allclose(alignments[0].soft, french[0].soft)
    other = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED,
                  source_lang="fra_Latn", target_lang="eng_Latn")  # fmt: skip
    assert other[0].soft is not None
    assert not np.allclose(alignments[0].soft, other[0].soft)


def test_a_named_model_is_loaded_as_precisely_as_is_asked(nllb: Path, tmp_path: Path) -> None:
    """Saved in 64 bits it stays so; saved in 16 it is computed in 32, unless that is asked for."""
    german: Any = {"source_lang": "deu_Latn", "target_lang": "eng_Latn"}

    def dtype(folder: Path, **how: Any) -> torch.dtype:
        model = translators.translator(AlignOptions(folder, **german, **how)).model
        return next(model.parameters()).dtype

    assert dtype(nllb) == dtype(nllb, dtype="float64") == torch.float64
    shutil.copytree(nllb, tmp_path / "half")
    model = translators.translator(AlignOptions(nllb, **german)).model
    model.bfloat16().save_pretrained(tmp_path / "half")
    assert dtype(tmp_path / "half") == torch.float32
    assert dtype(tmp_path / "half", dtype="bfloat16") == torch.bfloat16


def test_a_wrong_language_code_is_refused(nllb: Path, marian: Any) -> None:
    with pytest.raises(InputError, match=r"unknown target language 'en'; valid: ace_Arab, ace_L"):
        align(["the"], ["a"], nllb, source_lang="deu_Latn", target_lang="en")
    with pytest.raises(InputError, match=r"unknown source language 'de_DE'; valid: ace_Arab"):
        align(["the"], ["a"], nllb, source_lang="de_DE", target_lang="eng_Latn")
    with pytest.raises(InputError, match=r"reads many languages.*--source-lang"):
        align(["the"], ["a"], nllb, target_lang="eng_Latn")
    with pytest.raises(InputError, match=r"writes many languages.*--target-lang"):
        align(["the"], ["a"], nllb, source_lang="eng_Latn")
    with pytest.raises(InputError, match=r"target_lang='de' was given, but .*no language code"):
        linked(SOURCE, TARGET, marian, target_lang="de")
    assert linked(SOURCE, TARGET, marian, words="moses", source_lang="de", target_lang="en")


@pytest.mark.parametrize("kind", ["marian", "whisper"])
def test_the_source_language_is_not_asked_where_no_code_says_it(kind: str) -> None:
    """Marian has a code for the target alone, and Whisper hears its source."""
    codes = {"supported_language_codes": [">>en<<"]}
    tokenizer: Any = SimpleNamespace(**codes if kind == "marian" else {"set_prefix_tokens": None})
    target = ">>en<<" if kind == "marian" else "en"
    for source in (None, "of no tokenizer"):
        right = translators.Translator(None, tokenizer, tokenizer, ModelMetadata(), source, target)
        assert right.check_languages(named=True, moses=False) is right
        wrong = replace(right, target_lang="of no tokenizer")
        with pytest.raises(InputError, match="unknown target language 'of no tokenizer'"):
            wrong.check_languages(named=True, moses=False)


def test_a_head_that_no_file_has_is_not_used(tmp_path: Path) -> None:
    """Attention is there to be read, but not the words that the model would write."""
    config = BartConfig.from_dict(
        {**tiny_model("bart").config.to_dict(), "tie_word_embeddings": False}
    )
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer(pair=False).save_pretrained(tmp_path)
    rewrite(tmp_path, without("lm_head"))
    name = str(tmp_path)
    assert len(align(SOURCE[:1], TARGET[:1], name, layer=0, head="sum", reading="awi")) == 1
    refused = r"output of BartForConditionalGeneration .* 1 parameter .*: lm_head\.weight; .*head"
    with pytest.raises(UnsupportedModelError, match=refused):
        align(SOURCE[:1], TARGET[:1], name, method="saliency")
    with pytest.raises(UnsupportedModelError, match=refused):
        translate_align(SOURCE[:1], name)
    assert align(SOURCE[:1], TARGET[:1], name, method="saliency", strict=False).signature


def test_a_model_that_is_not_whole(tmp_path: Path) -> None:
    tiny_model("bart").save_pretrained(tmp_path)
    tokenizer(pair=False).save_pretrained(tmp_path)
    rewrite(tmp_path, without("decoder.layers.1.fc1"))
    with pytest.raises(ModelNotFoundError, match="lack 2 parameters of"):
        align(SOURCE[:1], TARGET[:1], str(tmp_path))
    assert align(SOURCE[:1], TARGET[:1], str(tmp_path), strict=False).signature
