"""`leadline refine`: what is kept, dropped and filled; RGB-D folders, TUM's lists and data sets; failures and kills."""

from __future__ import annotations

import csv
import importlib.util
import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.batch.outputs import PixelOrigin
from leadline.datasets import dataset
from support import bench_methods
from support.bench_runs import HERE
from support.bench_runs import environment as worker_environment
from support.cli_frames import (
    PATIENCE,
    SHAPE,
    environment,
    leadline,
    make_maps,
    replace_file,
    run,
    write_frame,
)

ALL = "refine frames --depth depth --prior priors --unit mm -o out"


def read_png(path: str) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def rows(folder: str = "out") -> dict[str, dict[str, str]]:
    with (Path(folder) / "frames.csv").open(encoding="utf-8", newline="") as stream:
        return {row["frame"]: row for row in csv.DictReader(stream)}


def test_measured_depth_is_kept_bit_for_bit_and_the_mask_says_where(here: Path) -> None:
    spoiled = read_png("depth/f1.png").copy()
    row, column = np.argwhere(spoiled[5:-5, 5:-5])[3] + 5
    spoiled[row, column] *= 3
    replace_file("depth/f1.png", spoiled)
    result = leadline(f"{ALL} --outliers single --sigma --mesh glb --ply --camera cam.json")
    assert result.exit_code == 0, result.output
    for index in range(4):
        measured, depth = read_png(f"depth/f{index}.png"), read_png(f"out/f{index}_depth.png")
        mask = read_png(f"out/f{index}_mask.png")
        kept = mask == PixelOrigin.MEASURED
        np.testing.assert_array_equal(depth[kept], measured[kept])
        np.testing.assert_array_equal(mask == PixelOrigin.FILLED, measured == 0)
        assert (depth > 0).all()
        assert np.load(f"out/f{index}_sigma.npy").shape == SHAPE
        counts = json.loads(Path(f"out/f{index}.json").read_text(encoding="utf-8"))["pixels"]
        assert counts == {origin.name.lower(): int((mask == origin).sum()) for origin in PixelOrigin}
        assert {name: int(rows()[f"f{index}"][name]) for name in counts} == counts
    assert read_png("out/f1_mask.png")[row, column] == PixelOrigin.LEFT_OUT
    assert read_png("out/f1_depth.png")[row, column] < spoiled[row, column] / 2
    assert sorted(path.name for path in Path("out").glob("f0*")) == sorted(
        f"f0{end}" for end in (".json", ".ply", "_depth.png", "_mask.png", "_mesh.glb", "_sigma.npy")
    )
    with Image.open("out/contact_sheet.png") as sheet:
        sheet.load()
    before = rows()
    again = leadline(f"{ALL} --outliers single --sigma --mesh glb --ply --camera cam.json")
    assert "0 done, 4 skipped, 0 failed" in again.output
    assert all(rows()[stem]["left_out"] == row["left_out"] for stem, row in before.items())  # from the sidecars


def test_single_outliers_are_the_default_and_other_policies_are_followed(here: Path) -> None:
    for flags, policy in (("", "single"), ("--outliers keep", "keep"), ("--preset paper", "single")):
        assert leadline(f"{ALL} --limit 1 {flags}").exit_code == 0
        record = json.loads(Path("out/f0.json").read_text(encoding="utf-8"))
        assert record["settings"]["completion"]["outliers"] == policy


def test_floats_are_kept_bit_for_bit(here: Path) -> None:
    Path("floats").mkdir()
    for index in range(4):
        np.save(f"floats/f{index}.npy", make_maps(index)[1] * np.float32(1.0001e-3))
    assert leadline(ALL.replace("--depth depth", "--depth floats").replace("--unit mm", "--unit m")).exit_code == 0
    measured, depth = np.load("floats/f2.npy"), np.load("out/f2_depth.npy")
    kept = read_png("out/f2_mask.png") == PixelOrigin.MEASURED
    assert kept.sum() > 50
    np.testing.assert_array_equal(depth[kept], measured[kept])


# ---- inputs


