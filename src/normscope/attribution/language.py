"""What is explained of language models: causal, masked, encoder–decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normscope.attribution.answers import Term, Terms
from normscope.attribution.options import Question
from normscope.attribution.reading import Reader, spoken
from normscope.attribution.rows import AskedRow, position_in, sides_of
from normscope.errors import InputError
from normscope.results.arrays import take
from normscope.text.pieces import label_ids
from normscope.text.tokens import Encoded, Tokens


def _answers(
    reader: Reader, question: Question, ids: Callable[[Any], list[int]]
) -> tuple[list[int], list[int], int]:
    """Return the ids of answer and foil, and where they first differ (0 without a foil)."""
    answer = ids(question.answer)
    if question.foil is None:
        return answer, [], 0
    foil = ids(question.foil)
    for at, pair in enumerate(zip(answer, foil, strict=False)):
        if pair[0] != pair[1]:
            return answer, foil, at
    raise InputError(
        f"answer and foil do not differ in a token: {reader.pieces(answer)} and "
        f"{reader.pieces(foil)}; give answers of which neither begins with the other"
    )


def _terms(answer: list[int], foil: list[int], differ: int, place: int) -> Terms:
    """Return the terms of an answer, or of the first token at which it differs from a foil."""
    if foil:
        at = place + differ
        return (Term(at, answer[differ]), Term(at, foil[differ], -1.0))
    return tuple(Term(place + at, index) for at, index in enumerate(answer))


def causal_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of a causal language model: the next token, or all of a continuation."""
    follows: Any = question.continuation
    if question.generate is not None:
        prompt, _ = reader.prompt(text)
        follows = reader.write(prompt, question.generate)
    if follows is not None:
        whole, count = reader.prompt(text, follows)
        sides = ("text",) * count + ("continuation",) * (len(whole) - count)
        steps = tuple((Term(at - 1, whole.ids[at]),) for at in range(count, len(whole)))
        explained = take(whole.tokens, range(count, len(whole)))
        return AskedRow((whole,), None, sides, steps, explained, spoken_steps(reader, explained))
    if question.answer is None:
        prompt, count = reader.prompt(text)
        last = _last(prompt, question)
        return AskedRow((prompt,), None, ("text",) * count, ((Term(last, None),),), position=last)

    def ids(answer: Any) -> list[int]:
        return reader.ids_after(text, answer)

    answer, foil, differ = _answers(reader, question, ids)
    read = answer[:differ] if foil else answer[:-1]  # tokens of the answer that are given
    if read and question.position is not None:
        raise InputError(
            f"the answer has several tokens ({reader.pieces(answer)}), which follow the text; "
            f"leave out position={question.position}, or give one token"
        )
    whole, count = reader.prompt(text, read or None)
    last = count - 1 if read else _last(whole, question)
    sides = ("text",) * count + ("continuation",) * len(read)
    terms = _terms(answer, foil, differ, last)
    named = _named(reader, answer, foil)
    return AskedRow((whole,), None, sides, (terms,), None, *named, position=last)


def _last(prompt: Encoded, question: Question) -> int:
    """Return the position that is explained: by default, the last one."""
    position = -1 if question.position is None else question.position
    return position_in(prompt.tokens, position)


def spoken_steps(reader: Reader, explained: Tokens) -> str:
    """Return the text of the tokens that are explained."""
    return spoken(reader.writer, list(explained.ids or ()))


def _named(reader: Reader, answer: list[int], foil: list[int]) -> tuple[str, str | None]:
    """Return answer and foil in words: what was explained, whatever was typed."""
    words = spoken(reader.writer, answer)
    return words, spoken(reader.writer, foil) if foil else None


