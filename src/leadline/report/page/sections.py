"""The parts of the HTML report as its templates show them: score tables, heat maps, failures, versions, protocol."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import Record, RecordStatus
from leadline.bench.render import MISSING, format_number, format_row
from leadline.bench.results import MACRO, Results
from leadline.bench.scoring import PAPER_SCORING, Scoring
from leadline.bench.tables import HEADS, Table
from leadline.report.colour import Picture, colourise

HEAT_METRICS = ("absrel", "mae", "rmse", "nmean", "nmed")  # metrics of which a smaller value is better
WORST_RATIO = 4.0  # ratio to the best method at which the colours of a heat map end


def score_table(table: Table) -> dict[str, Any]:
    """A benchmark table whose numbers are formatted and whose best numbers are marked."""
    best = table.marked()
    blocks = []
    for b, block in enumerate(table.blocks):
        rows = []
        for r, row in enumerate(block.rows):
            texts = format_row(table.columns, block, row.values)
            cells = [{"text": text, "best": (b, r, c) in best} for c, text in enumerate(texts)]
            rows.append({"label": row.label, "cells": cells})
        blocks.append({"title": block.title, "rows": rows})
    groups = [
        {"title": title, "width": len(list(own))}
        for title, own in groupby(table.columns, key=lambda column: column.group)
    ]
    return {
        "title": table.title,
        "groups": groups if any(group["title"] for group in groups) else [],
        "heads": [table.corner, *(column.head for column in table.columns)],
        "blocks": blocks,
        "convention": table.convention,
        "notes": table.notes,
    }


def heat_maps(results: Results, prior: str) -> list[dict[str, Any]]:
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
        rows = []
        for r, method in enumerate(methods):
            cells = []
            for c, subset in enumerate(subsets):
                text = format_number(values[r, c], metric)
                style = None if text == MISSING else heat_style(colours[r, c])
                # Macro has no images that the cell could link to.
                cell = {"text": text, "subset": subset, "style": style, "best": best[r, c], "links": subset != MACRO}
                cells.append(cell)
            rows.append({"method": method, "cells": cells})
        maps.append({"metric": metric, "head": HEADS[metric], "subsets": subsets, "rows": rows})
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


def failures(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The failed records by reason, the most frequent reason first."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.status == RecordStatus.FAILED:
            found.setdefault(record.reason or "no reason was recorded", []).append(record)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"reason": reason, "methods": list(dict.fromkeys(record.method for record in own)), "records": own}
        for reason, own in ranked
    ]


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


def protocol_toml(protocol: Protocol) -> str:
    """The protocol as the text of a TOML file, which `read_protocol` reads back to an equal one.

    `limit` is an argument of the command line and no part of the file, so it becomes a comment.

    Examples
    --------
    >>> rooms = DatasetEntry("rendered", "Rooms", options={"count": 2})
    >>> print(protocol_toml(Protocol((rooms,), (PriorEntry("rendered"),), (MethodEntry("ours"),), cases=("outer",))))
    cases = ["outer"]
    stride = 7.5
    methods = [
        {name = "ours", label = "Ours"},
    ]
    priors = [
        {source = "rendered", label = "rendered"},
    ]
    <BLANKLINE>
    [[datasets]]
    name = "rendered"
    label = "Rooms"
    options = {count = 2}
    <BLANKLINE>
    """
    lines = [] if protocol.limit is None else [f"# The run was limited to {protocol.limit} images of each data set."]
    lines += [f"cases = {_toml(list(protocol.cases))}", f"stride = {_toml(protocol.stride)}"]
    lists: tuple[tuple[str, tuple[Any, ...]], ...] = (("methods", protocol.methods), ("priors", protocol.priors))
    for name, entries in lists:
        lines += [f"{name} = [", *(f"    {_toml(_changed_fields(item))}," for item in entries), "]"]
    tables: list[tuple[str, DatasetEntry | Scoring]] = [("[[datasets]]", entry) for entry in protocol.datasets]
    if protocol.scoring != PAPER_SCORING:
        tables.insert(0, ("[scoring]", protocol.scoring))
    for head, entry in tables:
        lines += ["", head, *(f"{name} = {_toml(value)}" for name, value in _changed_fields(entry).items())]
    return "\n".join([*lines, ""])


def _changed_fields(entry: DatasetEntry | PriorEntry | MethodEntry | Scoring) -> dict[str, Any]:
    """The fields of an entry that differ from their defaults."""
    changed = {}
    for field in fields(entry):
        default = field.default_factory() if field.default_factory is not NO_DEFAULT else field.default
        value = getattr(entry, field.name)
        if value != default:
            changed[field.name] = value
    return changed


def _toml(value: Any) -> str:
    """A value of TOML. Strings are as in JSON, which however does not escape the control character DEL."""
    if isinstance(value, dict):
        keys = {name: name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name) for name in value}
        return f"{{{', '.join(f'{keys[name]} = {_toml(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
