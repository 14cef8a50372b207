"""Trained systems across the process boundary: stand-ins with the systems' signatures, in processes of their own."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from leadline.apps.methods import command
from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.bench.protocol import MethodEntry, PriorEntry
from leadline.bench.protocol_files import read_protocol
from leadline.bench.sources import open_prior
from leadline.bench.tables import BEST, OURS, RESPONSE
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.methods import METHODS, MethodResult, method, missing_requirement
from leadline.methods.external import process, server_program, systems
from leadline.priors import PriorSource
from support import trees
from support.bench_runs import environment, protocol, run
from support.standins import COMMIT, FILES, UNIDEPTH, checkout, expected

PATIENCE = 60.0  # seconds that a process may take to vanish on a busy machine; none of them is waited for
ROUNDING = 1e-6  # of float32, after the normalisation of colours and its inverse
DESCENT = 1e-4  # three steps of AdamW in float32, whose sums may differ between machines
SHAPE = (33, 47)  # nothing divides it
CAMERA = Camera(47, 33, 80.0, 80.0, 23.0, 16.0)


@pytest.fixture(autouse=True)
def own_set_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set-ups in the test's folder, and no process left behind."""
    monkeypatch.setenv("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    process.stop_all_processes()


@pytest.fixture
def frame(rng: np.random.Generator) -> dict[str, object]:
    sparse = np.where(rng.random(SHAPE) < 0.2, rng.uniform(1, 9, SHAPE), np.nan).astype(np.float32)
    prior = Prior(rng.uniform(0.5, 2.0, SHAPE).astype(np.float32))
    return {"prior": prior, "sparse": sparse, "image": rng.integers(0, 256, (*SHAPE, 3), dtype=np.uint8)}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """PriorDA's stand-in, set up."""
    folder = checkout("priorda", tmp_path / "repo")
    systems.set_up("priorda", sys.executable, str(folder))
    return folder


def call(frame: dict[str, object], name: str = "priorda", **options: object) -> MethodResult:
    return method(name)(frame["prior"], frame["sparse"], image=frame["image"], **options)


def wanted(frame: dict[str, object]) -> np.ndarray:
    return expected(frame["image"], frame["sparse"])  # type: ignore[arg-type]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Ended, or about to be reaped."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("name", FILES)
def test_every_system_is_called_as_its_authors_do(name: str, tmp_path: Path, frame: dict[str, object]) -> None:
    folder = checkout(name, tmp_path / name)
    options = {"checkpoint": str(folder / "any2full.pth.tar")} if name == "any2full" else {}
    found = systems.set_up(name, sys.executable, str(folder), options)
    assert found.versions["commit"] == COMMIT
    first, second = (call(frame, name, camera=CAMERA) for _ in range(2))
    assert first.status == "ok"
    assert first.seconds > 0
    assert first.versions[f"{name} commit"] == COMMIT
    assert first.versions[f"{name} torch"] == "0.0-standin"
    np.testing.assert_allclose(first.depth, wanted(frame), rtol=ROUNDING)
    np.testing.assert_array_equal(first.depth, second.depth)
    place = folder / "src" if name == "omni-dc" else folder
    assert len((place / "loaded").read_text().split()) == 1  # one process for both


def test_testpromptdc_equals_the_script_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of its main.py at 55191d1, three steps on a processor with this network; every pixel was the same."""
    pytest.importorskip("torch", reason="needs the extra 'torch'")
    (tmp_path / "unidepth_custom").mkdir()
    (tmp_path / "unidepth_custom" / "models.py").write_text(UNIDEPTH, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    random = np.random.default_rng(5)
    image = random.integers(0, 256, (*SHAPE, 3), dtype=np.uint8)
    sparse = np.where(random.random(SHAPE) < 0.2, random.uniform(1, 9, SHAPE), 0).astype(np.float32)
    found = server_program.SYSTEMS["testpromptdc"](device="cpu", steps=3)(SimpleNamespace(image=image, sparse=sparse))
    depth = found.detach().numpy()[0, 0]
    error = np.abs(depth - sparse)[sparse > 0].mean()
    np.testing.assert_allclose([error, depth.mean()], [1.956181, 4.993319], rtol=DESCENT)


def test_the_prior_reaches_the_system_that_may_use_it(repo: Path, frame: dict[str, object]) -> None:
    result = call(frame, geometric=True)
    np.testing.assert_allclose(result.depth, wanted(frame) + frame["prior"].values, rtol=ROUNDING)  # type: ignore[attr-defined]
    assert len((repo / "loaded").read_text().split()) == 1
    call(frame, geometric=False)  # other options are another process
    assert len((repo / "loaded").read_text().split()) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "failed: ValueError: There are not enough known points. At all."),
        ("exit", "failed: its process ended (exit code 3); it last wrote: ... CUDA error: an illegal memory access"),
        ("kill", "failed: its process ended (SIGKILL)"),
        ("hang", "failed: it took more than 1.5 s for an image; it last wrote: ... step 2 of 50"),
        ("shape", "failed: it answered float32 of shape (32, 47), expected float32 of (33, 47)"),
        ("text", "failed: TypeError: it returned str of <U18, expected depth in metres"),
        ("nothing", "failed: it answered no positive, finite depth at all"),
        ("junk file", "failed: its answer cannot be read"),
        ("pickle", "failed: its answer cannot be read"),
        ("junk answer", "failed: it answered nothing that can be read"),
    ],
)
def test_failures_of_a_system_are_reported_and_the_next_image_works(
    repo: Path, frame: dict[str, object], fault: str, words: str
) -> None:
    (repo / "fault").write_text(fault)
    result = call(frame, timeout=1.5 if fault == "hang" else PATIENCE)
    assert all(part in result.status for part in words.split(" ... ")), result.status
    assert np.isnan(result.depth).all()
    assert (result.depth.shape, result.depth.dtype) == (SHAPE, np.float32)
    assert not (repo / "owned").exists()
    (repo / "fault").unlink()
    again = call(frame)
    assert again.status == "ok"
    np.testing.assert_allclose(again.depth, wanted(frame), rtol=ROUNDING)


def test_system_may_print_and_read_the_terminal(repo: Path, frame: dict[str, object]) -> None:
    (repo / "fault").write_text("prints")
    for _ in range(2):
        np.testing.assert_allclose(call(frame).depth, wanted(frame), rtol=ROUNDING)
    assert (repo / "asked").read_text().split() == ["''", "''"]
    assert len((repo / "loaded").read_text().split()) == 1


def test_holes_are_nan_and_counted(repo: Path, frame: dict[str, object]) -> None:
    (repo / "fault").write_text("holes")
    result = call(frame)
    assert result.status == f"ok, but {4 * 47} of {33 * 47} pixels came out non-positive or infinite"
    np.testing.assert_array_equal(np.isnan(result.depth), (np.arange(33) < 4)[:, None] & np.ones(SHAPE, bool))


@pytest.mark.parametrize("fault", ["no start", "exit at start"])
def test_system_is_not_started_again_after_two_failed_starts(repo: Path, frame: dict[str, object], fault: str) -> None:
    (repo / "fault").write_text(fault)
    words = "RuntimeError: the weights are not there" if fault == "no start" else "its process ended (exit code 9)"
    for count in (1, 2, 2, 2):
        result = call(frame)
        assert words in result.status
        assert result.status.startswith("failed: given up after 2 failed starts" if count > 2 else "failed: ")
        assert len((repo / "loaded").read_text().split()) == count


def test_nothing_is_left_in_the_temporary_folder(
    repo: Path, frame: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    call(frame)
    (work,) = (tmp_path / "temporary").iterdir()
    assert list(work.iterdir()) == []
    process.stop_all_processes()
    assert list((tmp_path / "temporary").iterdir()) == []


ALONE = """
import sys
import numpy as np
from leadline.core.prior import Prior
from leadline.methods import method

sparse = np.full((8, 9), 2.0)
method("priorda")(Prior(sparse), sparse, image=np.zeros((8, 9, 3), np.uint8))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to see processes end")
@pytest.mark.parametrize("how", ["killed", "timeout"])
def test_system_and_its_children_end_with_their_parent(
    repo: Path, frame: dict[str, object], tmp_path: Path, how: str
) -> None:
    (repo / "fault").write_text("child")
    if how == "timeout":
        assert "took more than" in call(frame, timeout=1.5).status
    else:
        (tmp_path / "temporary").mkdir()
        alone = subprocess.Popen([sys.executable, "-c", ALONE], env=environment(TMPDIR=str(tmp_path / "temporary")))
        until(lambda: (repo / "hanging").exists(), "the system was not called")
        alone.kill()
        alone.wait()
        until(lambda: not list((tmp_path / "temporary").iterdir()), "the job's folder was left behind")
    pids = [int(pid) for pid in (repo / "hanging").read_text().split()]
    until(lambda: gone(pids[0]) and gone(pids[2]), "the system outlived its parent")


def test_killed_worker_ends_its_system_and_the_run_continues(repo: Path, tmp_path: Path) -> None:
    (repo / "fault").write_text("hang")

    def kill_the_worker() -> None:
        until(lambda: (repo / "hanging").exists(), "no worker called the system")
        (repo / "fault").unlink()
        os.kill(int((repo / "hanging").read_text().split()[1]), signal.SIGKILL)

    chosen = protocol("priorda", count=1, cases=["distributed"])
    killer = threading.Thread(target=kill_the_worker)
    killer.start()
    (record,) = run(chosen, tmp_path / "run", executor="processes", workers=1)
    killer.join()
    assert record.status == "ok", record.reason
    assert json.loads(record.versions)["priorda commit"] == COMMIT
    until(lambda: gone(int((repo / "hanging").read_text().split()[0])), "the system outlived its worker")


def test_the_server_program_runs_on_old_interpreters_without_leadline() -> None:
    source = Path(server_program.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_wrong_arguments_of_a_system_raise(frame: dict[str, object]) -> None:
    with pytest.raises(InputError, match="`image` must be"):
        method("ldcm")(frame["prior"], frame["sparse"])
    with pytest.raises(InputError, match="`image` must be"):
        method("ldcm")(frame["prior"], frame["sparse"], image=frame["image"][:-1])  # type: ignore[index]
    with pytest.raises(InputError, match=r"'ldcm' takes no option 'version'; choose one of checkpoint, device, moge"):
        call(frame, "ldcm", version="1.0")


def test_setup_is_checked_and_recorded(tmp_path: Path, repo: Path) -> None:
    kept = systems.setups_path().read_bytes()
    with pytest.raises(InputError, match="no system 'prior'"):
        systems.set_up("prior", sys.executable)
    with pytest.raises(InputError, match="takes no option 'devcie'; did you mean 'device'"):
        systems.set_up("priorda", sys.executable, str(repo), {"devcie": "cpu"})
    with pytest.raises(InputError, match="any2full needs the option 'checkpoint'"):
        systems.set_up("any2full", sys.executable, str(repo))
    with pytest.raises(FileError, match="no such interpreter"):
        systems.set_up("priorda", str(tmp_path / "python"))
    with pytest.raises(FileError, match="no such folder"):
        systems.set_up("priorda", sys.executable, str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match=r"cannot be used with .*: ModuleNotFoundError: .*'ldcm'.*`repo`"):
        systems.set_up("ldcm", sys.executable)
    (tmp_path / "program").write_text("#!/bin/sh\necho no Python here >&2\nexit 4\n")
    (tmp_path / "program").chmod(0o755)
    with pytest.raises(FileError, match=r"its process ended \(exit code 4\); it last wrote: no Python here"):
        systems.set_up("priorda", str(tmp_path / "program"))
    (tmp_path / "program").chmod(0o644)
    with pytest.raises(FileError, match="cannot be started"):
        systems.set_up("priorda", str(tmp_path / "program"))
    assert systems.setups_path().read_bytes() == kept
    systems.remove_setup("priorda")
    assert systems.read_setups() == {}
    with pytest.raises(InputError, match="not set up"):
        systems.remove_setup("priorda")


def test_damaged_record_of_setups_is_reported(repo: Path, frame: dict[str, object]) -> None:
    for text in ("{", '["priorda"]', '{"priorda": {"pyhton": 1}}'):
        systems.setups_path().write_text(text)
        assert "is not a record of set-ups" in call(frame).status
        assert "is not a record of set-ups" in missing_requirement("priorda")


def test_options_of_the_set_up_are_part_of_the_record(repo: Path, tmp_path: Path) -> None:
    systems.set_up("priorda", sys.executable, str(repo), {"version": "1.0"})
    (first,) = run(protocol("priorda", count=1, cases=["outer"]), tmp_path / "run")
    assert first.status == "ok", first.reason
    assert json.loads(first.options) == {"version": "1.0"}
    entry = MethodEntry("priorda", options={"version": "1.1"})
    (second,) = run(protocol(entry, count=1, cases=["outer"]), tmp_path / "run")
    assert first.key != second.key


def test_missing_requirement_names_the_setup_command() -> None:
    for name in server_program.SYSTEMS:
        assert missing_requirement(name) == f"not set up; see 'leadline methods setup {name}'"
    assert [name for name in METHODS if missing_requirement(name) == ""][:9] == list(METHODS)[:9]


def shown(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, list(words), env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_line_sets_up_lists_and_removes(tmp_path: Path) -> None:
    folder = checkout("ldcm", tmp_path / "ldcm")
    code, text = shown()
    assert code == 0
    assert "leadline methods setup any2full --python PATH --repo PATH --method-option checkpoint=VALUE" in text
    assert "CC-BY-NC-4.0 (non-commercial)" in text
    code, text = shown(
        "setup", "ldcm", "--python", sys.executable, "--repo", str(folder), "--method-option", "device=cpu"
    )
    assert (code, COMMIT in text, str(systems.setups_path()) in text) == (0, True, True), text
    code, text = shown("--json")
    (row,) = (row for row in json.loads(text) if row["name"] == "ldcm")
    assert (row["ready"], row["missing"]) == (True, "")
    for words in (["setup", "ldcm"], ["setup", "lcdm", "--python", sys.executable], ["remove", "any2full"]):
        code, text = shown(*words)
        assert code == 2
        assert len(text.strip().splitlines()) == 1, text
    folder.rename(tmp_path / "moved")
    assert f"ldcm: {folder} no longer exists" in shown()[1]
    assert shown("remove", "ldcm")[0] == 0
    assert systems.read_setups() == {}


def test_run_of_all_priors_and_methods_has_a_record_for_each(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packaged protocol that names them all, on rendered rooms: scores for what is here, reasons for the rest."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    trees.scenes(tmp_path / "scenes")
    everything = read_protocol("systems", data=tmp_path / "scenes")
    rooms = protocol("glog", count=1, cases=["distributed"])
    records = run(replace(rooms, priors=everything.priors, methods=everything.methods), tmp_path / "run")
    assert len(records) == len(everything.priors) * len(everything.methods)
    rows = {(record.prior, record.method): record for record in records}
    for (prior, name), record in rows.items():
        if prior == "none" and name in ("KNN", "LWLR", "Poisson", RESPONSE, OURS, BEST, "PriorDA"):
            assert record.status == "ok", (prior, name, record.reason)
        if record.status == "failed":
            assert 20 < len(record.reason) < 700
            assert "Traceback" not in record.reason
    assert rows["none", "LDCM"].reason == "failed: not set up; see 'leadline methods setup ldcm'"
    missing = rows["MoGe-3", OURS]
    assert missing.status == "failed"
    assert "moge" in missing.reason.lower()


def test_a_missing_prior_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(entry: PriorEntry, threads: int | None = None) -> PriorSource:
        if entry.source == "rendered":
            return open_prior(entry, threads)
        asked.append(entry.source)
        raise MissingExtra("moge", "moge", "MoGe")

    monkeypatch.setattr("leadline.bench.sources.open_prior", missing)
    monkeypatch.setattr("leadline.bench.run.open_prior", missing)
    rooms = protocol("glog", count=3, cases=["outer"])
    records = run(replace(rooms, priors=(*rooms.priors, PriorEntry("moge-3"))), tmp_path / "run")
    assert [record.status for record in records] == ["ok", "failed"] * 3
    assert {record.reason for record in records[1::2]} == {str(MissingExtra("moge", "moge", "MoGe"))}
    assert len(asked) == 2  # to plan, and to run
