"""Encode text into token ids, and into labels for every axis that counts tokens.

A `Tokens` says what each position is: the tokenizer's own piece, the text it stands for, whether
it is a special token, and which word it belongs to. `encode` makes one from a text and leaves the
tokenizer exactly as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.foundation.interrupts import shielded
from normscope.text.checks import check_text
from normscope.text.pictures import PatchPlace, Picture
from normscope.text.words import group_pieces, surface_without_offsets

if TYPE_CHECKING:
    from transformers import BatchEncoding
    from transformers import PreTrainedTokenizerBase as Tokenizer

# A tokenizer is changed and restored while it encodes, so one text at a time.
_LOCK = threading.RLock()


def _unknown() -> None:
    """The default of a field that is not known."""


Grouped = tuple[Sequence[str], Sequence[int], Sequence[str]]  # texts, word_of, words


@dataclass(frozen=True)
class Tokens:
    """What each position of a sequence is. Every field but `words` has one entry per position."""

    strings: tuple[str, ...]
    """The tokenizer's pieces, unchanged: "##s", "Ġcat", "▁the", "[CLS]"."""
    ids: tuple[int, ...] | None
    """Their ids; None where the positions are not token ids (pixels, audio)."""
    special: tuple[bool, ...]
    """True for tokens that frame the text ([CLS], </s>, a language code), not for [UNK], [MASK]."""
    texts: tuple[str, ...]
    """The text each piece stands for: "s", "cat", "the"; a special token's own string."""
    # A factory leaves no attribute of the class, which would be found before what is missing.
    word_of: tuple[int, ...] | None = field(default_factory=_unknown)
    """The index in `words` of the word each piece belongs to; None if that is not known."""
    words: tuple[str, ...] | None = field(default_factory=_unknown)
    """The text of each word, in order; a special token is a word of its own."""
    places: tuple[PatchPlace | None, ...] | None = None
    """Picture, row and column of each patch of an image; None for other positions."""
    pictures: tuple[Picture, ...] = ()
    """The images and recordings that `places` are in."""

    def __post_init__(self) -> None:
        lengths = {
            name: len(value)
            for name in ("strings", "ids", "special", "texts", "word_of", "places")
            if (value := getattr(self, name)) is not None
        }
        if len(set(lengths.values())) > 1:
            raise InputError(
                f"the fields of Tokens need one entry per position, but have the lengths {lengths}"
            )
        if (self.word_of is None) != (self.words is None):
            raise InputError("Tokens needs both word_of and words, or neither")
        for place in filter(None, self.places or ()):
            picture, *cell = place
            known = self.pictures[picture] if 0 <= picture < len(self.pictures) else None
            if known is None or not (0 <= cell[0] < known.rows and 0 <= cell[1] < known.columns):
                raise InputError(f"Tokens has a place {place}, which none of its pictures has")

    def __len__(self) -> int:
        return len(self.strings)

    @classmethod
    def grouped_later(
        cls,
        strings: Sequence[str],
        ids: Sequence[int],
        special: Sequence[bool],
        group: Callable[[], Grouped],
    ) -> Tokens:
        """Return tokens whose texts and words are computed when one of them is first read."""
        tokens = object.__new__(cls)
        pieces = {"strings": tuple(strings), "ids": tuple(ids), "special": tuple(special)}
        vars(tokens).update(pieces, _group=group)
        return tokens

    if not TYPE_CHECKING:  # otherwise any attribute would have the type Any

        def __getattr__(self, name: str) -> Any:
            # Called for what is missing: texts and words, until one of them is first read.
            own = self.__dict__
            group = own.get("_group")
            if name not in _GROUPED or (group is None and name not in own):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if group is not None:  # otherwise another thread has just computed them
                own.update(zip(_GROUPED, map(tuple, group()), strict=True))
                own.pop("_group", None)
            return own[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tokens, tuple(getattr(self, each.name) for each in fields(self)))

    @classmethod
    def positions(cls, count: int, what: str = "position") -> Tokens:
        """Return labels for positions without a tokenizer: "position 0", "position 1", ..."""
        names = tuple(f"{what} {index}" for index in range(count))
        return cls(strings=names, ids=None, special=(False,) * count, texts=names)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in plain JSON types; `from_dict` is the inverse."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.places is None:
            del values["places"], values["pictures"]
        else:
            values["pictures"] = [picture.to_dict() for picture in self.pictures]
        return {name: None if value is None else list(value) for name, value in values.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Tokens:
        """Return the `Tokens` that `to_dict` described."""
        fields: dict[str, Any] = {name: v if v is None else tuple(v) for name, v in data.items()}
        if fields.get("places") is not None:
            places = (None if place is None else tuple(place) for place in fields["places"])
            pictures = (Picture.from_dict(picture) for picture in fields["pictures"])
            fields |= {"places": tuple(places), "pictures": tuple(pictures)}
        return cls(**fields)


_GROUPED = ("texts", "word_of", "words")


@dataclass(frozen=True)
class Encoded:
    """One text ready for the model: ids, other inputs from the tokenizer (token types), labels."""

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
    framed: bool = True,
) -> Encoded:
    """Encode one text, or one pair of texts, with the tokenizer's own special tokens.

    Special tokens that are typed where the tokenizer adds the same ones ("<s> Hello", the output
    of a chat template) are not doubled.

    Args:
        tokenizer: any transformers tokenizer. Its state is unchanged afterwards.
        text: the text to encode.
        text_pair: a second text, for models that read two at once.
        max_length: the most tokens that the model takes, special tokens included; None for no
            limit.
        truncate: cut a longer text to the limit instead of raising InputError. The tokenizer
            itself decides which tokens are dropped (from the longer text of a pair first); the
            special tokens stay.
        as_target: encode as the text that a translation model writes, which can have another
            language code or another vocabulary than the text it reads.
        framed: let the tokenizer add its special tokens; False for a text that has them already.
    """
    check_tokenizer(tokenizer)
    check_text("text", text)
    if text_pair is not None:
        check_text("text_pair", text_pair)
    texts = (text,) if text_pair is None else (text, text_pair)
    with state_kept(tokenizer):
        choose_side(tokenizer, as_target=as_target)
        how = {"as_target": as_target, "framed": framed}
        encoding = _call(tokenizer, texts, **how)
        length = len(encoding["input_ids"][_framed_once(encoding, None)])
        if max_length is not None and length > max_length:
            if not truncate:
                subject = "the text gives" if text_pair is None else "text and text_pair give"
                raise InputError(
                    f"{subject} {length} tokens, special tokens included, and the model accepts "
                    f"at most {max_length}; shorten the text, or cut it to the limit with "
                    "truncate=True (on the command line: --truncate)"
                )
            encoding = _call_cut(tokenizer, texts, max_length, **how)
        return _label(tokenizer, texts, encoding, None, framing_strings(tokenizer))


