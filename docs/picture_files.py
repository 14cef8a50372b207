"""What the scripts that make pictures share: a folder to work in, the command line, and files of a limited size."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from leadline.apps.cli import group
from leadline.base.arrays import FloatArray
from leadline.datasets import Scene
from leadline.datasets.rendered import network_like_prior
from leadline.geometry.cameras import Camera
from leadline.io.cameras import camera_record

IMAGES = Path(__file__).parent / "images"
WIDEST = 1400  # pixels
LARGEST = 150_000  # bytes of a picture
LARGER = {"demo": 230_000}  # the first picture of the README

Pictures = Mapping[str, Image.Image]


def run_command(line: str) -> None:
    """Run a command in this process; its errors are raised."""
    group.main(line.split(), prog_name="leadline", standalone_mode=False)


@contextlib.contextmanager
def working_folder() -> Iterator[None]:
    """An empty folder as the current one."""
    start = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        try:
            yield
        finally:
            os.chdir(start)


def write_scene(scene: Scene) -> tuple[FloatArray, Camera]:
    """Write image, prior and camera of a rendered scene into the current folder, and return its depth and camera."""
    assert scene.reference is not None
    assert isinstance(scene.camera, Camera)
    Image.fromarray(scene.image).save("photo.png")
    np.save("prior.npy", network_like_prior(scene.reference))
    Path("cam.json").write_text(json.dumps(camera_record(scene.camera)), encoding="utf-8")
    return scene.reference, scene.camera


def output_folder(arguments: Sequence[str]) -> Path:
    """The folder that a command line names, else docs/images."""
    return Path(arguments[0] if arguments else IMAGES).resolve()


def draw_pictures(makers: Iterable[Callable[[], Pictures]], folder: Path) -> None:
    """Save what each function returns, each run in an empty folder of its own."""
    for make in makers:
        with working_folder():
            for name, picture in make().items():
                save(picture, folder / f"{name}.jpg")
                sys.stdout.write(f"wrote {folder / name}.jpg\n")
                sys.stdout.flush()


def save(picture: Image.Image, path: Path) -> None:
    """Save a picture as JPEG, at most `WIDEST` pixels wide, in the best quality that is small enough."""
    if picture.width > WIDEST:
        height = round(picture.height * WIDEST / picture.width)
        picture = picture.resize((WIDEST, height), Image.Resampling.LANCZOS)
    for quality in (88, 80, 70, 60):
        picture.save(path, "JPEG", quality=quality, optimize=True)
        if path.stat().st_size <= LARGER.get(path.stem, LARGEST):
            return
    raise ValueError(f"{path} has {path.stat().st_size} bytes")
