"""Tables in Markdown, LaTeX, on the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console

from leadline.apps.terminal.progress import rich_table
from leadline.bench.render import csv_rows, latex, markdown, write_csvs
from leadline.bench.results import MACRO
from leadline.bench.tables import OURS, tables_of
from support.bench_records import pooled, record


def test_markdown_latex_and_terminal_show_the_same_numbers() -> None:
    (table,) = tables_of(pooled(), names=["baselines"])
    text = markdown(table)
    assert f"| {OURS} | **0.4000** | 0.9000 | **0.6500** |" in text
    assert "| KNN | 0.8000 | **0.8000** | 0.8000 |" in text
    assert f"| {OURS} | 5.25 | 4.50 | 4.88 |" in text  # 1.5 times the median of six scores in A
    tex = latex(table)
    assert OURS + r" & \textbf{0.4000} & 0.9000 & \textbf{0.6500} \\" in tex
    assert tex.count(r"\midrule") == 2
    assert r"NMean ($^\circ$)" in tex
    assert r"KNN & -- & -- & -- \\" in tex
    console = Console(width=120, file=io.StringIO())
    console.print(rich_table(table))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.6500" in shown
    assert "--" in shown


def test_latex_has_groups_and_escapes() -> None:
    rows = [record("A_1", "i", "outer", name, 0.5, 1.0) for name in ("x & y", OURS)]
    (table,) = tables_of(pooled(rows, subsets=["A_1"], methods=["x & y", OURS]), names=["main"])
    tex = latex(table)
    assert r"\multicolumn{2}{c}{x \& y} & \multicolumn{2}{c}{Ours} \\" in tex
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in tex
    assert r"A\_1 & \textbf{0.5000} & \textbf{1.00} & \textbf{0.5000} & \textbf{1.00} \\" in tex
    assert tex.count("{") == tex.count("}")


def test_the_four_csv_files(tmp_path: Path) -> None:
    paths = write_csvs(pooled(), tmp_path / "tables")
    assert [path.name for path in paths] == [
        "table1_normal_mean.csv",
        "table2_normal_median.csv",
        "table3_depth_absrel.csv",
        "table4_depth_mae.csv",
    ]
    with paths[2].open(encoding="utf-8") as file:
        rows = {(row["subset"], row["method"]): row for row in csv.DictReader(file)}
    assert rows["A", OURS]["p50"] == "0.400000"
    assert (rows["A", OURS]["count"], rows["A", OURS]["failures"]) == ("7", "1")
    assert rows[MACRO, OURS]["p50"] == "0.650000"
    assert csv_rows(pooled(), "nmed")[1][3:] == [*[""] * 7, "0", "8", "0"]  # A, p, KNN
