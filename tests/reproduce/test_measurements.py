"""Exhibits made from measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from normscope.measures.statistics import Table
from normscope.reproduce.measurements import ExhibitPlan, Measurements


def measurements(**tokens: Any) -> Measurements:
    names = ("cls_token", "bos_token", "sep_token", "eos_token", "mask_token")
    tokenizer = SimpleNamespace(**{name: tokens.get(name) for name in names})
    return Measurements({"t": Table({"a": [1]})}, None, tokenizer, {}, {})


def test_categories_of_a_tokenizer() -> None:
    bert = measurements(cls_token="[CLS]", sep_token="[SEP]", mask_token="<mask>")
    assert [bert.category(name) for name in ("[CLS]", "[MASK]", "others")] == [
        *("[CLS]", "<mask>", "others")
    ]
    gpt = measurements(bos_token="<s>", eos_token="</s>")
    assert [gpt.category(name) for name in ("[CLS]", "[SEP]")] == ["<s>", "</s>"]


def test_a_plan_makes_an_exhibit() -> None:
    drawn: list[Measurements] = []

    def draw(given: Measurements) -> Any:
        drawn.append(given)

    measured = measurements()
    plan = ExhibitPlan("N", "T", lambda m: f"C {len(m['t'])}", lambda m: m["t"], draw, "t")
    exhibit = plan.make(measured)
    assert plan.available(measured)
    assert (exhibit.name, exhibit.title, exhibit.convention) == ("N", "T", "C 1")
    assert exhibit.table is exhibit.data is measured["t"]
    assert not drawn
    assert exhibit.draw is not None
    exhibit.draw()
    assert drawn == [measured]
    bare = ExhibitPlan("N", "T", "C").make(measured)
    assert (bare.convention, bare.table, bare.draw, bare.data) == ("C", None, None, None)