def encode_many(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str | None],
    *,
    max_length: int | None,
    truncate: bool,
    as_target: bool = False,
) -> list[Encoded]:
    """Encode many texts as :func:`encode` does each of them, in one call of a fast tokenizer.

    The arguments are those of :func:`encode`; ``pairs`` has a second text, or None, for each text.
    """
    how: dict[str, Any] = {"max_length": max_length, "truncate": truncate, "as_target": as_target}
    together = len(texts) > 1 and len({pair is None for pair in pairs}) == 1
    if together and _at_once(tokenizer, [*texts, *(pair for pair in pairs if pair is not None)]):
        paired = pairs[0] is not None
        sides = [list(texts), [str(pair) for pair in pairs]] if paired else [list(texts)]
        with state_kept(tokenizer):
            choose_side(tokenizer, as_target=as_target)
            encoding = _call(tokenizer, tuple(sides), as_target=as_target, framed=True)
            framing = framing_strings(tokenizer)
            rows = list(zip(*sides, strict=True))
            return [
                _label(tokenizer, row, encoding, index, framing)
                if max_length is None or len(encoding["input_ids"][index]) <= max_length
                # counts again, and cuts the text or says that it is too long
                else encode(tokenizer, *row, **how)
                for index, row in enumerate(rows)
            ]
    return [encode(tokenizer, *row, **how) for row in zip(texts, pairs, strict=True)]


