"""Labels of ids without their text: pieces, special tokens and words as for the text itself."""

from __future__ import annotations

from typing import Any

from normscope.text.pieces import label_ids
from tests.helpers.tokenizers import SlowWordPiece, read


def test_ids_have_the_labels_of_their_text(bert_like: Any, llama_like: Any, nllb: Any) -> None:
    for tokenizer in (bert_like, llama_like, nllb):
        encoded = read(tokenizer, "the cat the")
        labels = label_ids(tokenizer, encoded.ids)
        assert labels.strings == encoded.tokens.strings
        assert labels.special == encoded.tokens.special
        assert labels.words == encoded.tokens.words
        assert labels.ids == tuple(encoded.ids)


def test_a_piece_inside_a_word_and_an_unknown_one() -> None:
    tokenizer = SlowWordPiece()
    labels = label_ids(tokenizer, [2, 5, 32, 1, 4, 3])
    assert labels.strings == ("[CLS]", "a", "##b", "[UNK]", "[MASK]", "[SEP]")
    assert labels.words == ("[CLS]", "ab", "[UNK]", "[MASK]", "[SEP]")
    assert labels.special == (True, False, False, False, False, True)


def test_an_id_that_the_tokenizer_lacks_keeps_its_number(bert_like: Any) -> None:
    labels = label_ids(bert_like, [2, 99999, 3])
    assert labels.strings == ("[CLS]", "99999", "[SEP]")
    assert labels.texts[1] == "99999"
