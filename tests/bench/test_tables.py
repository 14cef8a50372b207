"""The tables of the paper: which methods and numbers they contain."""

from __future__ import annotations

import json

import pytest

from leadline.base.errors import InputError
from leadline.bench.render import latex
from leadline.bench.results import published_results
from leadline.bench.tables import BEST, OURS, RESPONSE, TABLES, tables_of
from support.bench_records import few_records, pooled, record


def test_the_weights_table_takes_variants_and_no_other_does() -> None:
    rows = few_records() + [
        record("A", "i", "outer", f"w{data}", 0.1 * place, 1.0, options=json.dumps({"weight_data": data}))
        for place, data in enumerate((1e-2, 1e-4), start=1)
    ]
    found = pooled(rows, subsets=["A"], methods=["KNN", OURS, "w0.01", "w0.0001"])
    (table,) = tables_of(found, names=["weights"])
    assert [row.label for row in table.blocks[0].rows] == ["data 1e-04, laplacian 1e-03", "data 1e-02, laplacian 1e-03"]
    assert table.blocks[0].rows[0].values[0] == pytest.approx(0.4)  # MAE of the second
    (main,) = tables_of(found, names=["main"])
    assert {column.group for column in main.columns} == {OURS}


def test_priors_side_by_side() -> None:
    rows = [record("A", "i", "outer", OURS, score, 1.0, prior=prior) for prior, score in (("p", 0.1), ("q", 0.3))]
    found = pooled(rows, subsets=["A"], priors=["p", "q"], methods=[OURS])
    (table,) = tables_of(found, names=["priors"])
    assert [column.group for column in table.columns] == ["p", "p", "q", "q"]
    assert table.blocks[0].rows[0].values == pytest.approx((0.1, 1.5, 0.3, 1.5))
    assert tables_of(found, names=["main"], prior="q")[0].blocks[0].rows[0].values[0] == pytest.approx(0.3)


def test_unknown_tables_and_priors_are_refused() -> None:
    with pytest.raises(InputError, match="main"):
        tables_of(pooled(), names=["mine"])
    with pytest.raises(InputError, match="choose one of p"):
        tables_of(pooled(), prior="q")


def test_every_published_table_can_be_shown() -> None:
    names = {table.name for table in tables_of(published_results())}
    assert names == set(TABLES) - {"percentiles", "failures"}
    (main,) = tables_of(published_results(), names=["main"])
    assert r"\textbf{0.0301} & \textbf{14.04} \\" in latex(main)


def test_best_is_beside_ours_in_every_table_of_methods() -> None:
    methods = ["Raw", "GDisp", RESPONSE, OURS, BEST]
    rows = [record("A", "i", "outer", name, 0.1, 1.0, prior=prior) for name in methods for prior in "pq"]
    for table in tables_of(pooled(rows, subsets=["A"], priors=["p", "q"], methods=methods)):
        labels = {column.group for column in table.columns} | {row.label for row in table.blocks[0].rows}
        assert {OURS, BEST} <= labels, table.name
