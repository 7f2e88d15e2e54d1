"""analyze() and analyze_inputs(): labels, batches, encoder–decoder models, signatures, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import MobileViTModel, ViTModel

import normscope
from normscope.errors import (
    ExactnessError,
    InputError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from normscope.models import load as load_model
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results.signature import weights_hash
from tests.helpers.tiny import tokenizer

LONG = "the big red cats sat on a mat and looked at the small dog"
IMAGES: dict[Any, dict[str, Any]] = {
    ViTModel: {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    MobileViTModel: {"hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 7},
}
TEXTS = ["the cat sat", LONG, "a dog ran", "it was asleep in the garden ."]


@pytest.fixture(scope="module")
def minilm() -> tuple[Any, Any]:
    return load_model(None)


# ------------------------------------------------------------------------------ what comes out


def test_minilm_shapes_tokens_and_error(minilm: tuple[Any, Any]) -> None:
    result = normscope.analyze(*minilm, "The cats sat.", "A dog ran!")
    expected = ["[CLS]", "the", "cats", "sat", ".", "[SEP]", "a", "dog", "ran", "!", "[SEP]"]
    assert list(result.tokens.strings) == expected
    assert result["attn_w"].axes == result["attn_n"].axes == ("layer", "query", "key")
    assert result["attn_w"].shape == result["attn_n"].shape == (6, 11, 11)
    assert result.transformed_norm.axes == ("layer", "head", "key")
    assert result.transformed_norm.shape == (6, 12, 11)
    assert set(result.error) == {"attn_w", "attn_n"}
    assert 0 < max(result.error.values()) < 1e-6
    assert_allclose(np.asarray(result["attn_w"]).sum(axis=-1), 1, atol=1e-5)


def test_heads_each_and_heads_sum_tell_one_story(minilm: tuple[Any, Any]) -> None:
    each = normscope.analyze(*minilm, "The cats sat.", heads="each")
    summed = normscope.analyze(*minilm, "The cats sat.")
    assert each["attn_n"].axes == ("layer", "head", "query", "key")
    assert each["attn_n"].shape == (6, 12, 6, 6)
    assert_allclose(each["attn_w"].values.mean(axis=1), summed["attn_w"].values, rtol=1e-5)
    assert_allclose(
        each["attn_n"].values,
        each["attn_w"].values * each.transformed_norm.values[:, :, None, :],
        rtol=1e-5,
    )
    # The norm of a sum is at most the sum of the norms, and they are not equal here.
    slack = each["attn_n"].values.sum(axis=1) - summed["attn_n"].values
    assert slack.min() > 0


def test_a_list_equals_one_at_a_time() -> None:
    model, reads = tiny_model("bert"), tokenizer()
    together = normscope.analyze(model, reads, TEXTS, heads="each")
    assert [len(r.tokens) for r in together] == [5, 16, 5, 9]
    for text, result in zip(TEXTS, together, strict=True):
        alone = normscope.analyze(model, reads, text, heads="each")
        assert alone.tokens == result.tokens
        for name in ("attn_w", "attn_n"):
            assert_allclose(result[name].values, alone[name].values, rtol=1e-11, atol=1e-15)
        assert_allclose(result.transformed_norm.values, alone.transformed_norm.values, rtol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "bloom", "modernbert", "gemma3"])
def test_a_list_equals_one_at_a_time_with_other_masks(name: str) -> None:
    model, reads = tiny_model(name), tokenizer(pair=False)
    together = normscope.analyze(model, reads, TEXTS)
    for text, result in zip(TEXTS, together, strict=True):
        alone = normscope.analyze(model, reads, text)
        # Some of these take the softmax in float32, whatever the model's dtype.
        assert_allclose(result["attn_n"].values, alone["attn_n"].values, rtol=2e-6, atol=1e-9)


def test_batches_are_bounded_and_every_text_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.measures.analysis.BATCH_TOKENS", 20)
    model, reads = tiny_model("bert"), tokenizer()
    sizes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda m, a, k: sizes.append(tuple(k["input_ids"].shape)), with_kwargs=True
    )
    results = normscope.analyze(model, reads, TEXTS)
    assert sizes == [(1, 16), (2, 9), (1, 5)]
    assert [len(r.tokens) for r in results] == [5, 16, 5, 9]


def test_an_empty_list_gives_an_empty_list() -> None:
    assert normscope.analyze(tiny_model("bert"), tokenizer(), []) == []


@pytest.mark.parametrize(
    "name", ["marian", "bart", "mbart", "t5", "m2m_100", "pegasus", "nllb-moe"]
)
def test_encoder_decoder(name: str) -> None:
    model, reads = tiny_model(name), tokenizer(pair=False)
    result = normscope.analyze(model, reads, "the cat sat on a mat", target="a dog ran")
    assert set(result.parts) == {"encoder", "decoder", "cross"}
    source = ["<s>", "the", "cat", "sat", "on", "a", "mat", "</s>"]
    assert list(result.encoder.tokens.strings) == source
    read = list(result.decoder.tokens.strings)
    assert read[1:] == ["<s>", "a", "dog", "ran"]  # a start token, then all but the last
    assert result.encoder["attn_n"].shape == (2, 8, 8)
    assert result.decoder["attn_n"].shape == (3, 5, 5)
    assert result.cross["attn_n"].shape == (3, 5, 8)
    assert list(result.cross.key_tokens.strings) == source
    assert_array_equal(np.triu(result.decoder["attn_n"].values, k=1), 0)
    with pytest.raises(InputError, match=r"result\.encoder"):
        result["attn_n"]


def test_fsmt_decoder_is_causal() -> None:
    """With its cache on, transformers' FSMT reads the target without a causal mask."""
    model, reads = tiny_model("fsmt", dtype=torch.float32), tokenizer(pair=False)
    result = normscope.analyze(model, reads, "the cat sat", target="a dog ran")
    assert_array_equal(np.triu(result.decoder["attn_w"].values, k=1), 0)