def _at_once(tokenizer: Tokenizer, texts: Sequence[object]) -> bool:
    """Whether a tokenizer takes a list of texts, all of which can be encoded."""
    if not getattr(tokenizer, "is_fast", False):
        return False
    try:
        for text in texts:
            check_text("text", text)
    except InputError:  # raised again when it is that text's turn
        return False
    return True


def pad(encoded: Sequence[Encoded], pad_id: int, longest: int | None = None) -> dict[str, Tensor]:
    """Stack texts into one batch, padded on the right to the longest, or to a length.

    The right side is used whatever the tokenizer's own setting: real tokens then have the same
    positions as without padding, also in models that count positions from the first column.

    Returns:
        input_ids, attention_mask and every extra input that all texts have, (batch, position)
        each.
    """
    if not encoded:
        raise InputError("no texts to pad: give at least one")
    longest = max(len(text) for text in encoded) if longest is None else longest

    def stack(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])

    batch = {
        "input_ids": stack([text.ids for text in encoded], pad_id),
        "attention_mask": stack([[1] * len(text) for text in encoded], 0),
    }
    for name in encoded[0].extra:
        if all(name in text.extra for text in encoded):
            batch[name] = stack([text.extra[name] for text in encoded], 0)
    return batch


def check_tokenizer(tokenizer: object) -> None:
    """Raise InputError for what is not a tokenizer of transformers."""
    from transformers import PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    inner = getattr(tokenizer, "tokenizer", None)
    hint = "; pass its .tokenizer" if isinstance(inner, PreTrainedTokenizerBase) else ""
    raise InputError(
        "the tokenizer must be a transformers tokenizer (AutoTokenizer.from_pretrained(...)), "
        f"not {type(tokenizer).__name__}{hint}"
    )


@shielded
def state_kept(tokenizer: Tokenizer) -> Iterator[None]:
    """Restore the tokenizer's state when the context ends, also after an exception.

    A plain call without truncation drops the truncation and padding saved in tokenizer.json, and
    encoding a target rewrites a translation tokenizer's post-processor and its attributes.
    """
    with _LOCK:
        attributes = dict(vars(tokenizer))
        backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if backend is not None:
            truncation, padding = backend.truncation, backend.padding
            processor, plain = backend.post_processor, backend.encode_special_tokens
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
                backend.encode_special_tokens = plain


def choose_side(tokenizer: Tokenizer, *, as_target: bool) -> None:
    """Set a tokenizer with two vocabularies (FSMT, some Marian) to the one of this side.

    On its own, FSMT's tokenizer encodes with the source's vocabulary and decodes with the
    target's on both sides. Call this inside `state_kept`, which undoes it.
    """
    slow: Any = tokenizer
    if slow.is_fast or not (
        "tgt_vocab_file" in vars(slow) or getattr(slow, "separate_vocabs", False)
    ):
        return
    if not as_target:
        slow.decoder = {index: piece for piece, index in slow.encoder.items()}
    elif not hasattr(slow, "_switch_to_target_mode"):
        slow.encoder = {piece: index for index, piece in slow.decoder.items()}
        slow.src_lang = slow.tgt_lang


def _call(
    tokenizer: Tokenizer,
    texts: tuple[str | list[str], ...],
    *,
    as_target: bool,
    framed: bool,
    cut_to: int | None = None,
) -> BatchEncoding:
    names = ("text_target", "text_pair_target") if as_target else ("text", "text_pair")
    arguments: dict[str, Any] = dict(zip(names, texts, strict=False))
    if cut_to is not None:
        arguments.update(truncation="longest_first", max_length=cut_to)
    encoding: BatchEncoding = tokenizer(
        **arguments,
        add_special_tokens=framed,
        return_special_tokens_mask=True,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,  # no warning about the length, which is checked afterwards
    )
    return encoding


