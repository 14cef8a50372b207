"""Distributions of scores, checked by hand, and the published results."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.bench.published.numbers import (
    PAPER_SUBSETS,
    PROMPTDA,
    SUPPORT_METRICS,
    published_reference_geometry,
    published_results,
)
from leadline.bench.results import MACRO, PERCENTILES, distribution
from leadline.bench.tables import OURS
from support.bench_records import NAN, pooled, record

ROUNDING = 0.5e-4 + 0.5e-4  # a mean of numbers rounded to four digits, against one rounded to four digits


def test_percentiles_by_hand() -> None:
    # Seven scores 0.1 to 0.7: rank = p/100 * 6, so p50 is the fourth and p7 is 0.42 of the way from first to second.
    found = pooled()
    assert found.value("p", OURS, "A", "absrel") == pytest.approx(0.4)
    assert found.value("p", OURS, "A", "absrel", 7) == pytest.approx(0.1 + 0.1 * 0.42)
    assert found.value("p", OURS, "A", "absrel", 93) == pytest.approx(0.6 + 0.1 * 0.58)
    assert found.value("p", OURS, "A", "absrel", 16) == pytest.approx(0.1 + 0.1 * 0.96)
    assert PERCENTILES == (7, 16, 31, 50, 69, 84, 93)


def test_failures_are_counted_per_metric() -> None:
    found = pooled()
    assert (found.count("p", OURS, "A", "absrel"), found.failures("p", OURS, "A", "absrel")) == (7, 1)
    assert (found.count("p", OURS, "A", "nmed"), found.failures("p", OURS, "A", "nmed")) == (6, 2)
    assert (found.count("p", "KNN", "A", "nmed"), found.failures("p", "KNN", "A", "nmed")) == (0, 8)
    assert found.failures("p", "KNN", MACRO, "nmed") == 9
    assert math.isnan(found.value("p", "KNN", "A", "nmed"))


def test_macro_is_the_plain_mean_of_the_subsets() -> None:
    found = pooled()
    assert found.value("p", OURS, MACRO, "absrel") == pytest.approx((0.4 + 0.9) / 2)
    assert found.value("p", OURS, MACRO, "absrel", 7) == pytest.approx((0.142 + 0.9) / 2)
    assert math.isnan(found.value("p", "KNN", MACRO, "nmed"))
    # A subset without any score leaves no Macro, rather than one over fewer subsets.
    assert math.isnan(pooled(subsets=["A", "B", "C"]).value("p", OURS, MACRO, "absrel"))


def test_a_subset_without_normals_is_left_out_of_their_macro_only() -> None:
    rows = [record(subset, "i", "outer", OURS, 0.2, NAN if subset == "B" else 8.0) for subset in "ABC"]
    rows += [record(subset, "i", "outer", "KNN", 0.4, 9.0 if subset == "A" else NAN) for subset in "ABC"]
    found = pooled(rows, subsets=["A", "B", "C"])
    assert found.macro_subsets("absrel") == ("A", "B", "C")
    assert found.macro_subsets("nmed") == ("A", "C")
    assert found.value("p", OURS, MACRO, "nmed") == pytest.approx(8.0)
    # In C another method has a score of normals, so that KNN has failed there and has no Macro.
    assert math.isnan(found.value("p", "KNN", MACRO, "nmed"))


def test_records_that_did_not_converge_are_counted() -> None:
    rows = [record("A", str(place), "outer", OURS, 0.1, converged=place > 2) for place in range(8)]
    rows.append(record("A", "9", "outer", OURS, NAN, converged=False))  # failed, and counted as that
    found = pooled(rows, subsets=["A"])
    assert found.unconverged("p", OURS, "A", "absrel") == found.unconverged("p", OURS, MACRO, "absrel") == 3
    assert found.unconverged("p", OURS, "A", "nmed") == 0  # there are no scores of normals
    assert found.unconverged("p", "KNN", "A", "absrel") == 0


def test_pooling_can_be_limited_to_a_case() -> None:
    assert pooled(cases=["distributed"]).value("p", OURS, "A", "absrel") == pytest.approx(0.4)  # 0.5, 0.3, 0.4
    assert pooled(cases=["central"]).count("p", OURS, "A", "absrel") == 2


def test_a_distribution_without_scores() -> None:
    found = distribution([NAN, NAN])
    assert (found.count, found.failures) == (0, 2)
    assert all(math.isnan(value) for value in found.percentiles.values())


def test_published_numbers_are_the_papers() -> None:
    paper = published_results()
    assert paper.value("MoGe-3", OURS, "Ignatius", "nmed") == 18.05
    assert paper.value("MoGe-3", "Raw", "DIODE-in", "absrel") == 0.2707
    assert paper.value("DAV2-B", "GMetric", "Meetingroom", "absrel") == 0.3224
    assert paper.value("MoGe-3", "Ours w/o Dirichlet", "Truck", "mae") == 0.1809
    assert math.isnan(paper.value("DAV2-L", "Raw", "Barn", "absrel"))
    assert len(published_reference_geometry()) == 27
    assert paper.value("MoGe-3", PROMPTDA, "ARKit", "absrel", 16) == 0.0245
    assert paper.value("MoGe-3", PROMPTDA, "DIODE-in", "mae", 84) == 4.0551
    assert [paper.failures("MoGe-3", PROMPTDA, "ARKit", metric) for metric in SUPPORT_METRICS] == [0, 0, 3, 3]
    assert paper.count("MoGe-3", PROMPTDA, "ARKit", "nmed") == 3 * 1141 - 3


def test_the_papers_macro_is_the_mean_of_its_subsets() -> None:
    paper = published_results()
    for method, printed in ((OURS, 0.0301), ("LDCM", 0.0368), ("Ours w/o Dirichlet", 0.0382), ("GDisp", 0.0524)):
        mean = np.mean([paper.value("MoGe-3", method, subset, "absrel") for subset in PAPER_SUBSETS])
        assert mean == pytest.approx(printed, abs=ROUNDING)
