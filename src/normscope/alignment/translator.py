"""A translation model together with its tokenizers, text normalization and languages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.alignment.batches import SentencePair, pair_of, parameter_of
from normscope.alignment.extract import Choice, cross_shape
from normscope.alignment.metadata import ModelMetadata, read_metadata
from normscope.alignment.options import AlignOptions
from normscope.alignment.words import (
    Sentences,
    Side,
    check_language,
    encode_sides,
    language_codes,
    reads_target_code,
)
from normscope.errors import InputError, ModelNotFoundError
from normscope.models import load, resolve
from normscope.models.default import PACKAGED, PACKAGED_NAME
from normscope.models.running import accepted_by
from normscope.models.sides import folder_of, tokenizers_of
from normscope.text.limits import embedding_table, max_length_of

EMBEDDED = PACKAGED
EMBEDDED_NAME = PACKAGED_NAME  # for signatures, where the folder's name would say nothing


def embedded_model_path() -> Path:
    """Return the folder of the German-English model that comes with normscope."""
    folder = EMBEDDED
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            "this installation of normscope has no translation model of its own; name one: "
            'model="owner/name" or a folder (on the command line: --model)'
        )
    return folder


@dataclass(frozen=True)
class SideLimits:
    """The ids and lengths that a model accepts on one side."""

    side: str  # "source" or "target"
    tokenizer: str  # its class, for messages
    ids: int | None  # rows of the embedding table; None: unknown
    tokens: int | None  # maximum length; None: unlimited

    def accept(self, sentence: Side, row: int, *, skip_long: bool) -> bool:
        """Return whether a sentence is short enough for the model.

        Raises:
            InputError: the model has no embedding for an id, or the sentence is too long and
                ``skip_long`` is False.
        """
        if self.ids is not None and max(sentence.ids) >= self.ids:
            raise InputError(
                f"{self.side} sentence {row + 1}: the tokenizer ({self.tokenizer}) gives id "
                f"{max(sentence.ids)}, and the model has {self.ids} embedding rows; use the "
                "tokenizer that was saved with the model"
            )
        if self.tokens is None or len(sentence.ids) <= self.tokens:
            return True
        if not skip_long:
            raise InputError(
                f"{self.side} sentence {row + 1} has {len(sentence.ids)} tokens, and the model "
                f"takes at most {self.tokens}; split the sentence in both texts, or leave such "
                "pairs without links with skip_long=True (--skip-long)"
            )
        return False


@dataclass(frozen=True, eq=False)
class Translator:
    """A model, its tokenizers, and what it expects of its text."""

    model: Any
    source_tokenizer: Any
    target_tokenizer: Any
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str = ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The soft alignments stored with the model as its best, the best first."""
        return self.metadata.choices

    @property
    def padding(self) -> int:
        """The id of the padding token."""
        configured = getattr(self.model.config, "pad_token_id", None)
        ids = (self.source_tokenizer.pad_token_id, configured)
        return next((index for index in ids if index is not None), 0)

    def reverse(self, options: AlignOptions) -> Translator:
        """Make the translator for the other direction, on the same device and in the same dtype."""
        return translator(
            replace(
                options,
                model=options.reverse_model,
                tokenizer=options.reverse_tokenizer,
                reverse_model=None,
                reverse_tokenizer=None,
                symmetrize=None,
                source_lang=self.target_lang,
                target_lang=self.source_lang,
                words="space",  # the sentences have already been split
                device=self.model.device,
                dtype=parameter_of(self.model).dtype,
                revision=None,
            )
        )

    def check_languages(self, *, named: bool, moses: bool) -> Translator:
        """Return the translator if its language codes are valid.

        If the tokenizer uses no language codes and words are split by Moses, the languages are
        meant for Moses alone, and the translator is returned without them.

        Raises:
            InputError: a code is unknown, or missing for a model that was given by name.
        """
        codes = language_codes(self.source_tokenizer)
        if not codes and moses:
            return replace(self, source_lang=None, target_lang=None)
        audio = hasattr(self.source_tokenizer, "set_prefix_tokens")
        # Marian has codes for the target only, and Whisper hears its source.
        if not codes or not (reads_target_code(self.source_tokenizer) or audio):
            check_language(self.source_tokenizer, self.source_lang, "source")
            if codes and named and self.source_lang is None:
                raise InputError(
                    "this model reads many languages: give the language of the source with "
                    f"source_lang (--source-lang); valid: {', '.join(codes)}"
                )
        check_language(self.target_tokenizer, self.target_lang, "target")
        return self

    def pairs(
        self, source: Sentences | Tensor, target: Sentences, *, skip_long: bool = False
    ) -> list[SentencePair | None]:
        """Encode sentence pairs; None for pairs with an empty or too long side.

        Args:
            source: the words of each sentence, or audio features (batch, mel, frame).
            target: the words of each sentence.
            skip_long: give None for a sentence that is too long instead of raising InputError.
        """
        listens = "input_features" in accepted_by(self.model)
        if listens != isinstance(source, Tensor):
            expected = "audio features (batch, mel, frame)" if listens else "text"
            raise InputError(f"{type(self.model).__name__} reads {expected} as its source")
        rows = [row for row in range(len(target)) if len(target[row]) > 0 and len(source[row]) > 0]
        pairs: list[SentencePair | None] = [None] * len(target)
        if not rows:
            return pairs
        target_sides = self._encode_target([target[row] for row in rows])
        source_sides: Sequence[Side | Tensor]
        if isinstance(source, Tensor):
            source_sides = [source[row] for row in rows]
        else:
            source_sides = self.encode_source([source[row] for row in rows])
        source_limits, target_limits = self.limits("source"), self.limits("target")
        starts: dict[int, int] = {}
        for row, read, written in zip(rows, source_sides, target_sides, strict=True):
            fits = isinstance(read, Tensor) or source_limits.accept(read, row, skip_long=skip_long)
            if target_limits.accept(written, row, skip_long=skip_long) and fits:
                pairs[row] = pair_of(self.model, read, written, starts)
        return pairs

    def encode_source(self, sentences: Sentences) -> list[Side]:
        """Encode sentences that the model reads."""
        before_source = reads_target_code(self.source_tokenizer)
        return encode_sides(
            self.source_tokenizer,
            sentences,
            language=self.target_lang if before_source else self.source_lang,
            prefix=self.prefix,
            normalization=self.metadata.normalization,
        )

    def _encode_target(self, sentences: Sentences) -> list[Side]:
        before_source = reads_target_code(self.target_tokenizer)
        return encode_sides(
            self.target_tokenizer,
            sentences,
            as_target=True,
            language=None if before_source else self.target_lang,
            normalization=self.metadata.normalization,
        )

    def limits(self, side: str) -> SideLimits:
        """Return the limits of the "source" or the "target" side."""
        as_target = side == "target"
        tokenizer = self.target_tokenizer if as_target else self.source_tokenizer
        table = embedding_table(self.model, as_target=as_target)
        return SideLimits(
            side,
            type(tokenizer).__name__,
            None if table is None else table.shape[0],
            max_length_of(self.model.config, tokenizer, as_target=as_target),
        )