def test_an_rgbd_folder_and_a_folder_with_tums_lists(here: Path) -> None:
    network = "--prior onnx:model.onnx --no-cache"
    assert leadline(f"refine scene --unit mm {network} -o out").exit_code == 0
    assert Path("out/0_depth.png").is_file()
    for name, stems in (("rgb", ("1.00", "2.00", "3.00")), ("depth", ("1.01", "2.015", "3.5"))):
        Path(f"tum/{name}").mkdir(parents=True)
        for index, stem in enumerate(stems):
            image, sparse, _ = make_maps(index)
            picture = image if name == "rgb" else (sparse * 5).astype(np.uint16)
            Image.fromarray(picture).save(f"tum/{name}/{stem}.png")
        text = "# time file\n" + "".join(f"{stem} {name}/{stem}.png\n" for stem in stems)
        Path(f"tum/{name}.txt").write_text(text, encoding="utf-8")
    result = leadline(f"refine tum {network} -o tum-out")
    assert result.exit_code == 0, result.output
    assert "note: 1 of 3 images have no depth within 0.02 s" in result.output
    assert sorted(rows("tum-out")) == ["1.00", "2.00"]
    unit = json.loads(Path("tum-out/1.00.json").read_text(encoding="utf-8"))["units"]
    assert unit["sparse"] == {"unit": "tum", "guessed": False}
    Path("tum/depth.txt").write_text("1.00 ../../photo.jpg\n", encoding="utf-8")
    assert "outside of its folder" in leadline(f"refine tum {network} -o tum-out").output


def test_a_data_set_by_its_name(here: Path) -> None:
    shutil.copytree("scenes/a", "scenes/more/b")
    line = "refine scenes --dataset scenes --prior onnx:model.onnx --no-cache -o out"
    result = leadline(f"{line} --mesh ply")  # with the camera of the scene
    assert result.exit_code == 0, result.output
    assert sorted(rows()) == ["a", "more/b"]
    measured = dataset("scenes", "scenes", listed="all").load("more/b").sparse["tof"].values
    depth = np.load("out/more/b_depth.npy")
    kept = read_png("out/more/b_mask.png") == PixelOrigin.MEASURED
    np.testing.assert_array_equal(depth[kept], measured[kept])
    assert Path("out/a_mesh.ply").is_file()
    assert "0 done, 2 skipped" in leadline(f"{line} --mesh ply").output
    replace_file("scenes/a/sparse.png", read_png("scenes/a/sparse.png") + np.uint16(5))
    assert "a: completed again: the inputs changed (sparse)" in leadline(f"{line} --mesh ply").output
    wrong = leadline(f"{line} --measured lidar")
    assert wrong.exit_code == 1
    assert "--measured: there are no measurements 'lidar'" in wrong.output
    assert "--unit has no effect here: the data set has its own" in leadline(f"{line} --unit mm").output


def test_a_folder_of_clouds(here: Path) -> None:
    Path("clouds").mkdir()
    Path("photos").mkdir()
    for stem in ("a", "b"):
        shutil.copy("sweep.npy", f"clouds/{stem}.npy")
        shutil.copy("photo.jpg", f"photos/{stem}.jpg")
    line = "refine photos --points clouds --camera cam.json --extrinsics T.json --prior none -o out"
    result = leadline(line)
    assert result.exit_code == 0, result.output
    assert int(rows()["b"]["measured"]) > 50


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("refine frames --prior none", "frames: must have one subfolder of images"),
        ("refine missing --prior none", "INPUT missing: there is no such folder"),
        ("refine frames --depth missing --prior none", "missing: there is no such folder"),
        ("refine frames --depth depth --prior prior.npy", "--prior prior.npy: is a file"),
        ("refine frames --depth depth --points depth --prior none", "give one of --depth"),
        ("refine frames --depth depth --prior priors -o depth", "is one of the input folders"),
        ("refine frames --depth depth --prior priors --measured x", "--measured has no effect here"),
        ("refine frames --depth depth --prior priors --address auto", "--address needs --executor ray"),
        ("refine frames --depth depth --prior priors --mesh glb", "--mesh needs a camera"),
        ("refine frames --depth depth --prior priors --min-confidence 1", "--min-confidence has no effect here"),
        ("refine frames --depth depth --prior priors --intrinsics 9,9,9,9", "--intrinsics has no effect here"),
        ("refine frames --depth depth --prior priors --kitti depth", "--kitti has no effect here: it is for --points"),
        ("refine frames --points depth --prior priors", "--unit has no effect here"),
        ("refine frames --depth depth --prior priors --no-edge-filter", "--no-edge-filter is for point clouds"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(line: str, reason: str, here: Path) -> None:
    result = leadline(f"{line} --unit mm" if "missing" not in line else line)
    assert result.exit_code in (1, 2)
    assert reason in result.output


# ---- failures, kills and nodes that are lost: real ones


def test_a_damaged_frame_and_a_missing_file_are_rows_with_their_reason(here: Path) -> None:
    Path("depth/f1.png").write_bytes(Path("depth/f1.png").read_bytes()[:60])
    result = leadline(ALL)
    assert result.exit_code == 1
    assert "3 done, 0 skipped, 1 failed" in result.output
    found = rows()
    assert [found[f"f{index}"]["state"] for index in range(4)] == ["done", "failed", "done", "done"]
    assert "depth/f1.png: cannot be read" in found["f1"]["reason"]
    Path("scenes/c").mkdir()
    shutil.copy("scenes/a/scene.json", "scenes/c/scene.json")
    Path("scenes/c/image.png").symlink_to("nowhere.png")  # listed, and not there when it is read
    result = leadline("refine scenes --dataset scenes --prior none -o out2")
    assert result.exit_code == 1
    assert rows("out2")["a"]["state"] == "done"
    assert "image.png: no such file" in rows("out2")["c"]["reason"]


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True).returncode != 0,
    reason="a small disk needs a mount namespace",
)
def test_a_full_disk_fails_frames_and_the_rest_goes_on_when_there_is_room(here: Path) -> None:
    """The output is a disk of 64 KiB that another file fills; it is emptied in the middle of the run."""
    Path("out").mkdir()
    script = f"""
import os
plain = os.replace
def replace(source, target):
    plain(source, target)
    if os.path.basename(target) == "f0.json":
        with open("out/filler", "wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                pass
os.replace = replace
from leadline.batch import frame
complete = frame.complete_frame
def complete_frame(files, job, **more):
    if files.stem == "f2":
        os.unlink("out/filler")
    return complete(files, job, **more)
frame.complete_frame = complete_frame
from leadline.apps.cli import group
group.main({shlex.split(f"{ALL} --sheet 0")!r}, prog_name="leadline")
"""
    Path("script.py").write_text(script, encoding="utf-8")
    command = f"mount -t tmpfs -o size=64k x out && {sys.executable} script.py; code=$?; cat out/frames.csv; exit $code"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1, done.stderr
    assert "3 done, 0 skipped, 1 failed" in done.stdout
    assert "cannot be written (No space left on device)" in done.stderr
    states = [line.split(",")[:2] for line in done.stdout.splitlines() if line.startswith("f")]
    assert ["f1", "failed"] in states
    assert ["f3", "done"] in states


