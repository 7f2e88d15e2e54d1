"""What a model can read: the most tokens, and the ids that it has embeddings for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    EncoderDecoderConfig,
    T5Config,
)

from normscope.errors import InputError
from normscope.models.default import default_model_path
from normscope.text.limits import check_fits, max_length_of
from tests.helpers.tokenizers import TwoVocabularies, read

TINY: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 10,
    "pad_token_id": 1,
}
ESM = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}
SEQ2SEQ = {
    "vocab_size": 20,
    "d_model": 8,
    "max_position_embeddings": 10,
    "pad_token_id": 1,
    **{f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "ffn_dim")},
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "decoder_start_token_id": 1,
}


@pytest.mark.parametrize(
    ("family", "settings", "limit"),
    [
        ("bert", TINY, 10),
        ("electra", {**TINY, "embedding_size": 8}, 10),
        ("albert", {**TINY, "embedding_size": 8}, 10),
        ("distilbert", {**TINY, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}, 10),
        ("gpt2", {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 10}, 10),
        ("opt", {**TINY, "ffn_dim": 8, "word_embed_proj_dim": 8}, 10),
        ("biogpt", TINY, 10),
        ("bart", SEQ2SEQ, 10),
        ("marian", SEQ2SEQ, 10),
        ("roberta", TINY, 8),
        ("roberta", {**TINY, "pad_token_id": 3}, 6),
        ("roberta-prelayernorm", TINY, 8),
        ("xlm-roberta", TINY, 8),
        ("xlm-roberta-xl", TINY, 8),
        ("camembert", TINY, 8),
        ("data2vec-text", TINY, 8),
        ("ibert", TINY, 8),
        ("xmod", {**TINY, "languages": ["en_XX"], "default_language": "en_XX"}, 8),
        ("luke", {**TINY, "entity_vocab_size": 5, "entity_emb_size": 8}, 8),
        ("esm", {**TINY, "position_embedding_type": "absolute", "mask_token_id": 4}, 8),
        ("mpnet", TINY, 8),
        ("mpnet", {**TINY, "pad_token_id": 0}, 8),
        ("longformer", {**TINY, "attention_window": [4]}, 8),
        ("lilt", {**TINY, "hidden_size": 12, "channel_shrink_ratio": 1}, 8),
        ("layoutlmv3", {**TINY, "visual_embed": False, "coordinate_size": 1, "shape_size": 2}, 8),
    ],
)
def test_the_limit_is_where_the_model_ends(
    family: str, settings: dict[str, Any], limit: int
) -> None:
    config = AutoConfig.for_model(family, **settings)
    model = AutoModel.from_config(config).eval()
    found = max_length_of(config)
    assert found == limit

    def run(length: int) -> None:
        ids = torch.full((1, length), 5)
        decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        with torch.no_grad():
            model(input_ids=ids, **decoder)

    run(found)
    with pytest.raises((IndexError, RuntimeError)):
        run(found + 1)


def test_limits_of_real_configurations(minilm: Any) -> None:
    assert max_length_of(AutoConfig.from_pretrained(default_model_path()), minilm) == 512
    published = {
        "roberta": ({"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        "xlm-roberta": ({"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        "longformer": ({"max_position_embeddings": 4098, "pad_token_id": 1}, 4096),
        "esm": ({**ESM, "max_position_embeddings": 1026}, 1024),
        "mpnet": ({"max_position_embeddings": 514}, 512),
        "gpt2": ({}, 1024),
        "llama": ({"max_position_embeddings": 4096}, 4096),  # rotary: what it was trained for
        "mistral": ({}, 131072),
        "clip": ({}, 77),  # in its text part
        "siglip": ({}, 64),
        "t5": ({"n_positions": 512}, None),  # as t5-small's config.json has it
        "umt5": ({}, None),
        "bloom": ({}, None),
        "xlnet": ({}, None),
    }
    for family, (settings, limit) in published.items():
        assert max_length_of(AutoConfig.for_model(family, **settings)) == limit, family


def test_source_and_target_can_have_limits_of_their_own() -> None:
    led = AutoConfig.for_model("led")
    assert (max_length_of(led), max_length_of(led, as_target=True)) == (16384, 1024)
    assert max_length_of(AutoConfig.for_model("whisper"), as_target=True) == 448
    both = EncoderDecoderConfig.from_encoder_decoder_configs(
        BertConfig(max_position_embeddings=30), BertConfig(max_position_embeddings=20)
    )
    assert (max_length_of(both), max_length_of(both, as_target=True)) == (30, 20)


def test_a_tokenizer_may_ask_for_less(bert_like: Any) -> None:
    config = BertConfig(max_position_embeddings=64)
    assert bert_like.model_max_length > 10**9, "none was given, which transformers writes so"
    assert max_length_of(config, bert_like) == 64
    bert_like.model_max_length = 16
    assert max_length_of(config, bert_like) == 16
    bert_like.model_max_length = 128
    assert max_length_of(config, bert_like) == 64
    bert_like.model_max_length = 16
    assert max_length_of(T5Config(), bert_like) is None


def test_a_tokenizer_that_does_not_fit(bert_like: Any) -> None:
    small = BertModel(BertConfig(**{**TINY, "vocab_size": 10}))
    encoded = read(bert_like, "the unlikely cat")
    with pytest.raises(
        InputError, match=r"15 tokens\) does not fit.*10 embedding rows\): .*id 12 for '##ly'"
    ):
        check_fits(bert_like, small, encoded)
    with pytest.raises(InputError, match=r"15 tokens\) does not fit.*10 embedding rows.*up to 14"):
        check_fits(bert_like, small)
    check_fits(bert_like, small, read(bert_like, "the cats"))  # ids 5 to 7: no harm in this text


def test_a_tokenizer_that_fits(bert_like: Any) -> None:
    model = BertModel(BertConfig(**{**TINY, "vocab_size": 15}))
    check_fits(bert_like, model)
    check_fits(bert_like, model, read(bert_like, "the unlikely cat!"))
    bert_like.add_tokens(["zebra"])  # one more than the model has, and the text is without it
    check_fits(bert_like, model)
    check_fits(bert_like, model, read(bert_like, "the cat"))
    with pytest.raises(InputError, match="id 15 for 'zebra'"):
        check_fits(bert_like, model, read(bert_like, "the zebra"))


def test_token_types_the_model_does_not_have(bert_like: Any) -> None:
    model = BertModel(BertConfig(**{**TINY, "type_vocab_size": 1}))
    check_fits(bert_like, model, read(bert_like, "cat"))
    with pytest.raises(InputError, match="token type 1, and the model has 1"):
        check_fits(bert_like, model, read(bert_like, "cat", "cat"))


def test_a_target_is_checked_against_the_decoder() -> None:
    class Halves(torch.nn.Module):
        """An encoder-decoder with a vocabulary for each side."""

        config = T5Config()

        def __init__(self, rows: int, decoder: torch.nn.Module | None = None) -> None:
            super().__init__()
            self.table, self.decoder = torch.nn.Embedding(rows, 2), decoder

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def get_decoder(self) -> torch.nn.Module | None:
            return self.decoder

    tokenizer = TwoVocabularies()
    model: Any = Halves(6, Halves(5))
    unchecked = inspect.unwrap(check_fits)
    unchecked(tokenizer, model, read(tokenizer, "dog"))
    with pytest.raises(InputError, match=r"5 embedding rows.*id 5 for 'chat'"):
        unchecked(tokenizer, model, read(tokenizer, "chat", as_target=True), as_target=True)


@pytest.mark.parametrize("family", ["vit", "clip_vision_model"])
def test_a_model_without_token_ids_has_nothing_to_fit(bert_like: Any, family: str) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "image_size": 8, "patch_size": 4}
    config = AutoConfig.for_model(family, **sizes, num_hidden_layers=1, num_attention_heads=2)
    check_fits(bert_like, AutoModel.from_config(config), read(bert_like, "the unlikely cat"))


def test_a_configuration_of_the_users_own_counts_positions_from_zero() -> None:
    class Own(BertConfig):
        model_type = "own"

    assert max_length_of(Own(max_position_embeddings=30)) == 30


def test_only_the_part_that_reads_text_counts() -> None:
    """Evolla's protein encoder has such embeddings, the text model that it belongs to has not."""
    clap = AutoConfig.for_model("clap")
    assert max_length_of(clap) == clap.text_config.max_position_embeddings - 2
    if "evolla" in CONFIG_MAPPING:
        assert max_length_of(AutoConfig.for_model("evolla")) == 8192
