"""One text as the model reads it, and the terms of what is explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normscope.attribution.answers import Terms
from normscope.attribution.reading import Reader
from normscope.errors import InputError
from normscope.models.running import accepted_by
from normscope.results.arrays import abridged
from normscope.text.tokens import Encoded, Tokens


@dataclass(frozen=True)
class AskedRow:
    """One text, encoded, and what is explained of it.

    Attributes:
        texts: what the model reads; several for the choices of a multiple-choice model.
        decoder: what its decoder reads, if it has one.
        sides: for each token of text and decoder: "text", "pair", "continuation", "source" or
            "target".
        steps: the terms of each answer.
        explained: the tokens that are explained, if there are several answers.
        answer: what is explained, in words; None if that is the model's choice.
        foil: what it is compared with, in words.
        position: the output position, where there is one.
        function: a function of the model's output, in place of steps.
        similar_to: a text to be similar to, in place of steps.
        names: the choices of a multiple-choice model, in words.
    """

    texts: tuple[Encoded, ...]
    decoder: Encoded | None = None
    sides: tuple[str, ...] = ()
    steps: tuple[Terms, ...] = ()
    explained: Tokens | None = None
    answer: str | None = None
    foil: str | None = None
    position: int | None = None
    function: Callable[[Any], Any] | None = None
    similar_to: str | None = None
    names: tuple[str, ...] = ()

    def replaceable(self, writes: bool) -> tuple[list[list[bool]], list[bool]]:
        """Return which tokens a baseline replaces, of the texts and of the decoder's input.

        Special tokens stay as they are, and so do tokens that are given: those of an answer or a
        continuation that come before the one that is explained.

        Args:
            writes: whether what the decoder reads was written by it, and not the text once more.
        """
        given = [side == "continuation" for side in self.sides] if len(self.texts) == 1 else []
        texts = [
            [
                not special and not (at < len(given) and given[at])
                for at, special in enumerate(text.tokens.special)
            ]
            for text in self.texts
        ]
        decoder = () if self.decoder is None else self.decoder.tokens.special
        return texts, [not special and not writes for special in decoder]

    @property
    def text(self) -> Encoded:
        """The text, of models that read one at a time."""
        return self.texts[0]


def sides_of(reader: Reader, encoded: Encoded, text: Any, pair: str | None) -> tuple[str, ...]:
    """Return "text" or "pair" for each token."""
    if pair is None:
        return ("text",) * len(encoded)
    # The pair begins after the tokens that the text alone has: [CLS] text [SEP].
    types = encoded.extra.get("token_type_ids")
    if types is not None and len(set(types)) > 1:
        second = types[-1]
        return tuple("pair" if kind == second else "text" for kind in types)
    alone = reader.ids_of(text)
    for at in range(len(encoded) - len(alone) + 1):
        if encoded.ids[at : at + len(alone)] == alone:
            end = at + len(alone)
            while end < len(encoded) and encoded.tokens.special[end]:
                end += 1
            return ("text",) * end + ("pair",) * (len(encoded) - end)
    return ("text",) * len(encoded)


def position_in(tokens: Tokens, position: int) -> int:
    """Return a position counted from 0; raise InputError if it is out of range."""
    if not -len(tokens) <= position < len(tokens):
        raise InputError(
            f"position {position} is out of range: the text has {len(tokens)} tokens, 0 to "
            f"{len(tokens) - 1}: {abridged(tokens)}"
        )
    return position % len(tokens)


def with_decoder(
    reader: Reader, encoded: Encoded, sides: tuple[str, ...]
) -> tuple[Encoded | None, tuple[str, ...]]:
    """Return what the decoder of a model with a label head reads: the same text, shifted."""
    two = getattr(reader.model.config, "is_encoder_decoder", False)
    if not two or "decoder_input_ids" not in accepted_by(reader.model):
        return None, sides
    decoder = reader.decoder_input(encoded)
    return decoder, ("source",) * len(encoded) + ("target",) * len(decoder)
