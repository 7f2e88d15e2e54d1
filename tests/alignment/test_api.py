"""align(): what goes in, what comes out, what is refused; baselines and both directions."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import InputError, ModelNotFoundError, align, translate_align
from normscope.alignment import gradients
from normscope.alignment import translator as translators
from normscope.alignment.aer import score
from normscope.alignment.api import sentences
from normscope.alignment.files import write_links
from normscope.alignment.gradients import Gradients
from normscope.alignment.links import Links
from normscope.alignment.symmetrize import symmetrize_links
from normscope.alignment.words import About
from normscope.models.architectures import randomize_, tiny_model
from tests.helpers import alignment_tokenizers as tokenizers
from tests.helpers.tiny import tokenizer

SOURCE = ["the cats sat .", "a dog", "raining in the garden , never"]
TARGET = ["cats looked at it", "the dogs jumped over it .", "rain"]
FIXED: dict[str, Any] = {"layer": 1, "head": "sum", "reading": "awi"}


@pytest.fixture(scope="module")
def marian() -> Any:
    return tiny_model("marian")


@pytest.fixture(scope="module")
def back() -> Any:
    return tiny_model("marian", seed=1)


def linked(source: Any, target: Any, model: Any, **how: Any) -> list[set[tuple[int, int]]]:
    made = align(source, target, model, tokenizer(pair=False), **{**FIXED, **how})
    return [set(one.links) for one in made]


# ---- what goes in


def test_sentences_in_every_form(marian: Any) -> None:
    expected = linked(SOURCE, TARGET, marian)
    words = [one.split() for one in SOURCE], [one.split() for one in TARGET]
    assert linked(*words, marian) == expected
    assert linked(SOURCE[0], TARGET[0], marian) == expected[:1]
    assert any(expected)
    made = align(SOURCE, TARGET, marian, tokenizer(pair=False), **FIXED)
    assert made[0].source == ("the", "cats", "sat", ".")
    assert made[1].target == ("the", "dogs", "jumped", "over", "it", ".")
    assert len(made) == len(list(made)) == 3
    assert made[0].soft is None
    assert made.ranking == []
    assert [str(one) for one in made.choices] == ["layer 1, head sum, awi"]
    assert "|choice:1.sum.awi|" in made.signature
    assert "|map:attn_n|" in made.signature
    assert "|weights:sha256=" in made.signature
    assert normscope.align is align


def test_an_empty_line_has_no_links(marian: Any) -> None:
    expected = linked(SOURCE, TARGET, marian)
    made = align(
        [SOURCE[0], "", SOURCE[1], "a"], [TARGET[0], "rain", TARGET[1], " "],
        marian, tokenizer(pair=False), **FIXED,
    )  # fmt: skip
    assert [set(one.links) for one in made] == [expected[0], set(), expected[1], set()]
    assert [one.skipped for one in made] == ["", "empty", "", "empty"]
    nothing = align([""], ["a"], marian, tokenizer(pair=False))
    assert (len(nothing[0].links), nothing.choices) == (0, ())


def test_different_numbers_of_sentences_are_refused(marian: Any) -> None:
    with pytest.raises(InputError, match=r"source has 3 sentences and the target 2"):
        linked(SOURCE, TARGET[:2], marian)
    with pytest.raises(InputError, match=r"no sentences were given"):
        linked([], [], marian)
    with pytest.raises(InputError, match=r"a string or a list of words, not \[1\]"):
        sentences([[1]], ["a"], "space", None, None)


def test_a_sentence_beyond_the_limit(marian: Any) -> None:
    long = "the " * 70
    with pytest.raises(InputError, match=r"source sentence 2 gives 72 tokens.*at most 64.*--skip"):
        linked([SOURCE[0], long], TARGET[:2], marian)
    with pytest.raises(InputError, match=r"target sentence 1 gives 72 tokens"):
        linked(SOURCE[:1], [long], marian)
    made = align(
        [SOURCE[0], long], TARGET[:2], marian, tokenizer(pair=False), skip_long=True, **FIXED
    )
    assert [one.skipped for one in made] == ["", "too long"]
    assert set(made[0].links) == linked(SOURCE[:1], TARGET[:1], marian)[0]
    assert len(made[1].links) == 0


def test_a_dropped_word_has_no_link(marian: Any) -> None:
    words = tokenizers.dropping()
    clean = align(["the cats sat"], ["the mat"], marian, words, soft=True, **FIXED)
    made = align(
        [["the", "\u200b", "cats", "sat"]], [["\u200b", "the", "mat"]],
        marian, words, soft=True, **FIXED,
    )  # fmt: skip
    assert made[0].dropped == ((1,), (0,))
    moved = {0: 0, 1: 2, 2: 3}
    assert set(made[0].links) == {(moved[s], t + 1) for s, t in clean[0].links}
    assert made[0].soft is not None
    assert made[0].soft.shape == (3, 5)
    assert not made[0].soft[0].any()
    assert not made[0].soft[:, 1].any()


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
    made = align(["THE Cats sat"], ["THE \u200b CATS ran"], str(tmp_path), soft=True, **FIXED)
    assert made[0].source == ("THE", "Cats", "sat")
    assert made[0].dropped == ((), (1,))
    both = tokenizer(pair=False), tokenizers.dropping()
    model: Any = MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32)
    model.config._name_or_path = ""  # no folder to find rules in
    known = align(["the cats sat"], ["the \u200b cats ran"], model, both, soft=True, **FIXED)
    assert made[0].links == known[0].links
    assert made[0].soft is not None
    assert known[0].soft is not None
    np.testing.assert_allclose(made[0].soft, known[0].soft, rtol=1e-5)
    assert "|dtype:float32|" in made.signature


# ---- languages


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny NLLB: M2M100's architecture, 200 languages."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    folder = tmp_path_factory.mktemp("nllb")
    pieces = [*tokenizers.SPECIAL, "▁", *"thecasdog", "▁t", "▁th", "▁the"]
    merges: Any = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    NllbTokenizer(
        vocab={piece: at for at, piece in enumerate(dict.fromkeys(pieces))}, merges=merges
    ).save_pretrained(folder)
    config = M2M100Config(
        vocab_size=260, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=64,
    )  # fmt: skip
    model = M2M100ForConditionalGeneration(config).double()
    randomize_(model)
    model.save_pretrained(folder)
    return folder


def test_language_codes_reach_the_model(nllb: Path) -> None:
    german: Any = {"source_lang": "deu_Latn", "target_lang": "eng_Latn"}
    made = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED, **german)
    assert made[0].soft is not None
    assert made[0].soft.shape == (2, 3)
    french = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED,
                   source_lang="deu_Latn", target_lang="fra_Latn")  # fmt: skip
    assert french[0].soft is not None
    assert not np.allclose(made[0].soft, french[0].soft)
    other = align(["the cats"], ["the dog"], nllb, soft=True, **FIXED,
                  source_lang="fra_Latn", target_lang="eng_Latn")  # fmt: skip
    assert other[0].soft is not None
    assert not np.allclose(made[0].soft, other[0].soft)


def test_a_named_model_is_loaded_as_precisely_as_is_asked(nllb: Path, tmp_path: Path) -> None:
    """Saved in 64 bits it stays so; saved in 16 it is computed in 32, unless that is asked for."""
    german: Any = {"source_lang": "deu_Latn", "target_lang": "eng_Latn"}

    def dtype(folder: Path, **how: Any) -> torch.dtype:
        model = translators.translator(folder, **german, **how).model
        return next(model.parameters()).dtype

    assert dtype(nllb) == dtype(nllb, dtype="float64") == torch.float64
    shutil.copytree(nllb, tmp_path / "half")
    translators.translator(nllb, **german).model.bfloat16().save_pretrained(tmp_path / "half")
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
        made = translators.Translator(None, tokenizer, tokenizer, About(), source, target)
        assert translators._with_languages(made, named=True, moses=False) is made
        wrong = replace(made, target_lang="of no tokenizer")
        with pytest.raises(InputError, match="unknown target language 'of no tokenizer'"):
            translators._with_languages(wrong, named=True, moses=False)


# ---- several matrices, both directions, gold


def test_combined_candidates_are_averaged_as_shares(marian: Any) -> None:
    made = align(SOURCE, TARGET, marian, tokenizer(pair=False), combine=3, soft=True)
    assert len(made.choices) == 3
    assert made.choices == tuple(one.choice for one in made.ranking[:3])
    total: Any = 0
    for choice in made.choices:
        how: Any = {"layer": choice.layer, "reading": choice.reading}
        how["head"] = "sum" if choice.head is None else choice.head
        one = align(SOURCE[0], TARGET[0], marian, tokenizer(pair=False), soft=True, **how)[0].soft
        assert one is not None
        total = total + one / one.sum(axis=1, keepdims=True) / 3
    assert made[0].soft is not None
    np.testing.assert_allclose(made[0].soft, total, rtol=1e-5)
    with pytest.raises(InputError, match=r"combine is a number from 1 on"):
        linked(SOURCE, TARGET, marian, combine=0)


@pytest.mark.parametrize("how", ["intersection", "grow-diag-final-and", None])
def test_both_directions(marian: Any, back: Any, how: str | None) -> None:
    mine = tokenizer(pair=False)
    ahead = align(SOURCE, TARGET, marian, mine, **FIXED)
    other = align(TARGET, SOURCE, back, mine, **FIXED)
    made = align(
        SOURCE, TARGET, marian, mine,
        reverse_model=back, reverse_tokenizer=mine, symmetrize=how, **FIXED,
    )  # fmt: skip
    for one, a, b in zip(made, ahead, other, strict=True):
        expected = symmetrize_links(a.links, b.links.flipped(), how or "grow-diag-final-and")
        assert one.links == expected
        assert one.links.scores == pytest.approx(expected.scores)
    assert made.reverse_choices == made.choices
    assert f"|symmetrize:{how or 'grow-diag-final-and'}|" in made.signature


def test_symmetrisation_needs_both_directions(marian: Any) -> None:
    with pytest.raises(InputError, match=r"a prefix names one direction"):
        linked(SOURCE, TARGET, marian, prefix="a", reverse_model=marian)
    with pytest.raises(InputError, match=r"needs both directions.*--reverse-model"):
        linked(SOURCE, TARGET, marian, symmetrize="union")
    with pytest.raises(InputError, match=r"unknown symmetrization 'both'"):
        linked(SOURCE, TARGET, marian, symmetrize="both")
    with pytest.raises(InputError, match=r"unknown method 'ibm'; valid: attention, saliency"):
        linked(SOURCE, TARGET, marian, method="ibm")


def test_baselines_refuse_what_they_would_pass_over(marian: Any) -> None:
    for option in ({"layer": 1}, {"head": "sum"}, {"reading": "awi"}, {"combine": 2}):
        for method in ("saliency", "smoothgrad", "eflomal"):
            (name,) = option
            with pytest.raises(InputError, match=f"{name}=.* the method is {method}: leave it out"):
                align(SOURCE, TARGET, marian, tokenizer(), method=method, **option)
    with pytest.raises(InputError, match=r"map='attn_w' is about attention"):
        align(SOURCE, TARGET, marian, tokenizer(), "attn_w", method="saliency")
    with pytest.raises(InputError, match=r"no matrices: leave soft"):
        align(SOURCE, TARGET, method="eflomal", soft=True)


def test_a_gold_without_sure_links_is_refused_before_the_work() -> None:
    with pytest.raises(InputError, match=r"the gold has no sure link"):
        align("a b", "a b", "no/such-model", gold=[Links.of((), {(0, 0)})])


def test_gold_gives_a_score(marian: Any, tmp_path: Path) -> None:
    gold = [Links.of({(0, 0), (1, 2)}), Links.of({(1, 1)}, {(0, 5)}), Links()]
    write_links(tmp_path / "gold.talp", gold)
    made = align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=gold, **FIXED)
    assert made.score == score(gold, made.links, resamples=1000)
    again = align(
        SOURCE, TARGET, marian, tokenizer(pair=False), gold=tmp_path / "gold.talp", **FIXED
    )
    assert again.score == made.score
    with pytest.raises(InputError, match=r"the gold, line 3: .* target word 1.* has 1 words"):
        align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=[*gold[:2], Links.of({(0, 1)})])
    with pytest.raises(InputError, match=r"the gold has 2 lines, but the source text has 3"):
        align(SOURCE, TARGET, marian, tokenizer(pair=False), gold=gold[:2])


# ---- the model's own translation


def test_translate_align() -> None:
    model: Any = tiny_model("bart", dtype=torch.float32)
    mine = tokenizer(pair=False)
    how: Any = {"max_length": 9, "do_sample": False, "num_beams": 1, "early_stopping": None}
    model.generation_config.update(**how, forced_bos_token_id=None, no_repeat_ngram_size=None)
    made = translate_align([*SOURCE, ""], model, mine, **FIXED)
    for one, text in zip(made, SOURCE, strict=False):
        ids = model.generate(**mine(text, return_tensors="pt"))
        assert list(one.target) == mine.decode(ids[0], skip_special_tokens=True).split()
        assert one.source == tuple(text.split())
    assert (made[3].target, made[3].skipped) == ((), "empty")
    targets = [" ".join(one.target) for one in made[:3]]
    assert [set(one.links) for one in made[:3]] == [
        set(one.links) for one in align(SOURCE, targets, model, mine, **FIXED)
    ]


# ---- baselines


def test_eflomal_learns_from_the_text() -> None:
    # Every word has one translation, and the order is turned round.
    words = [f"w{i}" for i in range(12)]
    draw = np.random.default_rng(0)
    source = [[words[i] for i in draw.permutation(12)[:5]] for _ in range(300)]
    target = [[word.upper() for word in reversed(line)] for line in source]
    made = align([*source, []], [*target, ["X"]], method="eflomal")
    right = sum(set(one.links) == {(i, 4 - i) for i in range(5)} for one in made)
    assert right > 290
    assert made[300].skipped == "empty"
    assert made.signature.startswith("method:eflomal|symmetrize:grow-diag-final-and")
    with pytest.raises(InputError, match=r"eflomal needs no model"):
        align(source, target, method="eflomal", reverse_model="x")


def slopes(model: Any, source: str, target: str, probability: bool) -> tuple[Any, Any]:
    """Gradients (step, key, hidden) of what is written, by finite differences; embeddings."""
    mine = tokenizer(pair=False)
    ids = mine(source, return_tensors="pt")["input_ids"]
    labels = mine(target)["input_ids"]
    start = model.config.decoder_start_token_id
    read = torch.tensor([[start, *labels[:-1]]])
    table = model.get_encoder().get_input_embeddings()
    shift = torch.zeros(ids.shape[1], model.config.d_model, dtype=torch.float64)

    def chances() -> torch.Tensor:
        hook = table.register_forward_hook(lambda _, __, made: _once(made, shift, calls))
        calls.clear()
        with torch.no_grad():
            logits = model(input_ids=ids, decoder_input_ids=read).logits[0]
        hook.remove()
        logs = logits.log_softmax(-1)[range(len(labels)), labels]
        return logs.exp() if probability else logs

    calls: list[int] = []
    made = torch.zeros(len(labels), *shift.shape, dtype=torch.float64)
    for key in range(shift.shape[0]):
        for at in range(shift.shape[1]):
            shift[key, at] = 1e-5
            ahead = chances()
            shift[key, at] = -1e-5
            made[:, key, at] = (ahead - chances()) / 2e-5
            shift[key, at] = 0
    with torch.no_grad():
        return made, table(ids)[0]


def _once(made: torch.Tensor, shift: torch.Tensor, calls: list[int]) -> torch.Tensor:
    calls.append(1)
    return made + shift if len(calls) == 1 else made


@pytest.mark.parametrize("method", ["saliency", "smoothgrad"])
def test_gradients_equal_finite_differences(method: str) -> None:
    model = tiny_model("marian")
    source, target = "the dog", "cat sat"
    smooth = method == "smoothgrad"
    slope, points = slopes(model, source, target, smooth)
    pieces = (slope * points).sum(-1).abs() if smooth else slope.abs().mean(-1)
    # <s> the dog </s> → cat sat: the label <s> is written first.
    expected = torch.stack(
        [torch.stack([row[1], row[2], row[0] + row[3]]) for row in (pieces[1], pieces[2])]
    )
    how: Any = {"method": method, "copies": 1, "noise": 0.0, "soft": True}
    made = align([source, "a cat sat"], [target, "the"], model, tokenizer(pair=False), **how)
    assert made[0].soft is not None
    np.testing.assert_allclose(made[0].soft, expected.numpy(), rtol=1e-4)
    assert made.choices == ()


def test_gradients_are_taken_as_they_are_by_default() -> None:
    given = inspect.signature(align).parameters
    usual = Gradients()
    assert {name: given[name].default for name in ("copies", "noise", "seed")} == {
        name: getattr(usual, name) for name in ("copies", "noise", "seed")
    }


def test_the_signature_tells_what_the_links_were_made_with(marian: Any) -> None:
    how: Any = {"copies": 2, "noise": 0.25, "seed": 3, "method": "smoothgrad"}
    smooth = align("the cats", "a dog", marian, tokenizer(pair=False), **how).signature
    assert "|copies:2|noise:0.25|seed:3|" in smooth
    assert "|map:" not in smooth
    plain = align("the cats", "a dog", marian, tokenizer(pair=False), method="saliency").signature
    assert "|copies:" not in plain
    fixed = align("the cats", "a dog", marian, tokenizer(pair=False), **FIXED).signature
    assert "|map:attn_n|choice:1.sum.awi|" in fixed
    assert "|criterion:" not in fixed
    assert "|words:" not in fixed
    mine = tokenizer(pair=False)
    changes: list[dict[str, Any]] = [{"words": "moses"}, {"prefix": "the"}]
    for more in changes:
        changed = align("the cats", "a dog", marian, mine, **FIXED, **more).signature
        assert changed.replace('"', "") == fixed.replace(
            "|map:", f"|{next(iter(more))}:{next(iter(more.values()))}|map:"
        )


def test_the_signature_tells_the_other_direction_s_model(marian: Any, back: Any) -> None:
    mine = tokenizer(pair=False)
    two = [
        align(SOURCE, TARGET, marian, mine, reverse_model=one, reverse_tokenizer=mine, **FIXED)
        for one in (back, marian)
    ]
    assert two[0].signature != two[1].signature
    assert re.search(r"\|reverse_model:[^|]*/sha256=[0-9a-f]{64}\|", two[0].signature)


def test_noise_is_a_share_of_the_range_of_a_sentence() -> None:
    draw = torch.Generator().manual_seed(5)
    points = 3 * torch.randn(2, 4, 6, generator=draw, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    points[1, 2:] *= 100  # padding has no say in it
    found = gradients._noise(points, mask, 0.2, torch.Generator().manual_seed(9))
    again = torch.Generator().manual_seed(9)
    plain = torch.randn(2, 4, 6, generator=again, dtype=torch.float64)
    for row, real in enumerate((points[0], points[1, :2])):
        expected = plain[row] * 0.2 * (real.max() - real.min())
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=0)


def test_smoothgrad_averages_noisy_copies() -> None:
    model = tiny_model("marian")
    mine = tokenizer(pair=False)

    def soft(**how: Any) -> Any:
        return align(SOURCE, TARGET, model, mine, method="smoothgrad", soft=True, **how)[0].soft

    exact, noisy = soft(copies=1, noise=0.0), soft(copies=8, noise=0.05)
    assert not np.allclose(exact, noisy)
    np.testing.assert_array_equal(noisy, soft(copies=8, noise=0.05))
    assert not np.allclose(noisy, soft(copies=8, noise=0.05, seed=1))
    near, far = (np.abs(soft(copies=8, noise=one) - exact).max() for one in (1e-4, 0.1))
    assert near < far / 20
    np.testing.assert_allclose(soft(copies=3, noise=0.0), exact, rtol=1e-5)
    with pytest.raises(InputError, match=r"copies are at least 1"):
        soft(copies=0)
