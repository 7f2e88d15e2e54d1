"""Word pairs as plain text, at most 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normscope.alignment.summary import MISSING, compare, percent
from normscope.foundation.texts import printable
from normscope.show.plots.style import brief, letters

if TYPE_CHECKING:
    from normscope.alignment.result import Alignment

WIDTH = 79  # columns
WORD = 26  # letters of a word at most
BAR = 10  # letters of a score of 100%


def pair_text(pair: Alignment) -> str:
    """Return two sentences, a table of their links, and one sentence about them."""
    sentences = [] if pair.source is None else [_wrapped(" ".join(pair.source))]
    sentences.append(_wrapped(" ".join(pair.target)))
    if pair.skipped:
        sentences.append(f"not aligned: {pair.skipped}")
        return "\n".join(sentences)
    table = _table(pair)
    parts = ["\n".join(sentences), "\n".join(table)] if table else ["\n".join(sentences)]
    source, target = (_quoted(words) for words in pair.unlinked)
    named = [f"{side} {words}" for side, words in (("source", source), ("target", target)) if words]
    closing = [_wrapped(f"Not linked: {'; '.join(named)}.")] if named else []
    closing.append(_wrapped(pair.headline))
    return "\n\n".join([*parts, "\n".join(closing)])


def _table(pair: Alignment) -> list[str]:
    """Return the lines of the table: source word, target word, score and, with gold, a mark."""
    marks = None if pair.gold is None else compare(pair.links, pair.gold)
    links = list(pair.links) if marks is None else list(marks)
    if not links:
        return []
    rows = [("source", "target", "score", "gold" if marks is not None else "")]
    for source, target in links:
        score = pair.links.scores.get((source, target))
        mark = "" if marks is None else marks[source, target]
        shown = "–" if score is None or mark == MISSING else percent(score)
        bar = "" if score is None or mark == MISSING else "█" * round(BAR * score)
        words = brief(pair._source_word(source), WORD), brief(pair.target[target], WORD)
        rows.append((*words, shown, mark if marks is not None else bar))
    widths = [max(letters(row[column]) for row in rows) for column in (0, 1)]
    return [
        f"  {_padded(source, widths[0])}  {_padded(target, widths[1])}  {score:>5}  {last}".rstrip()
        for source, target, score, last in rows
    ]


def _padded(word: str, width: int) -> str:
    return word + " " * (width - letters(word))


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"“{brief(word, WORD)}”" for word in words)


def _wrapped(text: str) -> str:
    """Break a text at spaces into lines of at most 79 columns; longer words are broken, too."""
    lines = [""]
    for word in printable(text).split(" "):
        if letters(f"{lines[-1]} {word}") <= WIDTH:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
            continue
        lines.append("")
        for character in word:
            if letters(lines[-1] + character) > WIDTH:
                lines.append("")
            lines[-1] += character
    return "\n".join(line for line in lines if line)
