"""Tables as text in Markdown and in LaTeX, and the four CSV files with all percentiles."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from leadline.bench.results import MACRO, METRICS, PERCENTILES, Results
from leadline.bench.scoring import PAPER_SCORING
from leadline.bench.tables import CSV_METRICS, Block, Column, Table, digits
from leadline.io.files import atomic_write, make_folder

MISSING = "--"


def format_number(value: float | str, metric: str) -> str:
    """A number with the decimals of its metric; NaN as two dashes, and a text as it is."""
    if isinstance(value, str):
        return value
    return MISSING if math.isnan(value) else f"{value:.{digits(metric)}f}"


def markdown(table: Table) -> str:
    """The table in Markdown under a heading, with the best numbers in bold."""
    heads = [f"{column.group} {column.head}".strip() for column in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    caption = [f"{table.convention}", ""] if table.convention else []
    lines = [f"### {table.title}", "", *caption, _pipe([table.corner, *heads]), _pipe(["---", *rules])]
    marked = table.marked()
    for b, block in enumerate(table.blocks):
        if block.title:
            lines.append(_pipe([f"*{block.title}*", *[""] * len(heads)]))
        for r, row in enumerate(block.rows):
            texts = format_row(table.columns, block, row.values)
            lines.append(_pipe([row.label, *(f"**{t}**" if (b, r, c) in marked else t for c, t in enumerate(texts))]))
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes), ""])


def latex(table: Table) -> str:
    """The table in LaTeX with the package booktabs."""
    columns = table.columns
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex('. '.join(filter(None, (table.title, table.convention))))}}}\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{''.join('l' if column.is_text else 'r' for column in columns)}}}",
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
    notes = [rf"\par\footnotesize {_tex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}", ""])


def write_csvs(results: Results, folder: Path) -> list[Path]:
    """Write CSV files with all percentiles, counts and failures; returns their paths.

    They are the paper's four; for a run with another convention one file per metric, with that convention.
    """
    make_folder(folder)
    paths = []
    names = CSV_METRICS if results.scoring == PAPER_SCORING else {f"scores_{metric}": metric for metric in METRICS}
    for name, metric in names.items():
        path = folder / f"{name}.csv"
        rows = csv_rows(results, metric)

        def write(temporary: Path, rows: list[list[str]] = rows) -> None:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)

        atomic_write(path, write)
        paths.append(path)
    return paths


def csv_rows(results: Results, metric: str) -> list[list[str]]:
    """Header and rows of the CSV file of a metric: percentiles and counts per subset, prior and method that were run.

    The counts are numbers of scores, of records without a score, and of scores whose method did not converge. If the
    convention is not the paper's, each row ends with its number and the convention itself.
    """
    counts = ("count", "failures", "unconverged")
    is_paper = results.scoring == PAPER_SCORING
    own = () if is_paper else (results.scoring.statistic, "convention")
    rows = [["subset", "prior", "method", *(f"p{percentile}" for percentile in PERCENTILES), *counts, *own]]
    for subset in (*results.subsets, MACRO):
        for prior in results.priors:
            for method in results.methods:
                if not results.has_run(prior, method):
                    continue
                place = prior, method, subset, metric
                texts = [_csv_number(results.value(*place, percentile)) for percentile in PERCENTILES]
                texts += [str(f(*place)) for f in (results.count, results.failures, results.unconverged)]
                texts += [] if is_paper else [_csv_number(results.value(*place)), results.scoring.describe()]
                rows.append([subset, prior, method, *texts])
    return rows


def _csv_number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}"


def format_row(columns: Sequence[Column], block: Block, values: Sequence[float | str]) -> list[str]:
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
