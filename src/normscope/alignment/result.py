"""Results of an alignment: one sentence pair, and all pairs of a text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from normscope.alignment import aer
from normscope.alignment.auto import Candidate
from normscope.alignment.extract import Choice
from normscope.alignment.links import Links
from normscope.alignment.summary import headline
from normscope.errors import InputError
from normscope.results.signature import Signature

FRAME_SECONDS = 0.02  # of Whisper's encoder: two feature steps of 10 ms


@dataclass(frozen=True, eq=False)
class Alignment:
    """One sentence pair with its links. Printing it shows the word pairs."""

    source: tuple[str, ...] | None  # None for audio
    target: tuple[str, ...]
    links: Links
    """(source word or frame, target word). A score is the link's share of the target word's row."""
    soft: NDArray[np.float32] | None = None
    """(target word, source word). The last column holds ``</s>`` and other special tokens."""
    dropped: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Source and target words that the tokenizer dropped; they have no links."""
    skipped: str = ""
    """Why the pair was not aligned: "empty" or "too long". Otherwise an empty string."""
    gold: Links | None = None
    """The gold links of this pair, if they were given."""
    how: Signature | str = field(default="", repr=False)

    @property
    def signature(self) -> str:
        """Model, versions and settings in one line, enough to reproduce the links."""
        return self.how if isinstance(self.how, str) else self.how.text()

    @property
    def times(self) -> list[float | None]:
        """The time at which each word is spoken, in seconds; for audio only."""
        if self.source is not None:
            raise InputError("only audio has times, and the source of this pair is a text")
        frames = {word: frame for frame, word in self.links}
        return [
            None if word not in frames else frames[word] * FRAME_SECONDS
            for word in range(len(self.target))
        ]

    @property
    def word_pairs(self) -> list[tuple[str, str, float | None]]:
        """(source word, target word, score) of each link, in the order of the source.

        For audio, the source word is a time, as in "1.24 s".
        """
        return [
            (
                self._source_word(source),
                self.target[target],
                self.links.scores.get((source, target)),
            )
            for source, target in self.links
        ]

    @property
    def unlinked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The source words and the target words without a link."""
        sources, targets = ({link[side] for link in self.links} for side in (0, 1))
        return (
            tuple(word for at, word in enumerate(self.source or ()) if at not in sources),
            tuple(word for at, word in enumerate(self.target) if at not in targets),
        )

    @property
    def headline(self) -> str:
        """What the alignment found, in one sentence."""
        return headline([self])

    def _source_word(self, at: int) -> str:
        return f"{at * FRAME_SECONDS:.2f} s" if self.source is None else self.source[at]

    def __str__(self) -> str:
        from normscope.alignment.terminal import pair_text

        return pair_text(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write an interactive page of this pair: one HTML file that needs no network."""
        from normscope.show.page import write

        write(self, path)

    def show(self) -> None:
        """Open the page of this pair in the browser; in a notebook, show it below the cell."""
        from normscope.show.page.show import show

        show(self)

    def page_payload(self) -> dict[str, Any]:
        """Return the data of the page, in plain JSON types."""
        from normscope.alignment.page import links_payload

        return links_payload([self], self.signature)

    def _repr_html_(self) -> str:
        from normscope.alignment.static import alignments_html

        return alignments_html([self])


@dataclass(frozen=True, eq=False)
class Alignments(Sequence[Alignment]):
    """The alignments of a corpus, in its order, and how they were made."""

    pairs: tuple[Alignment, ...]
    choices: tuple[Choice, ...] = ()
    """The layers, heads and readings used; several if matrices were averaged."""
    reverse_choices: tuple[Choice, ...] = ()
    """The same for the reverse direction."""
    ranking: list[Candidate] = field(default_factory=list)
    """All candidates, best first; empty if there was no choice to make."""
    error: float = 0.0
    """The largest relative difference between the sum of the parts and the model's output."""
    score: aer.Score | None = None
    """Precision, recall, AER and F1 if gold links were given."""
    how: Signature | str = ""

    @property
    def signature(self) -> str:
        """Model, versions and settings in one line, enough to reproduce the links."""
        return self.how if isinstance(self.how, str) else self.how.text()

    @property
    def links(self) -> list[Links]:
        """The links of every pair."""
        return [pair.links for pair in self.pairs]

    @property
    def headline(self) -> str:
        """What the alignment found, in one sentence."""
        return headline(self.pairs)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write an interactive page of all pairs: one HTML file that needs no network."""
        from normscope.show.page import write

        write(self, path)

    def show(self) -> None:
        """Open the page of all pairs in the browser; in a notebook, show it below the cell."""
        from normscope.show.page.show import show

        show(self)

    def page_payload(self) -> dict[str, Any]:
        """Return the data of the page, in plain JSON types."""
        from normscope.alignment.page import links_payload

        return links_payload(self.pairs, self.signature, error=self.error)

    def _repr_html_(self) -> str:
        from normscope.alignment.static import alignments_html

        return alignments_html(self.pairs)

    def __repr__(self) -> str:
        links = sum(len(pair.links) for pair in self.pairs)
        choices = f" by {', '.join(map(str, self.choices))}" if self.choices else ""
        rate = "" if self.score is None else f", AER {100 * self.score.aer:.1f}"
        return (
            f"Alignments of {len(self)} pairs: {links} links{choices}{rate}, error {self.error:.1e}"
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Alignment]:
        return iter(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Alignment: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Alignment, ...]: ...

    def __getitem__(self, index: int | slice) -> Alignment | tuple[Alignment, ...]:
        return self.pairs[index]
