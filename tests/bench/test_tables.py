"""The tables of the paper: which methods and numbers they contain."""

from __future__ import annotations

import json

import pytest

from leadline.base.errors import InputError
from leadline.bench.published.numbers import PROMPTDA, published_results
from leadline.bench.published.reference_tables import support_table
from leadline.bench.render import latex, markdown
from leadline.bench.tables import BEST, ON_REQUEST, OURS, RESPONSE, TABLES, tables_of
from support.bench_records import NAN, few_records, pooled, record


def test_the_weights_table_takes_variants_and_no_other_does() -> None:
    rows = few_records() + [
        record("A", "i", "outer", f"w{data}", 0.1 * place, 1.0, options=json.dumps({"weight_data": data}))
        for place, data in enumerate((1e-2, 1e-4), start=1)
    ]
    found = pooled(rows, subsets=["A"], methods=["KNN", OURS, "w0.01", "w0.0001"])
    (table,) = tables_of(found, names=["weights"])
    assert [row.label for row in table.blocks[0].rows] == ["data 1e-4, laplacian 1e-3", "data 1e-2, laplacian 1e-3"]
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
    assert names == set(TABLES) - set(ON_REQUEST)
    (main,) = tables_of(published_results(), names=["main"])
    assert r"\textbf{0.0301} & \textbf{14.04} \\" in latex(main)


def test_best_is_beside_ours_in_every_table_of_methods() -> None:
    methods = ["Raw", "GDisp", RESPONSE, OURS, BEST]
    rows = [record("A", "i", "outer", name, 0.1, 1.0, prior=prior) for name in methods for prior in "pq"]
    for table in tables_of(pooled(rows, subsets=["A"], priors=["p", "q"], methods=methods)):
        labels = {column.group for column in table.columns} | {row.label for row in table.blocks[0].rows}
        assert {OURS, BEST} <= labels, table.name


def test_tables_are_about_the_first_prior_that_has_scores() -> None:
    rows = [record("A", "i", "outer", OURS, score, prior=prior) for prior, score in (("p", NAN), ("q", 0.3))]
    found = pooled(rows, subsets=["A"], priors=["p", "q"], methods=[OURS])
    (table,) = tables_of(found, names=["percentiles"])
    assert "prior: q" in table.title
    assert table.blocks[0].rows[0].values[:9] == pytest.approx([0.3] * 7 + [1, 0])
    assert tables_of(found, names=["percentiles"], prior="p") == []


def test_failed_and_unconverged_records_are_counted_below_every_table_of_scores() -> None:
    methods = ["GDisp", RESPONSE, OURS]
    rows = [
        record("A", str(place), "outer", name, NAN if name == "GDisp" and place else 0.1, 1.0, converged=place > 0)
        for name in methods
        for place in range(3)
    ]
    found = pooled(rows, subsets=["A"], methods=methods)
    tables = {table.name: table for table in tables_of(found, names=[name for name in TABLES if name != "weights"])}
    assert {"main", "baselines", "stages", "normals-mean", "fixed", "percentiles", "failures"} <= tables.keys()
    for name, table in tables.items():
        assert name == "failures" or any(f"{OURS} 1 of 3" in note for note in table.notes), name
    assert tables["baselines"].notes[0] == "Records without a depth score: GDisp 2 of 3."
    counted = {row.label: row.values for row in tables["failures"].blocks[0].rows}
    assert counted["A: GDisp"] == (3, 2, 2, 0, 0, 1)
    assert counted[f"A: {OURS}"] == (3, 0, 0, 0, 0, 1)
    for text in (markdown(tables["main"]), latex(tables["main"])):
        assert f"did not converge: {OURS} 1 of 3." in text


def test_macro_without_normals_of_a_subset_is_explained() -> None:
    rows = [record(subset, "i", "outer", OURS, 0.2, NAN if subset == "B" else 8.0) for subset in "AB"]
    (table,) = tables_of(pooled(rows, methods=[OURS]), names=["main"])
    assert table.blocks[1].rows[0].values == pytest.approx((0.2, 8.0))
    assert table.notes == ("Macro of NMed (°) leaves out B, where nothing has such a score.",)


def test_promptda_beside_the_support() -> None:
    rows = [
        record("Ignatius", str(place), "outer", PROMPTDA, 0.1 * place, NAN if place == 3 else 5.0)
        for place in (1, 2, 3)
    ]
    found = pooled(rows, subsets=["Barn", "Ignatius"], methods=[PROMPTDA])
    geometry = [{"subset": "Ignatius", "percentile": "50", "valid_fraction": ".15", "largest_component": ".99"}]
    table = support_table(found, "p", geometry)
    assert table is not None
    assert [block.title for block in table.blocks] == ["p16", "p50", "p84"]
    ((label, values),) = [(row.label, row.values) for row in table.blocks[1].rows]
    assert (label, values[-1]) == ("Ignatius", "0/0/1/1")
    assert values[:-1] == pytest.approx((0.15, 0.99, 0.2, 0.4, 7.5, 5.0))
    unknown = support_table(found, "p", None)  # the geometry was not computed
    assert unknown is not None
    assert "| Ignatius | -- | -- | 0.2000 |" in markdown(unknown)
    assert support_table(pooled(), "p", geometry) is None
