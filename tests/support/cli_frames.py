"""Frames and ways to run the command, for the tests of the command line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

from leadline.apps import cli
from support.onnx_model import write_onnx

SHAPE = (24, 32)
PATIENCE = 300.0  # seconds until a subprocess counts as hung: no test passes or fails by being quicker
SOURCES = str(Path(cli.__file__).parents[2])


def make_maps(seed: int, shape: tuple[int, int] = SHAPE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A picture, 16-bit measurements in mm and a prior that bends depth by a power."""
    generator = np.random.default_rng(seed)
    rows, columns = np.indices(shape)
    depth = 2 + 0.05 * columns + 0.03 * rows + 0.01 * seed
    depth += 0.5 * ((columns - shape[1] / 2) ** 2 + (rows - shape[0] / 2) ** 2 < 36)
    sparse = np.where(generator.random(shape) < 0.1, np.rint(depth * 1000), 0).astype(np.uint16)
    image = generator.integers(0, 256, (*shape, 3), dtype=np.uint8)
    return image, sparse, (depth**1.3 / 7).astype(np.float32)


def write_frame(folder: Path, stem: str, seed: int) -> None:
    image, sparse, prior = make_maps(seed)
    for name in ("frames", "depth", "priors"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / "frames" / f"{stem}.png")
    Image.fromarray(sparse).save(folder / "depth" / f"{stem}.png")
    np.save(folder / "priors" / f"{stem}.npy", prior)


def prepare() -> None:
    """Fill the working folder with the files that the examples in the help name."""
    image, sparse, prior = make_maps(0)
    Image.fromarray(image).save("photo.jpg")
    Image.fromarray(sparse).save("lidar.png")
    np.save("prior.npy", prior)
    np.save("disparity.npy", 1 / prior)
    camera = {"width": SHAPE[1], "height": SHAPE[0], "fx": 30.0, "fy": 31.0, "cx": 15.5, "cy": 11.5}
    Path("cam.json").write_text(json.dumps(camera), encoding="utf-8")
    # The measurements again, as a cloud whose axes are a LiDAR's, and as a smaller map with levels of confidence.
    rows, columns = np.nonzero(sparse)
    depth = sparse[rows, columns] * 1e-3
    seen = np.stack(((columns - 15.5) * depth / 30.0, (rows - 11.5) * depth / 31.0, depth), axis=1)
    np.save("sweep.npy", seen[:, [2, 0, 1]] * (1, -1, -1))
    Path("T.json").write_text(json.dumps([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]]), encoding="utf-8")
    low = make_maps(0, (12, 16))[1]
    Image.fromarray(low).save("tof.png")
    Image.fromarray((np.arange(low.size).reshape(low.shape) % 3).astype(np.uint8)).save("levels.png")
    write_onnx(Path("model.onnx"))
    # The same photo as an RGB-D folder, and as a scene folder of a data set.
    for folder in ("scene/rgb", "scene/depth", "scenes/a"):
        Path(folder).mkdir(parents=True)
    for picture, measured in (("scene/rgb/0.png", "scene/depth/0.png"), ("scenes/a/image.png", "scenes/a/sparse.png")):
        Image.fromarray(image).save(picture)
        Image.fromarray(sparse).save(measured)
    entry = {"name": "tof", "file": "sparse.png", "key": None, "metres_per_unit": 1e-3, "invalid": [0]}
    scene = {"image": "image.png", "reference": None, "sparse": [entry], "intrinsics": camera}
    Path("scenes/a/scene.json").write_text(json.dumps(scene), encoding="utf-8")
    # And as a sequence of 7-Scenes, of one frame.
    Path("seq-01").mkdir()
    Image.fromarray(image).save("seq-01/frame-0.color.png")
    Image.fromarray(sparse).save("seq-01/frame-0.depth.png")
    np.savetxt("seq-01/frame-0.pose.txt", np.eye(4))
    Path("seq-01/camera.json").write_text(json.dumps(camera), encoding="utf-8")
    for index in range(4):
        write_frame(Path(), f"f{index}", index)


def leadline(line: str) -> Result:
    """Run a command line in this process; anything but an exit is raised."""
    result = CliRunner().invoke(cli.group, shlex.split(line), prog_name="leadline")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def done(line: str) -> str:
    """The output of a command that succeeds."""
    result = leadline(line)
    assert result.exit_code == 0, result.output
    return result.output


def refused(line: str) -> str:
    """The one line with which a command is refused; notes may come before it."""
    result = leadline(line)
    assert result.exit_code == 2, result.output
    (message,) = [text for text in result.output.splitlines() if not text.startswith("note:")]
    assert message.startswith("error: ")
    return message


ONE = "complete photo.jpg --sparse lidar.png --prior prior.npy -o out"
ALL = "complete frames --sparse depth --prior priors --unit mm -o out"


def replace_file(path: str, values: np.ndarray) -> None:
    if path.endswith(".npy"):
        np.save(path, values)
    else:
        Image.fromarray(values).save(path)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}


def run(line: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, *(["-m", "leadline"] if script is None else [script])]
    return subprocess.run(
        start + shlex.split(line), env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
