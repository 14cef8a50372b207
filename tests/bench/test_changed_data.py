"""Records of images whose data have changed are computed again; a moved or copied folder keeps its records."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import FILE, RecordStore, read_records
from leadline.bench.run import RunProgress, run_protocol
from support.bench_records import record
from support.cli_frames import leadline


def write_scene(folder: Path, metres: float = 0.001) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.arange(24, dtype=np.uint16)
    depth = 1000 + 20 * rows[:, None] + 10 * np.arange(32, dtype=np.uint16)
    Image.fromarray(np.full((24, 32, 3), 90, np.uint8)).save(folder / "image.png")
    Image.fromarray(depth).save(folder / "depth.png")
    reference = {"file": "depth.png", "metres_per_unit": metres, "invalid": [0]}
    camera = {"width": 32, "height": 24, "fx": 30.0, "fy": 30.0, "cx": 15.5, "cy": 11.5}
    description = {"image": "image.png", "reference": reference, "intrinsics": camera}
    (folder / "scene.json").write_text(json.dumps(description), encoding="utf-8")


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_scene(tmp_path / "scenes" / name)
    return tmp_path / "scenes"


def run(scenes: Path, folder: Path) -> RunProgress:
    data = (DatasetEntry("scenes", "Scenes", str(scenes)),)
    return run_protocol(Protocol(data, (PriorEntry("none"),), (MethodEntry("knn"),), ("random:40",)), folder)


def test_another_unit_gives_new_records(scenes: Path, tmp_path: Path) -> None:
    assert run(scenes, tmp_path / "run").new == 2
    again = run(scenes, tmp_path / "run")
    assert (again.new, again.changed) == (0, (0, 0))
    before = {item.image: item for item in read_records(tmp_path / "run")}
    write_scene(scenes / "a", metres=0.002)
    second = run(scenes, tmp_path / "run")
    assert (second.new, second.done, second.changed) == (1, 2, (1, 1))
    after = {item.image: item for item in read_records(tmp_path / "run")}
    assert after["a"].mae == pytest.approx(2 * before["a"].mae, rel=1e-5)
    assert after["b"] == before["b"]
    assert run(scenes, tmp_path / "run").new == 0


def test_a_change_of_the_camera_alone_is_found(scenes: Path, tmp_path: Path) -> None:
    run(scenes, tmp_path / "run")
    path = scenes / "b" / "scene.json"
    path.write_text(path.read_text(encoding="utf-8").replace("30.0", "31.0"), encoding="utf-8")
    assert run(scenes, tmp_path / "run").changed == (1, 1)


def test_a_moved_a_copied_and_a_touched_folder_keep_their_records(scenes: Path, tmp_path: Path) -> None:
    run(scenes, tmp_path / "run")
    moved = scenes.rename(tmp_path / "moved")
    assert run(moved, tmp_path / "run").new == 0
    shutil.copytree(moved, tmp_path / "copied", copy_function=shutil.copyfile)  # with other times of change
    assert run(tmp_path / "copied", tmp_path / "run").new == 0
    for path in (tmp_path / "copied").rglob("*.*"):
        os.utime(path, ns=(1, 1))
    assert run(tmp_path / "copied", tmp_path / "run").new == 0
    with RecordStore(tmp_path / "run") as store:
        states = store.file_states()
    assert run(tmp_path / "copied", tmp_path / "run").new == 0
    with RecordStore(tmp_path / "run") as store:
        assert store.file_states() == states


def test_a_repaired_file_is_scored_without_retry(scenes: Path, tmp_path: Path) -> None:
    (scenes / "a" / "depth.png").write_bytes(b"half a file")
    assert run(scenes, tmp_path / "run").failed == 1
    write_scene(scenes / "a")
    repaired = run(scenes, tmp_path / "run")
    assert (repaired.new, repaired.failed) == (1, 0)


def test_a_run_of_an_earlier_version_is_checked_by_the_hashes_that_it_has(scenes: Path, tmp_path: Path) -> None:
    run(scenes, tmp_path / "run")
    with RecordStore(tmp_path / "run", create=True) as store, store._transaction() as connection:
        connection.execute("DROP TABLE files")
        connection.execute("ALTER TABLE records DROP COLUMN scene_hash")
    write_scene(scenes / "b", metres=0.002)
    assert run(scenes, tmp_path / "run").changed == (1, 1)
    assert (tmp_path / "run" / FILE).is_file()


def test_the_command_says_that_data_changed(scenes: Path, tmp_path: Path) -> None:
    line = f"bench run scenes --data {scenes} --prior none -o {tmp_path / 'run'} --limit 1"
    leadline(line)
    write_scene(scenes / "a", metres=0.002)
    assert "the data of 1 of the images changed since; " in " ".join(leadline(line).output.split())


def test_records_have_no_hash_by_default() -> None:
    assert record("A", "i", "outer", "KNN", 0.1).scene_hash == ""