def translator(options: AlignOptions) -> Translator:
    """Make the `Translator` for the model, tokenizer and languages in ``options``.

    The target has a tokenizer of its own if ``options.tokenizer`` is a pair, or if the
    ``normscope.json`` in the model's folder names one.
    """
    model, tokenizer = _resolve(options)
    cross_shape(model)  # raises InputError for a model without cross-attention
    if tokenizer is None:
        raise InputError(
            "no tokenizer was given; give it with the model, or give the model by its folder or "
            "name to load its tokenizer, too"
        )
    folder = folder_of(model)
    metadata = ModelMetadata() if folder is None else read_metadata(folder)
    both = tokenizers_of(model, tokenizer)
    if options.model is None:
        model.config._name_or_path = EMBEDDED_NAME
    languages = options.source_lang, options.target_lang
    unchecked = Translator(model, both.source, both.target, metadata, *languages, options.prefix)
    return unchecked.check_languages(named=is_named(options), moses=options.words == "moses")


def is_named(options: AlignOptions) -> bool:
    """Return whether the model is given by a name, so that it is loaded for one call."""
    return options.model is None or isinstance(options.model, str | os.PathLike)


def _resolve(options: AlignOptions) -> tuple[Any, Any]:
    """Return the model and its tokenizer, and load them if the model was given by name."""
    if not is_named(options):
        return resolve(options.model, options.tokenizer)
    name = embedded_model_path() if options.model is None else options.model
    dtype = options.dtype
    where: dict[str, Any] = {"revision": options.revision, "strict": options.strict}
    model, tokenizer = load(name, dtype=dtype, device=options.device, **where)
    if dtype is None and model.device.type == "cpu" and parameter_of(model).dtype.itemsize < 4:
        # Weights stored in 16 bits are computed with in 32 bits on a CPU. Load the model again
        # rather than convert it: some of its numbers (positions) are computed, not stored.
        model, _ = load(name, dtype="float32", tokenizer=False, **where)
    return model, tokenizer if options.tokenizer is None else options.tokenizer
