"""Group a tokenizer's pieces into words, and find the text that each piece stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

TextSpan = tuple[int, int]  # start and end in a text


def group_pieces(
    texts: tuple[str, ...],
    spans: Sequence[TextSpan],
    sources: Sequence[int | None],
    word_ids: Sequence[int | None],
    strings: list[str],
    special: Sequence[bool],
) -> tuple[list[str], list[int], list[str]]:
    """Group pieces into words by their offsets.

    Args:
        texts: the text, or both texts of a pair.
        spans: where each piece is in its text.
        sources: which of the texts each piece is from; None for special tokens.
        word_ids: the tokenizer's own number of the word that each piece is from.
        strings: the pieces.
        special: which of them are special tokens.

    Returns:
        The text of each piece, the index of the word that each belongs to, and the words.
    """
    surface: list[str] = []
    word_of: list[int] = []
    members: list[list[int]] = []  # the pieces of each word
    for index, (piece, (start, end)) in enumerate(zip(strings, spans, strict=True)):
        text = "" if special[index] else texts[sources[index] or 0]
        surface.append(text[start:end].strip() or text[start:end] or piece)
        before = index - 1
        if (
            index == 0
            or special[index]
            or special[before]
            or sources[index] != sources[before]
            or word_ids[index] != word_ids[before]
            or _apart(text, spans[before], (start, end))
        ):
            members.append([])
        members[-1].append(index)
        word_of.append(len(members) - 1)
    words = []
    for pieces in members:
        first, last = pieces[0], pieces[-1]
        text = "" if special[first] else texts[sources[first] or 0]
        # From the text, not from the pieces: the bytes of one character all carry that character.
        end = spans[last][1] if first == last else max(spans[piece][1] for piece in pieces)
        word = text[spans[first][0] : end]
        words.append(word.strip() or word or "".join(surface[first : last + 1]))
    return surface, word_of, words


def _apart(text: str, previous: TextSpan, current: TextSpan) -> bool:
    """Whether whitespace of the text lies between two neighbouring pieces.

    Needed where one word id covers the whole text (Llama, Gemma). The whitespace can lie between
    the spans, or in either: "▁cat" spans its space. A piece that is only the space before a word
    (a lone "▁") belongs to that word, so it does not separate it.
    """
    before = text[slice(*previous)]
    return (
        any(character.isspace() for character in text[previous[1] : current[0]])
        or text[slice(*current)][:1].isspace()
        or (before[-1:].isspace() and not before.isspace())
    )


def surface_without_offsets(
    tokenizer: Tokenizer, strings: list[str], special: Sequence[bool]
) -> list[str]:
    """Return the text of each piece, for tokenizers without offsets.

    It is what a piece adds to the string of the piece before it, because a piece alone keeps its
    mark: "##s" gives "##s", but "cat ##s" gives "cats".
    """
    to_string: Any = tokenizer.convert_tokens_to_string
    surface = []
    for index, piece in enumerate(strings):
        if special[index]:
            surface.append(piece)
            continue
        before = strings[index - 1 : index] if index and not special[index - 1] else []
        start = to_string(before) if before else ""
        added = to_string([*before, piece]).removeprefix(start)
        surface.append(added.strip() or added or piece)
    return surface
