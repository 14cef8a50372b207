"""The claims of the paper: all can be read, the published tables contradict none, and each kind decides by its rule."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from leadline.bench.published.claims import (
    TOLERANCE,
    Claim,
    Evidence,
    State,
    claims_table,
    read_claims,
)
from leadline.bench.published.numbers import PAPER_SUBSETS, published_reference_geometry, published_results
from leadline.bench.records import Record
from leadline.bench.results import Results, pool
from leadline.bench.tables import FIXED, OURS, RESPONSE
from support.bench_records import NAN, record
from support.paths import ROOT

PAPER = ROOT.parent / "shared" / "paper" / "paper.tex"
PUBLISHED = Evidence(published_results(), (), published_reference_geometry())


def claim(part: str) -> Claim:
    """The one claim whose text contains `part`."""
    (found,) = [claim for claim in read_claims() if part in claim.text]
    return found


def results_of(rows: list[Record]) -> Results:
    labels = {
        name: list(dict.fromkeys(getattr(row, column) for row in rows))
        for name, column in (("priors", "prior"), ("methods", "method"))
    }
    return pool(rows, subsets=PAPER_SUBSETS, **labels)


def on_all(scores: dict[str, float], prior: str = "MoGe-3", **more: object) -> list[Record]:
    """One record per method and subset of the paper."""
    return [
        record(subset, "i", "outer", method, score, 100 * score, prior=prior, **more)
        for subset in PAPER_SUBSETS
        for method, score in scores.items()
    ]


def test_the_published_tables_contradict_no_claim() -> None:
    states = Counter(found.judge(PUBLISHED).state for found in read_claims())
    assert states == {State.HOLDS: 40, State.UNKNOWN: 29}  # as docs/benchmark.md says
    for found in read_claims():
        verdict = found.judge(PUBLISHED)
        assert verdict.found, found.text


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
def test_claims_stand_in_the_line_that_they_name() -> None:
    lines = PAPER.read_text(encoding="utf-8").splitlines()
    for found in read_claims():
        value = getattr(found, "value", None)
        if value is not None:
            digits = f"{value:,}" if isinstance(value, int) else f"{abs(value):.4f}".rstrip("0")
            assert digits in lines[found.line - 1].replace("$", ""), (found.text, digits)


@pytest.mark.parametrize(
    ("score", "state"),
    [
        (0.0301, State.HOLDS),
        (0.0301 * (1 + 0.99 * TOLERANCE), State.HOLDS),
        (0.0301 * (1 + 1.01 * TOLERANCE), State.FAILS),
        (0.02, State.FAILS),
        (NAN, State.UNKNOWN),
    ],
)
def test_a_number_holds_within_the_tolerance(score: float, state: State) -> None:
    verdict = claim("Macro AbsRel of Ours is 0.0301").judge(Evidence(results_of(on_all({OURS: score}))))
    assert verdict.state is state
    assert (verdict.found == f"{score:.4f}") is not math.isnan(score)


def test_macro_over_other_subsets_decides_nothing() -> None:
    rows = on_all({OURS: 0.0301})[:-1]
    found = pool(rows, subsets=PAPER_SUBSETS[:-1], priors=["MoGe-3"], methods=[OURS])
    assert claim("Macro AbsRel of Ours is 0.0301").judge(Evidence(found)).state is State.UNKNOWN


def test_45_of_45() -> None:
    best = claim("45 of 45")
    scores = {RESPONSE: 0.1, FIXED[0]: 0.2, FIXED[1]: 0.3, FIXED[2]: 0.11}
    rows = [row for prior in PUBLISHED.results.priors for row in on_all(scores, prior)]
    verdict = best.judge(Evidence(results_of(rows)))
    assert (verdict.state, verdict.found) == (State.HOLDS, "45 of 45")
    # One prior is missing: not known. One subset is worse: it does not hold, whatever is missing.
    assert best.judge(Evidence(results_of(rows[len(scores) :]))).state is State.UNKNOWN
    worse = record("Barn", "i", "outer", FIXED[2], 0.05, prior="DAV2-L")
    kept = [row for row in rows if row.key != worse.key][len(scores) :]
    verdict = best.judge(Evidence(results_of([*kept, worse])))
    assert (verdict.state, verdict.found) == (State.FAILS, "not on Barn with DAV2-L")


def test_lowest_on_exactly_these_subsets() -> None:
    five = claim("lowest AbsRel of the complete systems on five")
    others = {"PriorDA": 0.2, "LDCM": 0.2, "Any2Full": 0.2, "PromptDA": 0.2}
    everywhere = results_of(on_all({OURS: 0.1, **others}))
    verdict = five.judge(Evidence(everywhere))  # it is the lowest on four more
    assert (verdict.state, verdict.found) == (State.FAILS, "not on iBims, ARKit, Barn, Meetingroom")


def test_failures_are_counted_exactly() -> None:
    rows = [
        record("ETH3D", str(place), "outer", "GLog", 0.1 if place > 18 else NAN, prior="DAV2-B") for place in range(30)
    ]
    exact = claim("GLog with DAV2-B has 19 failures on ETH3D")
    assert exact.judge(Evidence(results_of(rows))).state is State.HOLDS
    assert exact.judge(Evidence(results_of(rows[1:]))).state is State.FAILS
    assert claim("GMetric with DAV2-B has 23").judge(Evidence(results_of(rows))).state is State.UNKNOWN


def test_images_and_exponents_come_from_the_records() -> None:
    image = "office/DSC_0223"
    rows = [
        record("ETH3D", image, case, RESPONSE, 0.1, prior="MoGe-3", parameters=f'{{"exponent": {exponent}}}')
        for case, exponent in (("outer", -3.0), ("distributed", -11.5))
    ]
    evidence = Evidence(results_of(rows), rows)
    verdict = claim("office/DSC_0223").judge(evidence)
    assert (verdict.state, verdict.found) == (State.HOLDS, "-11.5000")
    assert claim("3,698 images").judge(evidence).found.startswith("no records of DIODE-in")
    everywhere = on_all({OURS: 0.1, RESPONSE: 0.1})
    verdict = claim("3,698 images").judge(Evidence(results_of(everywhere), everywhere))
    assert (verdict.state, verdict.found) == (State.FAILS, "9")


def test_geometry_is_read_from_the_folder_of_the_run() -> None:
    row = {"percentile": "93", "subset": "ETH3D", "depth_m": "15.9"}
    empty = results_of([])
    assert claim("15.967 m in ETH3D").judge(Evidence(empty, (), [row])).state is State.HOLDS
    assert claim("15.967 m in ETH3D").judge(Evidence(empty)).state is State.UNKNOWN
    assert "geometry" in claim("3.822 m in Ignatius").judge(Evidence(empty, (), [row])).found


def test_the_table_counts_the_states() -> None:
    table = claims_table(Evidence(results_of([])))
    (note,) = table.notes
    assert note.startswith(f"0 holds, 0 does not hold, {len(read_claims())} cannot be decided.")


def test_the_paper_ships_its_claims() -> None:
    assert (Path(ROOT) / "src" / "leadline" / "bench" / "paper" / "claims.toml").is_file()
    assert len({found.text for found in read_claims()}) == len(read_claims())
