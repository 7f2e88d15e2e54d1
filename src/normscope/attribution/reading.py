"""From the caller's texts to tokens: prompts and what follows them, chats, masks, baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from normscope.attribution.generation import write
from normscope.attribution.heads import is_index
from normscope.errors import InputError
from normscope.foundation.texts import printable
from normscope.models.sides import tokenizers_of
from normscope.results.arrays import take
from normscope.text.limits import check_fits, embedding_table, max_length_of
from normscope.text.pictures import PatchPlace
from normscope.text.pieces import SPACE_MARKS, label_ids
from normscope.text.targets import shift_right
from normscope.text.tokens import Encoded, Tokens, encode, state_kept


class Reader:
    """Encode texts for one model.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer, or a pair (source, target).
        truncate: cut texts that are too long for the model, instead of raising InputError.
    """

    def __init__(self, model: Any, tokenizer: Any, *, truncate: bool) -> None:
        self.model: Any = model
        self.tokenizers = tokenizers_of(self.model, tokenizer)
        self.tokenizer, self.truncate = self.tokenizers.source, truncate
        self.writer: Any = self.tokenizers.target
        """The tokenizer of what the model writes, which is the same for most models."""

    @property
    def begins(self) -> int:
        """The number of tokens before what a decoder writes."""
        return 1

    # ---- texts

    def text(self, text: Any, pair: str | None = None) -> Encoded:
        """Encode a text, or a pair, with the tokenizer's special tokens; a chat by its template."""
        return self._encode(*self._rendered(text), pair)

    def target(self, target: str) -> Encoded:
        """Encode a text that an encoder–decoder model writes, its end token included."""
        limit = max_length_of(self.model.config, self.writer, as_target=True)
        target = self.tokenizers.normalized(target, as_target=True)
        encoded = encode(
            self.writer, target, max_length=limit, truncate=self.truncate, as_target=True
        )
        check_fits(self.writer, self.model, encoded, as_target=True)
        return encoded

    def decoder_input(self, target: Encoded) -> Encoded:
        """Return what the decoder reads while it writes a target."""
        return shift_right(self.model, self.writer, target)

    def prompt(self, text: Any, follows: Any = None) -> tuple[Encoded, int]:
        """Encode a prompt of a language model and what follows it.

        An end token that the tokenizer adds is left out: the model goes on after the text.

        Args:
            text: the prompt, a text or a chat.
            follows: a text that is tokenised as the continuation of the prompt, or ids.

        Returns:
            Prompt and continuation together, and the number of the prompt's tokens.
        """
        string, framed = self._rendered(text)
        prompt = self._open_ended(string, framed, None)
        whole = prompt
        if follows is not None:
            whole = self._followed(string, framed, prompt, follows)
        added = len(whole) - len(prompt)
        limit = max_length_of(self.model.config, self.tokenizer)
        if limit is not None and len(whole) > limit:
            room = limit - added
            if not self.truncate or room < 1:
                what = "the text gives" if not added else "the text and what follows it give"
                raise InputError(
                    f"{what} {len(whole)} tokens, special tokens included, and the model accepts "
                    f"at most {limit}; shorten the text, or cut it to the limit with truncate=True "
                    "(on the command line: --truncate)"
                )
            cut = self._open_ended(string, framed, room)
            rest = take(whole.tokens, range(len(prompt), len(whole)))
            whole, prompt = join(cut, rest), cut
        check_fits(self.tokenizer, self.model, whole)
        return whole, len(prompt)

    def ids_after(self, text: Any, follows: Any) -> list[int]:
        """Return the ids of what follows a prompt, whatever the model's limit."""
        string, framed = self._rendered(text)
        prompt = self._open_ended(string, framed, None)
        return self._followed(string, framed, prompt, follows).ids[len(prompt) :]

    def _encode(self, string: str, framed: bool, pair: str | None) -> Encoded:
        limit = max_length_of(self.model.config, self.tokenizer)
        string = self.tokenizers.normalized(string)
        pair = None if pair is None else self.tokenizers.normalized(pair)
        encoded = encode(
            self.tokenizer, string, pair, max_length=limit, truncate=self.truncate, framed=framed
        )
        check_fits(self.tokenizer, self.model, encoded)
        return encoded

    def _rendered(self, text: Any) -> tuple[str, bool]:
        """Return a text, and whether the tokenizer shall add its special tokens to it."""
        if not is_chat(text):
            return text, True
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                "the text is a list of messages, and the tokenizer has no chat template: give a "
                "string, or set tokenizer.chat_template"
            )
        string = self.tokenizer.apply_chat_template(
            list(text), tokenize=False, add_generation_prompt=True
        )
        return str(string), False

    def _open_ended(self, string: str, framed: bool, limit: int | None) -> Encoded:
        """Encode a text without the special tokens that the tokenizer puts after it."""
        encoded = encode(
            self.tokenizer, string, max_length=None, truncate=self.truncate, framed=framed
        )
        if framed and encoded.tokens.special[-1]:
            plain = self.ids_of(string)
            for end in range(len(encoded), len(plain) - 1, -1):
                if encoded.ids[end - len(plain) : end] == plain:
                    encoded = first(encoded, end)
                    break
        # The first tokens are kept, as those of special tokens before the text are.
        return encoded if limit is None else first(encoded, limit)

    def _followed(self, string: str, framed: bool, prompt: Encoded, follows: Any) -> Encoded:
        """Return prompt and continuation, tokenised together if the prompt's tokens stay."""
        if isinstance(follows, str):
            if not follows:
                raise InputError("the text that follows the prompt is empty")
            together = self._open_ended(string + follows, framed, None)
            if len(together) > len(prompt) and together.ids[: len(prompt)] == prompt.ids:
                return together
            ids = self.ids_of(follows)
        else:
            ids = self.checked_ids(follows)
            together = self._open_ended(string + spoken(self.tokenizer, ids), framed, None)
            if together.ids == [*prompt.ids, *ids]:
                return together
        if not ids:
            raise InputError(f"the tokenizer gives no tokens for {follows!r}")
        return join(prompt, label_ids(self.tokenizer, ids))

    def write(self, prompt: Encoded, count: int) -> list[int]:
        """Return the tokens that the model writes after a prompt, or those of its decoder."""
        return write(self.model, self.writer, prompt, count)

    # ---- ids

    def ids_of(self, text: str, *, as_target: bool = False) -> list[int]:
        """Return the ids of a text without special tokens."""
        name = "text_target" if as_target else "text"
        tokenizer = self.tokenizers.side(as_target=as_target)
        text = self.tokenizers.normalized(text, as_target=as_target)
        with state_kept(tokenizer):
            encoding = tokenizer(**{name: text}, add_special_tokens=False, verbose=False)
        return [int(index) for index in encoding["input_ids"]]

    def checked_ids(self, ids: Any) -> list[int]:
        """Return ids that were given, as a list; raise InputError for ids the model lacks."""
        if hasattr(ids, "tolist"):
            ids = ids.tolist()
        entries = [ids] if is_index(ids) else ids
        if not isinstance(entries, Sequence) or not entries or not all(map(is_index, entries)):
            raise InputError(f"an answer is a string, an id or a list of ids, not {ids!r:.60}")
        table = embedding_table(self.model, as_target=True)
        rows = None if table is None else len(table)
        for index in entries:
            if index < 0 or (rows is not None and index >= rows):
                raise InputError(
                    f"there is no token with the id {index}; the model's ids are 0 to "
                    f"{'its last' if rows is None else rows - 1}"
                )
        return [int(index) for index in entries]

    def pieces(self, ids: Sequence[int]) -> str:
        """Return the pieces of ids that the model writes, for messages and signatures."""
        return " ".join(printable(str(p)) for p in self.writer.convert_ids_to_tokens(list(ids)))


