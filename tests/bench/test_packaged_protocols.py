"""Every packaged protocol, run on small rooms under its own labels, and the reports of its run."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leadline.bench.protocol import DatasetEntry, PriorEntry, Protocol
from leadline.bench.protocol_files import packaged_protocols, read_protocol
from leadline.bench.published.claims import read_claims
from leadline.bench.published.numbers import PAPER_SUBSETS, PROMPTDA, published_results
from leadline.bench.published.pairing import compare_with_paper
from leadline.bench.records import RecordStatus, read_records
from leadline.bench.results import MACRO, METRICS, Results, read_results
from leadline.bench.run import run_protocol
from leadline.bench.scoring import PAPER_SCORING
from leadline.bench.tables import FIXED, OURS, RAW, RESPONSE, tables_of
from leadline.priors import PRIORS
from support.bench_runs import SIZE
from support.cli_frames import leadline

TRAINED = ("PriorDA", "LDCM", "Any2Full", PROMPTDA)
PAPER_PRIORS = ("MoGe-3", "MoGe-2", "MoGe-2 S", "DAV2-L", "DAV2-B")
STAND_INS = {  # methods that need weights, and what runs under their labels here
    "priorda": "knn",
    "ldcm": "lwlr",
    "any2full": "poisson",
    "promptda": "knn",
    "omni-dc": "knn",
    "marigold-dc": "lwlr",
    "testpromptdc": "knn",
}


def rehearsal(name: str, folder: Path) -> Protocol:
    """The protocol with rendered rooms and priors, and stand-ins for trained systems, under its own labels."""
    (folder / "data" / "Scenes" / "a").mkdir(parents=True)
    (folder / "data" / "Scenes" / "a" / "scene.json").write_text('{"reference": {}}', encoding="utf-8")
    chosen = read_protocol(name, data=folder / "data")
    rooms = {"count": 1, "width": SIZE[0], "height": SIZE[1]}
    return replace(
        chosen,
        datasets=tuple(DatasetEntry("rendered", entry.label, options=rooms) for entry in chosen.datasets),
        priors=tuple(
            PriorEntry("rendered", entry.label, gauge=entry.gauge or PRIORS[entry.kind].gauge)  # type: ignore[arg-type]
            if entry.kind in PRIORS
            else entry
            for entry in chosen.priors
        ),
        methods=tuple(replace(entry, name=STAND_INS.get(entry.name, entry.name)) for entry in chosen.methods),
    )


def shown(line: str) -> str:
    result = leadline(line)
    assert result.exit_code == 0, result.output
    return result.output


def protocols_of_the_paper() -> list[str]:
    """The packaged protocols with the paper's convention; the others need data of their own."""
    own = ("scenes", "beyond", "systems")  # need scene folders to be read
    others = [name for name in packaged_protocols() if name not in (*own, "robustness")]
    return [*own, *(name for name in others if read_protocol(name).scoring == PAPER_SCORING)]


