"""`leadline bag` on real bags of each kind, written by rosbags: what comes out, and what is refused how."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.base.errors import FileError, InputError
from leadline.datasets.rendered import network_like_prior, render
from leadline.geometry.poses import invert_transform, rotation_from_quaternion
from leadline.geometry.surface import surface_from_depth
from leadline.io.ros import messages as ros_messages
from leadline.io.ros.bags import Bag, match_stamps

pytest.importorskip("rosbags", reason="needs the extra 'ros'")
from support.ros_recorder import Recorder, depth_of, read

WIDTH, HEIGHT = 96, 72
SCENE = render(WIDTH, HEIGHT)
PRIOR = network_like_prior(SCENE.reference)
BEGIN, STEP = 1_700_000_000 * 10**9, 100_000_000  # ten pictures a second
LATE = 12_000_000  # the LiDAR's stamps are 12 ms after the pictures'
ACCURACY = 0.01  # of the depth, on average, with a network's faults and a tenth of the pixels measured; 0.2 % was found
ROUNDING = 1e-5  # of points in float32 through a chain of transforms

group = LazyGroup(name="leadline", lazy={"bag": ("leadline.apps.bag:command", "")})
TOPICS = ("--image", "/camera/image", "--camera-info", "/camera/camera_info")
KINDS = ("drive.bag", "drive.mcap", "drive")

# LiDAR (x forward) on a mast, camera elsewhere; the chain is lidar -> base <- mount <- optical.
AXES = (0.5, -0.5, 0.5, -0.5)  # of a camera's optical frame in a frame with x forward, y left, z up
CHAIN = {
    "lidar": ("base", (1.0, 0.0, 0.0, 0.0), (0.3, 0.0, 1.2)),
    "mount": ("base", (0.9961947, 0.0, 0.0, 0.0871557), (0.5, 0.1, 1.0)),  # turned by 10 degrees
    "optical": ("mount", AXES, (0.02, 0.0, 0.0)),
}


def pose(turn: tuple[float, ...], shift: tuple[float, ...]) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation_from_quaternion(turn).as_matrix(), shift
    return matrix


def lidar_to_camera() -> np.ndarray:
    lidar, mount, optical = (pose(*CHAIN[name][1:]) for name in ("lidar", "mount", "optical"))
    return invert_transform(mount @ optical) @ lidar


def measured_pixels() -> np.ndarray:
    """Where the LiDAR has a point: some tenth of the pixels."""
    return np.random.default_rng(5).random((HEIGHT, WIDTH)) < 0.1


def record(path: Path, pictures: int = 3) -> Path:
    """Pictures as raw and JPEG, registered depth, and a LiDAR that starts one picture late and goes on for longer."""
    recorder = Recorder(path)
    recorder.tf(BEGIN, CHAIN)
    seen = SCENE.camera.points(SCENE.reference)[measured_pixels()]
    sweep = (seen - lidar_to_camera()[:3, 3]) @ lidar_to_camera()[:3, :3]
    depth = np.where(measured_pixels(), SCENE.reference, np.nan).astype(np.float32)
    jpeg = io.BytesIO()
    Image.fromarray(SCENE.image).save(jpeg, "JPEG", quality=95)
    for number in range(pictures + 1):
        stamp = BEGIN + number * STEP
        if number < pictures:
            recorder.info("/camera/camera_info", stamp, SCENE.camera)
            recorder.image("/camera/image", stamp, SCENE.image[..., ::-1], "bgr8")
            recorder.image("/camera/depth", stamp, depth, "32FC1")
            recorder.image("/camera/depth_mm", stamp, np.rint(np.nan_to_num(depth) * 1e3).astype("<u2"), "16UC1")
            recorder.add(
                "/camera/compressed", "sensor_msgs/msg/CompressedImage", stamp,
                header=recorder.header(stamp, "optical"), format="jpeg",
                data=np.frombuffer(jpeg.getvalue(), np.uint8),
            )  # fmt: skip
        if number:
            recorder.points("/lidar/points", stamp + LATE, sweep)
    recorder.close()
    return path


def run(folder: Path, *extra: str, bag: str = "drive.mcap", out: str = "depth.mcap", code: int = 0) -> Result:
    named = ["bag", str(folder / bag), *TOPICS, "-o", str(folder / out), *extra]
    if "--prior" not in extra:
        np.save(folder / "prior.npy", PRIOR)
        (folder / "priors").mkdir(exist_ok=True)
        for number in range(3):
            shutil.copy(folder / "prior.npy", folder / "priors" / f"1700000000.{number}00000000.npy")
        named += ["--prior", str(folder / "priors")]
    result = CliRunner().invoke(group, named)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code == code, result.output
    if code == 2:
        assert result.output.startswith("error: ")
        assert result.output.count("\n") == 1
    return result


@pytest.mark.parametrize("out", ["depth.bag", "depth.mcap", "depth"])
@pytest.mark.parametrize("kind", KINDS)
def test_points_become_dense_depth(tmp_path: Path, kind: str, out: str) -> None:
    """Content, topics, stamps and frames, from each kind of bag to each."""
    record(tmp_path / kind)
    result = run(tmp_path, "--points", "/lidar/points", "--cloud", "--no-see-through", bag=kind, out=out)
    assert (
        "note: 1 of 3 images have no /lidar/points within 0.05 s and are left out; --max-gap changes the limit."
        in result.output
    )
    assert "2 done, 0 skipped, 0 failed" in result.output
    assert not list(tmp_path.glob(".*"))  # no leftovers
    found = read(tmp_path / out)
    assert sorted(found) == ["/leadline/depth/camera_info", "/leadline/depth/image", "/leadline/depth/points"]
    for number, (time, message) in enumerate(found["/leadline/depth/image"], start=1):
        stamp = BEGIN + number * STEP
        assert (ros_messages.stamp_ns(message.header), time) == (stamp, stamp + 1000)
        assert message.header.frame_id == "optical"
        depth = depth_of(message)
        assert np.mean(np.abs(depth / SCENE.reference - 1)) < ACCURACY
        sparse = measured_pixels()
        assert np.median(np.abs(depth / SCENE.reference - 1)[sparse]) < ROUNDING
        cloud = found["/leadline/depth/points"][number - 1][1]
        points = ros_messages.decode_cloud(cloud).points
        clean = np.where(surface_from_depth(depth, SCENE.camera).mask(), depth, np.nan)
        assert 0.8 < np.isfinite(clean).mean() < 1  # without the pixels between two objects
        expected = SCENE.camera.points(clean)[np.isfinite(clean)]
        np.testing.assert_allclose(points, expected, rtol=1e-5, atol=1e-5)
        rgb = cloud.data.reshape(-1, 16)[:, 12:15]  # little-endian: blue, green, red
        assert np.array_equal(rgb[:, ::-1].reshape(HEIGHT, WIDTH, 3), SCENE.image)
    info = found["/leadline/depth/camera_info"][0][1]
    assert ros_messages.decode_camera(info) == SCENE.camera
    record_ = json.loads((tmp_path / f"{out}.json").read_text())
    assert (record_["images"], record_["matched"], record_["done"]) == (3, 2, 2)


@pytest.mark.parametrize("topic", ["/camera/depth", "/camera/depth_mm"])
def test_registered_depth_and_millimetres(tmp_path: Path, topic: str) -> None:
    record(tmp_path / "drive.mcap")
    run(tmp_path, "--depth", topic, "--millimetres", "--topic", "/d/dense", "--limit", "2")
    found = read(tmp_path / "depth.mcap")
    assert sorted(found) == ["/d/camera_info", "/d/dense"]
    assert len(found["/d/dense"]) == 2
    depth = depth_of(found["/d/dense"][0][1])
    sparse = measured_pixels()
    assert np.abs(depth - SCENE.reference)[sparse].max() <= 0.5e-3 + 1e-6
    assert np.mean(np.abs(depth / SCENE.reference - 1)) < ACCURACY


def test_compressed_pictures_extrinsics_and_no_network(tmp_path: Path) -> None:
    record(tmp_path / "drive.mcap")
    (tmp_path / "T.json").write_text(json.dumps(lidar_to_camera().tolist()))
    extra = ("--image", "/camera/compressed", "--points", "/lidar/points", "--prior", "none")
    run(tmp_path, *extra, "--extrinsics", str(tmp_path / "T.json"))
    by_tf = read(tmp_path / "depth.mcap")
    assert "add --overwrite" in run(tmp_path, *extra, code=2).output
    run(tmp_path, *extra, "--overwrite")
    for (_, one), (_, other) in zip(
        by_tf["/leadline/depth/image"], read(tmp_path / "depth.mcap")["/leadline/depth/image"], strict=True
    ):
        np.testing.assert_allclose(depth_of(one), depth_of(other), rtol=1e-4)


def test_depth_of_another_camera(tmp_path: Path) -> None:
    """A depth camera of half the size in the same frame: its pixels are projected, not moved."""
    recorder = Recorder(tmp_path / "drive.mcap")
    half = SCENE.camera.scaled(WIDTH // 2, HEIGHT // 2)
    small = render(WIDTH // 2, HEIGHT // 2).reference
    recorder.info("/camera/camera_info", BEGIN, SCENE.camera)
    recorder.info("/depth/camera_info", BEGIN, half)
    recorder.image("/camera/image", BEGIN, SCENE.image, "rgb8")
    recorder.image("/depth/image", BEGIN, small, "32FC1")
    recorder.close()
    assert "use the registered topic" in run(tmp_path, "--depth", "/depth/image", code=1).output
    assert not (tmp_path / "depth.mcap").exists()
    run(tmp_path, "--depth", "/depth/image", "--depth-camera-info", "/depth/camera_info")
    depth = depth_of(read(tmp_path / "depth.mcap")["/leadline/depth/image"][0][1])
    # Centres of the smaller pixels lie beside those of the larger ones: at edges, one of the two is on the other side.
    assert np.median(np.abs(depth / SCENE.reference - 1)) < ACCURACY
    assert np.mean(np.abs(depth / SCENE.reference - 1)) < 3 * ACCURACY


def test_a_bag_with_some_poses_says_so_in_one_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "drive.mcap")
    for number in range(3):
        stamp = BEGIN + number * STEP
        if number < 2:  # tf ends before the last image
            recorder.tf(stamp, {"optical": ("odom", (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))}, topic="/tf")
        recorder.info("/camera/camera_info", stamp, SCENE.camera)
        recorder.image("/camera/image", stamp, SCENE.image, "rgb8")
        recorder.image("/camera/depth", stamp, np.where(measured_pixels(), SCENE.reference, np.nan), "32FC1")
    recorder.close()
    output = run(tmp_path, "--depth", "/camera/depth", "--prior", "none").output
    text = " ".join(output.split())
    assert text.count("2 of 3 images have a pose by /tf: no depth is carried into the others") == 1
    assert json.loads((tmp_path / "depth.mcap.json").read_text())["posed"] == 2


def test_tf_carries_depth_from_image_to_image(tmp_path: Path) -> None:
    """A camera moves towards a slanted wall; where nothing is measured, the network is wrong in the second image."""
    camera, unmeasured = SCENE.camera, np.s_[:, WIDTH // 2 :]
    recorder = Recorder(tmp_path / "drive.mcap")
    recorder.tf(BEGIN, {"optical": ("base", (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.1))})
    (tmp_path / "priors").mkdir()
    slant = camera.points(np.ones((HEIGHT, WIDTH))) @ (0.4, 0.1, 1.0)
    for number, walked in enumerate((0.0, 0.2)):
        stamp = BEGIN + number * STEP
        recorder.tf(stamp, {"base": ("odom", (1.0, 0.0, 0.0, 0.0), (5.0, 0.0, walked))}, topic="/tf")
        wall = ((3.0 - walked) / slant).astype(np.float32)
        depth, prior = np.where(measured_pixels(), wall, np.nan), wall**1.2
        if number:
            depth[unmeasured] = np.nan
            prior[unmeasured] *= 1.05
        np.save(tmp_path / "priors" / f"{stamp // 10**9}.{stamp % 10**9:09d}.npy", prior)
        recorder.info("/camera/camera_info", stamp, camera)
        recorder.image("/camera/image", stamp, SCENE.image, "rgb8")
        recorder.image("/camera/depth", stamp, depth.astype(np.float32), "32FC1")
    recorder.close()
    errors = {}
    for flag, posed in (("--tf", 2), ("--no-tf", 0)):
        result = run(tmp_path, "--depth", "/camera/depth", "--prior", str(tmp_path / "priors"), "--overwrite", flag)
        assert "a pose by /tf" not in result.output
        assert json.loads((tmp_path / "depth.mcap.json").read_text())["posed"] == posed
        found = depth_of(read(tmp_path / "depth.mcap")["/leadline/depth/image"][1][1])
        errors[flag] = np.abs(found / wall - 1)[unmeasured].mean()
    assert errors["--tf"] < 0.5 * errors["--no-tf"]


def test_one_bad_message_does_not_end_the_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "drive.mcap")
    for number, encoding in enumerate(("rgb8", "bayer_rggb8", "rgb8")):
        recorder.info("/camera/camera_info", BEGIN + number * STEP, SCENE.camera)
        recorder.image("/camera/image", BEGIN + number * STEP, SCENE.image, encoding)
        recorder.image("/camera/depth", BEGIN + number * STEP, SCENE.reference, "32FC1")
    recorder.close()
    result = run(tmp_path, "--depth", "/camera/depth", code=1)
    assert "2 done, 0 skipped, 1 failed" in result.output
    assert "error: 1700000000.100000000: the encoding of the image is 'bayer_rggb8'" in result.output
    assert len(read(tmp_path / "depth.mcap")["/leadline/depth/image"]) == 2


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--points", "/lidar/point"], "has no such topic; did you mean '/lidar/points'?"),
        (["--points", "/nothing"], "its topics of type PointCloud2 are /lidar/points."),
        (["--points", "/camera/image"], "is a sensor_msgs/msg/Image, expected PointCloud2"),
        (["--points", "/lidar/points", "--max-gap", "0.001"], "none of 3 images has a message of /lidar/points"),
        (
            ["--points", "/lidar/points", "--depth", "/camera/depth"],
            "give the topic of the measurements: one of --points and --depth",
        ),
        ([], "give the topic of the measurements: one of --points and --depth"),
        (["--points", "/lidar/points", "--max-gap", "0.001"], "within --max-gap 0.001 s"),
        (["--depth", "/camera/depth", "--extrinsics", "T.json"], "--extrinsics is for points"),
        (["--points", "/lidar/points", "--tf", "--extrinsics", "T.json"], "--extrinsics and --tf exclude each other"),
        (["--points", "/lidar/points", "--extrinsics", "T.json"], "T.json: no such file"),
        (["--points", "/lidar/points", "--camera-info", "/info"], "its topics of type CameraInfo are"),
        (["--points", "/lidar/points", "--image", "/picture"], "its topics of type Image or CompressedImage are"),
        (["--points", "/lidar/points", "--topic", "depth"], "--topic depth: must begin with /"),
        (["--points", "/lidar/points", "--prior", "none", "-o", "nowhere/x.bag"], "the folder nowhere does not exist"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, extra: list[str], words: str) -> None:
    record(tmp_path / "drive.mcap")
    assert words in run(tmp_path, *extra, code=2).output
    assert not (tmp_path / "depth.mcap").exists()


def test_a_bag_without_tf(tmp_path: Path) -> None:
    """Said once and not for each picture; points that are in the camera's frame need none of it."""
    recorder = Recorder(tmp_path / "drive.mcap")
    for number in range(2):
        stamp = BEGIN + number * STEP
        recorder.info("/camera/camera_info", stamp, SCENE.camera)
        recorder.image("/camera/image", stamp, SCENE.image, "rgb8")
        recorder.points("/lidar/points", stamp, SCENE.camera.points(SCENE.reference)[measured_pixels()])
    recorder.close()
    for flag in ([], ["--tf"]):
        output = run(tmp_path, "--points", "/lidar/points", *flag, code=2).output
        assert "has no /tf and no /tf_static" in output
        assert "'lidar'" in output
    (tmp_path / "T.json").write_text(json.dumps([[0.0] * 4] * 4))
    singular = ("--points", "/lidar/points", "--extrinsics", str(tmp_path / "T.json"))
    assert "it is singular" in run(tmp_path, *singular, code=2).output
    assert not (tmp_path / "depth.mcap").exists()
    run(tmp_path, "--points", "/lidar/points", "--no-tf", "--no-see-through")
    depth = depth_of(read(tmp_path / "depth.mcap")["/leadline/depth/image"][0][1])
    assert np.median(np.abs(depth / SCENE.reference - 1)[measured_pixels()]) < ROUNDING


