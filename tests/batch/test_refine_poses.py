"""`leadline refine --poses`: frames that are completed together, poses in every format, and poses that are refused."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from leadline.base.errors import InputError
from leadline.batch.outputs import PixelOrigin
from leadline.batch.posed_inputs import pose_frames
from leadline.batch.refine import match_7scenes_frames
from leadline.geometry.poses import invert_transform
from leadline.io.frames import FrameFiles
from leadline.io.views.posed import PosedView, read_views, write_views
from support.cli_frames import leadline
from support.posed_scene import RoomView, room_views

ALL = "refine seq --poses seq --prior priors -o out --rounds 1"


@pytest.fixture(scope="module")
def views() -> list[RoomView]:
    return room_views(4)


@pytest.fixture
def here(tmp_path: Path, views: list[RoomView], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sequence of 7-Scenes: every sixth pixel is measured, in millimetres, and a part of each frame is not."""
    monkeypatch.chdir(tmp_path)
    for name in ("seq", "priors"):
        Path(name).mkdir()
    camera = views[0].camera
    np.savetxt("seq/camera-intrinsics.txt", [[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]])
    for number, view in enumerate(views):
        counts = np.zeros(view.depth.shape, np.uint16)
        counts[2::6, 3::6] = np.rint(1000 * view.depth[2::6, 3::6])
        counts[:, 24 * number : 24 * number + 30] = 0
        Image.fromarray(counts).save(f"seq/frame-{view.name}.depth.png")
        Image.fromarray(view.image).save(f"seq/frame-{view.name}.color.png")
        np.savetxt(f"seq/frame-{view.name}.pose.txt", view.camera_to_world)
        waves = np.sin(np.arange(96) / 9.0 + 2.0 * number)  # errors that others do not share
        np.save(f"priors/frame-{view.name}.npy", view.depth**0.8 * np.exp(0.15 * waves))
    return tmp_path


