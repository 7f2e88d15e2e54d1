"""What a decoder reads while it writes a target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from normscope.models.architectures import tiny_model
from normscope.text.targets import decoder_start, shift_right
from normscope.text.tokens import encode
from tests.helpers.tiny import tokenizer


def test_the_start_token() -> None:
    """From the model's own method, else its configuration, else the last label."""

    def prepare(labels: torch.Tensor) -> torch.Tensor:
        return labels.flip(1) + 1

    config = SimpleNamespace(decoder_start_token_id=3)
    trained = SimpleNamespace(
        config=config, device="cpu", prepare_decoder_input_ids_from_labels=prepare
    )
    assert decoder_start(trained, [7, 8, 9]) == 10
    assert decoder_start(SimpleNamespace(config=config), [7, 8, 9]) == 3
    assert decoder_start(SimpleNamespace(config=SimpleNamespace()), (7, 8, 9)) == 9


@pytest.mark.parametrize("family", ["marian", "bart", "mbart", "t5"])
def test_shifting_right_gives_the_ids_of_training(family: str) -> None:
    model: Any = tiny_model(family)
    reader = tokenizer(pair=False)
    target = encode(reader, "the dogs sat", max_length=None, truncate=False, as_target=True)
    shifted = shift_right(model, reader, target)
    expected = model.prepare_decoder_input_ids_from_labels(torch.tensor([target.ids]))[0]
    assert shifted.ids == expected.tolist()
    tokens = shifted.tokens
    assert tokens.ids == tuple(shifted.ids)
    assert tokens.strings == tuple(reader.convert_ids_to_tokens(shifted.ids))
    assert tokens.strings[1:] == ("<s>", "the", "dog", "##s", "sat")
    assert tokens.special == (True, True, False, False, False, False)
    assert tokens.texts == (tokens.strings[0], "<s>", "the", "dog", "s", "sat")
    assert tokens.words == (tokens.strings[0], "<s>", "the", "dogs", "sat")
    assert tokens.word_of == (0, 1, 2, 3, 3, 4)
    assert shifted.extra == {}


def test_a_word_is_kept_if_another_piece_of_it_is_read() -> None:
    from normscope.text.tokens import Encoded, Tokens

    reader = tokenizer(pair=False)
    ids = reader.convert_tokens_to_ids(["cat", "##s"])
    pieces = ("cat", "##s")
    tokens = Tokens(pieces, tuple(ids), (False, False), ("cat", "s"), (0, 0), ("cats",))
    model: Any = SimpleNamespace(config=SimpleNamespace(decoder_start_token_id=2))
    shifted = shift_right(model, reader, Encoded(ids, {}, tokens))
    assert shifted.tokens.words == ("</s>", "cats")
    assert shifted.tokens.word_of == (0, 1)
    no_words = Tokens(pieces, tuple(ids), (False, False), ("cat", "s"))
    assert shift_right(model, reader, Encoded(ids, {}, no_words)).tokens.word_of is None
