"""The report of a run: one page with all tables and figures, which opens anywhere, offline.

No script, no font, no address: the page holds everything, and what came from the data (tokens, file
names, messages) is escaped wherever it is put.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from normscope.corpus.records import KINDS

SHOWN = 1000  # rows of a table; the files beside the page have them all
OPEN = 40  # rows up to which a table is shown without a click

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5d6570; --line: #d9dde2;
  --paper: #ffffff; --shade: #f4f6f8; --accent: #1f5fa8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa4b0; --line: #363c44;
  --paper: #14171b; --shade: #1c2026; --accent: #7db4f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
h2 code { font-weight: 400; }
p { margin: .4rem 0; max-width: 70ch; } .soft, figcaption { color: var(--soft); }
a { color: var(--accent); } code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0; }
dl div { background: var(--shade); border-radius: 6px; padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.25rem; }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { position: sticky; top: 0; background: var(--shade); text-align: left; font-weight: 600; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.text { white-space: pre-wrap; } summary { cursor: pointer; color: var(--accent); }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; background: #fff;
  border-radius: 6px; }
@media print { .scroll { max-height: none; overflow: visible; } }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(told: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The page for what statistics.json holds, with PNG figures by the name of their table."""
    tables = told["tables"]
    model = told["identity"]["model"]["name"]
    # A figure goes to the table whose name it has or begins with; the rest come at the end.
    homes = {name: _home(name, tables) for name in figures}
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in tables)
    sections = "".join(
        _section(name, table, {f: figures[f] for f, home in homes.items() if home == name})
        for name, table in tables.items()
    )
    others = "".join(_figure(f, figures[f]) for f, home in homes.items() if home is None)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(model)}: corpus statistics</title><style>{_STYLE}</style></head><body>"
        f"<h1>Corpus statistics of {escape(model)}</h1>"
        f'<p class="soft">{escape(_data(told))}</p>'
        f"{_account(told)}<nav>{links}</nav>{sections}{others}{_bad(told)}{_how(told)}"
        "</body></html>\n"
    )


def _home(figure: str, tables: Mapping[str, Any]) -> str | None:
    fitting = [name for name in tables if figure == name or figure.startswith(f"{name}_")]
    return max(fitting, key=len, default=None)


def _data(told: Mapping[str, Any]) -> str:
    names = [one["name"] for one in told["identity"]["data"]]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"Data: {', '.join(names[:5])}{more}"


def _account(told: Mapping[str, Any]) -> str:
    counts = told["counts"]
    shown = {
        "sequences": counts["sequences"],
        "tokens": counts["tokens"],
        "rows": counts["rows"],
        "bad rows": sum(counts["bad"].values()),
        "cut to the limit": counts["cut"],
    }
    cells = "".join(f"<div><dt>{k}</dt><dd>{v:,}</dd></div>" for k, v in shown.items())
    return f"<dl>{cells}</dl>"


def _section(name: str, table: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    columns: Mapping[str, list[Any]] = table["columns"]
    rows = len(next(iter(columns.values()), ()))
    notes = f"<p>{escape(table['notes'])}</p>" if table["notes"] else ""
    pictures = "".join(_figure(one, png) for one, png in figures.items())
    more = "" if rows <= SHOWN else f"the first {SHOWN:,} of {rows:,} rows; all are in "
    files = f"tables/{name}"
    return (
        f'<section id="{escape(name)}"><h2>{escape(table["title"] or name)} '
        f'<code class="soft">{escape(name)}</code></h2>{notes}{pictures}'
        f"<details{' open' if rows <= OPEN else ''}><summary>{rows:,} rows</summary>"
        f'<p class="soft">{more}<a href="{escape(files)}.csv">{escape(files)}.csv</a>, '
        f'<a href="{escape(files)}.parquet">.parquet</a></p>'
        f'<div class="scroll">{_table(columns, min(rows, SHOWN))}</div></details></section>'
    )


def _table(columns: Mapping[str, list[Any]], rows: int) -> str:
    numeric = {
        name: all(value is None or isinstance(value, (int, float)) for value in values)
        for name, values in columns.items()
    }
    kind = {name: "number" if is_number else "text" for name, is_number in numeric.items()}
    head = "".join(f'<th class="{kind[name]}">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind[n]}">{escape(_cell(v[at]))}</td>' for n, v in columns.items())
        + "</tr>"
        for at in range(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def _figure(name: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img alt="{escape(name)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
    )


def _bad(told: Mapping[str, Any]) -> str:
    counts, problems = told["counts"]["bad"], told["problems"]
    if not counts:
        return ""
    kinds = {"kind": [KINDS.get(kind, kind) for kind in counts], "rows": list(counts.values())}
    first = {name: [one[name] for one in problems] for name in ("where", "kind", "message")}
    return (
        f'<section id="bad-rows"><h2>Bad rows</h2><p>They were left out and counted.</p>'
        f'<div class="scroll">{_table(kinds, len(counts))}</div>'
        f"<p>The first of them:</p>"
        f'<div class="scroll">{_table(first, len(problems))}</div></section>'
    )


def _how(told: Mapping[str, Any]) -> str:
    settings = json.dumps(told["identity"], indent=1, ensure_ascii=False)
    return (
        "<section><h2>How these numbers were made</h2>"
        f"<p>Signature: <code>{escape(told['signature'])}</code></p>"
        f"<details><summary>Model, data, settings, versions</summary>"
        f"<pre><code>{escape(settings)}</code></pre></details></section>"
    )
