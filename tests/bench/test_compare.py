"""Paired comparisons, ratios, and a run beside the paper, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.compare import compare, ratios_table, wins_table
from leadline.bench.published.numbers import published_results
from leadline.bench.published.pairing import compare_with_paper
from leadline.bench.records import Record
from leadline.bench.results import MACRO
from leadline.bench.tables import BEST, OURS
from support.bench_records import NAN, few_records, pooled, record


def pairs(differences: list[float], images: list[str] | None = None) -> tuple[list[Record], list[Record]]:
    names = images or [f"i{place}" for place in range(len(differences))]
    first = [record("A", name, str(place), OURS, 0.5, 5.0) for place, name in enumerate(names)]
    second = [
        record("A", name, str(place), OURS, 0.5 + difference, 5.0)
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
    first = [record("A", "i", "outer", OURS, 0.5, delta1=0.8), record("A", "j", "outer", OURS, 0.5, delta1=0.8)]
    second = [record("A", "i", "outer", OURS, 0.5, delta1=0.9), record("A", "j", "outer", OURS, 0.5, delta1=0.5)]
    (found,) = compare(first, second, metrics=["delta1"])
    assert (found.wins, found.losses, found.worst[0].image) == (1, 1, "j")


def test_the_interval_covers_the_true_median() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(60):
        (found,) = compare(*pairs((0.01 * rng.standard_normal(81) + 0.02).tolist()), metrics=["absrel"])
        covered += found.low <= 0.02 <= found.high
        assert found.is_significant
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
        for item in compare(few_records(), few_records(), metrics=["absrel"], method="ours", against="KNN")
        if item.dataset == "A"
    )
    assert (found.method, found.pairs, found.losses) == (f"{OURS} -> KNN", 7, 7)


def test_nothing_in_common_and_unknown_metrics() -> None:
    with pytest.raises(InputError, match="no records in common"):
        compare(few_records(), [], metrics=["absrel"])
    with pytest.raises(InputError, match="absrel"):
        compare(few_records(), few_records(), metrics=["abs_rel"])


def test_a_run_beside_the_paper() -> None:
    rows = [record("iBims", "i", "outer", OURS, 0.0416, 10.83, prior="MoGe-3")]
    found = pooled(rows, subsets=["iBims"], priors=["MoGe-3"], methods=[OURS])
    table = compare_with_paper(found, published_results())
    values = {row.label: row.values for row in table.blocks[0].rows}
    assert values["iBims AbsRel p50"] == pytest.approx((0.0208, 0.0416, 100.0))
    assert not any(label.startswith(MACRO) for label in values)  # over other subsets
    assert compare_with_paper(pooled(), published_results()) is None


def test_ratios_are_geometric_means_paired_by_image() -> None:
    table = ratios_table(
        [
            *(record("A", image, "outer", OURS, 0.1, 10.0) for image in "abc"),
            record("A", "a", "outer", BEST, 0.05, 5.0),
            record("A", "b", "outer", BEST, 0.2),
            record("A", "lost", "outer", BEST, 9.0),  # no partner
        ]
    )
    assert table is not None
    (block,) = table.blocks
    ((label, values),) = [(row.label, row.values) for row in block.rows]
    assert (block.title, label) == ("p", f"{BEST}, outer")
    images, mean, low, high, worst, normals, *_ = values
    assert images == 2
    assert mean == pytest.approx(1.0)  # half and double
    assert (low, high, worst) == pytest.approx((0.5, 2.0, 2.0))
    assert normals == pytest.approx(0.5)


def test_without_the_base_method_there_is_no_table_of_ratios() -> None:
    assert ratios_table([record("A", "a", "outer", BEST, 0.1)]) is None
    assert ratios_table([]) is None


def test_wins_by_hand() -> None:
    table = wins_table(
        [
            *(record("A", image, "outer", BEST, 0.1, seconds=1.0, prior=prior) for image in "ab" for prior in "pq"),
            record("A", "a", "central", BEST, 0.1, seconds=1.0, prior="p"),
            record("A", "a", "outer", "KNN", 0.05, seconds=3.0, prior="p"),
            record("A", "b", "outer", "KNN", 0.8, seconds=5.0, prior="p"),
            record("A", "a", "central", "KNN", NAN, prior="p"),
            record(
                "A", "a", "outer", "KNN", NAN, prior="q"
            ),  # failed, which a score with another prior does not replace
            record("A", "a", "outer", "Delaunay", 0.09, prior="p"),  # uses no prior, so that it counts with both
        ]
    )
    assert table is not None
    assert [column.head for column in table.columns] == ["outer", "central", "best", "worst", "wins", "time (s)"]
    first, second = ({row.label: row.values for row in block.rows} for block in table.blocks)
    assert first[BEST] == pytest.approx((1, 1, 1, 1, 2, 1))
    assert first["KNN"] == pytest.approx((2.0, NAN, 0.5, 8.0, 1, 4.0), nan_ok=True)
    assert set(second) == {BEST, "Delaunay"}
    assert second["Delaunay"][:4] == pytest.approx((0.9, NAN, 0.9, 0.9), nan_ok=True)
    assert (second[BEST][4], second["Delaunay"][4]) == (1, 1)
    assert [block.title for block in table.blocks] == ["p: 3 images and cases", "q: 2 images and cases"]
    assert wins_table([]) is None
    assert wins_table([record("A", "a", "outer", "KNN", 0.1)]) is None
