"""The pictures of the documentation: one command draws them, from numbers that are stored."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments.nmt import report
from normscope import models
from normscope.show.plots.style import styled
from tests.helpers.figures import assert_fit_for_print

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPORTS = DOCS / "reproductions"
NMT = REPORTS / "emnlp2020-nmt"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results() -> Any:
    return json.loads((NMT / "results.json").read_text(encoding="utf-8"))


def test_one_goal_runs_every_script_that_draws() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\npictures:")[2].partition("\n\n")[0]
    scripts = {path.name for path in DOCS.glob("make_*.py")}
    assert set(re.findall(r"make_\w+\.py", recipe)) == scripts
    assert "make pictures" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", report.FIGURES)
def test_figures_of_the_translation_models(kind: str, results: Any) -> None:
    titles = set()
    for name, numbers in results["models"].items():
        figure = styled(report.FIGURES[kind])(numbers)
        assert_fit_for_print(figure)
        titles.add(figure.get_suptitle())
        assert (NMT / f"{kind}-{name}.png").is_file()
        assert f"({kind}-{name}.png)" in (NMT / "tables.md").read_text(encoding="utf-8")
    assert len(titles) == len(results["models"])  # each says which model it is


def test_translation_models_are_compared_on_one_scale(results: Any) -> None:
    for name in ("small", "paper"):
        by_head = styled(report.FIGURES["heads"])(results["models"][name])
        assert by_head.axes[0].get_images()[0].get_clim() == (0, 100)
        by_layer = styled(report.FIGURES["layers"])(results["models"][name])
        assert {ax.get_ylim() for ax in by_layer.axes} == {(0, 100)}


@pytest.mark.slow
def test_reports_are_drawn_from_their_tables() -> None:
    script = _script("make_reproductions")
    model, tokenizer = models.load(None)
    for experiment in script.EXPERIMENTS.values():
        measurements = script.stored(experiment, model, tokenizer)
        drawn = set()
        for plan in experiment.exhibits:
            if plan.draw is not None:
                assert_fit_for_print(plan.draw(measurements))
                drawn.add(f"{script.Exhibit(plan.name, '', '').file}.png")
        stored = {path.name for path in (REPORTS / experiment.name / "figures").iterdir()}
        assert stored == drawn
        text = (REPORTS / experiment.name / "index.md").read_text(encoding="utf-8")
        assert set(re.findall(r"\(figures/(.*?)\)", text)) == drawn
