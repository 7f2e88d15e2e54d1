"""Write a report as files, and show it in a terminal.

A report is report.md, report.html (one page that needs no other file), a CSV file for each table
and a PNG file for each figure.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normscope.foundation.files import cannot, make_folder, write_file
from normscope.foundation.texts import printable, utf8
from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import Finding, Report, format_value
from normscope.show import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

DPI = 150
MARKDOWN, PAGE = "report.md", "report.html"


def write(report: Report, folder: Path) -> None:
    """Write all files of a report; files that would not change are left alone."""
    pictures = {
        exhibit.file: picture(exhibit.draw()) for exhibit in report.exhibits if exhibit.draw
    }
    for exhibit in report.exhibits:
        if exhibit.table is not None:
            _write_file(folder / "tables" / f"{exhibit.file}.csv", exhibit.table.to_csv())
        if exhibit.data is not None:
            _write_file(folder / "tables" / f"{exhibit.file}-data.csv", exhibit.data.to_csv())
    for name, png in pictures.items():
        _write_file(folder / "figures" / f"{name}.png", png)
    _write_file(folder / PAGE, page(report, pictures))
    _write_file(folder / MARKDOWN, markdown(report))


def _write_file(path: Path, content: str | bytes) -> None:
    data = utf8(content) if isinstance(content, str) else content
    make_folder(path.parent)
    try:
        if path.is_file() and path.read_bytes() == data:
            return
    except OSError as problem:
        raise cannot("read", path, problem) from problem
    write_file(path, data)


def picture(figure: Figure) -> bytes:
    """Return a figure as a PNG file of 256 colours, which takes a third of the bytes."""
    from PIL import Image  # a dependency of matplotlib

    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            reduced, format="png", optimize=True
        )
    return reduced.getvalue()


def _text(value: Any) -> str:
    return printable(format_value(value))


def _is_numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in present)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return the findings as a table."""
    return Table(
        {
            "finding": [finding.statement for finding in findings],
            "published": [finding.published for finding in findings],
            "measured": [finding.measured for finding in findings],
            "agrees": [finding.agrees for finding in findings],
        }
    )


def summary(report: Report) -> str:
    """Return how many findings agree, as a sentence."""
    agree = sum(finding.agrees for finding in report.findings)
    return (
        f"{agree} of {len(report.findings)} findings agree in direction with the paper; this is "
        "computed from the measured numbers."
    )


# --------------------------------------------------------------------------------------- Markdown


def markdown(report: Report) -> str:
    """Return the report as Markdown, with links to the pictures in the folder `figures`."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    yield f"# Reproduction: {report.experiment}"
    yield from ("", f"{report.paper}.", "")
    for warning in report.warnings:
        yield from (f"**{_escape_markdown(warning)}**", "")
    yield from (f"- {name}: {_escape_markdown(fact)}" for name, fact in report.facts.items())
    yield from ("", "Layers and heads are counted from 1. The folder `tables` has all numbers.")
    yield from ("", "## Findings", "", summary(report), "")
    yield from _markdown_table(findings_table(report.findings))
    for exhibit in report.exhibits:
        yield from ("", f"## {exhibit.name}: {_escape_markdown(exhibit.title)}", "")
        yield from (f"{_escape_markdown(exhibit.convention)}.", "")
        if exhibit.draw is not None:
            alt = _escape_markdown(f"{exhibit.name}: {exhibit.title}")
            yield from (f"![{alt}](figures/{exhibit.file}.png)", "")
        if exhibit.table is not None:
            yield from _markdown_table(exhibit.table)
    yield from ("", "## Sources of the published numbers", "")
    yield from (f"- {source}" for source in report.sources)
    yield from ("", "## Signature", "", "```text", report.signature, "```")


def _markdown_table(table: Table) -> Iterator[str]:
    columns = table.lists()
    yield _markdown_row(columns)
    rules = ["---:" if _is_numeric(values) else "---" for values in columns.values()]
    yield "|" + "|".join(rules) + "|"
    for row in zip(*columns.values(), strict=True):
        yield _markdown_row(map(_text, row))


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_escape_markdown(cell) for cell in cells) + " |"


def _escape_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, also inside a table."""
    for mark in "\\`*_[]|#":
        text = text.replace(mark, f"\\{mark}")
    return escape(text, quote=False)


# ------------------------------------------------------------------------------------------- HTML

_BODY = """\
<h1>{{ title }}</h1>
<p class="soft">{{ report.paper }}.</p>
{% for warning in report.warnings %}
<p class="warning">{{ warning }}</p>
{% endfor %}
<dl class="facts">
{% for name, fact in report.facts.items() %}
<dt>{{ name }}</dt><dd>{{ fact }}</dd>
{% endfor %}
</dl>
<p>Layers and heads are counted from 1.</p>
<nav>
{% for exhibit in report.exhibits %}
<a href="#{{ exhibit.file }}">{{ exhibit.name }}</a>
{% endfor %}
</nav>
<h2>Findings</h2>
<p>{{ summary }}</p>
{{ table(findings, text=text, classes="verdicts") }}
{% for exhibit in report.exhibits %}
<section id="{{ exhibit.file }}">
<h2>{{ exhibit.name }}: {{ exhibit.title }}</h2>
<p class="soft">{{ exhibit.convention }}.</p>
{% if exhibit.file in pictures %}
{{ figure(pictures[exhibit.file], exhibit.name ~ ": " ~ exhibit.title) }}
{% endif %}
{% if exhibit.table is not none %}
{{ table(exhibit.table.lists(), text=text) }}
{% endif %}
</section>
{% endfor %}
<h2>Sources of the published numbers</h2>
<ul>
{% for source in report.sources %}
<li>{{ source }}</li>
{% endfor %}
</ul>
<h2>Signature</h2>
<p><code>{{ report.signature }}</code></p>
"""


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Return the report as one HTML page, with the PNG pictures by the name of their exhibit."""
    title = f"Reproduction: {report.experiment}"
    body = html.render(
        _BODY,
        title=title,
        report=report,
        pictures=pictures,
        summary=summary(report),
        findings=findings_table(report.findings).lists(),
        text=_text,
    )
    return html.document(title, body)


# --------------------------------------------------------------------------------------- terminal


def show(report: Report, console: Console) -> None:
    """Print the tables and findings of a report."""
    console.print(f"{report.experiment}: {report.paper}")
    for warning in report.warnings:
        console.print(warning)
    for exhibit in report.exhibits:
        if exhibit.table is not None:
            _show_table(f"{exhibit.name}: {exhibit.title}", exhibit.table, console)
    _show_table("Findings", findings_table(report.findings), console)
    console.print(summary(report))


def _show_table(title: str, table: Table, console: Console) -> None:
    from rich.table import Table as TerminalTable

    columns = table.lists()
    shown = TerminalTable(title=title, title_justify="left")
    for name, values in columns.items():
        side: Literal["left", "right"] = "right" if _is_numeric(values) else "left"
        shown.add_column(name, justify=side, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*map(_text, row))
    # On a narrow terminal the lines of a table wrap, because rich would cut off numbers.
    width = console.width
    console.width = 1000
    console.width = max(width, console.measure(shown).minimum + 2 * len(columns))
    console.print(shown)
    console.width = width
