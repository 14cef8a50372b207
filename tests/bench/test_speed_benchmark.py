"""The speed benchmark runs from end to end and writes its page; the times are not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from support.paths import ROOT

PROGRAM = ROOT / "benchmarks" / "speed.py"
DOCS = PROGRAM.parents[1] / "docs" / "speed.md"
BEGIN = "<!-- speed: begin; what follows is written by benchmarks/speed.py -->"
END = "<!-- speed: end -->"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output of a quick run, and the folder that it writes into, which contains a page with older numbers."""
    folder = tmp_path_factory.mktemp("speed")
    (folder / "speed.md").write_text(f"# Speed\n\n{BEGIN}\n\nolder numbers\n\n{END}\n\nThe end.\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), "--quick", "--output", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = page.partition(f"### {heading}\n")[2].partition("\n###")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_keeps_its_text_and_gets_new_numbers(run: tuple[str, Path]) -> None:
    page = (run[1] / "speed.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Speed\n\n{BEGIN}\n")
    assert page.endswith(f"{END}\n\nThe end.\n")
    assert "older numbers" not in page
    assert "quick run" in page


@pytest.mark.parametrize("heading", ["The whole call", "Its stages"])
def test_every_size_and_case_has_a_row_of_positive_numbers(run: tuple[str, Path], heading: str) -> None:
    table = rows((run[1] / "speed.md").read_text(encoding="utf-8"), heading)
    cases = ("distributed", "central", "outer")
    expected = product(("80 × 60", "160 × 120"), cases, ("paper", "best"))
    assert [tuple(row[:3]) for row in table] == list(expected)
    for row in table:
        assert all(float(cell.split()[0].replace(",", "")) > 0 for cell in row[3:]), row


def test_every_promise_has_a_row_and_those_on_large_images_say_that_they_were_not_measured(
    run: tuple[str, Path],
) -> None:
    table = rows((run[1] / "speed.md").read_text(encoding="utf-8"), "Promises")
    verdicts = {row[0]: row[3] for row in table}
    assert [verdict for name, verdict in verdicts.items() if "start" not in name] == ["not measured"] * 11
    assert {verdict for name, verdict in verdicts.items() if "start" in name} <= {"met", "MISSED"}
    assert sum("start" in name for name in verdicts) == 2


def test_machine_and_start_up_are_recorded(run: tuple[str, Path]) -> None:
    page = (run[1] / "speed.md").read_text(encoding="utf-8")
    machine = dict(rows(page, "Machine"))
    assert {"Processor", "Threads", "Versions", "Date"} <= machine.keys()
    assert "numba" in machine["Versions"]
    assert [row[0] for row in rows(page, "Start-up")] == ["`python -c 'import leadline'`", "`leadline --help`"]


def test_the_picture_is_drawn(run: tuple[str, Path]) -> None:
    pytest.importorskip("matplotlib")
    assert (run[1] / "images" / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "](images/speed.png)" in (run[1] / "speed.md").read_text(encoding="utf-8")


def test_progress_is_printed(run: tuple[str, Path]) -> None:
    assert "160 × 120, outer, best: complete" in run[0]


PEERS = """
import numpy as np
from peers import LOADERS, OUR_SOLVERS, Outcome, System, compare, load_peers
from timing import Size

peers, missing = load_peers()
peers["off"] = lambda matrix, rhs, tolerance: Outcome(np.zeros_like(rhs), None, None)
peers["loose"] = lambda matrix, rhs, tolerance: peers[next(iter(LOADERS))](matrix, rhs, 20 * tolerance)

def fail(matrix, rhs, tolerance):
    raise MemoryError("no room")

peers["fails"] = fail
for row in compare(System.of(Size(83, 61), "outer"), [*OUR_SOLVERS, *peers], peers, 1):
    print(row.solver, row.times is not None, row.trouble, sep=";")
for name, reason in missing.items():
    print(name, None, reason, sep=";")
"""


def test_peers_solve_the_same_system_and_wrong_answers_have_no_time() -> None:
    pytest.importorskip("scipy")
    folders = os.pathsep.join(filter(None, (str(PROGRAM.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", PEERS],
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = {name: (timed, trouble) for name, timed, trouble in (line.split(";") for line in done.stdout.splitlines())}
    off, loose, fails = (lines.pop(name) for name in ("off", "loose", "fails"))
    assert off[0] == loose[0] == fails[0] == "False"
    assert "disagrees" in off[1]
    assert "stopped at a residual" in loose[1] or "disagrees" in loose[1]
    assert fails[1] == "failed (MemoryError: no room)"
    assert len(lines) == 8
    for name, (timed, trouble) in lines.items():
        # A package that is not installed has a row with the reason; all others have the right solution.
        assert (timed, trouble) == ("True", "") or trouble.startswith("cannot be imported"), name
    assert lines["SciPy, CG with Jacobi"][0] == lines["SciPy, SuperLU"][0] == "True"


def test_the_published_page_has_the_markers_to_write_between() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)