def read_png(path: str) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_frames_agree_and_keep_what_they_measured(here: Path, views: list[RoomView]) -> None:
    spoiled = read_png("seq/frame-0001.depth.png").copy()
    spoiled[20, 3] *= 2
    Image.fromarray(spoiled).save("seq/frame-0001.depth.png")
    result = leadline(f"{ALL} --sigma")
    assert result.exit_code == 0, result.output
    assert "4 done, 0 skipped, 0 failed" in result.output
    errors = []
    for number, view in enumerate(views):
        name, hole = f"frame-{view.name}", np.s_[:, 24 * number : 24 * number + 30]
        measured, depth, mask = (
            read_png(f"{path}.png") for path in (f"seq/{name}.depth", f"out/{name}_depth", f"out/{name}_mask")
        )
        kept = mask == PixelOrigin.MEASURED
        np.testing.assert_array_equal(depth[kept], measured[kept])
        np.testing.assert_array_equal(mask == PixelOrigin.FILLED, measured == 0)  # also where neighbours measured
        sigma, reliable = np.load(f"out/{name}_sigma.npy"), read_png(f"out/{name}_reliable.png")
        assert (sigma[kept] == 0).all()
        np.testing.assert_array_equal(reliable == 255, sigma <= 0.1 * depth / 1000)
        maps = depth / 1000, np.load(f"out/alone/{name}.npy")
        errors.append([np.abs(found / view.depth - 1)[hole].mean() for found in maps])
    assert read_png("out/frame-0001_mask.png")[20, 3] == PixelOrigin.LEFT_OUT
    together, alone = np.mean(errors, axis=0)
    assert together < 0.9 * alone  # in the parts that a frame did not measure
    with Path("out/frames.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["left_out"] for row in csv.DictReader(stream)].count("0") < 4
    assert [view.name for view in read_views("out")] == [f"frame-{view.name}" for view in views]
    again = leadline(f"{ALL} --sigma")
    assert "0 done, 4 skipped, 0 failed" in again.output


def write_colmap(views: list[RoomView]) -> str:
    camera, lines = views[0].camera, []
    Path("sparse/0").mkdir(parents=True)
    lens = f"{camera.fx!r} {camera.fy!r} {camera.cx + 0.5!r} {camera.cy + 0.5!r}"
    Path("sparse/0/cameras.txt").write_text(f"1 PINHOLE {camera.width} {camera.height} {lens}\n")
    for number, view in enumerate(views):
        transform = invert_transform(view.camera_to_world)
        x, y, z, w = Rotation.from_matrix(transform[:3, :3]).as_quat()
        pose = " ".join(repr(float(value)) for value in (w, x, y, z, *transform[:3, 3]))
        lines += [f"{number + 1} {pose} 1 rgb/frame-{view.name}.jpg", ""]
    Path("sparse/0/images.txt").write_text("\n".join(lines) + "\n")
    return "sparse/0"


def write_nerfstudio(views: list[RoomView]) -> str:
    camera = views[0].camera
    frames = [
        {
            "file_path": f"elsewhere/frame-{view.name}.png",
            "transform_matrix": (view.camera_to_world @ np.diag([1, -1, -1, 1])).tolist(),
        }
        for view in views
    ]
    lens = {"w": camera.width, "h": camera.height, "fl_x": camera.fx, "cx": camera.cx + 0.5, "cy": camera.cy + 0.5}
    Path("transforms.json").write_text(json.dumps({**lens, "fl_y": camera.fy, "frames": frames}))
    return "transforms.json"


def write_own(views: list[RoomView]) -> str:
    made = [
        PosedView(f"frame-{view.name}", Path(f"seq/frame-{view.name}.color.png"), view.camera, view.camera_to_world)
        for view in views
    ]
    write_views(Path("views.json"), made)
    return "views.json"


@pytest.mark.parametrize("write", [write_colmap, write_nerfstudio, write_own, lambda _: "seq"])
def test_poses_in_every_format(here: Path, views: list[RoomView], write: Callable[[list[RoomView]], str]) -> None:
    frames, _ = match_7scenes_frames(Path("seq"), priors=Path("priors"))
    posed, failed = pose_frames(frames, read_views(write(views)), scale=2.0)
    assert not failed
    for frame, exact in zip(posed, views, strict=True):
        assert frame.camera == exact.camera
        np.testing.assert_allclose(frame.camera_to_world[:3, :3], exact.camera_to_world[:3, :3], atol=1e-12)
        np.testing.assert_allclose(frame.camera_to_world[:3, 3], 2 * exact.camera_to_world[:3, 3], atol=1e-12)


def test_a_sequence_of_tum_with_a_camera_file(here: Path, views: list[RoomView]) -> None:
    """Its lists have no camera, and its ground truth often ends before its pictures."""
    lists: dict[str, list[str]] = {"rgb": [], "depth": [], "groundtruth": []}
    for number, view in enumerate(views):
        for kind, suffix in (("rgb", "color"), ("depth", "depth")):
            lists[kind].append(f"{number}.5 seq/frame-{view.name}.{suffix}.png")
        pose = (*view.camera_to_world[:3, 3], *Rotation.from_matrix(view.camera_to_world[:3, :3]).as_quat())
        lists["groundtruth"].append(" ".join(map(repr, map(float, (number + 0.5, *pose)))))
    for kind, lines in lists.items():
        Path(f"{kind}.txt").write_text("\n".join(lines[:3] if kind == "groundtruth" else lines) + "\n")
    camera = views[0].camera
    facts = {name: getattr(camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
    Path("cam.json").write_text(json.dumps(facts))
    for number in range(4):
        Path(f"priors/frame-000{number}.npy").rename(f"priors/frame-000{number}.color.npy")
    line = "refine . --poses . --prior priors --unit mm -o out --rounds 1"
    assert "needs the camera of its pictures" in leadline(line).output
    result = leadline(f"{line} --camera cam.json")
    assert "3 done, 0 skipped, 1 failed" in result.output
    assert "frame-0003.color: seq/frame-0003.color.png: has no pose in --poses" in result.output


def test_links_to_one_picture_are_different_views(here: Path, views: list[RoomView]) -> None:
    for name in ("a", "b"):
        os.symlink("seq/frame-0000.color.png", f"{name}.png")
    listed = [
        PosedView(name, Path(f"{name}.png"), views[0].camera, views[k].camera_to_world) for k, name in enumerate("ab")
    ]
    posed, _ = pose_frames([FrameFiles(image=Path(f"{name}.png")) for name in "ab"], listed)
    assert [frame.camera_to_world[0, 3] for frame in posed] == [view.camera_to_world[0, 3] for view in views[:2]]


def test_frames_without_a_pose_fail_and_the_others_go_on(here: Path) -> None:
    Path("seq/frame-0001.pose.txt").unlink()
    np.savetxt("seq/frame-0002.pose.txt", np.full((4, 4), -np.inf))  # lost tracking, as ScanNet states it
    Path("seq/frame-0003.color.png").write_bytes(Path("seq/frame-0003.color.png").read_bytes()[:200])
    result = leadline(ALL)
    assert result.exit_code == 1
    lines = sorted(line for line in result.output.splitlines() if line.startswith("error:"))
    assert len(lines) == 3
    assert "frame-0001.color.png: has no pose in --poses" in lines[0]
    assert "frame-0002.color.png: has no pose in --poses" in lines[1]
    assert "frame-0003.color.png: cannot be read" in lines[2]
    assert "1 done, 0 skipped, 3 failed" in result.output
    with Path("out/frames.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["state"] for row in csv.DictReader(stream)] == ["done", "failed", "failed", "failed"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, "--intrinsics 80,80,40,40", "--intrinsics has no effect here"),
        (None, "--poses missing", "missing: no such file"),
        (None, "--pose-scale 0", "--pose-scale must be a positive number"),
        ("mirror", "", "it mirrors (determinant below 0)"),
        ("rename", "--poses views.json", "--poses: none of 4 images has a pose there"),
        ("size", "--poses views.json", "--camera is for 96x96 pixels and the image has 96x72"),
        ("twice", "--poses views.json", "lists two pictures of the name 'frame-0000'"),
        ("apart", "", "no two of 4 pictures see the same surface"),
    ],
)
def test_bad_poses_are_one_line(
    here: Path, views: list[RoomView], change: str | None, options: str, message: str
) -> None:
    content = json.loads(Path(write_own(views)).read_text())
    for number, view in enumerate(content["views"]):
        if change == "rename":
            view |= {"name": f"other-{number}", "image": f"other-{number}.png"}
        elif change == "size":
            view["camera"] |= {"height": 96}
        elif change == "twice":
            view["name"] = "frame-0000"
        elif change in ("mirror", "apart"):
            pose = np.array(view["camera_to_world"])
            pose = pose @ np.diag([1, -1, 1, 1]) if change == "mirror" else pose
            pose[0, 3] += 100.0 * number if change == "apart" else 0.0
            np.savetxt(f"seq/{view['name']}.pose.txt", pose)
    Path("views.json").write_text(json.dumps(content))
    result = leadline(f"{ALL} {options}")
    errors = [line for line in result.output.splitlines() if line.startswith("error:")]
    assert result.exit_code == (1 if change == "size" else 2)
    assert all(message in line for line in errors), result.output
    assert len(errors) == (4 if change == "size" else 1)


def test_poses_from_world_to_camera_are_reported_once(here: Path, views: list[RoomView]) -> None:
    first = invert_transform(views[0].camera_to_world)
    for view in views:  # in the frame of the first camera: the motion is small, and the inverted poses are plausible
        np.savetxt(f"seq/frame-{view.name}.pose.txt", invert_transform(first @ view.camera_to_world))
    output = " ".join(leadline(ALL).output.split())
    assert output.count("the poses seem to be from world to camera") == 1
    assert "give the inverse of each" in output


def test_frames_without_views(here: Path) -> None:
    assert pose_frames([], []) == ([], [])
    with pytest.raises(InputError, match="none of 1 images"):
        pose_frames([FrameFiles(image=Path("x.png"))], read_views("seq"))
