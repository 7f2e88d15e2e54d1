"""Options of word alignment, shared by `normscope.align` and the command line.

The module imports nothing heavy, so that the command line can build its help from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.alignment.links import Links
from normscope.alignment.symmetrize import SYMMETRIZATIONS
from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.errors import InputError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
SUM = "sum"  # all heads of a layer together
ATTENTION = "attention"
EFLOMAL = "eflomal"
GRADIENT_METHODS = ("saliency", "smoothgrad")
METHODS = (ATTENTION, *GRADIENT_METHODS, EFLOMAL)
CRITERION = "lexical"
SAMPLE = 1000  # sentence pairs from which layer, head and reading are chosen
SYMMETRIZATION = "grow-diag-final-and"
# Options that the baselines cannot honour.
_FOR_ATTENTION = ("map", "layer", "head", "reading", "combine")


# Options of the command line: the placeholder of the value (None for a flag) and the help text.
_SHOWN: dict[str, tuple[str | None, str]] = {
    "model": (
        "NAME",
        "Encoder-decoder model that translates from the source language: a folder, or a name on "
        "the Hugging Face hub (owner/name). Default: normscope's own German-English model.",
    ),
    "map": (
        "MAP",
        f"Map of the cross-attention to read the links from: {NORMS} (the norm ‖αf(x)‖), {WEIGHTS} "
        "(the weight α), one that follows the vectors through the residual connection, the "
        "layer norm or the feed-forward network, alti_plus (shares of the source, followed through "
        "all layers of both stacks), or alti_encoder (those that one layer's cross-attention takes "
        "from the encoder).",
    ),
    "layer": ("auto|N", "Decoder layer, counted from 0. auto: choose one without gold links."),
    "head": (
        "auto|sum|N",
        "Attention head, counted from 0. sum: all heads of a layer together. auto: choose one "
        "without gold links.",
    ),
    "reading": (
        "auto|awi|awo",
        "Decoder step that stands for a target word. awi: the step that reads the word. awo: the "
        "step that writes it. auto: choose without gold links.",
    ),
    "reverse_model": ("NAME", "Model that translates from the target language to the source."),
    "symmetrize": (
        "METHOD",
        f"How to combine both directions: {', '.join(SYMMETRIZATIONS)}. Default with "
        f"--reverse-model: {SYMMETRIZATION}.",
    ),
    "method": (
        "METHOD",
        "attention, or a baseline: saliency, smoothgrad (both use gradients), eflomal (learns from "
        "the two texts, without a model).",
    ),
    "gold": ("FILE", "Gold links (.talp, Pharaoh or .jsonl) to compute the AER."),
    "soft": (
        None,
        "Also keep the soft alignment matrices. The output must end in .jsonl or .html.",
    ),
    "words": (
        "space|punctuation|moses",
        "How to split lines into words: at spaces; at spaces and with punctuation split off; or "
        "with the Moses tokenizer (sacremoses). Default: punctuation for --text, space for files.",
    ),
    "source_lang": ("CODE", "Language code of the source, for a multilingual model."),
    "target_lang": ("CODE", "Language code of the target, for a multilingual model."),
    "prefix": ("TEXT", "Text to put before each source sentence, as T5 models expect."),
    "combine": (
        "N",
        "Average the N best candidates. Default: 3, but at most a tenth of the candidates.",
    ),
    "skip_long": (None, "Leave pairs that exceed the model's maximum length without links."),
    "budget": (
        "N",
        "Maximum number of tokens in a batch, including padding; limits memory use. Default: "
        "4096 on a CPU, 32768 on a GPU.",
    ),
    "device": ("DEVICE", "cpu, cuda, cuda:1 or mps. Default: cpu."),
    "dtype": ("DTYPE", "float64, float32, bfloat16 or float16. Default: as stored."),
}
_META: dict[str, dict[str, Any]] = {
    name: {"metavar": value, "help": text} for name, (value, text) in _SHOWN.items()
}
_META["budget"]["min"] = 1


@dataclass(frozen=True)
class AlignOptions:
    """The options of `normscope.align`, which documents them.

    The metadata of a field that is an option of the command line, too, has its ``help`` and its
    ``metavar``, which is None for a flag.

    Raises:
        InputError: an option has an unknown value, or two options exclude each other.
    """

    model: Any = field(default=None, metadata=_META["model"])
    tokenizer: Any = None
    map: str = field(default=NORMS, metadata=_META["map"])
    layer: int | str = field(default=AUTO, metadata=_META["layer"])
    head: int | str = field(default=AUTO, metadata=_META["head"])
    reading: str = field(default=AUTO, metadata=_META["reading"])
    reverse_model: Any = field(default=None, metadata=_META["reverse_model"])
    reverse_tokenizer: Any = None
    symmetrize: str | None = field(default=None, metadata=_META["symmetrize"])
    method: str = field(default=ATTENTION, metadata=_META["method"])
    gold: str | Path | Sequence[Links] | None = field(default=None, metadata=_META["gold"])
    soft: bool = field(default=False, metadata=_META["soft"])
    words: str = field(default="space", metadata=_META["words"])
    source_lang: str | None = field(default=None, metadata=_META["source_lang"])
    target_lang: str | None = field(default=None, metadata=_META["target_lang"])
    prefix: str = field(default="", metadata=_META["prefix"])
    combine: int | None = field(default=None, metadata=_META["combine"])
    criterion: str = CRITERION
    sample: int = SAMPLE
    copies: int = 30
    noise: float = 0.15
    seed: int = 0
    skip_long: bool = field(default=False, metadata=_META["skip_long"])
    budget: int | None = field(default=None, metadata=_META["budget"])
    device: str | torch.device | None = field(default=None, metadata=_META["device"])
    dtype: str | torch.dtype | None = field(default=None, metadata=_META["dtype"])
    revision: str | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}; valid: {', '.join(METHODS)}")
        self._check_directions()
        if self.method != ATTENTION:
            self._check_baseline()
        elif self.combine is not None and self.combine < 1:
            raise InputError(f"combine must be at least 1, not {self.combine}")

    def _check_directions(self) -> None:
        if self.symmetrize is not None and self.symmetrize not in SYMMETRIZATIONS:
            raise InputError(
                f"unknown symmetrization {self.symmetrize!r}; valid: {', '.join(SYMMETRIZATIONS)}"
            )
        if self.reverse_model is None:
            if self.symmetrize is not None and self.method != EFLOMAL:
                raise InputError(
                    "symmetrization needs both directions: give a model for the other direction "
                    "with reverse_model (--reverse-model)"
                )
        elif self.method == EFLOMAL:
            raise InputError("eflomal uses no model: leave reverse_model out")
        elif self.prefix:
            raise InputError(
                "a prefix names one direction and cannot be used with reverse_model: align each "
                "direction separately and combine the links with "
                "normscope.alignment.symmetrize.symmetrize"
            )

    def _check_baseline(self) -> None:
        """Raise InputError for options that the method would ignore."""
        for name in _FOR_ATTENTION:
            value, default = getattr(self, name), getattr(AlignOptions, name)
            # Gradients are taken at the step that writes a word, so "awo" is true of them.
            if value != default and (name, value) != ("reading", "awo"):
                raise InputError(
                    f"{name}={value!r} applies to attention only, and the method is "
                    f"{self.method}: leave it out"
                )
        if self.method == EFLOMAL and self.soft:
            raise InputError("eflomal gives links without matrices: leave soft (--soft) out")
        if self.method in GRADIENT_METHODS and (self.copies < 1 or self.noise < 0):
            raise InputError(
                f"copies must be at least 1 and noise at least 0, not {self.copies} and "
                f"{self.noise}"
            )

    @property
    def symmetrization(self) -> str:
        """The method that combines both directions."""
        return self.symmetrize or SYMMETRIZATION