def test_encoder_decoder_lists_of_different_lengths() -> None:
    model, reads = tiny_model("marian"), tokenizer(pair=False)
    targets = ["a dog", "it was", LONG, "the sun"]
    together = normscope.analyze(model, reads, TEXTS, target=targets)
    for text, target, result in zip(TEXTS, targets, together, strict=True):
        alone = normscope.analyze(model, reads, text, target=target)
        for part in ("encoder", "decoder", "cross"):
            found, wanted = result.parts[part], alone.parts[part]
            assert found.tokens == wanted.tokens
            assert found.key_tokens == wanted.key_tokens
            assert_allclose(found["attn_n"].values, wanted["attn_n"].values, rtol=1e-10)


# -------------------------------------------------------------------------------- ready inputs


def test_inputs_rows_lose_their_padding_on_either_side() -> None:
    model: Any = tiny_model("bert")
    right = tiny_inputs("bert")
    left = {k: v.clone() for k, v in right.items()}
    for row, length in enumerate(right["attention_mask"].sum(dim=1).tolist()):
        for name in left:
            left[name][row] = torch.roll(right[name][row], 9 - length)
    positions = (left["attention_mask"].cumsum(dim=1) - 1).clamp_min(0)
    a = normscope.analyze_inputs(model, right)
    b = normscope.analyze_inputs(model, {**left, "position_ids": positions})
    for one, other in zip(a, b, strict=True):
        assert one.tokens == other.tokens
        assert_allclose(one["attn_n"].values, other["attn_n"].values, rtol=1e-11)


def test_inputs_tokens_name_the_positions() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    names = [[f"w{i}" for i in range(9)]] * 3
    results = normscope.analyze_inputs(model, inputs, tokens=names)
    assert [len(r.tokens) for r in results] == [9, 8, 7]
    assert results[2].tokens.strings == tuple(names[0][:7])
    bare = normscope.analyze_inputs(
        model, inputs, tokens=[n[:k] for n, k in zip(names, (9, 8, 7), strict=True)]
    )
    assert bare[1].tokens == results[1].tokens
    with pytest.raises(InputError, match="names 4 positions of row 0, but it has 9"):
        normscope.analyze_inputs(model, inputs, tokens=[n[:4] for n in names])


def test_inputs_embeds_equal_ids() -> None:
    model: Any = tiny_model("llama")
    inputs = tiny_inputs("llama")
    ids = inputs["input_ids"]
    embeds = {"inputs_embeds": model.get_input_embeddings()(ids).detach(),
              "attention_mask": inputs["attention_mask"]}  # fmt: skip
    for one, other in zip(
        normscope.analyze_inputs(model, inputs),
        normscope.analyze_inputs(model, embeds),
        strict=True,
    ):
        assert_array_equal(one["attn_n"].values, other["attn_n"].values)
        assert other.tokens.strings[0] == "position 0"


