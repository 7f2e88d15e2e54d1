"""Text in: from a string to token ids, and to the labels of every axis that counts tokens.

A `Tokens` says what each position is: the tokenizer's own piece, the stretch of text it stands
for, whether it is a special token, and which word it belongs to. `encode` makes one from a text
and leaves the tokenizer exactly as it found it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.errors import InputError

if TYPE_CHECKING:
    from transformers import BatchEncoding
    from transformers import PreTrainedTokenizerBase as Tokenizer

# A tokenizer is changed and changed back while it encodes, so one text at a time.
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Tokens:
    """What each position of a sequence is. Every field but `words` has one entry a position."""

    strings: tuple[str, ...]
    """The tokenizer's pieces, as they are: "##s", "Ġcat", "▁the", "[CLS]"."""
    ids: tuple[int, ...] | None
    """Their ids; None where the positions are not token ids (pixels, audio)."""
    special: tuple[bool, ...]
    """True for what frames the text ([CLS], </s>, a language code), not for [UNK] or [MASK]."""
    texts: tuple[str, ...]
    """The text each piece stands for: "s", "cat", "the"; a special token's own string."""
    word_of: tuple[int, ...] | None = None
    """The index in `words` of the word each piece belongs to; None where that is not known."""
    words: tuple[str, ...] | None = None
    """The text of each word, in order; a special token is a word of its own."""

    def __post_init__(self) -> None:
        lengths = {
            name: len(value)
            for name in ("strings", "ids", "special", "texts", "word_of")
            if (value := getattr(self, name)) is not None
        }
        if len(set(lengths.values())) > 1:
            raise InputError(f"the fields of Tokens need one entry a position; given: {lengths}")
        if (self.word_of is None) != (self.words is None):
            raise InputError("Tokens needs word_of and words both, or neither")

    def __len__(self) -> int:
        return len(self.strings)

    @classmethod
    def positions(cls, count: int) -> Tokens:
        """Labels for `count` positions that no tokenizer made: "position 0", "position 1", ..."""
        names = tuple(f"position {index}" for index in range(count))
        return cls(strings=names, ids=None, special=(False,) * count, texts=names)

    def to_dict(self) -> dict[str, Any]:
        """The same in plain JSON types; `from_dict` is its inverse."""
        return {name: None if v is None else list(v) for name, v in vars(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Tokens:
        """The `Tokens` that `to_dict` wrote."""
        fields: dict[str, Any] = {name: v if v is None else tuple(v) for name, v in data.items()}
        return cls(**fields)


@dataclass(frozen=True)
class Encoded:
    """One text ready for the model: ids, what else its tokenizer gives (token types), labels."""

    ids: list[int]
    extra: dict[str, list[int]]
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.ids)


def encode(
    tokenizer: Tokenizer,
    text: str,
    text_pair: str | None = None,
    *,
    max_length: int | None,
    truncate: bool,
    as_target: bool = False,
) -> Encoded:
    """Encode one text, or one pair of texts, with the tokenizer's own special tokens.

    Args:
        tokenizer: any transformers tokenizer. Its state is the same after as before.
        text: what to encode.
        text_pair: a second text, for models that read two at once.
        max_length: the most tokens the model takes, special tokens included; None for no limit.
        truncate: cut a longer text to the limit instead of refusing it: the tokens that go are
            those the tokenizer itself would drop (from the longer text of a pair first), and the
            special tokens stay.
        as_target: encode as the text that a translation model writes, which can have another
            language code, or another vocabulary, than the one it reads.
    """
    _check_tokenizer(tokenizer)
    _check_text("text", text)
    if text_pair is not None:
        _check_text("text_pair", text_pair)
    texts = (text,) if text_pair is None else (text, text_pair)
    with state_kept(tokenizer):
        choose_side(tokenizer, as_target=as_target)
        encoding = _call(tokenizer, texts, as_target=as_target)
        if max_length is not None and (length := len(encoding["input_ids"])) > max_length:
            if not truncate:
                subject = "the text gives" if text_pair is None else "text and text_pair give"
                raise InputError(
                    f"{subject} {length} tokens, special tokens included, and the model takes at "
                    f"most {max_length}; shorten the text, or have it cut to the limit with "
                    "truncate=True (on the command line: --truncate)"
                )
            encoding = _call_cut(tokenizer, texts, max_length, as_target=as_target)
        return _label(tokenizer, texts, encoding)


def pad(encoded: Sequence[Encoded], pad_id: int) -> dict[str, Tensor]:
    """Stack texts into one batch, padded on the right to the longest.

    On the right whatever the tokenizer's own side: real tokens then keep the positions they have
    alone, in models that count positions from the first column too.

    Returns:
        input_ids, attention_mask and each extra input that every text has, all (batch, position).
    """
    if not encoded:
        raise InputError("no texts to pad: give at least one")
    longest = max(len(one) for one in encoded)

    def stack(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])

    batch = {
        "input_ids": stack([one.ids for one in encoded], pad_id),
        "attention_mask": stack([[1] * len(one) for one in encoded], 0),
    }
    for name in encoded[0].extra:
        if all(name in one.extra for one in encoded):
            batch[name] = stack([one.extra[name] for one in encoded], 0)
    return batch


