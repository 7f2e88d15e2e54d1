"""Read the text back from its tokens, and divide it into sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from normscope.text.tokens import Tokens

SPACE_MARKS = ("Ġ", "▁")  # byte-level and sentencepiece: the piece begins with a space
WORD_END = "</w>"  # the word ends with the piece
CONTINUES = "##"  # the piece continues the word before it
CLOSING = frozenset(".,;:!?%)]}»”’…。，、；：！？）」』")  # no space stands before these
OPENING = frozenset("([{«“‘¿¡「『（$#")  # no space stands after these
ABBREVIATIONS = frozenset(
    re.findall(
        r"\w+",
        "al approx apr assoc aug ave bros ca capt cf co col corp dec dept dr ed eds eg eq esp est "
        "etc feb fig figs gen gov hon ie inc jan jr lt ltd maj mr mrs ms mt nov no nos oct pp prof "
        "rep rev sec sen sep sept sgt sr st vol vs viz",
    )
)
# A piece that begins with a continuation byte of UTF-8, as byte-level tokenizers write bytes.
_LATER_BYTE = re.compile("[\u00a1-\u00ac\u00ae-\u00bf\u0122-\u0143]")
_LATER_FALLBACK = re.compile(r"<0x[89ABab][0-9A-Fa-f]>")  # the same where bytes are spelled out
_CJK = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
# The end of a sentence, with quotation marks and brackets that close after it; or a line's end.
_END = re.compile("(?:[.!?…]+[\"'”’»)\\]]*(?=\\s|$)|[。！？]+[」』”’）]*|\n+)")
_LETTER = re.compile(r"(?:^|[\s(\".])[^\W\d_]\.$")
_WORD = re.compile(r"[^\s\"'“‘(\[]+$")


def piece_texts(tokens: Tokens) -> list[tuple[str, str]]:
    """Return for each token the whitespace before it and its text.

    Joined, they give the text as far as the tokens tell: WordPiece does not say whether a space
    stood before a punctuation mark, so spaces are put where English has them. Where one character
    is spread over several pieces, the first has it and the others are empty.
    """
    byte_level = any("Ġ" in string or _LATER_BYTE.match(string) for string in tokens.strings)
    marked = any(string.startswith(SPACE_MARKS) for string in tokens.strings)
    ended = any(string.endswith(WORD_END) for string in tokens.strings)
    pieces: list[tuple[str, str]] = []
    before = ""  # the end of the text so far
    quotes = 0  # straight quotation marks so far: an odd number means that one is open
    for at, (string, text) in enumerate(zip(tokens.strings, tokens.texts, strict=True)):
        if string and not string.strip("".join(SPACE_MARKS)):  # only a space
            pieces.append(("", " " * len(string) if at else ""))
            before += pieces[-1][1]
            continue
        if at and _continues_character(tokens, at, byte_level=byte_level):
            text = text[1:]
            if not text:
                pieces.append(("", ""))
                continue
        if not at or text[:1].isspace():
            space = False
        elif tokens.special[at] or tokens.special[at - 1]:
            space = True
        elif marked:
            space = string.startswith(SPACE_MARKS)
        elif before[-1:].isspace():
            space = False
        elif ended:
            space = tokens.strings[at - 1].endswith(WORD_END)
        else:
            space = _has_space(tokens, at, before, quoted=quotes % 2 == 1)
        quotes += text.count('"')
        pieces.append((" " * space, text))
        before = (before + " " * space + text)[-3:]
    return pieces


def _continues_character(tokens: Tokens, at: int, *, byte_level: bool) -> bool:
    """Whether a piece begins with a later byte of the character that the piece before it began."""
    text, string = tokens.texts[at], tokens.strings[at]
    if not text or text[0].isascii() or text[0] != tokens.texts[at - 1][-1:]:
        return False
    return bool(_LATER_FALLBACK.match(string) or (byte_level and _LATER_BYTE.match(string)))


def _has_space(tokens: Tokens, at: int, before: str, *, quoted: bool) -> bool:
    """Guess whether a space stands before a piece of a tokenizer that does not mark spaces."""
    string, text = tokens.strings[at], tokens.texts[at]
    if string.startswith(CONTINUES) and len(string) > len(CONTINUES):
        return False
    if tokens.word_of is not None and tokens.word_of[at] == tokens.word_of[at - 1]:
        return False
    if text[:1] in CLOSING or before[-1:] in OPENING:
        return False
    if quoted and '"' in (text[:1], before[-1:]):
        return False
    if len(text) == 1 and text.isalpha() and _LETTER.search(before):  # "e.g.", "U.S."
        return False
    if text[:1] in "-'’/" or before[-1:] in tuple("-'’/"):
        return False
    if text[:1].isdigit() and before[-1:] in tuple(".,:") and before[-2:-1].isdigit():
        return False
    return not (_CJK.match(text) and _CJK.match(before[-1:]))


def sentences(tokens: Tokens, sides: Sequence[str] = ()) -> list[tuple[int, int]]:
    """Divide the tokens into sentences: (first, end) of each, in order, without gaps.

    A sentence ends after ".", "!", "?" or "…" (with closing quotation marks) before whitespace,
    after their CJK forms, and at the end of a line. A full stop does not end one after an
    abbreviation of `ABBREVIATIONS`, after a single letter ("J. Smith", "e.g."), or before a small
    letter, unless the whole text is in small letters. Special tokens are passages of their own;
    so is each side of a pair.
    """
    sides = sides or ("",) * len(tokens)
    starts = {0} | {
        at
        for at in range(1, len(tokens))
        if sides[at] != sides[at - 1] or tokens.special[at] != tokens.special[at - 1]
    }
    edges = [*sorted(starts), len(tokens)]
    pieces = piece_texts(tokens)
    for first, end in pairwise(edges):
        if first < end and not tokens.special[first]:
            starts |= _sentence_starts(pieces[first:end], first)
    edges = [*sorted(starts), len(tokens)]
    return [(first, end) for first, end in pairwise(edges) if first < end]


def _sentence_starts(pieces: list[tuple[str, str]], first: int) -> set[int]:
    """Return the positions of the tokens with which the later sentences of a passage begin."""
    text, begins = "", []
    for space, piece in pieces:
        text += space
        begins.append(len(text))
        text += piece
    cased = any(character.isupper() for character in text)
    starts = set()
    for match in _END.finditer(text):
        if match[0].startswith(".") and not _ends_sentence(text, match, cased):
            continue
        # Blank pieces, such as ends of lines, belong to the sentence before them.
        for at, (_, piece) in enumerate(pieces):
            if begins[at] >= match.end() and piece.strip():
                starts.add(first + at)
                break
    return starts


def _ends_sentence(text: str, match: re.Match[str], cased: bool) -> bool:
    """Whether a full stop ends a sentence, judged by the words around it."""
    following = text[match.end() :].lstrip()
    if cased and following[:1].islower():
        return False
    word = _WORD.search(text[: match.start()])
    if match[0] != "." or word is None:
        return True
    last = word[0].rpartition(".")[2]
    known = word[0].replace(".", "").lower() in ABBREVIATIONS
    return not (known or (len(last) == 1 and last.isalpha()))