def test_a_bag_whose_tf_does_not_connect_the_two(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "drive.mcap")
    recorder.tf(BEGIN, {"lidar": CHAIN["lidar"]})
    recorder.info("/camera/camera_info", BEGIN, SCENE.camera)
    recorder.image("/camera/image", BEGIN, SCENE.image, "rgb8")
    recorder.points("/lidar/points", BEGIN, np.ones((3, 3)))
    recorder.close()
    output = run(tmp_path, "--points", "/lidar/points", "--tf", code=2).output
    assert "tf does not connect the frames 'lidar' and 'optical'" in output


def test_a_folder_that_is_no_bag_is_not_replaced(tmp_path: Path) -> None:
    record(tmp_path / "drive.mcap")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dear.jpg").touch()
    extra = ("--points", "/lidar/points", "--overwrite")
    assert "is a folder and not a bag" in run(tmp_path, *extra, out="photos", code=2).output
    assert (tmp_path / "photos" / "dear.jpg").exists()


def test_a_file_of_another_kind_is_no_bag(tmp_path: Path) -> None:
    (tmp_path / "drive.zip").write_bytes(b"PK")
    output = run(tmp_path, "--points", "/lidar/points", bag="drive.zip", code=2).output
    assert "drive.zip: is no bag, which is a folder or has a suffix .bag, .mcap, .db3." in output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_truncated_bags_are_one_line(tmp_path: Path, kind: str, share: float) -> None:
    path = record(tmp_path / kind)
    file = next(path.glob("*.db3")) if path.is_dir() else path
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    output = run(tmp_path, "--points", "/lidar/points", bag=kind, code=2).output
    assert f"{path}: cannot be read as a bag" in output
    assert not list(tmp_path.glob("*depth*"))


