"""Names for ids that no text was given for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normscope.text.tokens import Tokens, framing_strings

SPACE_MARKS = ("Ġ", "▁")


def label_ids(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the labels of ids; words are told by the marks of their pieces."""
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    # An id that the tokenizer does not know keeps its number.
    strings = [str(i if piece is None else piece) for i, piece in zip(ids, pieces, strict=True)]
    frame = framing_strings(tokenizer)
    special = [piece in frame for piece in strings]
    marked = any(piece.startswith(SPACE_MARKS) for piece in strings)
    texts, word_of, words = [], [], list[str]()
    for at, piece in enumerate(strings):
        own = special[at] or pieces[at] is None
        text = piece if own else str(tokenizer.decode([ids[at]]))
        text = text.removeprefix("##").removeprefix("▁")
        texts.append(text.strip() or text or piece)
        inside = piece.startswith("##") or (marked and not piece.startswith(SPACE_MARKS))
        if words and inside and not special[at] and not special[at - 1]:
            words[-1] += text.strip()
        else:  # a lone mark is the space before the word that follows
            words.append("" if piece in SPACE_MARKS else texts[-1])
        word_of.append(len(words) - 1)
    return Tokens(
        strings=tuple(strings),
        ids=tuple(int(index) for index in ids),
        special=tuple(special),
        texts=tuple(texts),
        word_of=tuple(word_of),
        words=tuple(word or " " for word in words),
    )
