"""Scene folders, real ones included, and `leadline datasets` with its check of a tree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from leadline.base.errors import FileError
from leadline.bench.observations import simulate
from leadline.datasets import DATASETS, dataset
from leadline.datasets.scene_folders import SceneFolders
from leadline.datasets.tree_check import check_tree
from support import trees
from support.cli_frames import leadline
from support.paths import DATA as SHARED

INDEX_DIGITS = 1e-3  # the index of the real scenes has three decimals of a metre and five of a share
EXTRA_READS = 3


# ---- scene folders


def test_stored_inputs_of_a_scene(tmp_path: Path) -> None:
    frames = trees.scenes(tmp_path)
    data = SceneFolders(tmp_path)
    assert data.names() == ["set_a/one", "set_a/two"]
    assert SceneFolders(tmp_path, listed="all").names() == sorted(frames)
    assert data.load("set_b/bare").reference is None
    ((label, sparse),) = data.load("set_a/one").sparse.items()
    assert (label, sparse.sensor, sparse.from_reference) == ("tof", "time of flight", False)
    assert np.isfinite(sparse.values).sum() == data.describe("set_a/one")["sparse"][0]["points"]
    (prior,) = data.scene_priors("set_a/one")
    assert (prior.kind, prior.shape) == ("disparity", (trees.HEIGHT, trees.WIDTH))
    known = np.isfinite(frames["set_a/one"].depth)
    assert_allclose(prior.depth()[known], frames["set_a/one"].depth[known], rtol=1e-5)


def test_scenes_without_a_reference_are_scored_against_their_measurements(tmp_path: Path) -> None:
    trees.scenes(tmp_path)
    assert SceneFolders(tmp_path, listed="sensor").names() == ["set_a/one", "set_a/two"]
    held_out = SceneFolders(tmp_path, listed="measured")
    assert held_out.names() == ["set_b/bare"]
    scene = held_out.load("set_b/bare")
    assert_array_equal(scene.reference, scene.sparse["tof"].values)
    observed = simulate(scene, "share:0.25", dataset="scenes")
    count = np.isfinite(scene.sparse["tof"].values).sum()
    assert observed.count == round(0.25 * count)
    assert observed.scored.sum() == count - observed.count
    low = tmp_path / "set_b/bare/low.npy"  # a sensor of lower resolution: its depths move to the nearest pixels
    np.save(low, np.array([[2.0, 3.0]]))
    file = tmp_path / "set_b/bare/scene.json"
    changed = json.loads(file.read_text(encoding="utf-8"))
    changed["sparse"] = [{"name": "zones", "file": "low.npy", "metres_per_unit": 1.0}]
    file.write_text(json.dumps(changed), encoding="utf-8")
    reference = held_out.load("set_b/bare").reference
    assert reference is not None
    assert reference.shape == scene.image.shape[:2]
    assert sorted(reference[np.isfinite(reference)]) == [2.0, 3.0]
    with pytest.raises(FileError, match="that has measurements and no reference"):
        SceneFolders(tmp_path / "set_a", listed="measured").names()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, "cannot be read as a scene"),
        ({"reference": {"file": "depth.png"}}, "cannot be read as a scene"),
        ({"reference": {"file": "absent.png", "metres_per_unit": 1}}, r"absent.png: no such file"),
        (
            {"intrinsics": {"width": 9, "height": 9, "fx": 1, "fy": 1, "cx": 1, "cy": 1}},
            "are for 9x9, but rgb.png is 24x16",
        ),
        ({"intrinsics": {"width": 24}}, "cannot be read as a scene"),
    ],
)
def test_wrong_scene_json_raises(change: dict[str, object], message: str, tmp_path: Path) -> None:
    trees.scenes(tmp_path)
    file = tmp_path / "set_a" / "one" / "scene.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    data = SceneFolders(tmp_path)
    with pytest.raises(FileError, match=message):
        data.load("set_a/one")
    assert data.load("set_a/two").reference is not None  # the rest goes on


def test_wrong_entries_of_a_scene_raise(tmp_path: Path) -> None:
    trees.scenes(tmp_path)
    file = tmp_path / "set_a" / "one" / "scene.json"
    scene = json.loads(file.read_text(encoding="utf-8"))
    scene["priors"][0]["kind"], scene["sparse"] = "normals", {"file": "depth.png"}
    file.write_text(json.dumps(scene), encoding="utf-8")
    with pytest.raises(FileError, match=r"scene.json: a prior is wrong: `prior.kind` must be one of"):
        SceneFolders(tmp_path).scene_priors("set_a/one")
    with pytest.raises(FileError, match=r"scene.json: `sparse` must be a list"):
        SceneFolders(tmp_path).load("set_a/one")
    file.write_text("[1, 2", encoding="utf-8")
    assert "set_a/one" in SceneFolders(tmp_path).names()
    with pytest.raises(FileError, match=r"one.scene.json: cannot be read as a scene"):
        SceneFolders(tmp_path).load("set_a/one")


def test_the_marigold_bundle_has_measurements(tmp_path: Path) -> None:
    frames = trees.marigold(tmp_path)
    data = dataset("marigold", tmp_path)
    sparse = data.load("0000").sparse["sparse"]
    assert_allclose(sparse.values[::4, ::4], frames["0000"].depth[::4, ::4], rtol=1e-6)
    assert np.isnan(sparse.values[1::4]).all()


def real_scenes() -> list[dict[str, object]]:
    index = SHARED / "index.json"
    return json.loads(index.read_text(encoding="utf-8")) if index.is_file() else []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real scenes in ../shared/data are not here")
def test_real_scenes_are_all_listed() -> None:
    entries = {entry["name"]: entry["has_reference"] for entry in real_scenes()}
    assert SceneFolders(SHARED, listed="all").names() == sorted(entries)  # type: ignore[type-var]
    assert SceneFolders(SHARED).names() == sorted(name for name, scored in entries.items() if scored)  # type: ignore


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real scenes in ../shared/data are not here")
@pytest.mark.parametrize("entry", real_scenes(), ids=lambda entry: str(entry["name"]))
def test_real_scenes_are_as_their_index_says(entry: dict[str, object]) -> None:
    data, name = SceneFolders(SHARED), str(entry["name"])
    scene, priors = data.load(name), data.scene_priors(name)
    sparse = list(scene.sparse.values())
    assert [scene.image.shape[1], scene.image.shape[0]] == entry["resolution"]
    present = (scene.reference is not None, scene.camera is not None, bool(sparse), bool(priors))
    assert present == tuple(entry[f"has_{key}"] for key in ("reference", "intrinsics", "sparse", "prior"))
    points = [stored["points"] for stored in data.describe(name)["sparse"]]
    assert [int(np.isfinite(found.values).sum()) for found in sparse] == points
    maps = {"reference": scene.reference, "sparse": sparse[0].values if sparse else None}
    depth = maps.get(str(entry["depth_from"]))
    if depth is not None:
        known = depth[np.isfinite(depth)]
        statistics = (known.size / depth.size, *np.percentile(known, (1, 50, 99)))
        listed = [entry[key] for key in ("coverage", "depth_p1", "depth_p50", "depth_p99")]
        assert_allclose(statistics, listed, rtol=INDEX_DIGITS, atol=INDEX_DIGITS)


# ---- the check


def test_check_of_a_complete_tree_finds_no_fault(tmp_path: Path) -> None:
    trees.ibims_raw(tmp_path)
    report = check_tree(dataset("ibims", tmp_path), reads=None)
    assert report.sound
    assert (report.images, report.read, report.cameras, report.sizes) == (2, 2, 2, {"24x16": 2})
    assert all(0.2 < share < 0.8 for share in report.coverage)


def test_the_check_names_each_fault(tmp_path: Path) -> None:
    trees.ibims_raw(tmp_path)
    core = tmp_path / "ibims1_core_raw"
    (core / "calib" / "corridor_01.txt").unlink()
    (core / "mask_transp" / "corridor_01.png").write_bytes(b"")
    depth = core / "depth" / "livingroom_02.png"
    depth.write_bytes(depth.read_bytes()[:100])
    (tmp_path / "imagelist.txt").write_text("corridor_01\nlivingroom_02\nkitchen_03\n", encoding="utf-8")
    report = check_tree(dataset("ibims", tmp_path), reads=None)
    assert not report.sound
    assert (report.images, report.read) == (3, 0)
    absent = {path.relative_to(core).as_posix() for path in report.missing}
    assert {"calib/corridor_01.txt", "mask_transp/corridor_01.png", "rgb/kitchen_03.png"} <= absent
    assert len(absent) == 7  # the two, and all five of the image that is not there
    ((name, reason),) = report.faults
    assert name == "livingroom_02"
    assert str(depth) in reason


def test_the_check_sees_a_reference_without_depth(tmp_path: Path) -> None:
    trees.marigold(tmp_path)
    np.save(tmp_path / "gt" / "0001.npy", np.zeros((trees.HEIGHT, trees.WIDTH)))
    report = check_tree(dataset("marigold", tmp_path), reads=None)
    assert [name for name, _ in report.faults] == ["0001"]


def test_check_reads_the_requested_number_of_images(tmp_path: Path) -> None:
    trees.arkit(tmp_path)
    seen: list[tuple[int, int]] = []
    data = dataset("arkit", tmp_path, size=None)
    report = check_tree(data, EXTRA_READS, lambda done, total: seen.append((done, total)))
    assert (report.images, report.read) == (16, EXTRA_READS)
    assert seen == [(index + 1, EXTRA_READS) for index in range(EXTRA_READS)]


# ---- the command


def test_the_command_lists_every_data_set() -> None:
    output = leadline("datasets").output
    for name, facts in DATASETS.items():
        assert name in output
        assert facts.images is None or str(facts.images) in output


def test_the_check_command(tmp_path: Path) -> None:
    trees.scenes(tmp_path)
    result = leadline(f"datasets check scenes {tmp_path} --read all")
    assert result.exit_code == 0, result.output
    assert re.search(r"images +3\n", result.output)
    assert "reference  in 2 of 3" in result.output
    assert result.output.endswith("\ncomplete\n")
    (tmp_path / "set_a" / "two" / "depth.png").unlink()
    result = leadline(f"datasets check scenes {tmp_path}")
    assert result.exit_code == 1
    assert f"missing    1 file\n  {tmp_path / 'set_a' / 'two' / 'depth.png'}\n" in result.output
    assert result.output.endswith("\nnot complete\n")


def test_the_check_command_shows_a_few_of_many(tmp_path: Path) -> None:
    trees.arkit(tmp_path)
    for file in tmp_path.rglob("highres_depth/*.png"):
        file.unlink()
    result = leadline(f"datasets check arkit {tmp_path} --data-option size=null --data-option frames=null")
    assert result.exit_code == 1
    assert "images     24 (the paper has 1141)" in result.output
    assert "missing    24 files" in result.output
    assert "  and 19 more" in result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("datasets check ibmis {root}", "did you mean 'ibims'"),
        ("datasets check ibims {root}", "holds no iBims-1 images. Expected rgb/*.png or *.mat"),
        ("datasets check ibims {root}/none", "there is no such folder"),
        ("datasets check ibims {root} --data-option form", "must have the shape KEY=VALUE"),
        ("datasets check ibims {root} --data-option colour=red", "takes no option 'colour'"),
        ("datasets check ibims {root} --read few", "must be a number of images or 'all'"),
        ("datasets chek ibims {root}", "did you mean 'check'"),
    ],
)
def test_wrong_command_lines_are_one_error(line: str, message: str, tmp_path: Path) -> None:
    result = leadline(line.format(root=tmp_path))
    assert result.exit_code == 2
    assert message in result.output