def test_frames_that_tf_does_not_connect(tmp_path: Path) -> None:
    record(tmp_path / "drive.mcap")
    with Bag(tmp_path / "drive.mcap") as bag:
        transforms = bag.transforms()
    np.testing.assert_allclose(transforms.between("lidar", "optical", BEGIN), lidar_to_camera(), atol=1e-12)
    with pytest.raises(InputError, match="known frames: base, lidar, mount, optical"):
        transforms.between("lidar", "moon", BEGIN)
    with pytest.raises(FileError, match="no such bag"):
        Bag(tmp_path / "nowhere.bag")


@pytest.mark.parametrize(
    ("times", "others", "expected"),
    [([0, 10, 20], [], [-1, -1, -1]), ([5, 17], [16], [-1, 0]), ([9, 14], [30, 10, 20], [1, 1]), ([], [3], [])],
)
def test_nearest_times(times: list[int], others: list[int], expected: list[int]) -> None:
    assert match_stamps(np.array(times, np.int64), np.array(others, np.int64), 5).tolist() == expected


def test_examples_in_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="an example predicts with an ONNX network")
    from support.onnx_model import write_onnx

    monkeypatch.chdir(tmp_path)
    write_onnx(Path("model.onnx"))
    Path("lidar_to_camera.json").write_text(json.dumps(lidar_to_camera().tolist()))
    for name in ("drive.mcap", "drive.bag", "recording"):
        record(tmp_path / name, pictures=2)
    text = CliRunner().invoke(group, ["bag", "--help"]).output.replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("leadline bag")]
    assert [line[-1] for line in lines] == ["depth.mcap", "--cloud", "--millimetres"]
    for line in lines:
        result = CliRunner().invoke(group, line[1:])
        assert result.exit_code == 0, result.output
    assert read(Path("dense"))["/leadline/depth/image"][0][1].encoding == "16UC1"


def test_stopped_by_the_keyboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished is a whole bag."""
    from leadline.batch.bag import BagJob

    record(tmp_path / "drive.mcap")
    complete, calls = BagJob._complete, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return complete(*arguments)

    monkeypatch.setattr(BagJob, "_complete", interrupted)
    result = run(tmp_path, "--points", "/lidar/points", code=130)
    assert "depth.mcap holds the 1 images that were finished" in result.output
    assert len(read(tmp_path / "depth.mcap")["/leadline/depth/image"]) == 1
