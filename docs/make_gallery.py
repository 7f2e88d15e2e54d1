"""Run every script in examples/ and write the gallery page with its figures, tables and code.

python docs/make_gallery.py     # writes docs/gallery.md and docs/images/gallery/
"""

from __future__ import annotations

import ast
import csv
import runpy
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
IMAGES = DOCS / "images" / "gallery"

# These come first; the others follow in alphabetical order.
FIRST = ["weights_and_norms", "special_tokens", "weight_against_length", "block_maps"]

HEAD = """# Gallery

Each figure or table comes from one short script in `examples/`. To adapt a script, copy it and
insert your own model and text. Pass the name of the output file, as in
`python examples/mixing_ratios.py ratios.pdf`; its suffix selects the format. `docs/make_gallery.py`
generates this page.
"""


def scripts() -> list[Path]:
    """Return the scripts in the order of the page."""
    paths = {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}
    return [paths.pop(name) for name in FIRST] + list(paths.values())


def suffix_of(script: Path) -> str:
    """Return the suffix of the file that a script writes by default."""
    return Path(script.read_text(encoding="utf-8").rpartition(f'"{script.stem}.')[2]).name[:3]


def run(script: Path, output: Path) -> None:
    """Run a script as from the command line, but in this process, so that torch is loaded once."""
    before, sys.argv = sys.argv, [str(script), str(output)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


def main() -> None:
    """Write all figures and the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    sections = [HEAD]
    for script in scripts():
        sections.append(section(script))
        print(script.stem)
    (DOCS / "gallery.md").write_text("\n".join(sections), encoding="utf-8")


def section(script: Path) -> str:
    """Return a section with the docstring, the figure or table, and the folded code."""
    code = script.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(code)) or ""
    first, _, rest = docstring.partition("\n\n")
    title = script.stem.replace("_", " ").capitalize()
    if suffix_of(script) == "png":
        run(script, IMAGES / f"{script.stem}.png")
        shown = f"![{first}](images/gallery/{script.stem}.png)"
    else:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "table.csv"
            run(script, output)
            shown = _table(output)
    inside = "".join(f"    {line}".rstrip() + "\n" for line in code.splitlines())
    # Indented, because the tests run unindented blocks, and these run as scripts already.
    folded = f'??? example "examples/{script.name}"\n\n    ```py\n{inside}    ```\n'
    return f"## {title}\n\n{first}\n\n{rest}\n\n{shown}\n\n{folded}"


def _table(file: Path) -> str:
    with file.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


if __name__ == "__main__":
    main()