def test_two_towers_and_audio() -> None:
    clip = normscope.analyze_inputs(tiny_model("clip"), tiny_inputs("clip"))[1]
    assert set(clip.parts) == {"text", "vision"}
    assert clip.text["attn_n"].shape == (3, 8, 8)
    assert clip.vision["attn_n"].shape[0] == 2
    audio = normscope.analyze_inputs(tiny_model("wav2vec2"), tiny_inputs("wav2vec2"))
    assert [r["attn_n"].shape for r in audio] == [(3, n, n) for n in (9, 8, 7)]


def test_inputs_that_are_no_tensors() -> None:
    with pytest.raises(InputError, match="mapping of tensors"):
        normscope.analyze_inputs(tiny_model("bert"), {"text": "the cat"})


# ---------------------------------------------------------------------------------- signatures


def test_signature_says_how_to_repeat_it(minilm: tuple[Any, Any]) -> None:
    line = normscope.analyze(*minilm, "The cats sat.", heads="each").signature
    fields = dict(pair.split(":", 1) for pair in line.split("|"))
    assert fields["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert fields["revision"] == "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
    assert fields["weights"] == "sha256=" + weights_hash(minilm[0])
    assert fields["maps"] == "attn_w,attn_n"
    assert fields["heads"] == "each"
    assert fields["dtype"] == "float32"
    assert fields["path"] == "interface"
    assert fields["normscope"] == normscope.__version__
    assert "\n" not in line


def test_weights_hash_is_of_the_weights() -> None:
    model: Any = tiny_model("bert")
    twin = tiny_model("bert")
    first = weights_hash(model)
    assert first == weights_hash(twin) != weights_hash(tiny_model("bert", seed=1))
    weight = model.encoder.layer[0].attention.self.value.weight
    with torch.no_grad():
        weight[0, 0] += 1
    changed = weights_hash(model)
    assert changed != first
    weight.data[0, 0] -= 1  # leaves the version counter alone
    assert weights_hash(model) != changed


def test_signature_of_changed_weights_is_not_pretended() -> None:
    model: Any = tiny_model("bert")
    result = normscope.analyze(model, tokenizer(), "the cat sat")
    with torch.no_grad():
        model.encoder.layer[0].attention.self.value.weight.mul_(2)
    assert "weights:changed-after-analysis" in result.signature


def test_signature_is_hashed_when_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        "normscope.results.signature.weights_hash",
        lambda m: calls.append(m) or "abc",  # type: ignore[func-returns-value]
    )
    model = tiny_model("bert")  # not deleted before the signature is read
    result = normscope.analyze(model, tokenizer(), "the cat sat")
    assert not calls
    assert "weights:sha256=abc" in result.signature
    assert result.signature == result.signature
    assert len(calls) == 1


# ------------------------------------------------------------------------------------ refusals


def test_training_mode_is_put_back_module_by_module() -> None:
    model: Any = tiny_model("bert").train()
    model.encoder.layer[1].eval()
    modes = [m.training for m in model.modules()]
    first = normscope.analyze(model, tokenizer(), "the cat sat")
    assert [m.training for m in model.modules()] == modes
    second = normscope.analyze(model.eval(), tokenizer(), "the cat sat")
    assert_array_equal(first["attn_n"].values, second["attn_n"].values)  # no dropout in either


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"text": ""}, "empty"),
        ({"text": "  \n "}, "whitespace"),
        ({"text": None}, "no text was given"),
        ({"text": "the cat", "maps": ("attn_n", "attn_x")}, "'attn_x'.*attn_w, attn_n"),
        ({"text": "the cat", "maps": ()}, "the maps are: attn_w, attn_n"),
        ({"text": "the cat", "heads": "all"}, "heads must be one of sum, each.*all"),
        ({"text": "the cat", "target": "a dog"}, "does not accept a target"),
        ({"text": "the " * 80}, "82 tokens.*64.*truncate=True"),
        ({"text": ["the cat"], "text_pair": "a dog"}, "list of 1 strings"),
        ({"text": "the cat", "text_pair": ["a dog"]}, "one string"),
        ({"text": ["the cat", ""]}, "empty"),
    ],
)
def test_bad_input_is_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        normscope.analyze(tiny_model("bert"), tokenizer(), **kwargs)