def test_a_sheet_that_cannot_be_written_leaves_the_frames_and_the_table(here: Path) -> None:
    Path("out/contact_sheet.png").mkdir(parents=True)
    result = leadline(ALL)
    assert result.exit_code == 1
    assert "4 done, 0 skipped, 0 failed" in result.output
    assert "error: out/contact_sheet.png: cannot be written" in result.output
    assert "wrote out/frames.csv" in result.output
    assert {row["state"] for row in rows().values()} == {"done"}


def test_killed_and_resumed(here: Path) -> None:
    Path("script.py").write_text(
        "import os, signal\n"
        "plain = os.replace\n"
        "def replace(source, target):\n"
        "    if os.path.basename(target) == 'f2_mask.png':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    plain(source, target)\n"
        "os.replace = replace\n"
        "from leadline.apps.cli import main\n"
        "main()\n",
        encoding="utf-8",
    )
    assert run(ALL, "script.py").returncode == -signal.SIGKILL
    assert sorted(path.name for path in Path("out").glob("*.json")) == ["f0.json", "f1.json"]
    before = Path("out/f0.json").stat().st_mtime_ns
    resumed = run(f"{ALL} --jobs 2")
    assert resumed.returncode == 0, resumed.stderr
    assert "2 done, 2 skipped, 0 failed" in resumed.stdout
    assert Path("out/f0.json").stat().st_mtime_ns == before
    assert {row["state"] for row in rows().values()} == {"done", "skipped"}
    assert all(row["measured"] for row in rows().values())


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'leadline[ray]')"
)
def test_ray_with_two_nodes_one_of_them_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_frame(here, "f4", 4)
    (here / "doomed").write_text("", encoding="utf-8")
    monkeypatch.setenv(bench_methods.DOOMED, str(here / "doomed"))
    command = [sys.executable, str(HERE / "ray_cluster.py"), *shlex.split(f"{ALL} --jobs 2")]
    done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "5 done, 0 skipped, 0 failed" in done.stdout
    printed = done.stdout.splitlines()  # Ray reports the lost node at any time, also between these two
    assert {"exit code 0", "nodes alive 1"} <= {*printed}
    assert "lost FrameFiles" in done.stderr  # a frame was in flight on the node, and was done again
    assert {row["state"] for row in rows().values()} == {"done"}
    assert leadline(ALL.replace("-o out", "-o serial")).exit_code == 0
    names = ("f0_depth.png", "f4_depth.png", "f4_mask.png", "contact_sheet.png", "frames.csv")
    for name in names:
        assert Path("out", name).read_bytes() == Path("serial", name).read_bytes()
