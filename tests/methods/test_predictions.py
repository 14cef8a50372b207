"""Depth maps saved by any system, scored like a method: found by name, in any form, and never a crash."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError, InputError
from leadline.bench.metrics import depth_scores
from leadline.bench.plan import plan_work_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.protocol_files import read_protocol
from leadline.core.prior import Prior
from leadline.datasets.rendered import RenderedDataset
from leadline.datasets.scene_folders import SceneFolders
from leadline.io.depth import write_depth
from leadline.methods import method
from support.bench_runs import SIZE, protocol, run
from support.paths import DATA

HALF_A_MILLIMETRE = 0.5e-3 + 1e-6  # what a PNG in millimetres rounds away, and float32
SHAPE = (6, 8)
FRAME = Prior(np.ones(SHAPE)), np.ones(SHAPE)
RUNG = 1e-6  # two ways to the same sums


@pytest.fixture
def depth(rng: np.random.Generator) -> np.ndarray:
    values = rng.uniform(0.5, 9.0, SHAPE).astype(np.float32)
    values[0, 0] = np.nan
    return values


@pytest.mark.parametrize(
    ("file", "name", "unit"),
    [
        ("room.npy", "room", None),
        ("room.npz", "room", "m"),
        ("room.png", "room", "mm"),
        ("room.pfm", "room", None),
        ("house/room.npy", "house/room", None),
        ("house_room.png", "house/room", 0.001),
        ("room.bin", "house/room", "m"),
    ],
)
def test_every_format_and_file_name_is_found(
    tmp_path: Path, depth: np.ndarray, file: str, name: str, unit: str | float | None
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    write_depth(tmp_path / file, depth, unit)
    result = method(f"predictions:{tmp_path}")(*FRAME, name=name, unit=unit)
    np.testing.assert_allclose(result.depth, depth, atol=HALF_A_MILLIMETRE)
    assert result.depth.dtype == np.float32
    assert result.status == "ok, but 1 of 48 pixels have no depth"


def test_status_reports_a_guessed_unit(tmp_path: Path, depth: np.ndarray) -> None:
    write_depth(tmp_path / "room.png", depth, "mm")
    assert "; unit guessed as mm" in method(f"predictions:{tmp_path}")(*FRAME, name="room").status


def test_missing_or_mismatched_files_are_one_error(tmp_path: Path, depth: np.ndarray) -> None:
    np.save(tmp_path / "small.npy", depth[:-1])
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    found = method(f"predictions:{tmp_path}")
    with pytest.raises(FileError, match="no prediction for 'other'"):
        found(*FRAME, name="other")
    with pytest.raises(FileError, match="8x5, the image 8x6"):
        found(*FRAME, name="small")
    for name in ("broken", "objects"):
        with pytest.raises(FileError, match=f"{name}.npy"):
            found(*FRAME, name=name)
    with pytest.raises(InputError, match="has none"):
        found(*FRAME)
    with pytest.raises(InputError, match="`by` chooses"):
        found(*FRAME, name="small", by="Any2Full")
    with pytest.raises(FileError, match="no such folder"):
        method("predictions:/no/such/place")(*FRAME, name="room")
    with pytest.raises(InputError, match="predictions:FOLDER"):
        method("predictions")
    with pytest.raises(InputError, match="is not from a scene folder"):
        method("predictions:scene")(*FRAME, name="room")


def test_predictions_of_a_scene_are_chosen_by_method(tmp_path: Path, depth: np.ndarray) -> None:
    folder = tmp_path / "house" / "room"
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((*SHAPE, 3), np.uint8)).save(folder / "rgb.png")
    entries: list[object] = []
    for by, factor in (("first", 1000.0), ("second", 2000.0)):
        np.save(folder / f"{by}.npy", depth * factor)
        entries.append({"method": by, "file": f"{by}.npy", "metres_per_unit": 0.001, "given": "lidar"})
    scenes = SceneFolders(tmp_path, listed="all")

    def write(predictions: object) -> None:
        text = json.dumps({"image": "rgb.png", "reference": None, "predictions": predictions})
        (folder / "scene.json").write_text(text)

    write(entries)
    found = method("predictions:scene")
    first = found(*FRAME, dataset=scenes, name="house/room")
    second = found(*FRAME, dataset=scenes, name="house/room", by="second")
    np.testing.assert_allclose(first.depth, depth, rtol=RUNG)
    np.testing.assert_allclose(second.depth, 2 * depth, rtol=RUNG)
    with pytest.raises(FileError, match="no prediction by third; it lists: first, second"):
        found(*FRAME, dataset=scenes, name="house/room", by="third")
    with pytest.raises(InputError, match="`unit` is for folders"):
        found(*FRAME, dataset=scenes, name="house/room", unit="mm")
    for damaged, words in (([], "no prediction"), ("x", "no prediction"), ([{"method": "first"}], "needs `file`")):
        write(damaged)
        with pytest.raises(FileError, match=words):
            found(*FRAME, dataset=scenes, name="house/room")


def test_run_scores_predictions_and_records_missing_ones_as_failed(tmp_path: Path) -> None:
    rooms = RenderedDataset(count=2, width=SIZE[0], height=SIZE[1])
    first, second = rooms.names()
    (tmp_path / "maps").mkdir()
    write_depth(tmp_path / "maps" / f"{first}.npy", 1.1 * rooms.load(first).reference)
    entry = MethodEntry(f"predictions:{tmp_path / 'maps'}", "theirs")
    records = run(protocol(entry, "glog", count=2, cases=["outer"]), tmp_path / "run")
    mine = {record.image: record for record in records if record.method == "theirs"}
    assert mine[first].absrel == pytest.approx(0.1, rel=1e-4)
    assert mine[second].status == "failed"
    assert f"no prediction for '{second}'" in mine[second].reason
    assert [record.status for record in records if record.method == "Ours"] == []
    assert {record.status for record in records if record.method == "GLog"} == {"ok"}
    # Where the maps lie is not part of a record's key; the folder of a protocol is relative to the file.
    there = MethodEntry(f"predictions:{tmp_path}", "theirs")
    assert {
        task.key for unit in plan_work_items(protocol(there, "glog", count=2, cases=["outer"])) for task in unit.tasks
    } == {record.key for record in records}
    (tmp_path / "p.toml").write_text(
        'methods = ["predictions:maps", "predictions:scene"]\npriors = ["none"]\n[[datasets]]\nname = "rendered"\n'
    )
    names = [method.name for method in read_protocol(str(tmp_path / "p.toml")).methods]
    assert names == [f"predictions:{tmp_path.resolve() / 'maps'}", "predictions:scene"]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the scenes in {DATA}, which are not there")
def test_the_real_outputs_of_any2full_are_scored(tmp_path: Path) -> None:
    scenes = SceneFolders(DATA, listed="all")
    carrying = [name for name in scenes.names() if scenes.describe(name).get("predictions")]
    assert carrying == ["ibims1/lectureroom_range40", "void/any2full_void_150_1"]
    for name in carrying:
        scene = scenes.load(name)
        shape = scene.image.shape[:2]
        prior, sparse = Prior(np.ones(shape)), np.ones(shape)
        result = method("predictions:scene")(prior, sparse, dataset=scenes, name=name, by="Any2Full")
        assert result.status == "ok"
        # Its own measurements: real depth in metres follows them.
        given = next(iter(scenes.load(name).sparse.values())).values
        near = np.isfinite(given)
        assert np.median(np.abs(result.depth[near] / given[near] - 1)) < 0.05
    chosen = Protocol(
        (DatasetEntry("scenes", root=str(DATA / "ibims1")),),
        (PriorEntry("none"),),
        (MethodEntry("predictions:scene", "Any2Full"),),
        cases=("distributed",),
    )
    records = {record.image: record for record in run(chosen, tmp_path / "run")}
    scored = records.pop("lectureroom_range40")
    assert scored.status == "ok", scored.reason
    reference = scenes.load("ibims1/lectureroom_range40").reference
    folder = DATA / "ibims1" / "lectureroom_range40"
    whole = depth_scores(np.squeeze(np.load(folder / "peer_output_any2full.npy")), reference, np.isfinite(reference))
    assert scored.absrel == pytest.approx(whole.absrel, rel=0.05)  # the pixels given to no method are a few per cent
    assert scored.absrel < 0.05
    assert {record.status for record in records.values()} == {"failed"}
    assert all("lists no prediction" in record.reason for record in records.values())
