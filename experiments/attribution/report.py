"""Put the tables of the stored results into the documentation.

    python -m experiments.attribution.report [RESULTS PAGE]

``RESULTS`` is ``benchmarks/results`` and ``PAGE`` is ``docs/faithfulness.md`` if not given. The
tables replace what stands between ``<!-- sst2 -->`` and ``<!-- /sst2 -->``, and the same for
``language``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experiments.attribution import language, sst2

TABLES = {
    "sst2": ("*attribution-sst2.json", sst2.table),
    "language": ("*attribution-language.json", language.table),
}


def filled(page: str, results: Path) -> str:
    """Return a page with the tables of all results that are there."""
    for name, (pattern, table) in TABLES.items():
        for file in sorted(results.glob(pattern))[-1:]:
            tables = table(json.loads(file.read_text(encoding="utf-8")))
            before, _, rest = page.partition(f"<!-- {name} -->\n")
            _, end, after = rest.partition(f"<!-- /{name} -->")
            page = f"{before}<!-- {name} -->\n{tables}{end}{after}"
    return page


def main() -> None:
    """Fill the page."""
    given = sys.argv[1:] or ["benchmarks/results", "docs/faithfulness.md"]
    results, page = map(Path, given)
    page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
