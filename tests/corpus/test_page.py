"""The report holds all tables and escapes everything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from normscope.measures.statistics import Table
from tests.helpers.corpora import OtherSums, Sums
from tests.helpers.corpora import quick_run as run

pytestmark = pytest.mark.usefixtures("quick")


def test_the_report_holds_all_and_escapes_everything(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "<b>.txt"
    file.write_bytes(b"the cat sat\n\xff\n")

    class Rude(Sums):
        def result(self, state: dict[str, Any]) -> dict[str, Table]:
            rude = "</td><script>alert('x')</script>&"
            table = Table({rude: [rude, "a"], "x": [0.5, float("nan")]}, rude, notes=rude)
            return {"sums": table, "sums_long": Table({"n": list(range(1500))})}

    run(folder, tmp_path / "out", data=file, statistics=[OtherSums(), Rude()])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)") >= 4
    assert "&lt;b&gt;.txt, line 2" in page
    assert "byte 0xff" in page
    assert "the first 1,000 of 1,500 rows" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://", re.sub(r"data:image/png[^\"]*", "", page))
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    for name in told["tables"]:
        assert f'id="{name}"' in page
    assert told["tables"]["sums"]["columns"]["x"] == [0.5, None]
    assert (tmp_path / "out" / "tables" / "sums_long.csv").read_text().count("\n") == 1501
