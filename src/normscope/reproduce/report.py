"""A reproduction as files: report.md, report.html, a CSV for each table, a PNG for each figure.

The page holds everything and fetches nothing. What came from data (tokens, names) is escaped.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import Exhibit, Finding, Report, shown
from normscope.results.arrays import printable
from normscope.results.files import whole_file

DPI = 110
MARKDOWN, PAGE = "report.md", "report.html"


def write(report: Report, folder: Path) -> None:
    """All files of a report, each whole or not at all; those that would not change are left."""
    pictures = {one.file: _png(one) for one in report.exhibits if one.draw is not None}
    for one in report.exhibits:
        if one.table is not None:
            _put(folder / "tables" / f"{one.file}.csv", one.table.to_csv().encode())
        if one.data is not None:
            _put(folder / "tables" / f"{one.file}-data.csv", one.data.to_csv().encode())
    for name, png in pictures.items():
        _put(folder / "figures" / f"{name}.png", png)
    _put(folder / PAGE, page(report, pictures).encode())
    _put(folder / MARKDOWN, markdown(report).encode())


def _put(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        if path.is_file() and path.read_bytes() == data:
            return
    except OSError as problem:
        raise InputError(
            f"cannot write {str(path)!r}: {problem.strerror or problem}; choose a folder that may "
            "be written to and has room"
        ) from problem
    with whole_file(path) as file:
        file.write(data)


def _png(exhibit: Exhibit) -> bytes:
    assert exhibit.draw is not None
    from PIL import Image  # comes with matplotlib

    drawn, made = io.BytesIO(), io.BytesIO()
    exhibit.draw().savefig(drawn, format="png", dpi=DPI)
    with Image.open(drawn) as image:  # 256 colours are plenty, and a third of the bytes
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            made, format="png", optimize=True
        )
    return made.getvalue()


def _cells(table: Table) -> tuple[list[str], list[bool], list[list[str]]]:
    """Column names, which of them are numbers, and rows of texts."""
    lists = table.lists()
    numbers = [
        all(v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in column)
        for column in lists.values()
    ]
    rows = [[printable(shown(value)) for value in row] for row in zip(*lists.values(), strict=True)]
    return list(lists), numbers, rows


def _found(findings: list[Finding]) -> Table:
    return Table(
        {
            "finding": [one.statement for one in findings],
            "published": [one.published for one in findings],
            "measured": [one.measured for one in findings],
            "agrees": [one.agrees for one in findings],
        }
    )


def summary(report: Report) -> str:
    """How many findings agree, in words."""
    agree = sum(one.agrees for one in report.findings)
    return (
        f"{agree} of {len(report.findings)} findings agree in direction with the paper, each as "
        "computed from the measured numbers."
    )


# --------------------------------------------------------------------------------------- Markdown


def markdown(report: Report) -> str:
    """The report as Markdown, with pictures from the folder `figures` beside it."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    yield f"# Reproduction: {report.experiment}"
    yield from ("", f"{report.paper}.", "")
    for one in report.warnings:
        yield from (f"**{_safe(one)}**", "")
    yield from (f"- {name}: {_safe(told)}" for name, told in report.facts.items())
    yield from ("", "Layers and heads count from 1. All numbers are in the folder `tables`.")
    yield from ("", "## What agrees and what does not", "")
    yield from (summary(report), "")
    yield from _lines(_found(list(report.findings)))
    for exhibit in report.exhibits:
        yield from ("", f"## {exhibit.name}: {_safe(exhibit.title)}", "")
        yield from (f"{_safe(exhibit.convention)}.", "")
        if exhibit.draw is not None:
            yield from (f"![{exhibit.name}](figures/{exhibit.file}.png)", "")
        if exhibit.table is not None:
            yield from _lines(exhibit.table)
    yield from ("", "## Where the published numbers were read", "")
    yield from (f"- {told}" for told in report.sources)
    yield from ("", "## Signature", "", "```text", report.signature, "```")


def _lines(table: Table) -> Iterator[str]:
    names, numbers, rows = _cells(table)
    yield "| " + " | ".join(_safe(name) for name in names) + " |"
    yield "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    for row in rows:
        yield "| " + " | ".join(_safe(cell) for cell in row) + " |"