def test_truncate_cuts_to_the_limit() -> None:
    result = normscope.analyze(tiny_model("bert"), tokenizer(), "the " * 80, truncate=True)
    assert len(result.tokens) == 64
    assert result.tokens.strings[-1] == "</s>"


def test_an_encoder_decoder_needs_a_target() -> None:
    with pytest.raises(InputError, match=r"encoder–decoder.*target="):
        normscope.analyze(tiny_model("marian"), tokenizer(pair=False), "the cat sat")


@pytest.mark.parametrize("kind", [ViTModel, MobileViTModel])
def test_a_model_that_reads_no_text(kind: Any) -> None:
    config = kind.config_class(num_attention_heads=2, **IMAGES[kind])
    model = kind(config)
    told = rf"{kind.__name__} reads pixel_values, not text: "
    with pytest.raises(InputError, match=told + "give images="):
        normscope.analyze(model, tokenizer(pair=False), "the cat sat")
    with pytest.raises(InputError, match=told + ".*analyze_inputs"):
        normscope.corpus(model, ["the cat sat"], tokenizer=tokenizer(pair=False))


def test_a_tokenizer_that_does_not_fit(minilm: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match="does not fit"):
        normscope.analyze(tiny_model("bert"), minilm[1], "The cats sat.")


def test_no_tokenizer_and_no_model() -> None:
    with pytest.raises(InputError, match="no tokenizer was given"):
        normscope.analyze(tiny_model("bert"), text="the cat")
    with pytest.raises(InputError, match="a transformers model, a folder or a name on the hub"):
        normscope.analyze(42, tokenizer(), "the cat")


def test_a_folder_with_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        normscope.analyze(tmp_path, text="the cat")


def test_nan_weights_are_named() -> None:
    model: Any = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[3, 4] = torch.nan
    with pytest.raises(InputError, match=r"encoder\.layer\.1\.attention\.self\.value\.weight.*NaN"):
        normscope.analyze(model, tokenizer(), "the cat sat")


def test_overflow_is_not_called_nan_weights() -> None:
    model: Any = tiny_model("bert", dtype=torch.float16)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight.mul_(60000)
    with pytest.raises(InputError, match=r"overflow.*float32"):
        normscope.analyze(model, tokenizer(), "the cat sat")


def test_a_fully_masked_real_token_is_refused() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert", batch=1)
    mask = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    mask[0, 0, 4] = torch.finfo(torch.float64).min
    with pytest.raises(InputError, match=r"row 0, position 4 is a real token.*admits no key"):
        normscope.analyze_inputs(model, {**inputs, "attention_mask": mask})


def test_a_row_of_nothing_but_padding_is_refused() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    inputs["attention_mask"][2] = 0
    with pytest.raises(InputError, match="row 2 of attention_mask is all zero"):
        normscope.analyze_inputs(model, inputs)


def test_a_model_that_ignores_its_mask_is_refused() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    layer = model.encoder.layer[0].attention.self
    forward = layer.forward
    layer.forward = lambda hidden, attention_mask=None, *a, **k: forward(hidden, None, *a, **k)
    with pytest.raises(
        InputError, match="attends to position 8, which the attention mask marks as padding"
    ):
        normscope.analyze_inputs(model, inputs)


def test_wrong_parts_are_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that is off by a thousandth raises instead of giving a map."""
    from normscope.capture import Capture

    right = Capture.reconstruct
    monkeypatch.setattr(Capture, "reconstruct", lambda *given: right(*given) * 1.001)
    with pytest.raises(ExactnessError, match=r"attn_w of encoder\.layer\.0.*1e-11"):
        normscope.analyze(tiny_model("bert"), tokenizer(), "the cat sat")


def test_a_model_without_attention_is_refused() -> None:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], num_channels=3)
    with pytest.raises(UnsupportedModelError, match="ResNetModel ran without any attention"):
        normscope.analyze_inputs(ResNetModel(config), {"pixel_values": torch.rand(1, 3, 32, 32)})


def test_a_compiled_model_is_analysed_through_its_original() -> None:
    model: Any = tiny_model("bert")
    compiled = torch.compile(model, backend="eager")
    one = normscope.analyze(compiled, tokenizer(), "the cat sat")
    other = normscope.analyze(model, tokenizer(), "the cat sat")
    assert_array_equal(one["attn_n"].values, other["attn_n"].values)
