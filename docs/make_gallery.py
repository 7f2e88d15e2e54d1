"""The gallery: every script of examples/ run, its picture or table put on a page with its code.

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

# From a first look to the parts; what follows is in the order of names.
FIRST = ["weights_and_norms", "special_tokens", "weight_against_length", "block_maps"]

HEAD = """# Gallery

Each picture or table is made by one short script of `examples/`. Copy it, put in your own model and
text, and give it the file to write: `python examples/mixing_ratios.py ratios.pdf`. The ending
decides the format. This page is made by `docs/make_gallery.py`.
"""


def scripts() -> list[Path]:
    """In the order of the page."""
    found = {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}
    return [found.pop(name) for name in FIRST] + list(found.values())


def suffix_of(script: Path) -> str:
    """What it writes when it is given no name."""
    return Path(script.read_text(encoding="utf-8").rpartition(f'"{script.stem}.')[2]).name[:3]


def run(script: Path, output: Path) -> None:
    """As from the command line, in this process, where torch is loaded once."""
    before, sys.argv = sys.argv, [str(script), str(output)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


def main() -> None:
    """Make every picture and table, and the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    sections = [HEAD]
    for script in scripts():
        sections.append(section(script))
        print(script.stem)
    (DOCS / "gallery.md").write_text("\n".join(sections), encoding="utf-8")


def section(script: Path) -> str:
    """A heading, what it shows, the picture or table, and the code, folded."""
    code = script.read_text(encoding="utf-8")
    says = ast.get_docstring(ast.parse(code)) or ""
    first, _, rest = says.partition("\n\n")
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
    # Four more spaces: the tests run code that stands at the margin, and this is run as a script.
    folded = f'??? example "examples/{script.name}"\n\n    ```py\n{inside}    ```\n'
    return f"## {title}\n\n{first}\n\n{rest}\n\n{shown}\n\n{folded}"


def _table(file: Path) -> str:
    with file.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


if __name__ == "__main__":
    main()
