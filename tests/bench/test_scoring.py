"""Conventions of scores on 3x3 maps whose numbers can be computed by hand, and where a run keeps and shows them."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.compare import compare_runs
from leadline.bench.compiled_metrics import Scorer
from leadline.bench.metrics import depth_scores
from leadline.bench.observations import Observations
from leadline.bench.plan import plan_work_items
from leadline.bench.protocol import Protocol
from leadline.bench.protocol_files import read_protocol
from leadline.bench.records import RecordStatus, read_records, read_run_protocol
from leadline.bench.render import latex, markdown, write_csvs
from leadline.bench.results import METRICS, read_results
from leadline.bench.scoring import PAPER_SCORING, Scoring
from leadline.bench.tables import HEADS, tables_of
from support.bench_records import NAN, pooled, record
from support.bench_runs import protocol, run, toml
from support.cli_frames import leadline

# Errors 0, 1, 2 and -1 m at references of 2, 4, 8 and 2 m, one missing prediction at 10 m, one unknown reference, and
# three measured pixels, which are exact.
REFERENCE = np.array([[2, 4, 8], [2, 10, np.nan], [1, 5, 20]], np.float32)
PREDICTION = np.array([[2, 5, 10], [1, np.nan, 3], [1, 5, 20]], np.float32)
SPARSE = np.array([[np.nan] * 3, [np.nan] * 3, [1, 5, 20]], np.float32)
OBSERVED = Observations(SPARSE, np.isfinite(REFERENCE) & np.isnan(SPARSE), np.isfinite(REFERENCE))
FIELD = Scoring("valid", "mean-images", "penalise", "separate")


def scores(scoring: Scoring) -> dict[str, float]:
    mask = scoring.mask(OBSERVED, REFERENCE)
    found = Scorer(REFERENCE, None).depth(PREDICTION, mask, missing=scoring.missing)
    plain = depth_scores(PREDICTION, REFERENCE, mask, missing=scoring.missing)
    assert vars(found) == pytest.approx(vars(plain), nan_ok=True)
    return vars(found)


def test_held_out_pixels_by_hand() -> None:
    found = scores(Scoring())
    assert (found["support"], found["missing"]) == (4, 1)
    assert found["mae"] == pytest.approx((0 + 1 + 2 + 1) / 4)
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 1 + 4 + 1) / 4))
    assert found["absrel"] == pytest.approx((0 + 1 / 4 + 2 / 8 + 1 / 2) / 4)
    inverse = [0, 1000 / 4 - 1000 / 5, 1000 / 8 - 1000 / 10, 1000 / 1 - 1000 / 2]
    assert found["imae"] == pytest.approx(sum(inverse) / 4)
    assert found["irmse"] == pytest.approx(math.sqrt(sum(error**2 for error in inverse) / 4))
    # The ratios are 1, 1.25, 1.25 and 2; a ratio of exactly 1.25 is outside.
    assert [found[f"delta{k}"] for k in (102, 105, 110, 1, 2, 3)] == [0.25, 0.25, 0.25, 0.25, 0.75, 0.75]


def test_all_valid_pixels_by_hand() -> None:
    found = scores(Scoring(pixels="valid"))
    assert (found["support"], found["missing"]) == (7, 1)
    assert found["mae"] == pytest.approx(4 / 7)
    assert found["delta102"] == pytest.approx(4 / 7)


def test_missing_predictions_by_hand() -> None:
    found = scores(Scoring(missing="penalise"))
    assert (found["support"], found["missing"]) == (5, 1)
    assert found["mae"] == pytest.approx((4 + 10) / 5)
    assert found["rmse"] == pytest.approx(math.sqrt((6 + 100) / 5))
    assert found["absrel"] == pytest.approx((1 + 1) / 5)
    assert found["imae"] == pytest.approx((50 + 25 + 500 + 1000 / 10) / 5)
    assert found["delta3"] == pytest.approx(3 / 5)
    failed = scores(Scoring(missing="fail"))
    assert (failed["support"], failed["missing"]) == (0, 1)
    assert math.isnan(failed["rmse"])


def test_the_range_excludes_its_ends() -> None:
    assert Scoring(min_depth=2, max_depth=10).mask(OBSERVED, REFERENCE).sum() == 2  # 4 and 8 m
    assert Scoring("valid", min_depth=2).mask(OBSERVED, REFERENCE).sum() == 5
    assert not Scoring("valid").mask(OBSERVED, REFERENCE)[1, 2]  # without a reference


# Obtained with DCMetric of OMNI-DC (iRMSE and iMAE in 1/m there), which agree with Marigold-DC's compute_metrics, and
# with KBNet's eval_utils (in mm and 1/km there), in float64 on the maps of `random_maps`.
OMNI = {"rmse": 1.12409125, "mae": 0.528330727, "irmse": 151.854728, "imae": 57.6707438, "absrel": 0.121351397}
OMNI_DELTAS = {
    **{"delta1": 0.94488189, "delta2": 0.952755906, "delta3": 0.952755906},
    **{"delta102": 0.141732283, "delta105": 0.338582677, "delta110": 0.637795276},
}
KBNET = {"mae": 0.3864842504, "rmse": 0.7960623385, "imae": 86.587296919, "irmse": 193.711311051}


def random_maps() -> tuple[np.ndarray, np.ndarray]:
    """A prediction and a reference with 0 where there is none."""
    rng = np.random.RandomState(7)
    reference = rng.uniform(0.1, 9, (12, 16)).astype(np.float32)
    prediction = (reference * np.exp(0.1 * rng.standard_normal((12, 16)))).astype(np.float32)
    reference[rng.random_sample((12, 16)) < 0.3] = 0
    prediction[rng.random_sample((12, 16)) < 0.05] = 0
    return prediction, reference


def test_scores_are_those_of_the_projects_own_code() -> None:
    prediction, reference = random_maps()
    observed = Observations(np.full_like(reference, np.nan), reference > 0, reference > 0)
    field = Scoring("valid", missing="penalise")
    found = Scorer(reference, None).depth(prediction, field.mask(observed, reference), missing=field.missing)
    expected = {**OMNI, **OMNI_DELTAS}
    # OMNI-DC adds 1e-8 to its denominators.
    assert {name: vars(found)[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    authors = Scoring("valid", min_depth=0.2, max_depth=5.0)
    everywhere = np.where(prediction > 0, prediction, np.float32(1))  # KBNet predicts every pixel
    found = Scorer(reference, None).depth(everywhere, authors.mask(observed, reference))
    assert {name: vars(found)[name] for name in KBNET} == pytest.approx(KBNET, rel=1e-7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pixels": "all"}, "pixels"),
        ({"aggregate": "mean"}, "aggregate"),
        ({"missing": "ignore"}, "missing"),
        ({"cases": "each"}, "cases"),
        ({"min_depth": 5.0, "max_depth": 5.0}, "min_depth` must be .* below `max_depth`, got 5.0 and 5.0"),
        ({"min_depth": -1.0}, "min_depth"),
    ],
)
def test_wrong_conventions_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scoring(**wrong)  # type: ignore[arg-type]


def test_means_over_images_and_pixels_by_hand() -> None:
    rows = [
        record("A", "i", "outer", "KNN", 0.1, rmse=1.0, support=300),
        record("A", "j", "outer", "KNN", 0.5, rmse=3.0, support=100),
        record("A", "k", "outer", "KNN", NAN),  # failed: in no mean
    ]
    expected = {
        "median": (0.3, 2.0),
        "mean-images": (0.3, 2.0),
        "mean-pixels": ((0.1 * 300 + 0.5 * 100) / 400, math.sqrt((1 * 300 + 9 * 100) / 400)),
    }
    for aggregate, (absrel, rmse) in expected.items():
        results = pooled(rows, subsets=["A"], scoring=Scoring(aggregate=aggregate))  # type: ignore[arg-type]
        assert results.value("p", "KNN", "A", "absrel") == pytest.approx(absrel)
        assert results.value("p", "KNN", "A", "rmse") == pytest.approx(rmse)
        assert results.value("p", "KNN", "Macro", "rmse") == pytest.approx(rmse)
        assert results.value("p", "KNN", "A", "rmse", 50) == pytest.approx(2.0)
        assert results.failures("p", "KNN", "A", "rmse") == 1
    assert math.isnan(results.value("p", "KNN", "A", "nmed"))  # no median of pixels from medians of images


def test_cases_become_rows() -> None:
    rows = [record("A", "i", case, "KNN", score) for case, score in (("random:9", 0.1), ("dense", 0.3))]
    results = pooled(rows, subsets=["A"], scoring=replace(FIELD, aggregate="median"))
    assert results.subsets == ("A, random:9", "A, dense")
    assert results.value("p", "KNN", "A, dense", "absrel") == pytest.approx(0.3)
    assert results.value("p", "KNN", "Macro", "absrel") == pytest.approx(0.2)


@pytest.fixture(scope="module")
def chosen() -> Protocol:
    return protocol("glog", "knn", count=2, cases=["distributed", "random:20"])


@pytest.fixture(scope="module")
def runs(chosen: Protocol, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    run(chosen, folder / "paper")
    run(replace(chosen, scoring=FIELD), folder / "field")
    return folder / "paper", folder / "field"


def test_a_run_scores_by_its_convention(runs: tuple[Path, Path]) -> None:
    paper, field = map(read_records, runs)
    assert len(paper) == len(field) == 8
    assert not {item.key for item in paper} & {item.key for item in field}
    for held_out, valid in zip(paper, field, strict=True):
        assert valid.support == held_out.support + held_out.missing + valid.measured
        assert valid.irmse > 0


def test_every_table_names_its_convention(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for folder, scoring in zip(runs, (PAPER_SCORING, FIELD), strict=True):
        results = read_results(folder)
        assert results.scoring == scoring
        for table in tables_of(results):
            assert table.convention == scoring.describe()
            assert all(scoring.describe() in text for text in (markdown(table), latex(table).replace(r"\_", "_")))
        shown = leadline(f"bench report {folder}").output
        assert " ".join(scoring.describe().split()[:4]) in " ".join(shown.split())
    table = next(table for table in tables_of(results) if table.name == "scores")
    assert "mean over images" in table.title
    assert [block.title for block in table.blocks] == ["Rooms, distributed", "Rooms, random:20"]
    path = write_csvs(results, tmp_path)[METRICS.index("rmse")]
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert {row["convention"] for row in rows} == {FIELD.describe()}
    expected = results.value("made", "GLog", results.subsets[0], "rmse")
    assert float(rows[0]["mean over images"]) == pytest.approx(expected, abs=1e-6)


def test_runs_of_two_conventions_are_not_compared(runs: tuple[Path, Path]) -> None:
    assert compare_runs(runs[1], runs[1], metrics=["rmse", "delta102"])
    with pytest.raises(InputError, match=r"different conventions: '.*not measured.*' and '.*measured ones included"):
        compare_runs(*runs)
    result = leadline(f"bench compare {runs[0]} {runs[1]}")
    assert result.exit_code == 2
    assert "different conventions" in result.output


def test_the_papers_keys_do_not_name_a_convention(chosen: Protocol) -> None:
    keys = {
        scoring.aggregate: [
            task.key for item in plan_work_items(replace(chosen, scoring=scoring)) for task in item.tasks
        ]
        for scoring in (PAPER_SCORING, Scoring(aggregate="mean-pixels", cases="separate"))
    }
    assert keys["median"] == keys["mean-pixels"]  # the same scores of images, aggregated differently


def test_each_rule_for_missing_predictions_in_a_run(tmp_path: Path) -> None:
    half = protocol("support.bench_methods:left_half", count=1, cases=["random:20"])
    found = {}
    for rule in ("exclude", "fail", "penalise"):
        (found[rule],) = run(replace(half, scoring=Scoring("valid", missing=rule)), tmp_path / rule)  # type: ignore[arg-type]
    assert found["exclude"].mae == 0
    assert found["exclude"].missing == found["fail"].missing == found["penalise"].missing > 0
    assert found["fail"].status is RecordStatus.FAILED
    assert f"{found['fail'].missing} scored pixels have no prediction" in found["fail"].reason
    share = found["penalise"].missing / found["penalise"].support
    assert found["penalise"].absrel == pytest.approx(share)
    assert found["penalise"].delta1 == pytest.approx(1 - share)


def test_a_file_names_its_convention(tmp_path: Path, chosen: Protocol) -> None:
    path = tmp_path / "own.toml"
    text = toml(chosen).replace("[[datasets]]", '[scoring]\npixels = "valid"\nmax_depth = 5\n[[datasets]]')
    path.write_text(text, encoding="utf-8")
    assert read_protocol(str(path)).scoring == Scoring("valid", max_depth=5.0)
    path.write_text(text.replace("max_depth", "max_dept"), encoding="utf-8")
    with pytest.raises(InputError, match=r"scoring` has no key 'max_dept'; .*max_depth"):
        read_protocol(str(path))
    path.write_text(text.replace('"valid"', '"all"'), encoding="utf-8")
    with pytest.raises(InputError, match="pixels"):
        read_protocol(str(path))


def test_every_score_has_a_head() -> None:
    assert set(HEADS) == set(METRICS)


def test_the_page_has_the_convention_and_the_protocol_with_it(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    from leadline.report.page.sections import protocol_toml

    assert leadline(f"bench report {runs[1]} --html {tmp_path / 'p.html'} --panels 0").exit_code == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert FIELD.describe() in page  # below the tables
    assert replace(FIELD, aggregate="median", cases="pooled").describe() in page  # above the medians
    (tmp_path / "own.toml").write_text(protocol_toml(read_run_protocol(runs[1])), encoding="utf-8")
    assert read_protocol(str(tmp_path / "own.toml")).scoring == FIELD