def masked_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of a masked language model: the token at a mask."""
    encoded = reader.text(text, question.text_pair)
    sides = sides_of(reader, encoded, text, question.text_pair)
    mask = reader.tokenizer.mask_token_id
    masks = [at for at, index in enumerate(encoded.ids) if index == mask]
    if question.position is not None:
        place = position_in(encoded.tokens, question.position)
    elif len(masks) == 1:
        place = masks[0]
    else:
        name = reader.tokenizer.mask_token
        what = f"{len(masks)} mask tokens" if masks else "no mask token"
        advice = f"put {name!r} in the text, or give position=" if not masks else "give position="
        raise InputError(f"the text has {what}, so what to explain is not clear: {advice}")

    def ids(answer: Any) -> list[int]:
        return _ids_at_mask(reader, text, question.text_pair, encoded, place, answer)

    if question.answer is None:
        return AskedRow((encoded,), None, sides, ((Term(place, None),),), position=place)
    answer, foil, _ = _answers(reader, question, ids)
    terms = _terms(answer, foil, 0, place)
    return AskedRow((encoded,), None, sides, (terms,), None, *_named(reader, answer, foil), place)


def _ids_at_mask(
    reader: Reader, text: Any, pair: str | None, encoded: Encoded, place: int, answer: Any
) -> list[int]:
    """Return the id of an answer in place of one token; raise InputError if it is not one."""
    if not isinstance(answer, str):
        ids = reader.checked_ids(answer)
    else:
        ids = reader.ids_of(answer)
        mask = reader.tokenizer.mask_token
        if encoded.ids[place] == reader.tokenizer.mask_token_id and mask is not None:
            # As the answer is tokenised where it stands: with the space before it.
            filled = _filled(reader, text, pair, encoded, place, answer, mask)
            ids = filled or ids
    if len(ids) != 1:
        raise InputError(
            f"the answer {answer!r} is {len(ids)} tokens ({reader.pieces(ids)}), but a masked "
            f"model predicts one token per mask: give an answer of one token"
        )
    return ids


def _filled(
    reader: Reader,
    text: str,
    pair: str | None,
    encoded: Encoded,
    place: int,
    answer: str,
    mask: str,
) -> list[int]:
    """Return the ids that an answer gets in place of a mask; none if they cannot be told."""
    number = sum(i == encoded.ids[place] for i in encoded.ids[:place])
    strings = [text, *([] if pair is None else [pair])]
    for at, string in enumerate(strings):
        parts = string.split(mask)
        if number >= len(parts) - 1:
            number -= len(parts) - 1
            continue
        before, after = mask.join(parts[: number + 1]), mask.join(parts[number + 1 :])
        strings[at] = before + answer + after
        filled = reader.text(*strings).ids
        after_mask = len(encoded) - place - 1
        same = filled[:place] == encoded.ids[:place]
        if same and filled[len(filled) - after_mask :] == encoded.ids[place + 1 :]:
            return filled[place : len(filled) - after_mask]
        break
    return []


def translation_row(reader: Reader, text: Any, question: Question, model: Any) -> AskedRow:
    """Return the row of an encoder–decoder model: the first tokens, or all of a target."""
    if question.position is not None:
        raise InputError(
            "an encoder–decoder model is explained token by token: give target=, or the answer "
            "with which the translation begins; position= does not apply"
        )
    source = reader.text(text)

    def row(decoder: Encoded, **what: Any) -> AskedRow:
        sides = ("source",) * len(source) + ("target",) * len(decoder)
        return AskedRow((source,), decoder, sides, **what)

    if question.target is not None or question.generate is not None:
        if question.target is not None:
            target = reader.target(question.target)
            decoder = reader.decoder_input(target)
            explained = target.tokens
        else:
            written = reader.write(source, question.generate or 0)
            tokens = label_ids(reader.writer, written)
            explained = take(tokens, range(reader.begins, len(written)))
            read = take(tokens, range(len(written) - 1))
            decoder = Encoded(written[:-1], {}, read)
        first = len(decoder) - len(explained)
        steps = tuple((Term(first + at, index),) for at, index in enumerate(explained.ids or ()))
        return row(
            decoder, steps=steps, explained=explained, answer=spoken_steps(reader, explained)
        )
    if question.answer is None:
        start = getattr(model.config, "decoder_start_token_id", None)
        if start is None:
            raise InputError("the model's config has no decoder_start_token_id: give target=")
        decoder = Encoded([start], {}, label_ids(reader.writer, [start]))
        return row(decoder, steps=((Term(0, None),),), position=0)
    prefix: list[int] = []

    def ids(answer: Any) -> list[int]:
        return _target_ids(reader, answer, prefix)

    answer, foil, differ = _answers(reader, question, ids)
    read_ids = answer[:differ] if foil else answer[:-1]
    written = [*prefix, *read_ids, answer[len(read_ids)]]
    decoder = reader.decoder_input(Encoded(written, {}, label_ids(reader.writer, written)))
    terms = _terms(answer, foil, differ, len(prefix))
    words, other = _named(reader, answer, foil)
    return row(decoder, steps=(terms,), answer=words, foil=other)


def _target_ids(reader: Reader, answer: Any, prefix: list[int]) -> list[int]:
    """Return the ids of an answer of a decoder; put the special tokens before it in `prefix`."""
    if not isinstance(answer, str):
        return reader.checked_ids(answer)
    framed, plain = reader.target(answer).ids, reader.ids_of(answer, as_target=True)
    for at in range(len(framed) - len(plain) + 1):
        if framed[at : at + len(plain)] == plain:
            prefix[:] = framed[:at]
    return plain
