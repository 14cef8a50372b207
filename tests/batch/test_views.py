"""`leadline colmap --consistent`: depth that agrees, runs that are killed and continued, and input that is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.base.errors import InputError
from leadline.batch.frame import FrameJob
from leadline.batch.outcome import Outcome, State
from leadline.batch.outputs import OutputOptions
from leadline.batch.posed_inputs import PosedFrame
from leadline.batch.views import complete_views
from leadline.io.colmap import position_covariances, read_model, read_tracks
from leadline.io.depth import read_depth
from leadline.io.files import exclusive_folder
from leadline.io.frames import FrameFiles
from leadline.io.views.posed import read_views
from support.posed_scene import RoomView, room_views, write_scene

PATIENCE = 240.0  # seconds that a command of a second may take on a busy machine
group = LazyGroup(name="leadline", lazy={"colmap": ("leadline.apps.colmap:command", "")})


@pytest.fixture(scope="module")
def views() -> list[RoomView]:
    return room_views()


@pytest.fixture
def scene(tmp_path: Path, views: list[RoomView], rng: np.random.Generator) -> Path:
    write_scene(tmp_path, views, rng)
    return tmp_path


def arguments(scene: Path, *extra: str, out: str = "out") -> list[str]:
    inputs = ["--images", str(scene / "images"), "--prior", str(scene / "priors"), "-o", str(scene / out)]
    return ["colmap", str(scene / "sparse" / "0"), *inputs, "--consistent", *extra]


def run(scene: Path, *extra: str, code: int = 0, out: str = "out") -> str:
    result = CliRunner().invoke(group, arguments(scene, *extra, out=out))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def error_of(scene: Path, views: list[RoomView], pattern: str) -> float:
    """Mean relative error over all pictures of the depth in ``out/PATTERN``."""
    files = [scene / "out" / pattern.format(view.name) for view in views]
    errors = [np.abs(np.load(file) / view.depth - 1).mean() for file, view in zip(files, views, strict=True)]
    return float(np.mean(errors))


def test_depth_together_is_better_than_alone(scene: Path, views: list[RoomView]) -> None:
    output = run(scene, "--export", "gsplat", "--export", "lichtfeld")
    assert "6 done, 0 skipped, 0 failed" in output
    alone, together = error_of(scene, views, "alone/{}.npy"), error_of(scene, views, "{}_depth.npy")
    assert together < 0.95 * alone
    sidecar = json.loads((scene / "out" / "0002.json").read_text())
    assert sidecar["neighbours"]
    assert sidecar["units"]["depth"]["unit"] == "m"
    assert sidecar["settings"]["completion"]["outliers"] == "keep"
    reliable = np.asarray(Image.open(scene / "out" / "0002_reliable.png"))
    sigma, depth = (np.load(scene / "out" / f"0002_{name}.npy") for name in ("sigma", "depth"))
    assert np.array_equal(reliable == 255, sigma <= 0.1 * depth)
    assert not (scene / "out" / "0002_mask.png").exists()  # a mask states origins, and no point is exact here
    assert not (scene / "out" / "rounds").exists()
    # Each export has the reliable pixels and the standard deviation beside the depth.
    for export in ("gsplat", "lichtfeld"):
        assert (scene / "out" / export / "depth_reliable" / "0002.png").is_file()
        assert (scene / "out" / export / "depth_sigma" / "0002.npy").is_file()
    assert "0 done, 6 skipped, 0 failed" in run(scene)
    assert "6 done, 0 skipped" in run(scene, "--outliers", "single", "--rounds", "1")
    sidecar = json.loads((scene / "out" / "0002.json").read_text())
    assert sidecar["settings"]["completion"]["outliers"] == "single"
    # Another prior of one picture changes the depth of all, because each depends on the others.
    np.save(scene / "priors" / "0000.npy", np.load(scene / "priors" / "0000.npy") ** 1.1)
    assert "6 done, 0 skipped" in run(scene)


def test_workers_give_the_same_depth(scene: Path, views: list[RoomView]) -> None:
    run(scene, "--rounds", "1")
    run(scene, "--rounds", "1", "--jobs", "2", out="parallel")
    for view in views:
        files = [scene / out / f"{view.name}_depth.npy" for out in ("out", "parallel")]
        assert files[0].read_bytes() == files[1].read_bytes()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_run_continues(scene: Path, views: list[RoomView]) -> None:
    """Killed in the second round: no file is broken, and the same command ends with the same bytes."""
    run(scene, "--rounds", "3", out="whole")
    program = "from leadline.apps.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *arguments(scene, "--rounds", "3")], env=os.environ)
    stored = scene / "out" / "rounds"
    wait_for(lambda: any(stored.glob("maps-*/round-1/*.npz")), process)
    process.kill()
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in stored.glob("maps-*/round-0/*.npz")}
    assert before, "the run ended before it could be killed"
    assert not (scene / "out" / "views.json").exists()
    output = run(scene, "--rounds", "3", "--calibrated")  # another output does not change the stored maps
    assert "6 done" in output
    assert "each picture alone" not in output
    for view in views:
        files = [scene / out / f"{view.name}_depth.npy" for out in ("out", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("written", [2, 6])
def test_a_run_that_stops_while_results_are_written(scene: Path, views: list[RoomView], written: int) -> None:
    """Stopped after some or all results: the list of the views is written by the next run, with the same numbers."""
    outcomes: list[Outcome] = []

    def stop_or_add(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) == written:
            raise KeyboardInterrupt

    frames, lists = posed_frames(scene, views), []
    for folder, on_outcome in (("whole", lambda _: None), ("stopped", stop_or_add)):
        job = FrameJob(folder=scene / folder, outputs=OutputOptions(format="npy", sigma=True))
        with suppress(KeyboardInterrupt):
            complete_views(frames, job, on_outcome, rounds=2)
        if folder == "stopped":
            assert not (scene / folder / "views.json").exists()
            outcomes.clear()
            complete_views(frames, job, outcomes.append, rounds=2)
            states = [outcome.state for outcome in outcomes]
            assert states == [State.SKIPPED] * written + [State.DONE] * (6 - written)
            assert not (scene / folder / "rounds").exists()
        lists.append((scene / folder / "views.json").read_bytes())
    assert lists[0] == lists[1]


def test_stopped_by_the_keyboard(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leadline.batch.colmap.complete_views", interrupt)
    output = run(scene, code=130)
    assert "stopped by Ctrl-C; finished images are complete, and the same command continues from here." in output


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks of folders")
def test_two_runs_into_one_folder(scene: Path) -> None:
    (scene / "out").mkdir()
    with exclusive_folder(scene / "out"):
        output = run(scene, code=2)
    assert f"error: --output {scene / 'out'}: another run is writing there" in output
    assert not (scene / "out" / "rounds").exists()


def test_pictures_without_a_pose_are_named(scene: Path) -> None:
    Image.new("RGB", (96, 72)).save(scene / "images" / "extra.png")
    assert "note: 1 pictures have no pose in the model and are left out: extra.png." in run(scene, "--rounds", "1")


def test_a_model_of_another_size_is_refused(scene: Path) -> None:
    path = scene / "sparse" / "0" / "cameras.txt"
    path.write_text(path.read_text().replace("PINHOLE 96 72", "PINHOLE 96 96"))
    output = run(scene, code=1)
    assert "error: 0000: the model's camera is for 96x96 pixels and the picture has 96x72" in output
    assert "error: 5 other frames failed for the same reason: 0001, 0002, 0003, 0004, 0005." in output
    assert output.count("error:") == 2


def posed_frames(scene: Path, views: list[RoomView], *, apart: float = 0.0) -> list[PosedFrame]:
    """Pictures with measured depth in files, each `apart` metres from the one before."""
    frames = []
    for number, view in enumerate(views):
        sparse = np.full(view.depth.shape, np.nan)
        sparse[3::9, 4::9] = view.depth[3::9, 4::9]
        np.save(scene / f"{view.name}_sparse.npy", sparse)
        files = FrameFiles(
            image=scene / "images" / f"{view.name}.png",
            sparse=scene / f"{view.name}_sparse.npy",
            prior=scene / "priors" / f"{view.name}.npy",
        )
        pose = view.camera_to_world.copy()
        pose[0, 3] += apart * number
        frames.append(PosedFrame(files, view.camera, pose))
    return frames


def test_frames_with_poses_from_python(scene: Path, views: list[RoomView]) -> None:
    """The way of other commands: measurements in files, poses from anywhere."""
    outcomes: list[Outcome] = []
    job = FrameJob(folder=scene / "posed", outputs=OutputOptions(format="npy", sigma=True, mask=True))
    rounds = complete_views(posed_frames(scene, views[:3]), job, outcomes.append, rounds=2)
    assert [outcome.state for outcome in outcomes] == [State.DONE] * 3
    assert [part.number for part in rounds] == [0, 1, 2]
    listed = read_views(scene / "posed")
    assert [view.name for view in listed] == ["0000", "0001", "0002"]
    for view, exact in zip(listed, views, strict=False):
        np.testing.assert_allclose(view.camera_to_world, exact.camera_to_world)
        assert view.camera == exact.camera
        assert view.depth is not None
        assert np.abs(read_depth(view.depth, view.unit).values / exact.depth - 1).mean() < 0.01


def test_pictures_that_do_not_overlap(scene: Path, views: list[RoomView]) -> None:
    frames = posed_frames(scene, views[:2], apart=100.0)
    job = FrameJob(folder=scene / "posed", outputs=OutputOptions(format="npy", sigma=True))
    with pytest.raises(InputError, match="no two of 2 pictures see the same surface") as caught:
        complete_views(frames, job, lambda _: None)
    assert "\n" not in str(caught.value)


def test_mirrored_poses_are_refused(scene: Path) -> None:
    """A model that was reflected, x to -x, puts its points behind the cameras or elsewhere in their images."""
    path = scene / "sparse" / "0" / "points3D.txt"
    rows = [row.split() for row in path.read_text().splitlines()]
    for row in rows:
        row[3] = repr(-2.8 - float(row[3]))  # behind the cameras, which stand at z = -1.4
    path.write_text("\n".join(map(" ".join, rows)) + "\n")
    output = run(scene, code=1)
    assert "most of its points lie behind the camera: the poses of the model are mirrored, or inverted" in output
    assert output.count("error:") == 2  # one line for all six pictures, and their names


def test_options_that_need_consistent(scene: Path) -> None:
    where = [part for part in arguments(scene, "--jobs", "2") if part != "--consistent"]
    result = CliRunner().invoke(group, where)
    assert result.exit_code == 2
    assert "--jobs and --rounds are for --consistent" in result.output


def test_noise_of_points_grows_with_depth_and_falls_with_angle(scene: Path, views: list[RoomView]) -> None:
    """Against a Monte Carlo estimate: triangulate one point from noisy features many times."""
    rng = np.random.default_rng(3)
    model, tracks = read_model(scene / "sparse" / "0"), read_tracks(scene / "sparse" / "0")
    covariances = position_covariances(model, tracks)
    assert (np.linalg.eigvalsh(covariances) > 0).all()
    image = model.images["0000.png"]
    seen = tracks.indices_seen_by(image)
    axis = image.rotation[2]
    sigma = np.sqrt(np.einsum("i,nij,j->n", axis, covariances[seen], axis))
    depth = (tracks.points[seen] @ image.rotation.T + image.translation)[:, 2]
    far, near = depth > np.quantile(depth, 0.8), depth < np.quantile(depth, 0.2)
    assert np.median(sigma[far]) > 1.5 * np.median(sigma[near])
    # The same error per feature, 0.4 px of mean length, gives the same spread of least-squares solutions.
    index = int(seen[np.argsort(depth)[len(depth) // 2]])
    cameras = [
        (one.rotation, one.translation, model.camera_of(one).params[0])
        for one in model.images.values()
        if index in tracks.indices_seen_by(one)
    ]
    count = len(cameras)
    spread = 0.4 / 1.2533 * np.sqrt(2 * count / (2 * count - 3))  # residuals are smaller than errors
    rows, place = [], tracks.points[index]
    for rotation, translation, focal in cameras:
        x, y, z = rotation @ place + translation
        rows.append(focal / z * (rotation[:2] - np.outer((x / z, y / z), rotation[2])))
    solve = np.linalg.pinv(np.concatenate(rows))
    errors = rng.normal(0, spread, (4000, 2 * count)) @ solve.T @ axis
    own = float(np.sqrt(axis @ covariances[index] @ axis))
    assert 0.8 < own / errors.std() < 1.25