def is_chat(text: object) -> bool:
    """Return whether a text is a list of messages, each with role and content."""
    return (
        isinstance(text, Sequence)
        and not isinstance(text, str)
        and len(text) > 0
        and all(isinstance(message, Mapping) for message in text)
    )


def first(encoded: Encoded, count: int) -> Encoded:
    """Return the first tokens of an encoded text."""
    extra = {name: values[:count] for name, values in encoded.extra.items()}
    return Encoded(encoded.ids[:count], extra, take(encoded.tokens, range(count)))


def join(encoded: Encoded, more: Tokens) -> Encoded:
    """Return an encoded text with more tokens at its end."""
    tokens = join_tokens(encoded.tokens, more)
    ids = [*encoded.ids, *(more.ids or ())]
    extra = {
        name: [*values, *[values[-1] if values else 0] * len(more)]
        for name, values in encoded.extra.items()
    }
    return Encoded(ids, extra, tokens)


def join_tokens(tokens: Tokens, more: Tokens) -> Tokens:
    """Return tokens followed by other tokens; words are never joined."""
    known = None not in (tokens.words, tokens.word_of, more.words, more.word_of)
    count = len(tokens.words or ())
    return Tokens(
        strings=tokens.strings + more.strings,
        ids=None if tokens.ids is None or more.ids is None else tokens.ids + more.ids,
        special=tokens.special + more.special,
        texts=tokens.texts + more.texts,
        word_of=(*(tokens.word_of or ()), *(count + word for word in more.word_of or ()))
        if known
        else None,
        words=(*(tokens.words or ()), *(more.words or ())) if known else None,
        places=_joined_places(tokens, more),
        pictures=tokens.pictures + more.pictures,
    )


def _joined_places(tokens: Tokens, more: Tokens) -> tuple[PatchPlace | None, ...] | None:
    """Return the places of tokens followed by others, whose pictures follow too."""
    if tokens.places is None and more.places is None:
        return None
    before = len(tokens.pictures)
    behind = (p and (before + p[0], *p[1:]) for p in more.places or (None,) * len(more))
    return (*(tokens.places or (None,) * len(tokens)), *behind)


def spoken(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids, with the space before it that the tokenizer's decoder drops."""
    text = str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
    piece = str(tokenizer.convert_ids_to_tokens(int(ids[0])))
    return f" {text}" if piece.startswith(SPACE_MARKS) and not text.startswith(" ") else text


def replaced(encoded: Encoded, flags: Sequence[bool], index: int) -> Encoded:
    """Return an encoded text with one token in place of some."""
    ids = [index if flag else old for old, flag in zip(encoded.ids, flags, strict=True)]
    return replace(encoded, ids=ids)


def side_by_side(tokens: Tokens, others: Tokens) -> str:
    """Return two tokenisations, aligned piece by piece, for an error message."""
    rows = [list(map(printable, side.strings)) for side in (tokens, others)]
    count = max(map(len, rows))
    for row in rows:
        row += [""] * (count - len(row))
    widths = [max(len(row[at]) for row in rows) for at in range(count)]
    names = ("text", "baseline")
    lines = []
    for name, row in zip(names, rows, strict=True):
        padded = (f"{piece:<{width}}" for piece, width in zip(row, widths, strict=True))
        lines.append(f"  {name:<9}" + " | ".join(padded).rstrip())
    return "\n".join(lines)
