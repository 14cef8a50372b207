"""Tables as text in Markdown and in LaTeX, and the four CSV files with all percentiles."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from leadline.base.errors import FileError
from leadline.bench.results import MACRO, PERCENTILES, Results
from leadline.bench.tables import CSV_METRICS, Block, Column, Table, digits
from leadline.io.files import atomic_write

MISSING = "--"


def format_number(value: float, metric: str) -> str:
    """A number with the decimals of its metric; NaN as two dashes."""
    return MISSING if math.isnan(value) else f"{value:.{digits(metric)}f}"


def markdown(table: Table) -> str:
    """The table in Markdown under a heading, with the best numbers in bold."""
    heads = [f"{column.group} {column.head}".strip() for column in table.columns]
    lines = [f"### {table.title}", "", _pipe([table.corner, *heads]), _pipe(["---", *["---:"] * len(heads)])]
    marked = table.marked()
    for b, block in enumerate(table.blocks):
        if block.title:
            lines.append(_pipe([f"*{block.title}*", *[""] * len(heads)]))
        for r, row in enumerate(block.rows):
            texts = format_row(table.columns, block, row.values)
            lines.append(_pipe([row.label, *(f"**{t}**" if (b, r, c) in marked else t for c, t in enumerate(texts))]))
    return "\n".join([*lines, ""])


def latex(table: Table) -> str:
    """The table in LaTeX with the package booktabs."""
    columns = table.columns
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}}}\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
    ]
    if any(column.group for column in columns):
        cells, rules, place = [], [], 2
        for group, members in groupby(columns, key=lambda column: column.group):
            width = len(list(members))
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{_tex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        lines += [f" & {' & '.join(cells)} \\\\", "".join(rules)]
    lines.append(f"{_tex(table.corner.capitalize())} & {' & '.join(_tex(column.head) for column in columns)} \\\\")
    marked = table.marked()
    for b, block in enumerate(table.blocks):
        lines.append(r"\midrule")
        if block.title:
            lines.append(rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{\textbf{{{_tex(block.title)}}}}} \\")
        for r, row in enumerate(block.rows):
            texts = format_row(columns, block, row.values)
            cells = [rf"\textbf{{{text}}}" if (b, r, c) in marked else text for c, text in enumerate(texts)]
            lines.append(f"{_tex(row.label)} & {' & '.join(cells)} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def write_csvs(results: Results, folder: Path) -> list[Path]:
    """Write the paper's four CSV files with all percentiles, counts and failures; returns their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be created ({error.strerror}).") from error
    paths = []
    for name, metric in CSV_METRICS.items():
        path = folder / f"{name}.csv"
        rows = csv_rows(results, metric)

        def write(temporary: Path, rows: list[list[str]] = rows) -> None:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)

        atomic_write(path, write)
        paths.append(path)
    return paths


def csv_rows(results: Results, metric: str) -> list[list[str]]:
    """Header and rows of the CSV file of a metric: percentiles, scores and failures per subset, prior and method."""
    rows = [["subset", "prior", "method", *(f"p{percentile}" for percentile in PERCENTILES), "count", "failures"]]
    for subset in (*results.subsets, MACRO):
        for prior in results.priors:
            for method in results.methods:
                values = [results.value(prior, method, subset, metric, percentile) for percentile in PERCENTILES]
                texts = ["" if math.isnan(value) else f"{value:.6f}" for value in values]
                counts = (f(prior, method, subset, metric) for f in (results.count, results.failures))
                rows.append([subset, prior, method, *texts, *map(str, counts)])
    return rows


def format_row(columns: Sequence[Column], block: Block, values: Sequence[float]) -> list[str]:
    """The numbers of a row as text."""
    return [format_number(value, block.metric or column.metric) for value, column in zip(values, columns, strict=True)]


def _pipe(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "°": r"$^\circ$", "δ": r"$\delta$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
