"""Europarl → one packed file to train from: tokenise, lower-case, BPE by language, filter.

    python -m experiments.nmt.prepare --train europarl.de europarl.en \
        --valid dev.de dev.en --output europarl.pack
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from experiments.nmt.pack import Pack, Side, save
from experiments.nmt.subwords import UNK, train_bpe
from experiments.nmt.text import read_pairs, tokenize


def tokenized(
    paths: list[Path], languages: tuple[str, str], *, two_files: bool, cache: Path | None
) -> tuple[list[str], list[str]]:
    """The tokenised lines of both languages, kept in ``cache`` from one run to the next."""
    key = hashlib.sha256(
        "\n".join(f"{path.resolve()} {path.stat().st_size}" for path in paths).encode()
    ).hexdigest()[:16]
    files = [cache / f"{key}.{language}" for language in languages] if cache else []
    if files and all(file.exists() for file in files):
        one, other = (file.read_text(encoding="utf-8").split("\n")[:-1] for file in files)
        return one, other
    pairs = list(read_pairs(paths, two_files=two_files))
    sides = []
    for number, language in enumerate(languages):
        sides.append(tokenize([pair[number] for pair in pairs], language))
        if cache:
            cache.mkdir(parents=True, exist_ok=True)
            part = files[number].with_suffix(".part")
            part.write_text("".join(f"{line}\n" for line in sides[-1]), encoding="utf-8")
            part.replace(files[number])
    return sides[0], sides[1]


def prepare(
    train: tuple[list[str], list[str]],
    valid: tuple[list[str], list[str]],
    languages: tuple[str, str],
    *,
    vocabulary: int = 10_000,
    longest: int = 100,
    ratio: float = 2.0,
    keep: int | None = None,
    seed: int = 0,
) -> tuple[Pack, dict[str, object]]:
    """The packed corpus, and a report of what was kept.

    Args:
        train: Tokenised lines of both languages.
        valid: The same, to validate on.
        languages: Their names.
        vocabulary: Pieces per language.
        longest: Pairs with more pieces on a side are left out.
        ratio: So are pairs where one side has more pieces by this factor, and 4 more.
        keep: Of the rest, as many pairs as this at most, drawn by chance.
        seed: For that draw.
    """
    tokenizers = tuple(train_bpe(lines, vocabulary) for lines in train)

    def encoded(sides: tuple[list[str], list[str]]) -> tuple[Side, Side]:
        result = []
        for tokenizer, lines in zip(tokenizers, sides, strict=True):
            found = []
            for start in range(0, len(lines), 50_000):
                part = lines[start : start + 50_000]
                found += [
                    encoding.ids
                    for encoding in tokenizer.encode_batch_fast(part, add_special_tokens=False)
                ]
            result.append(Side.of(found))
        return result[0], result[1]

    one, other = encoded(train)
    lengths = one.lengths.astype(int), other.lengths.astype(int)
    shorter, longer = np.minimum(*lengths), np.maximum(*lengths)
    fits = (shorter >= 1) & (longer <= longest) & (longer <= ratio * shorter + 4)
    index = np.flatnonzero(fits)
    report: dict[str, object] = {"pairs": len(fits), "fitting": len(index)}
    if keep is not None and len(index) > keep:
        index = np.sort(np.random.default_rng(seed).permutation(index)[:keep])
    one, other = one.select(index), other.select(index)
    report["kept"] = len(one)
    for language, side, lines in zip(languages, (one, other), train, strict=True):
        words = sum(line.count(" ") + 1 for line in lines[:20_000])
        pieces = int(lengths[languages.index(language)][:20_000].sum())
        report[f"pieces_per_word_{language}"] = round(pieces / max(words, 1), 3)
        report[f"unknown_{language}"] = int((side.ids == UNK).sum())
    pack = Pack(languages, (tokenizers[0], tokenizers[1]), (one, other), encoded(valid), valid)
    return pack, report


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="see --valid")
    parser.add_argument(
        "--valid",
        type=Path,
        nargs="+",
        required=True,
        help="TSV files, or plain files in twos (source, target) that do not end in .tsv; "
        "either may end in .gz or .xz too",
    )
    parser.add_argument("--languages", nargs=2, default=["de", "en"], help="first and second")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="pieces per language")
    parser.add_argument("--longest", type=int, default=100, help="most pieces on a side")
    parser.add_argument("--keep", type=int, help="so many pairs at most, drawn by chance")
    parser.add_argument("--cache", type=Path, help="folder for the tokenised text")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    languages = (options.languages[0], options.languages[1])
    sides = [
        tokenized(
            paths,
            languages,
            two_files=not any(".tsv" in path.suffixes for path in paths),
            cache=options.cache,
        )
        for paths in (options.train, options.valid)
    ]
    pack, report = prepare(
        sides[0],
        sides[1],
        languages,
        vocabulary=options.vocabulary,
        longest=options.longest,
        keep=options.keep,
    )
    save(pack, options.output)
    report["bytes"] = options.output.stat().st_size
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
