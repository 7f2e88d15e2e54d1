"""A translation model with all that belongs to it: tokenizers, normalisation, languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.alignment.batches import Pair, pair_of, parameter_of
from normscope.alignment.extract import Choice, cross_shape
from normscope.alignment.words import (
    About,
    Side,
    about,
    check_language,
    encode_sides,
    language_codes,
)
from normscope.errors import InputError, ModelNotFoundError
from normscope.models import load
from normscope.models.running import accepted_by
from normscope.text.limits import embedding_table, max_length_of

Sentences = Sequence[Sequence[str]]
EMBEDDED = Path(__file__).parent / "model"
EMBEDDED_NAME = "normscope-de-en"  # in signatures: its folder's name says nothing


def embedded_model_path() -> Path:
    """The folder of the German-English model that comes with normscope."""
    folder = EMBEDDED
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            "this installation of normscope has no translation model of its own; name one: "
            'model="owner/name" or a folder (on the command line: --model)'
        )
    return folder


@dataclass(frozen=True, eq=False)
class Translator:
    """A model, its tokenizers, and how it wants its text."""

    model: Any
    source: Any  # tokenizers
    target: Any
    about: About = field(default_factory=About)
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str = ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What was found best for this model on much text, the best first; none where unknown."""
        return tuple(Choice(*one) for one in self.about.choices)

    @property
    def padding(self) -> int:
        """The id that fills up a batch."""
        found = (self.source.pad_token_id, getattr(self.model.config, "pad_token_id", None))
        return next((one for one in found if one is not None), 0)

    def turned(self, model: Any, tokenizer: Any = None) -> Translator:
        """A model for the other direction, given as :func:`translator` takes it."""
        return translator(
            model,
            tokenizer,
            source_lang=self.target_lang,
            target_lang=self.source_lang,
            prefix=self.prefix,
            device=self.model.device,
            dtype=parameter_of(self.model).dtype,
        )

    def pairs(
        self, source: Sentences | Tensor, target: Sentences, *, skip_long: bool = False
    ) -> list[Pair | None]:
        """Sentence pairs ready for the model; None where a side is empty, or too long to be read.

        Args:
            source: the words of each sentence, or audio features (batch, mel, frame).
            target: the words of each sentence.
            skip_long: leave out a sentence beyond the model's limit instead of refusing it.
        """
        listens = "input_features" in accepted_by(self.model)
        if listens != isinstance(source, Tensor):
            wants = "audio features (batch, mel, frame)" if listens else "text"
            raise InputError(f"{type(self.model).__name__} reads {wants} as its source")
        rows = [row for row in range(len(target)) if len(target[row]) > 0 and len(source[row]) > 0]
        made: list[Pair | None] = [None] * len(target)
        if not rows:
            return made
        # Marian reads the code of the target language before the source.
        marian = bool(getattr(self.source, "supported_language_codes", None))
        wrote = self._encode(self.target, [target[row] for row in rows], True, self.target_lang)
        read: Sequence[Side | Tensor]
        if isinstance(source, Tensor):
            read = [source[row] for row in rows]
        else:
            language = self.target_lang if marian else self.source_lang
            read = self._encode(self.source, [source[row] for row in rows], False, language)
        checks = {side: self.check(side) for side in ("source", "target")}
        starts: dict[int, int] = {}
        for row, one, other in zip(rows, read, wrote, strict=True):
            fits = not isinstance(one, Side) or checks["source"](one, row, skip_long)
            if checks["target"](other, row, skip_long) and fits:
                made[row] = pair_of(self.model, one, other, starts)
        return made

    def _encode(
        self, tokenizer: Any, sentences: Sentences, as_target: bool, language: str | None
    ) -> list[Side]:
        marian = bool(getattr(tokenizer, "supported_language_codes", None))
        return encode_sides(
            tokenizer,
            sentences,
            as_target=as_target,
            language=None if marian and as_target else language,
            prefix="" if as_target else self.prefix,
            normalization=self.about.normalization,
        )

    def check(self, name: str) -> Callable[[Side, int, bool], bool]:
        """A function that says whether a sentence fits the model, and refuses one that does not.

        It takes the sentence, its number from 0, and whether one that is too long is left out.
        """
        as_target = name == "target"
        tokenizer = self.target if as_target else self.source
        limit = max_length_of(self.model.config, tokenizer, as_target=as_target)
        table = embedding_table(self.model, as_target=as_target)
        size = None if table is None else table.shape[0]

        def check(side: Side, row: int, skip_long: bool) -> bool:
            if size is not None and max(side.ids) >= size:
                raise InputError(
                    f"{name} sentence {row + 1}: the tokenizer ({type(tokenizer).__name__}) gives "
                    f"id {max(side.ids)}, and the model has {size} embedding rows; use the "
                    "tokenizer that was saved with the model"
                )
            if limit is None or len(side.ids) <= limit:
                return True
            if not skip_long:
                raise InputError(
                    f"{name} sentence {row + 1} gives {len(side.ids)} tokens, and the model takes "
                    f"at most {limit}; split it in both texts, or leave such pairs without links "
                    "with skip_long=True (--skip-long)"
                )
            return False

        return check


