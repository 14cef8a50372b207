"""ETH3D with its points of structure from motion, as OMNI-DC prepares it, at 640x480.

The layout is that of `leadline.datasets.eth3d`, with ``points3D.txt`` in the calibration. The middle 5120x3840 of an
image are reduced by a factor of 8: colours with Pillow's bilinear filter, depth as the mean of the valid pixels of each
8x8 block. Each image has as stored measurements ``sfm`` the reconstructed points that it observes, projected into it;
where several fall into one pixel, the last of the image's list stays, as in OMNI-DC, whatever its depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, require_choice
from leadline.datasets import Scene, SparseInput, loading
from leadline.datasets.downsampling import resize_as_pillow
from leadline.datasets.eth3d import Eth3d
from leadline.geometry.cameras import ColmapCamera
from leadline.io.files import read_text, reading

Part = Literal["all", "indoor", "outdoor"]
Split = Literal["all", "test", "val"]

# OMNI-DC's split of the training scenes.
SCENES: dict[tuple[str, str], tuple[str, ...]] = {
    ("indoor", "val"): ("office",),
    ("indoor", "test"): ("delivery_area", "kicker", "pipes", "relief", "relief_2", "terrains"),
    ("outdoor", "val"): ("courtyard",),
    ("outdoor", "test"): ("electro", "facade", "meadow", "playground", "terrace"),
}
FACTOR = 8
SIZE = (640, 480)
_MIN_DEPTH_M = 1e-5


@dataclass(frozen=True)
class Eth3dSfm:
    """The images of the chosen scenes in a folder. The name of an image is ``<scene>/<stem>``."""

    name = "eth3d-sfm"
    root: Path  # the folder with the scenes, or with rgb and depth
    part: Part = "all"
    split: Split = "test"
    size: tuple[int, int] = SIZE  # (width, height); the middle, FACTOR times as large, is reduced to it
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        require_choice("part", self.part, Part)
        require_choice("split", self.split, Split)
        loading.require_positive_or_none(max_depth=self.max_depth)
        object.__setattr__(self, "size", loading.require_size(self.size) or SIZE)

    @property
    def _images(self) -> Eth3d:
        return Eth3d(self.root, size=None)

    def names(self) -> list[str]:
        wanted = {
            scene
            for (part, split), scenes in SCENES.items()
            if self.part in ("all", part) and self.split in ("all", split)
            for scene in scenes
        }
        names = [name for name in self._images.names() if name.partition("/")[0] in wanted]
        return loading.require_images(names, self.root, f"one of the scenes {', '.join(sorted(wanted))}")

    def files(self, name: str) -> list[Path]:
        paths = self._images.files(name)
        return [*paths, paths[-1].with_name("points3D.txt")]

    def load(self, name: str) -> Scene:
        image_file, _, _, images, points = self.files(name)
        image, raw, lens = self._images.read(name)
        width, height = self.size
        top, left = (round((given - FACTOR * side) / 2) for given, side in zip(raw.shape, (height, width), strict=True))
        if top < 0 or left < 0:
            raise FileError(f"{image_file}: is {raw.shape[1]}x{raw.shape[0]}, too small for {FACTOR} x {self.size}.")
        inside = slice(top, top + FACTOR * height), slice(left, left + FACTOR * width)
        fx, fy, cx, cy, *distortion = lens.with_two_focal_lengths().params
        params = (fx, fy, cx - left, cy - top, *distortion)
        cropped = ColmapCamera(lens.with_two_focal_lengths().model, FACTOR * width, FACTOR * height, params)
        camera = cropped.scaled(width, height)
        state = tuple(map(loading.file_state, (images, points)))
        seen, pose = _observed(images, points, image_file.name, state)
        sparse = _last_of_pixel(camera, seen @ pose[:, :3].T + pose[:, 3], (height, width))
        return Scene(
            name,
            resize_as_pillow(np.ascontiguousarray(image[inside]), (height, width), "bilinear"),
            loading.clean_reference(_block_means(raw[inside]), self.max_depth),
            camera.pinhole() or camera.rays(),
            {"sfm": SparseInput(sparse, "structure from motion")},
        )


def _block_means(depth: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean of the valid pixels of each block; NaN where a block has none."""
    valid = np.isfinite(depth) & (depth > _MIN_DEPTH_M)
    shape = (depth.shape[0] // FACTOR, FACTOR, depth.shape[1] // FACTOR, FACTOR)
    total = np.where(valid, depth, 0).reshape(shape).sum(axis=(1, 3), dtype=np.float64)
    count = valid.reshape(shape).sum(axis=(1, 3))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _last_of_pixel(camera: ColmapCamera, points: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.float32]:
    sparse = np.full(shape, np.nan, np.float32)
    points = points[points[:, 2] > 0]
    pixels = np.floor(camera.project(points) + 0.5)
    with np.errstate(invalid="ignore"):
        inside = ((pixels >= 0) & (pixels < shape[::-1])).all(axis=1)  # false for NaN
    for (column, row), depth in zip(pixels[inside].astype(np.intp), points[inside, 2], strict=True):
        sparse[row, column] = depth
    return sparse


def _observed(
    images: Path, points: Path, image: str, state: tuple[tuple[str, int, int], ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points that an image observes, (N, 3) in the order of its list, and its pose, (3, 4)."""
    table, positions = _read_images(images, state[0]), _read_positions(points, state[1])
    if image not in table:
        raise FileError(f"{images}: does not list dslr_images/{image}. Another scene's?")
    pose, ids = table[image]
    missing = [number for number in ids if number not in positions]
    if missing:
        raise FileError(f"{points}: has no point {missing[0]}, which {images.name} lists for {image}.")
    return np.array([positions[number] for number in ids]).reshape(-1, 3), pose


@lru_cache(maxsize=2)
def _read_images(file: Path, state: tuple[str, int, int]) -> dict[str, tuple[NDArray[np.float64], list[int]]]:
    """The pose and the ids of the observed points of each image, by its file name."""
    from scipy.spatial.transform import Rotation

    lines = [line for line in read_text(file, "images of a COLMAP model").splitlines() if not line.startswith("#")]
    table = {}
    with reading(file, "images of a COLMAP model"):
        for head, features in zip(lines[::2], lines[1::2], strict=False):
            _, w, x, y, z, *translation = head.split()[:8]
            turned = Rotation.from_quat([float(x), float(y), float(z), float(w)]).as_matrix()
            pose = np.column_stack((turned, [float(number) for number in translation]))
            # COLMAP numbers points from 1; -1 is a feature without a point.
            ids = [number for number in map(int, features.split()[2::3]) if number > 0]
            table[head.split()[9].rpartition("/")[2]] = pose, ids
    return table


@lru_cache(maxsize=2)
def _read_positions(file: Path, state: tuple[str, int, int]) -> dict[int, tuple[float, ...]]:
    lines = read_text(file, "points of a COLMAP model").splitlines()
    with reading(file, "points of a COLMAP model"):
        rows = [line.split(maxsplit=4)[:4] for line in lines if line.strip() and not line.startswith("#")]
        return {int(row[0]): tuple(float(number) for number in row[1:]) for row in rows}
