"""The report of a run: one page with all tables and figures, which needs no other file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normscope.corpus.records import KINDS
from normscope.foundation.texts import to_json
from normscope.show import html

SHOWN = 1000  # rows of a table; the files beside the page have all of them
OPEN = 40  # rows up to which a table is shown without a click

_BODY = """\
<h1>Corpus statistics of {{ model }}</h1>
<p class="soft">{{ data }}</p>
<dl class="tiles">
{% for name, count in counts.items() %}
<div><dt>{{ name }}</dt><dd>{{ "{:,}".format(count) }}</dd></div>
{% endfor %}
</dl>
<nav>{% for name in tables %}<a href="#{{ name }}">{{ name }}</a>{% endfor %}</nav>
{% for name, section in tables.items() %}
{{ section }}
{% endfor %}
{% for name, png in other_figures.items() %}
{{ figure(png, name, name) }}
{% endfor %}
{% if bad_kinds.rows %}
<section id="bad-rows"><h2>Bad rows</h2>
<p>They were left out and counted.</p>
{{ table(bad_kinds, classes="limited") }}
<p>The first of them:</p>
{{ table(bad_rows, classes="limited wide") }}
</section>
{% endif %}
<section><h2>How these numbers were made</h2>
<p>Signature: <code>{{ signature }}</code></p>
<details><summary>Model, data, settings, versions</summary>
<pre><code>{{ identity }}</code></pre></details>
</section>
"""

_SECTION = """\
<section id="{{ name }}"><h2>{{ title }} <code class="soft">{{ name }}</code></h2>
{% if notes %}
<p>{{ notes }}</p>
{% endif %}
{% for figure_name, png in figures.items() %}
{{ figure(png, figure_name, figure_name) }}
{% endfor %}
<details{{ " open" if rows <= open }}><summary>{{ "{:,}".format(rows) }} rows</summary>
<p class="soft">
{%- if rows > shown %}
the first {{ "{:,}".format(shown) }} of {{ "{:,}".format(rows) }} rows; all are in {% endif %}
<a href="tables/{{ name }}.csv">tables/{{ name }}.csv</a>,
<a href="tables/{{ name }}.parquet">.parquet</a></p>
{{ table(columns, rows=shown, classes="limited wide") }}
</details></section>
"""


def page(content: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """Return the report as HTML.

    Args:
        content: The content of statistics.json.
        figures: PNG files by name. A figure is shown with the table whose name its own begins
            with, or else after the tables.
    """
    tables, identity = content["tables"], content["identity"]
    homes = {name: _home(name, tables) for name in figures}
    sections = {
        name: _section(name, table, {f: figures[f] for f, home in homes.items() if home == name})
        for name, table in tables.items()
    }
    model = identity["model"]["name"]
    body = html.render(
        _BODY,
        model=model,
        data=_data_line([part["name"] for part in identity["data"]]),
        counts=_counts(content["counts"]),
        tables=sections,
        other_figures={f: figures[f] for f, home in homes.items() if home is None},
        bad_kinds=_bad_kinds(content["counts"]["bad"]),
        bad_rows={
            name: [problem[name] for problem in content["problems"]]
            for name in ("where", "kind", "message")
        },
        signature=content["signature"],
        identity=to_json(identity, indent=1),
    )
    return html.document(f"{model}: corpus statistics", body)


def _home(figure: str, tables: Mapping[str, Any]) -> str | None:
    """Return the name of the table that a figure belongs to, or None."""
    fitting = [name for name in tables if figure == name or figure.startswith(f"{name}_")]
    return max(fitting, key=len, default=None)


def _data_line(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"Data: {', '.join(names[:5])}{more}"


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    return {
        "sequences": counts["sequences"],
        "tokens": counts["tokens"],
        "rows": counts["rows"],
        "bad rows": sum(counts["bad"].values()),
        "cut to the limit": counts["cut"],
    }


def _bad_kinds(bad: Mapping[str, int]) -> dict[str, list[Any]]:
    return {"kind": [KINDS.get(kind, kind) for kind in bad], "rows": list(bad.values())}


def _section(name: str, table: Mapping[str, Any], figures: Mapping[str, bytes]) -> html.Markup:
    columns: Mapping[str, list[Any]] = table["columns"]
    return html.render(
        _SECTION,
        name=name,
        title=table["title"] or name,
        notes=table["notes"],
        figures=figures,
        rows=len(next(iter(columns.values()), ())),
        open=OPEN,
        shown=SHOWN,
        columns=columns,
    )