def _check_tokenizer(tokenizer: object) -> None:
    from transformers import PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    inner = getattr(tokenizer, "tokenizer", None)
    hint = "; give its .tokenizer" if isinstance(inner, PreTrainedTokenizerBase) else ""
    raise InputError(
        f"the tokenizer must be a transformers tokenizer (AutoTokenizer.from_pretrained(...)), "
        f"not {type(tokenizer).__name__}{hint}"
    )


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"{name} must be a string, not {type(text).__name__}: {text!r:.80}")
    if not text:
        raise InputError(f"{name} is empty: give at least one word")
    if not text.strip():
        raise InputError(f"{name} is only whitespace ({text!r:.40}): give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not valid Unicode: character {error.start} is half of a surrogate pair; "
            "decode the text with its real encoding first"
        ) from None


@contextmanager
def state_kept(tokenizer: Tokenizer) -> Iterator[None]:
    """Whatever a call changes in the tokenizer is as before afterwards, also after an exception.

    A plain call without truncation drops the truncation and padding saved in tokenizer.json, and
    encoding a target rewrites a translation tokenizer's post-processor and its attributes.
    """
    with _LOCK:
        attributes = dict(vars(tokenizer))
        backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if backend is not None:
            truncation, padding = backend.truncation, backend.padding
            processor, whole = backend.post_processor, backend.encode_special_tokens
        try:
            yield
        finally:
            current = vars(tokenizer)
            for name in current.keys() - attributes.keys():
                del current[name]
            current.update(attributes)
            if backend is not None:
                if truncation is None:
                    backend.no_truncation()
                else:
                    backend.enable_truncation(**truncation)
                if padding is None:
                    backend.no_padding()
                else:
                    backend.enable_padding(**padding)
                backend.post_processor = processor
                backend.encode_special_tokens = whole


def choose_side(tokenizer: Tokenizer, *, as_target: bool) -> None:
    """Give a tokenizer with two vocabularies (FSMT, some Marian) the one of this side.

    FSMT writes ids with the source's vocabulary and reads them with the target's, on both sides.
    Called inside `state_kept`, which undoes it.
    """
    it: Any = tokenizer
    if it.is_fast or not ("tgt_vocab_file" in vars(it) or getattr(it, "separate_vocabs", False)):
        return
    if not as_target:
        it.decoder = {index: piece for piece, index in it.encoder.items()}
    elif not hasattr(it, "_switch_to_target_mode"):
        it.encoder = {piece: index for index, piece in it.decoder.items()}
        it.src_lang = it.tgt_lang


def _call(
    tokenizer: Tokenizer, texts: tuple[str, ...], *, as_target: bool, cut_to: int | None = None
) -> BatchEncoding:
    names = ("text_target", "text_pair_target") if as_target else ("text", "text_pair")
    arguments: dict[str, Any] = dict(zip(names, texts, strict=False))
    if cut_to is not None:
        arguments.update(truncation="longest_first", max_length=cut_to)
    encoding: BatchEncoding = tokenizer(
        **arguments,
        return_special_tokens_mask=True,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,  # or transformers warns of the length that is about to be checked
    )
    return encoding