def _call_cut(
    tokenizer: Tokenizer, texts: tuple[str, ...], max_length: int, *, as_target: bool, framed: bool
) -> BatchEncoding:
    """Encode and drop the tokens beyond the limit; special tokens are kept."""
    frame = tokenizer.num_special_tokens_to_add(pair=len(texts) == 2) if framed else 0
    room = max_length - frame
    if room < len(texts):
        raise InputError(
            f"a limit of {max_length} tokens leaves no room for text beside the tokenizer's "
            f"{frame} special tokens; it must be at least {frame + len(texts)}"
        )
    if tokenizer.is_fast:
        return _call(tokenizer, texts, as_target=as_target, framed=framed, cut_to=max_length)
    # transformers' Python tokenizers log a warning when they cut a pair, so cut before the call.
    slow: Any = tokenizer
    if as_target and hasattr(slow, "_switch_to_target_mode"):
        slow._switch_to_target_mode()
    ids = [slow.convert_tokens_to_ids(slow.tokenize(text)) for text in texts]
    # The longer text of a pair is cut first; if both must be, an odd token goes to the first.
    second = min(len(ids[1]), max(room // 2, room - len(ids[0]))) if len(ids) == 2 else 0
    counts = [room - second, second][: len(ids)]
    left = slow.truncation_side == "left"
    cut = [row[-count:] if left else row[:count] for row, count in zip(ids, counts, strict=True)]
    encoding: BatchEncoding = slow.prepare_for_model(
        *cut, add_special_tokens=framed, return_special_tokens_mask=True, verbose=False
    )
    return encoding


def _label(
    tokenizer: Tokenizer,
    texts: tuple[str, ...],
    encoding: BatchEncoding,
    row: int | None,
    framing: set[str],
) -> Encoded:
    """Turn a tokenizer's output into ids and labels; ``row`` is None if it is of one text."""
    kept = _framed_once(encoding, row)
    fields = {name: (v if row is None else v[row])[kept] for name, v in encoding.items()}
    ids = [int(index) for index in fields["input_ids"]]
    strings = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    special = tuple(
        bool(added) or piece in framing
        for added, piece in zip(fields["special_tokens_mask"], strings, strict=True)
    )
    if all(special):
        given = f"only special tokens: {' '.join(strings)}" if strings else "no tokens at all"
        raise InputError(
            f"the tokenizer gives {given}, for the text {' | '.join(texts)!r:.60}; "
            "give a text with at least one word that it knows"
        )
    if tokenizer.is_fast:
        spans = fields["offset_mapping"]
        places = encoding.sequence_ids(row or 0)[kept], encoding.word_ids(row or 0)[kept]
        group = partial(group_pieces, texts, spans, *places, strings, special)
        tokens = Tokens.grouped_later(strings, ids, special, group)
    else:
        surface = surface_without_offsets(tokenizer, strings, special)
        tokens = Tokens(tuple(strings), tuple(ids), special, tuple(surface))
    known = {"input_ids", "attention_mask", "special_tokens_mask", "offset_mapping"}
    extra = {name: list(v) for name, v in fields.items() if name not in known}
    return Encoded(ids, extra, tokens)


def _framed_once(encoding: BatchEncoding, row: int | None) -> slice:
    """Return the positions to keep where a text begins or ends with what the tokenizer adds there.

    The tokens that the tokenizer added are left out, and those of the text stay.
    """
    ids, mask = (encoding[name] for name in ("input_ids", "special_tokens_mask"))
    ids, mask = (ids, mask) if row is None else (ids[row], mask[row])
    if all(mask):
        return slice(None)
    front, back = mask.index(0), mask[::-1].index(0)
    end = len(ids) - back
    doubled = front > 0 and ids[front : min(2 * front, end)] == ids[:front]
    start = front if doubled else 0
    doubled = back > 0 and ids[max(start, end - back) : end] == ids[end:]
    return slice(start, end if doubled else len(ids))


def framing_strings(tokenizer: Tokenizer) -> set[str]:
    """The special tokens that frame a text, also when they are typed inside it.

    [UNK] and [MASK] stand for a piece of the text, so they do not count, unless the tokenizer
    uses the same string for the frame (GPT-2's <|endoftext|> has all roles at once).
    """
    roles = tokenizer.special_tokens_map
    stand_ins = {roles.get("unk_token"), roles.get("mask_token")}
    frame = {token for role, token in roles.items() if role not in ("unk_token", "mask_token")}
    codes = getattr(tokenizer, "supported_language_codes", ())  # Marian's >>fra<<
    return (set(tokenizer.all_special_tokens) - (stand_ins - frame)) | set(codes)
