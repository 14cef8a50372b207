"""`leadline complete` and `project` on inputs that are easily misread: units, turned pictures, known cameras."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.cli_frames import ONE, done, refused

pytestmark = pytest.mark.usefixtures("here")
PROJECT = "project sweep.npy --camera cam.json --extrinsics T.json --image photo.jpg"
PROJECTED = "complete photo.jpg --sparse new/sparse.png --prior prior.npy -o out"
KITTI = "complete photo.jpg --points scan.bin --kitti calib.txt --prior prior.npy -o out --ply"


def record() -> dict:
    return json.loads(Path("out/photo.json").read_text(encoding="utf-8"))


def test_the_camera_of_kitti_is_used_for_the_cloud_of_the_result() -> None:
    projection = "30 0 15.5 0 0 31 11.5 0 0 0 1 0"
    lines = [*(f"P{k}: {projection}" for k in range(4)), "R0_rect: 1 0 0 0 1 0 0 0 1"]
    lines.append("Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0")
    Path("calib.txt").write_text("\n".join(lines), encoding="utf-8")
    points = np.load("sweep.npy").astype(np.float32)
    np.hstack([points, np.ones((len(points), 1), np.float32)]).tofile("scan.bin")
    assert "wrote out/photo.ply" in done(KITTI)
    assert record()["camera"]["fx"] == 30.0


def test_project_makes_its_folder_and_complete_reads_its_sidecar() -> None:
    projected = done(f"{PROJECT} -o new/deep/../sparse.png --output-unit kitti")
    assert "2.10 to 4.19 m" in projected
    output = done(f"{PROJECTED} --ply")  # the sidecar has the camera, too
    assert "note: the unit is kitti, as sparse.json says: 2.10 to 4.19 m." in output
    assert "guessed" not in output
    assert record()["units"]["sparse"] == {"unit": "kitti", "guessed": False}
    assert Path("out/photo.ply").exists()
    assert record()["inputs"]["sparse_sidecar"]["path"] == "new/sparse.json"
    stated = done(f"{PROJECTED} --unit mm --overwrite")  # what the user states
    assert (
        "note: sparse.png was written in the unit kitti, as its sidecar says, but is read in mm; leave out --unit"
        in stated
    )
    assert "note:" not in done(f"{PROJECTED} --unit {1 / 256} --overwrite")  # the same unit as a number


@pytest.mark.parametrize("change", ["other file", "damaged", "turned", "none"])
def test_a_sidecar_of_something_else_is_ignored(change: str) -> None:
    done(f"{PROJECT} -o new/sparse.png --output-unit kitti")
    sidecar = Path("new/sparse.json")
    if change == "other file":
        Image.open("lidar.png").save("new/sparse.png")
    elif change == "damaged":
        sidecar.write_text("[1, 2", encoding="utf-8")
    elif change == "turned":
        facts = json.loads(sidecar.read_text(encoding="utf-8"))
        sidecar.write_text(json.dumps({**facts, "unit": "furlong"}), encoding="utf-8")
    else:
        sidecar.unlink()
    assert "note: unit guessed as mm" in done(PROJECTED)


def test_metres_for_a_map_in_millimetres() -> None:
    text = refused(f"{ONE} --unit m")
    assert "half of the measurements lie beyond 3.32e+03 m if read in the unit m; is --unit right?" in text
    assert "float" not in text  # no format makes this right
    assert not Path("out/photo.json").exists()


def test_without_a_prior_there_is_no_alarm() -> None:
    assert "note:" not in done("complete photo.jpg --sparse lidar.png --unit mm --prior none -o out")


@pytest.mark.parametrize("name", ["depth", "disparity"])
def test_the_kind_of_a_prior_can_be_left_to_the_measurements(name: str) -> None:
    file = "prior.npy" if name == "depth" else "disparity.npy"
    line = f"complete photo.jpg --sparse lidar.png --unit mm --prior {file}"
    output = done(f"{line} --prior-kind auto -o out --format npy")
    moves = "rises" if name == "depth" else "falls"
    assert f"the prior was taken as {name}, because it {moves} where the measured depth rises." in output
    assert record()["prior"]["quantity"] == name
    done(f"{line} --prior-kind {name} -o stated --format npy")
    np.testing.assert_array_equal(np.load("out/photo_depth.npy"), np.load("stated/photo_depth.npy"))


@pytest.mark.parametrize("scatter", ["", "--scatter-sparse"])
def test_a_map_in_portrait_of_a_picture_in_landscape_is_turned(scatter: str) -> None:
    Image.fromarray(np.asarray(Image.open("lidar.png")).T).save("portrait.png")
    line = f"complete {{}} --sparse portrait.png --unit mm --prior prior.npy -o out {scatter}"
    text = refused(line.format("photo.jpg"))
    assert "the sparse map is 24x32 and the image 32x24: they are turned by 90 degrees. Turn the image" in text
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open("photo.jpg").save("phone.jpg", exif=exif)
    assert "phone.jpg has an EXIF orientation (6), with which a viewer turns it by 90" in refused(
        line.format("phone.jpg")
    )


@pytest.mark.parametrize(("orientation", "words"), [(1, None), (2, "mirrors it"), (3, "turns it by 180 degrees")])
def test_an_exif_turn_is_mentioned(orientation: int, words: str | None) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open("photo.jpg").save("photo.jpg", exif=exif)
    output = done(f"{ONE} --unit mm")
    assert (words or "not turned") in output or words is None
    assert ("EXIF" in output) == (words is not None)


def test_addresses_of_data_sets_are_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from leadline.datasets import DATASETS

    monkeypatch.setenv("COLUMNS", "80")
    output = done("datasets")
    for name, facts in DATASETS.items():
        assert f"\n{name}" in f"\n{output}"
        assert facts.source in output


def test_a_folder_for_a_file_is_refused() -> None:
    line = "photo.jpg --sparse . --unit mm --prior prior.npy"
    assert "IMAGE is a file, --sparse is a folder" in refused(f"complete {line} -o out")
    assert "--sparse .: is a folder, not a file" in refused(f"diagnose {line} --reference depth/f0.png -o D")
