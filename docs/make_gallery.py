"""Run every script in examples/ and write the gallery: findings with their pictures and code.

    python docs/make_gallery.py                # all
    python docs/make_gallery.py fact negation  # these pictures and findings; the rest as it is

Writes docs/gallery.md and docs/images/gallery/. A script draws one picture and prints one finding,
whose numbers it computes; tests/project/test_examples.py checks that each finding holds.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
IMAGES = DOCS / "images" / "gallery"
PAGE = DOCS / "gallery.md"

# The findings, in the order of the page. Other scripts follow, as pictures without a finding.
FINDINGS = (
    *("weights_and_norms", "special_tokens", "attention_sink", "short_vectors", "heads_cancel"),
    *("mixing_ratios", "layer_norm", "feed_forward_pairs", "agreement", "repeated_name", "fact"),
    *("negation", "translation", "few_bits"),
)
# Models that learn something in seconds, for kinds of models that are too large to come along.
KINDS = ("vision_language", "mixture_of_experts", "hybrid")
# Live pages (docs/live.py) that are shown with a finding.
LIVE = {
    "weights_and_norms": "weights-and-norms",
    "agreement": "are-or-is",
    "translation": "alignment",
}

HEAD = """# Gallery

Findings on real models: the sentence encoder all-MiniLM-L6-v2, the language model
SmolLM2-135M-Instruct, and the German–English model that comes with normscope. The sentence in bold
is what the script prints; it describes the model and the texts in that script. To try your own,
copy the script from `examples/` and replace them. `python examples/fact.py fact.pdf` writes the
picture to a file, in the format of its suffix.
"""
SMALL = """## Other kinds of models

A vision–language model, a mixture of experts and a hybrid, each so small that its script trains it
first. The numbers in bold may differ a little on your machine.
"""
MORE = """## More pictures

These scripts draw figures of the papers.
"""


def scripts() -> list[Path]:
    """Return the scripts in the order of the page."""
    paths = {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}
    return [paths.pop(name) for name in (*FINDINGS, *KINDS)] + list(paths.values())


def run(script: Path, output: Path) -> tuple[str, dict[str, Any]]:
    """Run a script as from the command line; return what it prints and its variables.

    It runs in this process, so that torch is loaded once.
    """
    before, sys.argv = sys.argv, [str(script), str(output)]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            variables = runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    return " ".join(printed.getvalue().split()), variables


def finding_on_page(script: Path) -> str:
    """Return the finding of a script that the page states."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    section = page.partition(f"{{#{script.stem}}}\n")[2].partition("\n## ")[0]
    stated = re.search(r"^\*\*(.+)\*\*$", section, re.MULTILINE)
    return stated[1] if stated else ""


def main(*names: str) -> None:
    """Run the scripts of these names, or all, and write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    if unknown := set(names) - {script.stem for script in scripts()}:
        sys.exit(f"examples/ has no {', '.join(sorted(unknown))}")
    sections = [HEAD]
    for script in scripts():
        if script.stem in KINDS and SMALL not in sections:
            sections.append(SMALL)
        if script.stem not in (*FINDINGS, *KINDS) and MORE not in sections:
            sections.append(MORE)
        if not names or script.stem in names:
            finding, _ = run(script, IMAGES / f"{script.stem}.png")
            print(script.stem)
        else:
            finding = finding_on_page(script)
        sections.append(section(script, finding))
    PAGE.write_text("\n".join(sections), encoding="utf-8")


def section(script: Path, finding: str) -> str:
    """Return a section: what is found, the numbers, the picture, and the code."""
    code = script.read_text(encoding="utf-8")
    title, _, about = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")
    parts = [f"{'##' if script.stem in FINDINGS else '###'} {title.rstrip('.')} {{#{script.stem}}}"]
    parts += [f"**{finding}**"] * bool(finding) + [about]
    parts.append(f"![{title}](images/gallery/{script.stem}.png)")
    if script.stem in FINDINGS:
        parts.append(f"```py\n{measurement(code)}\n```")
    inside = "".join(f"    {line}".rstrip() + "\n" for line in code.splitlines())
    # Indented, because the tests run unindented blocks, and these run as scripts already.
    parts.append(
        f'??? example "The whole script: examples/{script.name}"\n\n    ```py\n{inside}    ```'
    )
    if script.stem in LIVE:
        parts.append(f"<!-- live: {LIVE[script.stem]} -->")
    return "\n\n".join(part for part in parts if part) + "\n"


def measurement(code: str) -> str:
    """Return the part of a script that computes the finding: from the imports to its sentence."""
    tree = ast.parse(code)
    imports = [
        at for at, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    printing = [at for at, node in enumerate(tree.body) if "print(" in ast.unparse(node)]
    first, last = tree.body[imports[-1] + 1], tree.body[printing[-1]]
    return "\n".join(code.splitlines()[first.lineno - 1 : last.end_lineno])


if __name__ == "__main__":
    main(*sys.argv[1:])