def _safe(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    for mark in "\\`*_[]|#":
        text = text.replace(mark, f"\\{mark}")
    return escape(text, quote=False)


# ------------------------------------------------------------------------------------------- HTML

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5d6570; --line: #d9dde2;
  --paper: #ffffff; --shade: #f4f6f8; --accent: #1f5fa8; --warn: #fdf3dc; --good: #12703a;
  --bad: #a8321f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa4b0; --line: #363c44;
  --paper: #14171b; --shade: #1c2026; --accent: #7db4f0; --warn: #3a3220; --good: #6fcf97;
  --bad: #ff9b87; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0; max-width: 76ch; } .soft { color: var(--soft); } a { color: var(--accent); }
.warn { background: var(--warn); border-radius: 6px; padding: .6rem .9rem; margin: .8rem 0;
  max-width: none; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow: auto; border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0;
  width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-size: .88rem; }
th { position: sticky; top: 0; background: var(--shade); text-align: left; font-weight: 600; }
th, td { padding: .3rem .65rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; } th { vertical-align: bottom; }
td.yes { color: var(--good); font-weight: 600; } td.no { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; background: #fff;
  border-radius: 6px; }
@media print { .scroll { overflow: visible; } }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The report as one page that needs nothing else."""
    links = "".join(
        f'<a href="#{escape(one.file)}">{escape(one.name)}</a>' for one in report.exhibits
    )
    warnings = "".join(f'<p class="warn">{escape(one)}</p>' for one in report.warnings)
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(told)}</dd>" for name, told in report.facts.items()
    )
    sections = "".join(_section(one, pictures) for one in report.exhibits)
    sources = "".join(f"<li>{escape(told)}</li>" for told in report.sources)
    title = f"Reproduction: {report.experiment}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(report.paper)}.</p>{warnings}'
        f"<dl>{facts}</dl><p>Layers and heads count from 1.</p><nav>{links}</nav>"
        f"<h2>What agrees and what does not</h2><p>{escape(summary(report))}</p>"
        f"{_html(_found(list(report.findings)))}{sections}"
        f"<h2>Where the published numbers were read</h2><ul>{sources}</ul>"
        f"<h2>Signature</h2><p><code>{escape(report.signature)}</code></p></body></html>\n"
    )


def _section(exhibit: Exhibit, pictures: Mapping[str, bytes]) -> str:
    png = pictures.get(exhibit.file)
    picture = ""
    if png is not None:
        data = base64.b64encode(png).decode()
        name = escape(f"{exhibit.name}: {exhibit.title}")
        picture = f'<figure><img alt="{name}" src="data:image/png;base64,{data}"></figure>'
    table = "" if exhibit.table is None else _html(exhibit.table)
    return (
        f'<section id="{escape(exhibit.file)}"><h2>{escape(exhibit.name)}: '
        f'{escape(exhibit.title)}</h2><p class="soft">{escape(exhibit.convention)}.</p>'
        f"{picture}{table}</section>"
    )


def _html(table: Table) -> str:
    names, numbers, rows = _cells(table)
    kinds = ["number" if number else "" for number in numbers]

    def cell(name: str, kind: str, text: str) -> str:
        kind = text if name == "agrees" else kind
        return f'<td class="{kind}">{escape(text)}</td>'

    head = "".join(
        f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(names, kinds, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(cell(*one) for one in zip(names, kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


# --------------------------------------------------------------------------------------- terminal


def show(report: Report, console: Any) -> None:
    """Published beside measured, on a terminal."""
    from rich.table import Table as Shown

    def put(title: str, table: Table) -> None:
        names, numbers, rows = _cells(table)
        made = Shown(title=title, title_justify="left")
        for name, number in zip(names, numbers, strict=True):
            made.add_column(name, justify="right" if number else "left")
        for row in rows:
            made.add_row(*row)
        # Wider than the terminal rather than half a number.
        width = console.width
        console.width = 1000
        console.width = max(width, console.measure(made).minimum + 2 * len(names))
        console.print(made)
        console.width = width

    console.print(f"{report.experiment}: {report.paper}")
    for one in report.warnings:
        console.print(one)
    for exhibit in report.exhibits:
        if exhibit.table is not None:
            put(f"{exhibit.name}: {exhibit.title}", exhibit.table)
    put("What agrees and what does not", _found(list(report.findings)))
    console.print(summary(report))
