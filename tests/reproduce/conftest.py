"""A tiny model, a small text, and the reports on them, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.corpora import save_model, sentences
from tests.helpers.reproductions import Inputs, Reports


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A model, and a text with headings, short lines and 13 paragraphs."""
    folder = tmp_path_factory.mktemp("reproduce")
    lines = [line + " the cat sat ." for line in sentences(13, seed=3)]
    text = " = The cat = \n\n" + "\n".join(lines[:6]) + "\n = = Its house = = \nred , mat\n"
    (folder / "cats.raw").write_text(text + "\n".join(lines[6:]) + "\n")
    return Inputs(save_model(folder / "model"), folder / "cats.raw")


@pytest.fixture(scope="session")
def reports(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The reports of all experiments; each is made when it is first used."""
    return Reports(inputs, Path(tmp_path_factory.mktemp("reports")))