def _call_cut(
    tokenizer: Tokenizer, texts: tuple[str, ...], max_length: int, *, as_target: bool
) -> BatchEncoding:
    """Encode with as many tokens dropped as the limit asks, special tokens kept."""
    frame = tokenizer.num_special_tokens_to_add(pair=len(texts) == 2)
    room = max_length - frame
    if room < len(texts):
        raise InputError(
            f"a limit of {max_length} tokens leaves no room for text beside the tokenizer's "
            f"{frame} special tokens; it must be at least {frame + len(texts)}"
        )
    if tokenizer.is_fast:
        return _call(tokenizer, texts, as_target=as_target, cut_to=max_length)
    # transformers' Python tokenizers log a warning when they cut a pair, so cut before the call.
    it: Any = tokenizer
    if as_target and hasattr(it, "_switch_to_target_mode"):
        it._switch_to_target_mode()
    ids = [it.convert_tokens_to_ids(it.tokenize(text)) for text in texts]
    # Of a pair the longer gives way first; where both must, an odd token goes to the first.
    second = min(len(ids[1]), max(room // 2, room - len(ids[0]))) if len(ids) == 2 else 0
    kept = [room - second, second][: len(ids)]
    left = it.truncation_side == "left"
    cut = [one[-count:] if left else one[:count] for one, count in zip(ids, kept, strict=True)]
    encoding: BatchEncoding = it.prepare_for_model(
        *cut, return_special_tokens_mask=True, verbose=False
    )
    return encoding


def _label(tokenizer: Tokenizer, texts: tuple[str, ...], encoding: BatchEncoding) -> Encoded:
    ids = [int(one) for one in encoding["input_ids"]]
    strings = [str(one) for one in tokenizer.convert_ids_to_tokens(ids)]
    framing = _framing_strings(tokenizer)
    special = tuple(
        bool(added) or piece in framing
        for added, piece in zip(encoding["special_tokens_mask"], strings, strict=True)
    )
    if all(special):
        found = f"only special tokens: {' '.join(strings)}" if strings else "no tokens at all"
        raise InputError(
            f"the tokenizer gives {found}, for the text {' | '.join(texts)!r:.60}; "
            "give a text with at least one word it knows"
        )
    word_of: list[int] | None = None
    words: list[str] | None = None
    if tokenizer.is_fast:
        surface, word_of, words = _group(texts, encoding, strings, special)
    else:
        surface = _surface_without_offsets(tokenizer, strings, special)
    known = {"input_ids", "attention_mask", "special_tokens_mask", "offset_mapping"}
    return Encoded(
        ids=ids,
        extra={name: list(encoding[name]) for name in encoding if name not in known},
        tokens=Tokens(
            strings=tuple(strings),
            ids=tuple(ids),
            special=special,
            texts=tuple(surface),
            word_of=None if word_of is None else tuple(word_of),
            words=None if words is None else tuple(words),
        ),
    )


def _framing_strings(tokenizer: Tokenizer) -> set[str]:
    """The special tokens that frame a text, also when they are typed inside it.

    [UNK] and [MASK] stand for a piece of the text, so they do not count, unless the tokenizer
    uses the same string for the frame (GPT-2's <|endoftext|> is all of them at once).
    """
    roles = tokenizer.special_tokens_map
    standing = {roles.get("unk_token"), roles.get("mask_token")}
    frame = {one for role, one in roles.items() if role not in ("unk_token", "mask_token")}
    codes = getattr(tokenizer, "supported_language_codes", ())  # Marian's >>fra<<
    return (set(tokenizer.all_special_tokens) - (standing - frame)) | set(codes)


def _group(
    texts: tuple[str, ...], encoding: BatchEncoding, strings: list[str], special: tuple[bool, ...]
) -> tuple[list[str], list[int], list[str]]:
    """Surface text of each piece, the word each belongs to, and the words, from the offsets."""
    spans: list[tuple[int, int]] = [tuple(span) for span in encoding["offset_mapping"]]
    sources, ids_of_words = encoding.sequence_ids(0), encoding.word_ids(0)
    surface: list[str] = []
    word_of: list[int] = []
    members: list[list[int]] = []  # the pieces of each word
    for here, (piece, (start, end)) in enumerate(zip(strings, spans, strict=True)):
        text = "" if special[here] else texts[sources[here] or 0]
        surface.append(text[start:end].strip() or text[start:end] or piece)
        before = here - 1
        if (
            here == 0
            or special[here]
            or special[before]
            or sources[here] != sources[before]
            or ids_of_words[here] != ids_of_words[before]
            or _apart(text, spans[before], (start, end))
        ):
            members.append([])
        members[-1].append(here)
        word_of.append(len(members) - 1)
    words = []
    for pieces in members:
        first, last = pieces[0], pieces[-1]
        text = "" if special[first] else texts[sources[first] or 0]
        # From the text, not from the pieces: the bytes of one character all carry that character.
        span = text[spans[first][0] : max(spans[one][1] for one in pieces)]
        words.append(span.strip() or span or "".join(surface[first : last + 1]))
    return surface, word_of, words


def _apart(text: str, before: tuple[int, int], here: tuple[int, int]) -> bool:
    """Whether whitespace of the text lies between two neighbouring pieces.

    Needed where one word id covers the sentence (Llama, Gemma). The whitespace can lie between
    the spans, or in either: "▁cat" spans its space. A piece that is nothing but the space before
    a word (a lone "▁") belongs to that word, so it does not cut it off.
    """
    previous = text[slice(*before)]
    return (
        any(character.isspace() for character in text[before[1] : here[0]])
        or text[slice(*here)][:1].isspace()
        or (previous[-1:].isspace() and not previous.isspace())
    )


def _surface_without_offsets(
    tokenizer: Tokenizer, strings: list[str], special: tuple[bool, ...]
) -> list[str]:
    """What each piece adds to the string of the piece before it, for tokenizers without offsets.

    With its neighbour, because a piece alone keeps its mark: "##s" is "##s", "cat ##s" is "cats".
    """
    it: Any = tokenizer
    surface = []
    for here, piece in enumerate(strings):
        if special[here]:
            surface.append(piece)
            continue
        before = strings[here - 1 : here] if here and not special[here - 1] else []
        start = it.convert_tokens_to_string(before) if before else ""
        both = it.convert_tokens_to_string([*before, piece])
        added = both.removeprefix(start)
        surface.append(added.strip() or added or piece)
    return surface
