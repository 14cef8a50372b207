"""Parts of the HTML report as text: tables that sort, the heat map, what ran, what failed.

Every text that comes from a record, a label or a file goes through `escape`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

import numpy as np

from leadline.bench.records import Record
from leadline.bench.render import MISSING, written
from leadline.bench.results import MACRO, Results
from leadline.bench.tables import HEADS, Table
from leadline.report.colour import Picture, colourise

HEATED = ("absrel", "mae", "rmse", "nmean", "nmed")  # those of which less is better
WORST_RATIO = 4.0  # to the best of a column: there the heat map's colours end
LISTED = 30  # records of one reason that are named; the table of all records has the others


def table_html(table: Table) -> str:
    """One of the paper's tables; blocks sort by themselves, so Macro stays last and subsets stay apart."""
    marked = table.marked()
    bodies = []
    for b, block in enumerate(table.blocks):
        width = len(table.columns) + 1
        title = f'<tr class="block"><th colspan="{width}">{escape(block.title)}</th></tr>' if block.title else ""
        rows = []
        for r, row in enumerate(block.rows):
            metrics = (block.metric or column.metric for column in table.columns)
            cells = (
                f"<td{' class=best' if (b, r, c) in marked else ''}>{written(value, metric)}</td>"
                for c, (value, metric) in enumerate(zip(row.values, metrics, strict=True))
            )
            rows.append(f'<tr><th scope="row">{escape(row.label)}</th>{"".join(cells)}</tr>')
        bodies.append(f"<tbody>{title}{''.join(rows)}</tbody>")
    groups = ""
    if any(column.group for column in table.columns):
        spans = ((group, len(list(own))) for group, own in groupby(table.columns, key=lambda column: column.group))
        cells = (f'<th colspan="{width}" scope="colgroup">{escape(group)}</th>' for group, width in spans)
        groups = f'<tr class="groups"><td></td>{"".join(cells)}</tr>'
    heads = [table.corner, *(column.head for column in table.columns)]
    return scrolling(
        table.title, f"<table class=sortable><thead>{groups}{_heads(heads)}</thead>{''.join(bodies)}</table>"
    )


def plain_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int) -> str:
    """A sortable table, its first `texts` columns texts, which stand left, and the others numbers."""

    def cell(place: int, content: object) -> str:
        tag = '<th scope="row">' if place == 0 else '<td class="text">' if place < texts else "<td>"
        return f"{tag}{escape(str(content))}</{tag[1:3]}>"

    body = "".join(f"<tr>{''.join(map(cell, range(len(row)), row))}</tr>" for row in rows)
    head = _heads(heads, texts)
    return scrolling(title, f"<table class=sortable><thead>{head}</thead><tbody>{body}</tbody></table>")


def scrolling(title: str, content: str) -> str:
    """What may be wider than a phone: it scrolls in a frame of its own, with the keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{content}</div>'


def heat_map(results: Results, prior: str) -> str:
    """A table of medians per metric, methods by subsets, each cell coloured by its ratio to the best of its column.

    Colours compare methods on a subset and not subsets with each other, which differ in difficulty.
    """
    subsets = (*results.subsets, MACRO) if len(results.subsets) > 1 else results.subsets
    methods = [
        name for name in results.methods if any((prior, name, own, "absrel") in results.spreads for own in subsets)
    ]
    maps: list[str] = []
    for metric in HEATED:
        values = np.array([[results.value(prior, name, own, metric) for own in subsets] for name in methods])
        if not np.isfinite(values).any():
            continue
        colours, best = _heat(values)
        rows = []
        for r, method in enumerate(methods):
            cells = (
                _heat_cell(written(values[r, c], metric), method, subset, colours[r, c], bool(best[r, c]))
                for c, subset in enumerate(subsets)
            )
            rows.append(f'<tr><th scope="row">{escape(method)}</th>{"".join(cells)}</tr>')
        head, body = _heads(["method", *subsets]), "".join(rows)
        table = f'<table class="sortable heat"><thead>{head}</thead><tbody>{body}</tbody></table>'
        hidden = " hidden" if maps else ""
        frame = scrolling(f"{HEADS[metric]}, median", table)
        maps.append(
            f'<div class="map" data-metric="{metric}" data-head="{escape(HEADS[metric])}"{hidden}>{frame}</div>'
        )
    return "".join(maps)


def _heat(values: np.ndarray) -> tuple[Picture, np.ndarray]:
    """Colours of cells, (methods, subsets, 3), and which are their column's best."""
    lowest = np.min(np.where(np.isfinite(values), values, np.inf), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # An error of exactly 0 is the best, and then every other is as far from it as the colours go.
        ratio = np.where(values == lowest, 1.0, np.minimum(values / lowest, WORST_RATIO))
        colours = colourise(np.log(ratio), low=0.0, high=math.log(WORST_RATIO), scheme="error")
    return colours, values == lowest


def _heat_cell(text: str, method: str, subset: str, colour: np.ndarray, best: bool) -> str:
    if text == MISSING:
        return f"<td>{MISSING}</td>"
    red, green, blue = map(int, colour)
    # Black on light and white on dark keep a contrast of at least 4.5 on every colour of the ramp.
    ink = "#000" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18 * 255**2.2 else "#fff"
    style = f"background:rgb({red} {green} {blue});color:{ink}"
    mark = " class=best" if best else ""
    if subset == MACRO:
        return f'<td{mark} style="{style}">{text}</td>'
    place = f'data-method="{escape(method)}" data-subset="{escape(subset)}"'
    return f'<td{mark} style="{style}"><button type="button" class="goto" {place}>{text}</button></td>'


def failures_html(records: Sequence[Record]) -> str:
    """What failed, by reason, the commonest first, with the records that it befell."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "failed":
            found.setdefault(record.reason, []).append(record)
    if not found:
        return "<p>None: every record has a score.</p>"
    parts = []
    for reason, own in sorted(found.items(), key=lambda item: -len(item[1])):
        methods = ", ".join(dict.fromkeys(record.method for record in own))
        lines = (f"{record.dataset}: {record.image}, {record.case}, {record.prior}, {record.method}" for record in own)
        items = "".join(f"<li>{escape(line)}</li>" for _, line in zip(range(LISTED), lines, strict=False))
        more = f"<li>and {len(own) - LISTED} more</li>" if len(own) > LISTED else ""
        parts.append(
            f"<details><summary><b>{len(own)}</b> {escape(reason or 'no reason was given')} "
            f'<span class="quiet">({escape(methods)})</span></summary><ul>{items}{more}</ul></details>'
        )
    return "".join(parts)


def versions_html(records: Sequence[Record]) -> str:
    """What the records were made with; several values where a run went on with something else."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        for name, version in json.loads(record.versions).items():
            own = found.setdefault(str(name), {})
            own[str(version)] = own.get(str(version), 0) + 1
    rows = [
        (name, ", ".join(text if len(own) == 1 else f"{text} ({count} records)" for text, count in own.items()))
        for name, own in sorted(found.items())
    ]
    return plain_table("Versions", ("what", "version"), rows, texts=2)


def _heads(heads: Sequence[str], texts: int = 1) -> str:
    cells = (
        f'<th scope="col"{" class=text" if place < texts else ""}><button type="button">{escape(head)}</button></th>'
        for place, head in enumerate(heads)
    )
    return f"<tr>{''.join(cells)}</tr>"