def translator(
    model: Any = None,
    tokenizer: Any = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    prefix: str = "",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    moses: bool = False,
) -> Translator:
    """Make a `Translator` of a model or its name, as `normscope.align` takes them.

    ``tokenizer`` may be two of them, for the source and the target. A folder's ``normscope.json``
    says whether the target has one of its own, and how the model wants its text. With ``moses``,
    languages may be given for words alone.
    """
    named = model is None or isinstance(model, str) or hasattr(model, "__fspath__")
    embedded = model is None
    name = embedded_model_path() if embedded else model
    if named:
        model, found = load(name, revision=revision, dtype=dtype, device=device)
        if dtype is None and model.device.type == "cpu" and parameter_of(model).dtype.itemsize < 4:
            # 16 bits save space on disk; a CPU computes in 32. Loaded anew, because some of its
            # numbers are computed (positions).
            model, _ = load(name, revision=revision, dtype="float32", tokenizer=False)
        tokenizer = found if tokenizer is None else tokenizer
    cross_shape(model)
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; give it with the model, or give the model by its folder or "
            "name, and its tokenizer is found with it"
        )
    folder = Path(str(getattr(model.config, "_name_or_path", "") or ""))
    told = about(folder) if folder.parts and folder.is_dir() else About()
    both = tokenizer if isinstance(tokenizer, tuple | list) else (tokenizer, None)
    if len(both) != 2:
        raise InputError(f"give one tokenizer, or two (source, target), not {len(both)}")
    source, target = both
    if target is None and told.target_tokenizer is not None:
        from transformers import AutoTokenizer

        target = AutoTokenizer.from_pretrained(
            folder / told.target_tokenizer, trust_remote_code=False
        )
    target = source if target is None else target
    if embedded:
        model.config._name_or_path = EMBEDDED_NAME
    made = Translator(model, source, target, told, source_lang, target_lang, prefix)
    return _with_languages(made, named, moses)


def _with_languages(made: Translator, named: bool, moses: bool) -> Translator:
    source, target = made.source_lang, made.target_lang
    codes = language_codes(made.source)
    marian = bool(getattr(made.source, "supported_language_codes", None))
    if not codes:
        if moses:  # which knows abbreviations by language
            return replace(made, source_lang=None, target_lang=None)
        check_language(made.source, source, "source")
        check_language(made.target, target, "target")
        return made
    audio = hasattr(made.source, "set_prefix_tokens")
    if not marian and not audio:
        check_language(made.source, source, "source")
        if named and source is None:
            raise InputError(
                "this model reads many languages: say which one the source is with source_lang "
                f"(--source-lang); valid: {', '.join(codes)}"
            )
    check_language(made.target, target, "target")
    return made
