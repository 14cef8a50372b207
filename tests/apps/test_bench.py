"""`leadline bench`: from a protocol to tables on the command line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from leadline.apps.bench import SOME_FAILED
from support.bench_runs import protocol, toml
from support.cli_frames import leadline
from support.paths import ROOT

MODEL = ROOT.parent / "shared" / "models" / "tcmonodepth_small.onnx"
SCENES = ROOT.parent / "shared" / "data"


def good(line: str) -> str:
    result = leadline(line)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a protocol, and a run of it."""
    here = tmp_path_factory.mktemp("bench")
    chosen = protocol("raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "poisson", "response", "ours", count=2)
    (here / "p.toml").write_text(toml(chosen), encoding="utf-8")
    output = good(f"bench run {here / 'p.toml'} -o {here / 'RUN'}")
    assert "54 of 54 records, 54 new" in output
    return here


def test_again_does_nothing(folder: Path) -> None:
    assert "54 of 54 records, 0 new" in good(f"bench run {folder / 'p.toml'} -o {folder / 'RUN'}")


def test_a_limited_run(folder: Path, tmp_path: Path) -> None:
    line = f"bench run {folder / 'p.toml'} -o {tmp_path} --limit 1 --only Rooms --prior none --executor serial"
    result = leadline(line)
    assert result.exit_code == SOME_FAILED  # a constant prior determines no line
    assert "24 of 24 records" in result.output
    assert "Raw has no records with none: it needs a prior in metres." in result.output


def test_status(folder: Path) -> None:
    output = good(f"bench status {folder / 'RUN'}")
    # Nine measurements in the middle of a room hardly determine an exponent, and whether a fit converges depends there
    # on the rounding of the processor.
    assert re.search(r"Ours w/o Dirichlet\s+│\s+6 │\s+6 │\s+0 │", output)
    assert re.search(r"54 of 54 records, 0 failed, [02] not converged\.", output)


def test_report_in_every_form(folder: Path, tmp_path: Path) -> None:
    output = good(f"bench report {folder / 'RUN'}")
    for title in ("Complete methods", "All methods", "Stages", "Mean normal", "Median normal", "fixed coordinates"):
        assert title in output
    good(f"bench report {folder / 'RUN'} --format markdown -o {tmp_path}")
    good(f"bench report {folder / 'RUN'} --format latex -o {tmp_path} --case outer")
    names = {"main", "baselines", "stages", "normals-mean", "normals-median", "fixed"}
    written = {path.name for path in tmp_path.iterdir()} - {"failures.md", "failures.tex"}  # see `test_status`
    assert written == {f"{name}.{end}" for name in names for end in ("md", "tex")}
    assert (tmp_path / "main.tex").read_text(encoding="utf-8").startswith(r"\begin{table}")
    listed = good(f"bench report {folder / 'RUN'} --format csv -o {tmp_path / 'csv'}")
    assert "table4_depth_mae.csv" in listed
    assert "p93" in good(f"bench report {folder / 'RUN'} --table percentiles --format markdown")


def test_reference_geometry_is_measured_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "RUN"
    shutil.copytree(folder / "RUN", run)
    assert "Reference geometry" not in good(f"bench report {run}")
    output = good(f"bench report {run} --table geometry")
    # Rendered depth has no holes: every pixel of both rooms is valid.
    assert f"Rooms: 2 images, {2 * 48 * 36:,} valid pixels" in output
    assert re.search(r"p50\s+│ 1.0000 │ 0.0000 │\s+1.0000 │", output)
    lines = (run / "reference_geometry.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 7
    monkeypatch.setattr("leadline.bench.results.measure_references", None)  # from now on it is read
    assert "Reference geometry" in good(f"bench report {run}")
    assert "Complete methods" not in good(f"bench report {run} --table geometry")
    (run / "reference_geometry.csv").write_text("percentile,subset\n7,Rooms\n", encoding="utf-8")
    assert "delete it" in leadline(f"bench report {run}").output


def test_compare(folder: Path) -> None:
    output = good(f"bench compare {folder / 'RUN'} {folder / 'RUN'} --method ours --against glog --worst --metric mae")
    assert "Ours -> GLog" in output
    assert "RUN: the second method minus the first" in output
    worse = re.search(r"Ours -> GLog: mae worse at (\d) of 6\n((?: +\+0\.\d+ .* room-\d \(\w+\)\n)+)$", output)
    assert worse is not None, output
    assert worse[2].count("\n") == int(worse[1])
    same = good(f"bench compare {folder / 'RUN'} {folder / 'RUN'} --method ours --worst --metric mae")
    assert same.endswith("Ours: mae worse at 0 of 6\n")


def test_paper() -> None:
    output = good("bench paper --table main")
    assert "0.0301" in output
    assert "14.04" in output
    assert "ARKit: 1,141 images, 197,039,280 valid pixels" in good("bench paper --table geometry")
    support = good("bench paper --table promptda --format markdown")
    assert "| ARKit | 0.9056 | 0.9953 | 0.0245 | 0.0314 | 17.26 | 10.17 | 0/0/3/3 |" in support
    assert "0 does not hold" in good("bench paper --table claims")


def test_a_run_without_the_papers_labels_goes_beside_the_paper_too(folder: Path) -> None:
    output = good(f"bench paper {folder / 'RUN'}")
    assert "none of the paper's subsets" in output
    assert "Statements in the text of the paper" in output
    assert "0 holds, 0 does not hold" in output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench run nothing.toml -o out", "nothing.toml"),
        ("bench run papr -o out", "paper"),
        ("bench run smoke -o out --root Rooms", "LABEL=DIR"),
        ("bench run smoke -o out --only Room", "did you mean 'Rooms'"),
        ("bench run smoke -o out --workers 2", "workers"),
        ("bench run paper -o out --data nowhere", "nowhere"),
        ("bench status nowhere", "no such folder"),
        ("bench report nowhere", "no such folder"),
        ("bench compare nowhere nowhere", "no such folder"),
        ("bench report RUN --table mine", "main"),
        ("bench report RUN --case mine", "distributed"),
        ("bench report RUN -o out", "--format"),
        ("bench paper RUN --table main", "--table"),
        ("bench report RUN --table priors", "no numbers for priors"),
    ],
)
def test_errors_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str) -> None:
    monkeypatch.chdir(folder)
    result = leadline(line)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert not (folder / "out").exists()


def test_failed_records_are_reported_and_change_the_exit_code(tmp_path: Path) -> None:
    text = toml(protocol("glog", count=1, cases=["random:1"]))
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    result = leadline(f"bench run {tmp_path / 'p.toml'} -o {tmp_path / 'RUN'}")
    assert result.exit_code == SOME_FAILED
    assert "1 failed, 0 not converged." in result.output
    assert "fewer than two usable measurements" in result.output
    assert "The run ended with failed records" in result.output
    assert "1 failed" in good(f"bench status {tmp_path / 'RUN'}")


@pytest.mark.skipif(not (MODEL.is_file() and SCENES.is_dir()), reason="the real scenes and network are not here")
def test_real_scenes_with_a_real_network(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    line = f"bench run scenes --data {SCENES} --prior net=onnx:{MODEL} -o {tmp_path} --only ibims1 --limit 2"
    assert "54 of 54 records, 54 new" in good(line)
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 2
    output = good(f"bench report {tmp_path} --format markdown --table main --table stages --table fixed")
    assert "| ibims1 |" in output
    assert "nan" not in output