@pytest.mark.parametrize("name", protocols_of_the_paper())
def test_every_protocol_goes_through_the_reports(name: str, tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    end = run_protocol(rehearsal(name, tmp_path), run)
    assert end.done == end.planned > 0
    assert "Statements in the text of the paper" in shown(f"bench paper {run} --format markdown")
    assert "###" in shown(f"bench report {run} --format markdown")
    shown(f"bench report {run} --format latex -o {tmp_path / 'tex'}")
    shown(f"bench report {run} --format csv -o {tmp_path / 'csv'}")
    shown(f"bench report {run} --html {tmp_path / 'page.html'} --panels 0")
    assert "not converged" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not converged" in shown(f"bench status {run}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the protocol `paper`."""
    folder = tmp_path_factory.mktemp("paper")
    run_protocol(rehearsal("paper", folder), folder / "RUN")
    return folder / "RUN"


def test_one_run_has_every_published_number(whole: Path) -> None:
    results, paper = read_results(whole), published_results()
    assert results.subsets == PAPER_SUBSETS
    assert results.priors == PAPER_PRIORS
    published = [
        (prior, method, subset, metric, percentile)
        for prior in paper.priors
        for method in paper.methods
        for subset in (*paper.subsets, MACRO)
        for metric in METRICS
        for percentile in paper.percentiles(prior, method, subset, metric)
    ]
    missing = [place for place in published if math.isnan(results.value(*place))]
    assert missing == []
    table = compare_with_paper(results, paper)
    assert table is not None
    assert sum(len(block.rows) for block in table.blocks) == len(published) > 700


def test_its_tables_have_the_methods_of_the_paper(whole: Path) -> None:
    tables = {table.name: table for table in tables_of(read_results(whole))}
    columns = {name: list(dict.fromkeys(column.group for column in table.columns)) for name, table in tables.items()}
    assert columns["main"] == [*TRAINED, OURS]
    assert columns["normals-mean"] == columns["normals-median"] == [*TRAINED, OURS, RESPONSE]
    assert columns["stages"] == [RESPONSE, OURS]
    assert columns["priors"] == columns["fixed"] == list(PAPER_PRIORS)
    assert [row.label for row in tables["fixed"].blocks[0].rows] == [*FIXED, RESPONSE, OURS]
    assert len(tables["weights"].blocks[0].rows) == 9
    shown_methods = [row.label for row in tables["baselines"].blocks[0].rows]
    assert shown_methods[:8] == [RAW, *TRAINED, "KNN", "LWLR", "Poisson"]


def test_the_raw_prior_is_missing_and_not_failed_where_it_has_no_unit(whole: Path) -> None:
    results = read_results(whole)
    (table,) = tables_of(results, names=["priors"])
    raw = next(row for row in table.blocks[0].rows if row.label == RAW)
    assert [math.isnan(float(value)) for value in raw.values] == [False] * 6 + [True] * 4
    assert results.failures("DAV2-L", RAW, MACRO, "absrel") == 0
    assert not any(record.prior == "DAV2-L" and record.method == RAW for record in read_records(whole))


def test_trained_systems_are_run_once(whole: Path) -> None:
    priors = {method: {record.prior for record in read_records(whole) if record.method == method} for method in TRAINED}
    assert priors == {method: {"MoGe-3"} for method in TRAINED}


def test_the_percentile_figure_has_its_eight_methods(whole: Path) -> None:
    pytest.importorskip("matplotlib")
    from leadline.report.figures import run_source
    from leadline.report.figures.scores import percentile_lines

    eight = {"PriorDA", "LDCM", "Any2Full", "KNN", "LWLR", "Poisson", RESPONSE, OURS}
    assert set(percentile_lines(run_source(whole), "Truck", "nmed")) == eight


def test_its_reports_decide_the_claims_and_show_promptda(whole: Path) -> None:
    shown(f"bench report {whole} --table geometry")
    output = shown(f"bench paper {whole} --format markdown")
    assert f"{len(PAPER_SUBSETS) * 3} |" in output  # combinations of image and case, of which the paper has 11,094
    undecided = [line for line in output.splitlines() if "| cannot be decided |" in line]
    reasons = {claim.reason for claim in read_claims() if hasattr(claim, "reason")}
    unexpected = [line for line in undecided if not any(reason in line for reason in reasons)]
    assert all("DSC_0223" in line for line in unexpected), unexpected
    support = shown(f"bench report {whole} --table promptda --format markdown")
    assert "| Ignatius | 1.0000 | 1.0000 |" in support
    assert "0/0/0/0 |" in support
    assert [line for line in support.splitlines() if line.startswith("| *p")] == [
        f"| *p{percentile}* |{'  |' * 7}" for percentile in (16, 50, 84)
    ]


def test_systems_that_are_not_set_up_fail_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", str(tmp_path / "config"))
    chosen = rehearsal("paper", tmp_path)
    systems = tuple(entry for entry in read_protocol("paper").methods if entry.name in ("priorda", "ldcm", "any2full"))
    run_protocol(replace(chosen, methods=systems, datasets=chosen.datasets[:1]), tmp_path / "RUN")
    records = read_records(tmp_path / "RUN")
    assert {record.status for record in records} == {RecordStatus.FAILED}
    assert all("methods setup" in record.reason for record in records)
    results: Results = read_results(tmp_path / "RUN")
    assert results.failures("MoGe-3", "LDCM", "DIODE-in", "absrel") == 3
