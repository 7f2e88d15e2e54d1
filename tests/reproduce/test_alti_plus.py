"""`alti-plus` on the first pairs of a text and the model that is part of normscope."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normscope import align
from normscope.alignment.aer import score
from normscope.alignment.files import read_links
from normscope.alignment.options import AlignOptions
from normscope.alignment.translator import translator
from normscope.errors import InputError
from normscope.reproduce import Report, ReproduceOptions, reproduce
from normscope.reproduce import alti_plus as experiment
from tests.helpers.figures import assert_fit_for_print
from tests.helpers.reproductions import rows_of

GERMAN = ["das ist ein haus .", "ich danke ihnen .", "wir haben keine zeit"]
ENGLISH = ["this is a house .", "thank you .", "we have no time"]
GOLD = ["1-1 2-2 3-3 4-4 5-5", "2-1 3p2 4-3", "1-1 2-2 3-3 4-4"]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ReproduceOptions:
    folder = tmp_path_factory.mktemp("alti")
    files = []
    for name, lines in (("de", GERMAN), ("en", ENGLISH), ("alignment.talp", GOLD)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(folder / name)
    return ReproduceOptions(gold=tuple(files), output=folder / "out")


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    """The model that is part of normscope, loaded once."""
    given = translator(AlignOptions(dtype="float32"))
    return given.model, (given.source_tokenizer, given.target_tokenizer)


@pytest.fixture(scope="module")
def report(options: ReproduceOptions) -> Report:
    return reproduce("alti-plus", options)


def test_the_report(report: Report) -> None:
    rows = rows_of(report, "AER")
    assert [(row["reading"], row["layer"]) for row in rows] == [
        (reading, layer) for reading in ("AWI", "AWO") for layer in range(1, 7)
    ]
    assert rows[1]["cross contributions published"] == 26.0
    assert rows[4]["total measured"] is None  # the model has four decoder layers
    (exhibit,) = report.exhibits
    assert exhibit.draw is not None
    assert_fit_for_print(exhibit.draw())
    assert "4 decoder layers" in report.warnings[0]
    cross = [row["cross contributions measured"] for row in rows if row["reading"] == "AWI"]
    total = [row["total measured"] for row in rows if row["reading"] == "AWI"]
    (finding,) = [f for f in report.findings if f.statement.startswith("the total")]
    assert finding.agrees == (min(total[:4]) > min(cross[:4]))


@pytest.mark.parametrize(
    ("mode", "reading", "layer"),
    [
        ("total", "awi", 1),
        ("cross contributions", "awo", 3),
        ("cross × encoder", "awi", 2),
        ("attention weights", "awo", 2),
    ],
)
def test_errors_are_those_of_align(
    mode: str, reading: str, layer: int, report: Report, options: ReproduceOptions, model: Any
) -> None:
    gold = read_links(options.gold[2])
    how: Any = {"map": experiment.MODES[mode], "layer": layer, "head": "sum", "reading": reading}
    aligned = align(GERMAN, ENGLISH, *model, words="space", **how)
    expected = 100 * score(gold, [each.links for each in aligned]).aer
    (row,) = [
        row
        for row in rows_of(report, "AER")
        if (row["reading"], row["layer"]) == (reading.upper(), layer + 1)
    ]
    assert row[f"{mode} measured"] == pytest.approx(expected, abs=0.05)


def test_a_finished_run_is_read(
    options: ReproduceOptions, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(experiment, "survey", fail)
    again = reproduce("alti-plus", options)
    assert rows_of(again, "AER") == rows_of(report, "AER")
    with pytest.raises(InputError, match="another run"):
        reproduce("alti-plus", replace(options, sequences=1))


def test_wrong_options(options: ReproduceOptions) -> None:
    with pytest.raises(InputError, match="needs three files"):
        reproduce("alti-plus", replace(options, gold=options.gold[:2]))
    with pytest.raises(InputError, match="no file 'nowhere'"):
        reproduce("alti-plus", replace(options, gold=(*options.gold[:2], Path("nowhere"))))
    with pytest.raises(InputError, match="alti-plus has no --data"):
        reproduce("alti-plus", replace(options, data=(Path("a"),)))
