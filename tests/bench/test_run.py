"""Runs: the same records from every executor, after any interruption, and around anything that fails."""

from __future__ import annotations

import importlib.util
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError, InputError
from leadline.bench import run as run_module
from leadline.bench.plan import plan_work_items, remaining_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import FILE, RecordStatus, read_records
from leadline.bench.run import WORKER_DIED, Evaluator, run_protocol
from leadline.bench.sources import RenderedPrior
from leadline.core.prior import Prior
from leadline.datasets.rendered import RenderedDataset
from support import bench_methods
from support.bench_runs import HERE, SIZE, content, environment, protocol, run, toml

METHODS = ("raw", "glog", "response", "ours")
PATIENCE = 180.0  # seconds until a subprocess counts as hung: no test passes or fails by being quicker


@pytest.fixture(autouse=True)
def _own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers are new processes, which find `bench_methods` by this.
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


def mark(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make `bench_methods` fail at the room of that name."""
    rooms = RenderedDataset(count=3, width=SIZE[0], height=SIZE[1])
    prior = RenderedPrior()(rooms.load(name).image, dataset=rooms, name=name)
    monkeypatch.setenv(bench_methods.MARK, repr(float(prior.values.flat[0])))


@pytest.fixture(scope="module")
def serially(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    return content(run(protocol(*METHODS), tmp_path_factory.mktemp("serial")))


def test_a_run_holds_exactly_the_plan(serially: dict[str, dict[str, object]]) -> None:
    planned = [task.key for item in plan_work_items(protocol(*METHODS)) for task in item.tasks]
    assert len(planned) == len(set(planned)) == 3 * 3 * 4
    assert list(serially) == planned
    assert {row["status"] for row in serially.values()} == {repr(RecordStatus.OK)}


def test_processes_give_the_same_records(tmp_path: Path, serially: dict[str, dict[str, object]]) -> None:
    assert content(run(protocol(*METHODS), tmp_path, executor="processes", workers=2)) == serially


def test_order_does_not_matter(tmp_path: Path, serially: dict[str, dict[str, object]]) -> None:
    chosen = protocol(*METHODS)
    items = plan_work_items(chosen)
    random.Random(4).shuffle(items)
    evaluator = Evaluator(chosen, tmp_path)
    found = {}
    for item in items:
        found |= content(evaluator(item))
    assert found == serially


def test_a_finished_run_does_nothing_again(tmp_path: Path) -> None:
    run(protocol("glog"), tmp_path)
    assert run_protocol(protocol("glog"), tmp_path).new == 0


def test_a_longer_protocol_adds_only_what_is_new(tmp_path: Path) -> None:
    short = replace(protocol("glog", count=4), limit=3)
    run(short, tmp_path)
    end = run_protocol(protocol("glog", "gdisp", count=4), tmp_path)
    assert (end.planned, end.new) == (24, 24 - 9)
    # Going back shows the first plan again; the other records stay in the file.
    assert run_protocol(short, tmp_path).done == 9
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("SELECT COUNT(*) FROM records").fetchone() == (24,)
    connection.close()


def test_other_options_are_other_records(tmp_path: Path) -> None:
    first = run(protocol(MethodEntry("ours", "x", {"weight_data": 1e-3}), count=1), tmp_path)
    second = run(protocol(MethodEntry("ours", "x", {"weight_data": 1.0}), count=1), tmp_path)
    assert not {record.key for record in first} & {record.key for record in second}
    assert [record.absrel for record in first] != [record.absrel for record in second]


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_killed_at_random_moments_and_resumed(tmp_path: Path, executor: str) -> None:
    chosen = protocol("support.bench_methods:slow", "gdisp", count=8)
    (tmp_path / "p.toml").write_text(toml(chosen), encoding="utf-8")
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "leadline", "bench", "run", str(tmp_path / "p.toml"), "-o", str(folder)]
    command += ["--executor", executor, *(["--workers", "2"] if executor == "processes" else [])]
    rng = random.Random(executor)
    seen = 0
    for _ in range(2):
        target = seen + rng.randint(1, 18)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and written(folder) < target and time.monotonic() < deadline:
            time.sleep(rng.uniform(0.0, 0.05))
        process.kill()
        _, errors = process.communicate()
        assert b"Traceback" not in errors
        now = written(folder)
        assert now >= seen  # nothing that was written is lost
        seen = now
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(folder / FILE) as connection:
        keys = [key for (key,) in connection.execute("SELECT key FROM records")]
    connection.close()
    assert sorted(keys) == sorted(task.key for item in plan_work_items(chosen) for task in item.tasks)
    fresh = run(chosen, tmp_path / "fresh")
    assert content(read_records(folder)) == content(fresh)


def written(folder: Path) -> int:
    if not (folder / FILE).is_file():
        return 0
    connection = sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True, timeout=5)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM records").fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return 0
    finally:
        connection.close()


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'leadline[ray]')"
)
def test_ray_with_two_nodes_one_of_them_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = protocol("glog", "ours", "support.bench_methods:stays", count=6)
    (tmp_path / "p.toml").write_text(toml(chosen), encoding="utf-8")
    (tmp_path / "doomed").write_text("", encoding="utf-8")
    monkeypatch.setenv(bench_methods.DOOMED, str(tmp_path / "doomed"))
    command = [sys.executable, str(HERE / "ray_cluster.py"), "bench", str(tmp_path / "p.toml"), str(tmp_path / "ray")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nodes alive 1" in done.stdout
    assert "lost Rooms" in done.stderr  # a item was in flight on the node, and was done again
    assert content(read_records(tmp_path / "ray")) == content(run(chosen, tmp_path / "serial"))


def test_a_worker_that_dies_fails_its_image_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(monkeypatch, "room-1")
    records = run(protocol("support.bench_methods:dies"), tmp_path, executor="processes", workers=2)
    assert len(records) == 9
    assert {(r.image, r.status, r.reason) for r in records if r.image == "room-1"} == {
        ("room-1", "failed", WORKER_DIED)
    }
    assert {r.status for r in records if r.image != "room-1"} == {"ok"}


def test_a_bug_in_a_method_is_a_failed_record_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(monkeypatch, "room-2")
    records = run(protocol("support.bench_methods:raises", "gdisp"), tmp_path)
    bad = [record for record in records if record.status == "failed"]
    assert {(record.image, record.method) for record in bad} == {("room-2", "support.bench_methods:raises")}
    assert len(bad) == 3
    assert "KeyError" in bad[0].reason
    assert "bench_methods.py, line" in bad[0].reason


def test_failed_records_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(monkeypatch, "room-0")
    chosen = protocol("support.bench_methods:raises")
    assert run_protocol(chosen, tmp_path).failed == 3
    assert run_protocol(chosen, tmp_path).new == 0
    monkeypatch.delenv(bench_methods.MARK)
    end = run_protocol(chosen, tmp_path, retry=True)
    assert (end.new, end.failed) == (3, 0)


def test_a_prediction_that_cannot_be_scored(tmp_path: Path) -> None:
    wrong, empty = run(
        protocol("support.bench_methods:wrong_shape", "support.bench_methods:empty", count=1, cases=["outer"]), tmp_path
    )
    assert "shape" in wrong.reason
    assert empty.status is RecordStatus.FAILED
    assert empty.reason == "failed: nothing to say"
    assert np.isnan(empty.absrel)
    assert empty.missing > 0


def test_a_case_that_the_scene_cannot_give(tmp_path: Path) -> None:
    scenes = tmp_path / "scenes"
    folder = write_scene(scenes, "a")
    (folder / "scene.json").write_text(
        (folder / "scene.json").read_text(encoding="utf-8").replace("INTRINSICS", "null"), encoding="utf-8"
    )
    chosen = Protocol(
        (DatasetEntry("scenes", root=str(scenes)),),
        (PriorEntry("none"),),
        (MethodEntry("knn"),),
        ("lidar:8", "random:50"),
    )
    beams, points = run(chosen, tmp_path / "run")
    assert beams.status == "failed"
    assert "camera" in beams.reason
    assert points.status == "ok"
    assert np.isnan(points.nmean)  # no camera, no normals
    assert points.normal_support == 0


def write_scene(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    rows, columns = np.mgrid[0:40, 0:60]
    Image.fromarray(np.stack([rows * 5, columns * 4, rows + columns], -1).astype(np.uint8)).save(folder / "rgb.png")
    Image.fromarray((1500 + 20 * rows + 10 * columns).astype(np.uint16)).save(folder / "depth.png")
    (folder / "scene.json").write_text(
        f'{{"name": "{name}", "image": "rgb.png", "reference": {{"file": "depth.png", "key": null, '
        '"metres_per_unit": 0.001, "invalid": [0], "mask": null, "max_m": null}, "sparse": [], "priors": [], '
        '"intrinsics": INTRINSICS, "intrinsics_source": null}',
        encoding="utf-8",
    )
    return folder


def test_damaged_files_are_failed_records_and_the_rest_goes_on(tmp_path: Path) -> None:
    scenes = tmp_path / "scenes"
    for name in ("corrupt", "fine", "gone", "other-size"):
        file = write_scene(scenes, name) / "scene.json"
        file.write_text(file.read_text(encoding="utf-8").replace("INTRINSICS", "null"), encoding="utf-8")
    (scenes / "corrupt" / "depth.png").write_bytes((scenes / "fine" / "depth.png").read_bytes()[:80])
    (scenes / "gone" / "rgb.png").unlink()
    Image.fromarray(np.ones((20, 30), np.uint16)).save(scenes / "other-size" / "depth.png")
    chosen = Protocol((DatasetEntry("scenes", root=str(scenes)),), (PriorEntry("none"),), (MethodEntry("knn"),))
    records = run(chosen, tmp_path / "run")
    assert len(records) == 12
    for name in ("corrupt", "gone", "other-size"):
        mine = [record for record in records if record.image.startswith(name)]
        assert {record.status for record in mine} == {"failed"}
        assert name in mine[0].reason, mine[0].reason  # it names the file
    assert {record.status for record in records if record.image.startswith("fine")} == {"ok"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": (MethodEntry("ors"),)}, "did you mean 'ours'"),
        ({"methods": (MethodEntry("ours", options={"weight": 1}),)}, "takes no option 'weight'"),
        ({"methods": (MethodEntry("raw", options={"weight_data": 1}),)}, "'weight_data'; it has none"),
        ({"methods": (MethodEntry("lwlr", options={"ridge": "low"}),)}, "must be a number, got 'low' instead"),
        ({"priors": (PriorEntry("onnx:nowhere.onnx"),)}, "nowhere.onnx"),
        ({"priors": (PriorEntry("onnx:net.onnx", options={"card": 0}),)}, "must be text or a path or null, got 0"),
        ({"datasets": (DatasetEntry("ibims", root="nowhere"),)}, "nowhere"),
        ({"datasets": (DatasetEntry("rendered", options={"size": 3}),)}, "takes no option 'size'"),
        ({"datasets": (DatasetEntry("rendered", options={"count": "3"}),)}, "'count' must be an integer, got '3'"),
    ],
)
def test_what_is_missing_is_said_before_the_work_begins(
    tmp_path: Path, change: dict[str, tuple[object, ...]], words: str
) -> None:
    with pytest.raises((InputError, FileError), match=words):
        run_protocol(replace(protocol("glog"), **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings", [{"executor": "threads"}, {"workers": 2}, {"address": "auto"}, {"executor": "processes", "workers": 0}]
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        run_protocol(protocol("glog"), tmp_path, **settings)  # type: ignore[arg-type]


def test_keys_do_not_depend_on_order_or_place(tmp_path: Path) -> None:
    def keys(chosen: Protocol) -> set[str]:
        return {task.key for item in plan_work_items(chosen) for task in item.tasks}

    assert keys(protocol("glog", "gdisp")) == keys(protocol("gdisp", "glog", cases=["outer", "distributed", "central"]))
    for name in ("here", "there"):
        file = write_scene(tmp_path / name, "a") / "scene.json"
        file.write_text(file.read_text(encoding="utf-8").replace("INTRINSICS", "null"), encoding="utf-8")
    here, there = (
        Protocol((DatasetEntry("scenes", root=str(tmp_path / name)),), (PriorEntry("none"),), (MethodEntry("knn"),))
        for name in ("here", "there")
    )
    assert keys(here) == keys(there)


def test_what_remains_is_what_has_no_record() -> None:
    items = plan_work_items(protocol("glog", "gdisp"))
    keys = [task.key for item in items for task in item.tasks]
    left = remaining_items(items, set(keys[:7]))
    assert [task.key for item in left for task in item.tasks] == keys[7:]
    assert [item.image for item in left] == ["room-1", "room-2"]
    assert remaining_items(items, set(keys)) == []


class Counting:
    """A network that counts its predictions."""

    name, quantity, gauge = "counting", "disparity", "affine"

    def __init__(self) -> None:
        self.calls = 0

    def fingerprint(self) -> str:
        return "counting"

    def __call__(self, image: np.ndarray, *, dataset: object = None, name: str | None = None) -> Prior:
        self.calls += 1
        values = 1 + image.mean(axis=2, dtype=np.float32)
        return Prior(values, kind="disparity", valid=values > 2, floor=0.01)


def test_a_network_sees_each_image_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Counting()
    monkeypatch.setattr(run_module, "open_prior", lambda entry, threads: network)
    chosen = protocol("glog", count=2)
    chosen = Protocol(chosen.datasets, (PriorEntry("network:x", "made"),), chosen.methods, chosen.cases)
    items = plan_work_items(protocol("glog", count=2))
    first = [record for item in items for record in Evaluator(chosen, tmp_path)(item)]
    second = [record for item in items for record in Evaluator(chosen, tmp_path)(item)]
    assert network.calls == 2
    assert content(first) == content(second)
    assert len(list(tmp_path.rglob("*.npy"))) == 2
    assert not list(tmp_path.rglob("*.part"))
