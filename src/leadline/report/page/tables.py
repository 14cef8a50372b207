"""What the templates of the HTML report show in tables: score tables, heat maps, failures, versions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from leadline.bench.records import Record, RecordStatus
from leadline.bench.render import MISSING, format_number
from leadline.bench.results import MACRO, Results
from leadline.bench.tables import HEADS, Table
from leadline.report.colour import Picture, colourise

HEAT_METRICS = ("absrel", "mae", "rmse", "nmean", "nmed")  # metrics of which a smaller value is better
WORST_RATIO = 4.0  # ratio to the best method at which the colours of a heat map end


@dataclass(frozen=True)
class ScoreCell:
    text: str
    best: bool


@dataclass(frozen=True)
class ScoreRow:
    label: str
    cells: list[ScoreCell]


@dataclass(frozen=True)
class ScoreBlock:
    title: str
    rows: list[ScoreRow]


@dataclass(frozen=True)
class ColumnGroup:
    """A head over several columns."""

    title: str
    width: int


@dataclass(frozen=True)
class ScoreTable:
    """A benchmark table whose numbers are formatted and whose best numbers are marked."""

    title: str
    groups: list[ColumnGroup]
    heads: list[str]
    blocks: list[ScoreBlock]


@dataclass(frozen=True)
class HeatCell:
    """A median in a heat map; `style` is None if there is no score, `links` is False for Macro, which has no images."""

    text: str
    subset: str
    style: str | None
    best: bool
    links: bool


@dataclass(frozen=True)
class HeatRow:
    method: str
    cells: list[HeatCell]


@dataclass(frozen=True)
class HeatMap:
    """The medians of one metric, methods by subsets."""

    metric: str
    head: str
    subsets: list[str]
    rows: list[HeatRow]


@dataclass(frozen=True)
class Failure:
    """The records that failed for one reason."""

    reason: str
    methods: list[str]
    records: list[Record]


def score_table(table: Table) -> ScoreTable:
    """A benchmark table as the template shows it."""
    best = table.marked()
    blocks = []
    for b, block in enumerate(table.blocks):
        metrics = [block.metric or column.metric for column in table.columns]
        rows = [
            ScoreRow(
                row.label,
                [
                    ScoreCell(format_number(value, metric), (b, r, c) in best)
                    for c, (value, metric) in enumerate(zip(row.values, metrics, strict=True))
                ],
            )
            for r, row in enumerate(block.rows)
        ]
        blocks.append(ScoreBlock(block.title, rows))
    groups = [
        ColumnGroup(title, len(list(own))) for title, own in groupby(table.columns, key=lambda column: column.group)
    ]
    heads = [table.corner, *(column.head for column in table.columns)]
    return ScoreTable(table.title, groups if any(group.title for group in groups) else [], heads, blocks)


def heat_maps(results: Results, prior: str) -> list[HeatMap]:
    """The medians of each metric that has scores; a cell's colour is its ratio to the best of its column.

    Colours compare methods on one subset. They do not compare subsets, which differ in difficulty.
    """
    subsets = [*results.subsets, MACRO] if len(results.subsets) > 1 else list(results.subsets)
    methods = [
        name
        for name in results.methods
        if any((prior, name, own, "absrel") in results.distributions for own in subsets)
    ]
    maps = []
    for metric in HEAT_METRICS:
        values = np.array([[results.value(prior, name, own, metric) for own in subsets] for name in methods])
        if not np.isfinite(values).any():
            continue
        colours, best = heat_colours(values)
        rows = [
            HeatRow(
                method,
                [
                    _heat_cell(format_number(values[r, c], metric), subset, colours[r, c], bool(best[r, c]))
                    for c, subset in enumerate(subsets)
                ],
            )
            for r, method in enumerate(methods)
        ]
        maps.append(HeatMap(metric, HEADS[metric], subsets, rows))
    return maps


def heat_colours(values: NDArray[np.float64]) -> tuple[Picture, NDArray[np.bool_]]:
    """Colours of the cells, (methods, subsets, 3), and which cells are the best of their column."""
    lowest = np.min(np.where(np.isfinite(values), values, np.inf), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # If the best error is exactly 0, every other ratio is infinite and gets the last colour.
        ratio = np.where(values == lowest, 1.0, np.minimum(values / lowest, WORST_RATIO))
        colours = colourise(np.log(ratio), low=0.0, high=math.log(WORST_RATIO), scheme="error")
    return colours, values == lowest


def heat_style(colour: Picture) -> str:
    """CSS of a cell with a background colour and a text colour whose contrast to it is at least 4.5."""
    red, green, blue = map(int, colour)
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    text = "#000" if luminance > 0.18 * 255**2.2 else "#fff"
    return f"background:rgb({red} {green} {blue});color:{text}"


def _heat_cell(text: str, subset: str, colour: Picture, best: bool) -> HeatCell:
    if text == MISSING:
        return HeatCell(text, subset, None, False, False)
    return HeatCell(text, subset, heat_style(colour), best, subset != MACRO)


def failures(records: Iterable[Record]) -> list[Failure]:
    """The failed records by reason, the most frequent reason first."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.status == RecordStatus.FAILED:
            found.setdefault(record.reason or "no reason was recorded", []).append(record)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [Failure(reason, list(dict.fromkeys(record.method for record in own)), own) for reason, own in ranked]


def package_versions(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Packages and their versions; several versions, with counts, if a run was continued after an update."""
    found: dict[str, Counter[str]] = {}
    for text, count in Counter(record.versions for record in records).items():
        for name, version in json.loads(text).items():
            found.setdefault(str(name), Counter())[str(version)] += count
    return [
        (name, ", ".join(text if len(own) == 1 else f"{text} ({count} records)" for text, count in own.items()))
        for name, own in sorted(found.items())
    ]
