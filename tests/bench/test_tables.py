"""Percentiles, Macro, tables and comparisons, checked by hand on a few numbers, and the published ones."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from leadline.base.errors import FileError, InputError
from leadline.bench.compare import compare
from leadline.bench.paper import SUBSETS, beside, published, reference_geometry
from leadline.bench.records import Record, RecordStore
from leadline.bench.render import csv_rows, latex, markdown, terminal, write_csvs
from leadline.bench.results import MACRO, PERCENTILES, Results, pool, spread
from leadline.bench.tables import TABLES, tables_of

ROUNDING = 0.5e-4 + 0.5e-4  # a mean of numbers rounded to four digits, against one rounded to four digits
NAN = math.nan


def record(
    dataset: str, image: str, case: str, method: str, absrel: float, nmed: float = NAN, prior: str = "p", **more: object
) -> Record:
    key = "|".join((dataset, image, case, prior, method))
    scores = {"absrel": absrel, "mae": 2 * absrel, "nmed": nmed, "nmean": 1.5 * nmed, **more}
    state = "failed" if math.isnan(absrel) else "ok"
    return Record(key=key, dataset=dataset, image=image, case=case, prior=prior, method=method, status=state, **scores)  # type: ignore[arg-type]


def small() -> list[Record]:
    """Two subsets, two methods; in A seven scores 1 to 7 spread over cases and one failure, in B one score."""
    rows = []
    for place, score in enumerate([0.5, 0.1, 0.7, 0.3, 0.2, 0.6, 0.4, NAN]):
        case = ("distributed", "central", "outer")[place % 3]
        rows.append(record("A", f"i{place // 3}", case, "Ours", score, nmed=NAN if place == 2 else 10.0 * score))
        rows.append(record("A", f"i{place // 3}", case, "KNN", 2 * score))
    rows += [record("B", "j", "outer", "Ours", 0.9, 3.0), record("B", "j", "outer", "KNN", 0.8)]
    return rows


def results(rows: list[Record] | None = None, **more: object) -> Results:
    labels = {"subsets": ["A", "B"], "priors": ["p"], "methods": ["KNN", "Ours"], **more}
    return pool(small() if rows is None else rows, **labels)  # type: ignore[arg-type]


def test_percentiles_by_hand() -> None:
    # Seven scores 0.1 to 0.7: rank = p/100 * 6, so p50 is the fourth and p7 is 0.42 of the way from first to second.
    found = results()
    assert found.value("p", "Ours", "A", "absrel") == pytest.approx(0.4)
    assert found.value("p", "Ours", "A", "absrel", 7) == pytest.approx(0.1 + 0.1 * 0.42)
    assert found.value("p", "Ours", "A", "absrel", 93) == pytest.approx(0.6 + 0.1 * 0.58)
    assert found.value("p", "Ours", "A", "absrel", 16) == pytest.approx(0.1 + 0.1 * 0.96)
    assert PERCENTILES == (7, 16, 31, 50, 69, 84, 93)


def test_failures_are_counted_per_metric() -> None:
    found = results()
    assert (found.count("p", "Ours", "A", "absrel"), found.failures("p", "Ours", "A", "absrel")) == (7, 1)
    assert (found.count("p", "Ours", "A", "nmed"), found.failures("p", "Ours", "A", "nmed")) == (6, 2)
    assert (found.count("p", "KNN", "A", "nmed"), found.failures("p", "KNN", "A", "nmed")) == (0, 8)
    assert found.failures("p", "KNN", MACRO, "nmed") == 9
    assert math.isnan(found.value("p", "KNN", "A", "nmed"))


def test_macro_is_the_plain_mean_of_the_subsets() -> None:
    found = results()
    assert found.value("p", "Ours", MACRO, "absrel") == pytest.approx((0.4 + 0.9) / 2)
    assert found.value("p", "Ours", MACRO, "absrel", 7) == pytest.approx((0.142 + 0.9) / 2)
    assert math.isnan(found.value("p", "KNN", MACRO, "nmed"))
    # A subset without any score leaves no Macro, rather than one over fewer subsets.
    assert math.isnan(results(subsets=["A", "B", "C"]).value("p", "Ours", MACRO, "absrel"))


def test_pooling_can_be_limited_to_a_case() -> None:
    assert results(cases=["distributed"]).value("p", "Ours", "A", "absrel") == pytest.approx(0.4)  # 0.5, 0.3, 0.4
    assert results(cases=["central"]).count("p", "Ours", "A", "absrel") == 2


def test_an_empty_spread() -> None:
    found = spread([NAN, NAN])
    assert (found.count, found.failures) == (0, 2)
    assert all(math.isnan(value) for value in found.percentiles.values())


def test_markdown_latex_and_terminal_say_the_same() -> None:
    (table,) = tables_of(results(), names=["baselines"])
    text = markdown(table)
    assert "| Ours | **0.4000** | 0.9000 | **0.6500** |" in text
    assert "| KNN | 0.8000 | **0.8000** | 0.8000 |" in text
    assert "| Ours | 5.25 | 4.50 | 4.88 |" in text  # 1.5 times the median of six scores in A
    tex = latex(table)
    assert r"Ours & \textbf{0.4000} & 0.9000 & \textbf{0.6500} \\" in tex
    assert tex.count(r"\midrule") == 2
    assert r"NMean ($^\circ$)" in tex
    assert r"KNN & -- & -- & -- \\" in tex
    console = Console(width=120, file=io.StringIO())
    console.print(terminal(table))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.6500" in shown
    assert "--" in shown


def test_latex_has_groups_and_escapes() -> None:
    rows = [record("A_1", "i", "outer", name, 0.5, 1.0) for name in ("x & y", "Ours")]
    (table,) = tables_of(results(rows, subsets=["A_1"], methods=["x & y", "Ours"]), names=["main"])
    tex = latex(table)
    assert r"\multicolumn{2}{c}{x \& y} & \multicolumn{2}{c}{Ours} \\" in tex
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in tex
    assert r"A\_1 & \textbf{0.5000} & \textbf{1.00} & \textbf{0.5000} & \textbf{1.00} \\" in tex
    assert tex.count("{") == tex.count("}")


def test_the_four_csv_files(tmp_path: Path) -> None:
    paths = write_csvs(results(), tmp_path / "tables")
    assert [path.name for path in paths] == [
        "table1_normal_mean.csv",
        "table2_normal_median.csv",
        "table3_depth_absrel.csv",
        "table4_depth_mae.csv",
    ]
    with paths[2].open(encoding="utf-8") as file:
        rows = {(row["subset"], row["method"]): row for row in csv.DictReader(file)}
    assert rows["A", "Ours"]["p50"] == "0.400000"
    assert (rows["A", "Ours"]["count"], rows["A", "Ours"]["failures"]) == ("7", "1")
    assert rows[MACRO, "Ours"]["p50"] == "0.650000"
    assert csv_rows(results(), "nmed")[1][3:] == [*[""] * 7, "0", "8"]  # A, p, KNN


def test_the_weights_table_takes_variants_and_no_other_does() -> None:
    rows = small() + [
        record("A", "i", "outer", f"w{data}", 0.1 * place, 1.0, options=json.dumps({"weight_data": data}))
        for place, data in enumerate((1e-2, 1e-4), start=1)
    ]
    found = results(rows, subsets=["A"], methods=["KNN", "Ours", "w0.01", "w0.0001"])
    (table,) = tables_of(found, names=["weights"])
    assert [row.label for row in table.blocks[0].rows] == ["data 1e-04, laplacian 1e-03", "data 1e-02, laplacian 1e-03"]
    assert table.blocks[0].rows[0].values[0] == pytest.approx(0.4)  # MAE of the second
    (main,) = tables_of(found, names=["main"])
    assert {column.group for column in main.columns} == {"Ours"}


def test_priors_side_by_side() -> None:
    rows = [record("A", "i", "outer", "Ours", score, 1.0, prior=prior) for prior, score in (("p", 0.1), ("q", 0.3))]
    found = results(rows, subsets=["A"], priors=["p", "q"], methods=["Ours"])
    (table,) = tables_of(found, names=["priors"])
    assert [column.group for column in table.columns] == ["p", "p", "q", "q"]
    assert table.blocks[0].rows[0].values == pytest.approx((0.1, 1.5, 0.3, 1.5))
    assert tables_of(found, names=["main"], prior="q")[0].blocks[0].rows[0].values[0] == pytest.approx(0.3)


def test_unknown_tables_and_priors_are_refused() -> None:
    with pytest.raises(InputError, match="main"):
        tables_of(results(), names=["mine"])
    with pytest.raises(InputError, match="there are p"):
        tables_of(results(), prior="q")


# ---- the paper


def test_published_numbers_are_the_papers() -> None:
    paper = published()
    assert paper.value("MoGe-3", "Ours", "Ignatius", "nmed") == 18.05
    assert paper.value("MoGe-3", "Raw", "DIODE-in", "absrel") == 0.2707
    assert paper.value("DAV2-B", "GMetric", "Meetingroom", "absrel") == 0.3224
    assert paper.value("MoGe-3", "Ours w/o Dirichlet", "Truck", "mae") == 0.1809
    assert math.isnan(paper.value("DAV2-L", "Raw", "Barn", "absrel"))
    assert len(reference_geometry()) == 27


def test_the_papers_macro_is_the_mean_of_its_subsets() -> None:
    paper = published()
    for method, printed in (("Ours", 0.0301), ("LDCM", 0.0368), ("Ours w/o Dirichlet", 0.0382), ("GDisp", 0.0524)):
        mean = np.mean([paper.value("MoGe-3", method, subset, "absrel") for subset in SUBSETS])
        assert mean == pytest.approx(printed, abs=ROUNDING)


def test_every_published_table_can_be_shown() -> None:
    names = {table.name for table in tables_of(published())}
    assert names == set(TABLES) - {"percentiles", "failures"}
    (main,) = tables_of(published(), names=["main"])
    assert r"\textbf{0.0301} & \textbf{14.04} \\" in latex(main)


def test_a_run_beside_the_paper() -> None:
    rows = [record("iBims", "i", "outer", "Ours", 0.0416, 10.83, prior="MoGe-3")]
    found = results(rows, subsets=["iBims"], priors=["MoGe-3"], methods=["Ours"])
    table = beside(found, published())
    values = {row.label: row.values for row in table.blocks[0].rows}
    assert values["iBims AbsRel"] == pytest.approx((0.0208, 0.0416, 100.0))
    assert not any(label.startswith(MACRO) for label in values)  # over other subsets
    with pytest.raises(InputError, match="MoGe-3"):
        beside(results(), published())


# ---- comparisons


def pairs(differences: list[float], images: list[str] | None = None) -> tuple[list[Record], list[Record]]:
    names = images or [f"i{place}" for place in range(len(differences))]
    first = [record("A", name, str(place), "Ours", 0.5, 5.0) for place, name in enumerate(names)]
    second = [
        record("A", name, str(place), "Ours", 0.5 + difference, 5.0)
        for place, (name, difference) in enumerate(zip(names, differences, strict=True))
    ]
    return first, second


def test_comparison_by_hand() -> None:
    (found,) = compare(*pairs([-0.1, -0.2, 0.3, 0.0, -0.4, NAN]), metrics=["absrel"])
    assert (found.pairs, found.wins, found.losses, found.unpaired) == (5, 3, 1, 1)
    assert found.median == pytest.approx(-0.1)
    assert found.low <= found.median <= found.high
    assert found.worst[0].difference == pytest.approx(0.3)
    assert found.worst[0].image == "i2"
    assert len(found.worst) == 5


def test_more_is_better_for_deltas() -> None:
    first = [record("A", "i", "outer", "Ours", 0.5, delta1=0.8), record("A", "j", "outer", "Ours", 0.5, delta1=0.8)]
    second = [record("A", "i", "outer", "Ours", 0.5, delta1=0.9), record("A", "j", "outer", "Ours", 0.5, delta1=0.5)]
    (found,) = compare(first, second, metrics=["delta1"])
    assert (found.wins, found.losses, found.worst[0].image) == (1, 1, "j")


def test_the_interval_covers_and_narrows() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(60):
        (found,) = compare(*pairs((0.01 * rng.standard_normal(81) + 0.02).tolist()), metrics=["absrel"])
        covered += found.low <= 0.02 <= found.high
        assert found.clear
    assert covered >= 51  # of 60, when 57 are expected: fewer have a chance of 1 in 1000


def test_the_interval_resamples_images_not_cases() -> None:
    # Three images with twenty identical cases each are three facts, not sixty.
    differences = [-0.1] * 20 + [0.1] * 20 + [0.3] * 20
    images = ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    (grouped,) = compare(*pairs(differences, images), metrics=["absrel"])
    (single,) = compare(*pairs(differences), metrics=["absrel"])
    assert (grouped.low, grouped.high) == pytest.approx((-0.1, 0.3))
    assert single.high - single.low < 0.3


def test_two_methods_of_one_run() -> None:
    (found,) = (
        item
        for item in compare(small(), small(), metrics=["absrel"], method="Ours", against="KNN")
        if item.dataset == "A"
    )
    assert (found.method, found.pairs, found.losses) == ("Ours -> KNN", 7, 7)


def test_nothing_in_common_and_unknown_metrics() -> None:
    with pytest.raises(InputError, match="no record in common"):
        compare(small(), [], metrics=["absrel"])
    with pytest.raises(InputError, match="absrel"):
        compare(small(), small(), metrics=["abs_rel"])


# ---- the store


def test_a_key_is_written_once_and_a_unit_whole(tmp_path: Path) -> None:
    with RecordStore(tmp_path, create=True) as store:
        store.add(small()[:3])
        store.add([record("A", "i0", "distributed", "Ours", 99.0), *small()[3:5]])
        assert len(store.keys()) == 5
        broken = small()[5:7]
        object.__setattr__(broken[1], "reason", None)  # NOT NULL
        with pytest.raises(FileError, match="NOT NULL"):
            store.add(broken)
        assert len(store.keys()) == 5  # neither of the two


def test_foreign_folders_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no run"):
        RecordStore(tmp_path)
    (tmp_path / "records.sqlite").write_bytes(b"not a database at all, only some text" * 40)
    with pytest.raises(FileError, match="not a store"):
        RecordStore(tmp_path)
